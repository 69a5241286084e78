// Planted bugs. Each attack in tests/ runs once more with one of these and must then fail: an attack that cannot
// see its planted bug proves nothing. Only a build with HAWSER_CANARIES has them, and is told at its start which one
// to have, by the number in the variable HAWSER_CANARY; in every other build `canary` is `none` and costs nothing.
#pragma once

#ifdef HAWSER_CANARIES
#include <cstdlib>
#endif

namespace hawser {

enum class Canary {
  none,
  take_without_second_look,    // the ring word is not read again after the bit is set
  copy_without_second_look,    // nor after a copy that was made without a bit
  references_before_ring,      // borrow looks at the bits first, then at the ring
  idle_before_publish,         // the slot is given up before the ring carries it
  head_is_never_helped,        // no publisher moves a head that a dead one left behind
  recovery_keeps_loans,        // slots lent by the dead stay lent
  recovery_keeps_bits,         // bits of the dead stay set
  recovery_takes_all_loans,    // slots lent by the living are taken back, too
  death_counted_twice,         // a second recovery counts the dead again
  counts_start_anew,           // a joiner forgets what those before it have counted
  entry_freed_before_bits,     // the entry can be joined again while its bits are being cleared
  join_without_second_look,    // a reliable subscriber believes the head it saw before it was active
  misses_are_not_counted,      // a lapped subscriber forgets how far it jumped
  others_are_put_back,         // the sample taken last is taken again, even if another has it
  lengths_are_not_checked,     // what the control region says is believed
  lent_without_backing,        // pages are not reserved before a slot is lent
  joins_are_not_noticed,       // a publisher trusts the cursors it knew before a join
  removed_while_open,          // the file is removed without asking whether others have it open
  sleep_without_flag,          // a waiter sleeps without telling publishers
  claim_without_bit,           // a consumer claims first and sets its bit afterwards
  unclaimed_positions_are_reused,  // a message is overwritten in the ring before anybody had it
  undone_slots_are_lent,       // a slot is lent though its message is not done
  accept_by_store,             // who accepts does not look whether the claim is still its own
  claims_outlive_their_owner,  // recovery leaves the claims of the dead
  claims_of_the_living_return,  // recovery gives back claims of every consumer
  claimed_ones_are_not_passed,  // a consumer waits behind a message that another one has claimed
  release_without_hint,        // giving a message back wakes no consumer
  moved_without_pin,           // nothing says later whether a letter had arrived
  lease_of_the_moment,         // a claim is taken over however short ago it was made
  reserved_ones_are_counted,   // messages die of their deliveries to a consumer that has the queue for itself
  read_on_without_bit,         // who reads a message beyond its claim says so when that has ended
  runs_wait_for_nobody,        // publishing many overwrites messages that are still wanted
  runs_claim_again,            // claiming many claims what another one has
  trace_without_check,         // a reader of the trace believes a record that has the right position
  trace_after_the_fact,        // a position of the trace is taken when the thing has happened
};

#ifdef HAWSER_CANARIES
inline Canary told_canary() {
  const char* number = std::getenv("HAWSER_CANARY");
  return static_cast<Canary>(number ? std::atoi(number) : 0);
}
inline const Canary canary = told_canary();
inline bool planted(Canary bug) { return canary == bug; }
#else
inline constexpr Canary canary = Canary::none;
constexpr bool planted(Canary bug) { return canary == bug; }
#endif

}  // namespace hawser
