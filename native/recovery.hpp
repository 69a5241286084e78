// Recovery of the dead: by any process, any number of times, killed anywhere.
//
// Mark it dead (active -> dead, so that reliable waits ignore it); set the slots it had lent to idle, give back the
// messages it had claimed; then, under its recovery byte, clear its bits, its waiter and reliable bits, count its
// death, and free its entry. Every step is one idempotent word. Only the last part needs the byte: a recoverer
// stopped there holds up those bits and nothing else. Nothing of any other participant, nor of the same entry's next
// incarnation, is touched, because loans carry the incarnation, claims are given back and bits are cleared only while
// the word says dead.
#pragma once

#include <vector>

#include "claims.hpp"
#include "participants.hpp"

namespace hawser {

struct Recovered {
  uint32_t index;
  uint64_t incarnation;
  std::string name;
  uint64_t pid;
  uint32_t loans = 0;
  uint32_t claims = 0;
  uint32_t references = 0;
  bool complete = false;
};

// The kernel's word on who lives, through a description that holds no participant's byte. Another thread may
// close the descriptor behind our back and its number may come to mean another file: a death is believed, and a
// recovery byte ours, only if the descriptor still leads to the topic.
class FileLiveness {
 public:
  explicit FileLiveness(const Descriptor& descriptor)
      : descriptor_(descriptor), inode_(Inode::of(descriptor)), anchor_(descriptor) {}
  bool alive(uint32_t index) const {
    if (descriptor_.held_elsewhere(byte::life(index))) return true;
    require_same_file();
    return false;
  }
  bool try_recovery(uint32_t index) const {
    const bool locked = descriptor_.try_lock(byte::recovery(index));
    require_same_file();
    return locked;
  }
  void end_recovery(uint32_t index) const { descriptor_.unlock(byte::recovery(index)); }

 private:
  void require_same_file() const {
    if (Inode::of(descriptor_) != inode_)
      throw Error(Kind::unavailable, "a descriptor of the topic was closed while it was in use; try again");
  }
  const Descriptor& descriptor_;
  const Inode inode_;
  const Anchor anchor_;  // keeps a recovery byte until this pass is over, whatever happens to the descriptor
};

inline uint32_t return_loans(const Memory& memory, uint64_t owner) {
  uint32_t returned = 0;
  if (planted(Canary::recovery_keeps_loans)) return 0;
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    Word& state = memory.slot(i).state;
    const uint64_t lent = state.load_relaxed();
    const bool mine = planted(Canary::recovery_takes_all_loans) ? lent != 0 : lent == owner;
    if (mine && state.exchange_if(lent, 0)) returned++;
  }
  return returned;
}

// Give back what a consumer has claimed, of which `entry` was seen; stops when that changes. The claim is read first:
// as long as the entry is still the one that was seen, a claim with its number and the low bits of its incarnation
// is its own. Returns are announced even if there were none: a recoverer killed before us may have found them.
inline uint32_t return_claims(const Memory& memory, uint32_t consumer, uint64_t entry) {
  uint32_t returned = 0;
  if (planted(Canary::claims_outlive_their_owner)) return 0;
  const Word& word = memory.entry(memory.subscriber_entry(consumer)).word;
  const uint64_t owner = claim_owner_bits(claim_signature(consumer, entry_incarnation(entry), ClaimState::claimed));
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    const uint64_t seen = memory.claim(i).load_ordered();
    const bool its_own = claim_owner_bits(seen) == owner || planted(Canary::claims_of_the_living_return);
    if (!is_owned(seen) || !its_own) continue;
    if (word.load_ordered() != entry) break;
    if (try_return(memory, i, owner_word(memory.subscriber_entry(consumer), entry_incarnation(entry)), seen)) returned++;
  }
  announce_returns(memory);
  return returned;
}

inline uint32_t clear_references(const Memory& memory, uint32_t bit) {
  uint32_t cleared = 0;
  if (planted(Canary::recovery_keeps_bits)) return 0;
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    Word& word = memory.references(i, bit / 64);
    const uint64_t mask = uint64_t{1} << bit % 64;
    if (word.load_relaxed() & mask) {
      word.clear_bits(mask);
      cleared++;
    }
  }
  return cleared;
}

inline void forget_sleeper(const Memory& memory, uint32_t index) {
  Header& header = memory.header();
  if (memory.is_publisher(index)) {
    header.space.waiters.clear(index);
    return;
  }
  const uint32_t bit = index - memory.layout.settings.max_publishers;
  header.samples.waiters.clear(bit);
  header.reliable.clear(bit);
}

// Once for each incarnation, however often its recovery is begun.
inline void count_death(Entry& entry, uint64_t incarnation) {
  const uint64_t counted = entry.deaths.load_relaxed();
  const uint64_t next = pack_deaths(incarnation, deaths_of(counted) + 1);
  if (counted >> 32 != next >> 32 || planted(Canary::death_counted_twice)) entry.deaths.store_relaxed(next);
}

// The part under the recovery byte. `dead` is the word that was seen dead.
template <class Liveness>
void finish_recovery(const Memory& memory, const Liveness& liveness, uint64_t dead, Recovered& report) {
  const uint32_t index = report.index;
  if (!liveness.try_recovery(index)) return;
  Entry& entry = memory.entry(index);
  const uint64_t free = entry_word(report.incarnation, EntryState::free);
  if (entry.word.load_ordered() == dead) {
    if (planted(Canary::entry_freed_before_bits)) entry.word.exchange_if(dead, free);
    if (!memory.is_publisher(index))
      report.references = clear_references(memory, index - memory.layout.settings.max_publishers);
    forget_sleeper(memory, index);
    count_death(entry, report.incarnation);
    Witness witness(memory);
    if (entry.word.exchange_if(dead, free))
      witness.tell([&] { return TraceEvent{TraceKind::recover, 0, 0, owner_word(index, report.incarnation)}; });
    report.complete = true;
  }
  liveness.end_recovery(index);
}

// Recover entry `index` if its owner is dead; false when there is nothing to do.
template <class Liveness>
bool recover_entry(const Memory& memory, const Liveness& liveness, uint32_t index, Recovered& report) {
  Entry& entry = memory.entry(index);
  const uint64_t word = entry.word.load_ordered();
  const EntryState state = entry_state(word);
  if (state == EntryState::free) return false;
  if (state != EntryState::active && state != EntryState::dead)
    memory.corrupt("entry " + std::to_string(index) + " has an impossible state");
  if (state == EntryState::active && liveness.alive(index)) return false;
  report = {index, entry_incarnation(word), entry_name(entry), entry.pid.load_relaxed()};
  const uint64_t dead = entry_word(report.incarnation, EntryState::dead);
  // The word again: what was read just now may be the identity of the entry's next owner.
  if (state == EntryState::active ? !entry.word.exchange_if(word, dead) : entry.word.load_ordered() != dead) return false;
  if (memory.is_publisher(index)) report.loans = return_loans(memory, owner_word(index, report.incarnation));
  if (memory.layout.queue && !memory.is_publisher(index))
    report.claims = return_claims(memory, index - memory.layout.settings.max_publishers, dead);
  finish_recovery(memory, liveness, dead, report);
  return true;
}

template <class Liveness>
std::vector<Recovered> recover_all(const Memory& memory, const Liveness& liveness) {
  std::vector<Recovered> done;
  Recovered report{};
  for (uint32_t i = 0; i < memory.layout.entries; i++)
    if (recover_entry(memory, liveness, i, report)) done.push_back(report);
  if (!done.empty()) {
    // A process that waits for one of them, or remembers something of it, looks again; hearing it twice is harmless.
    memory.header().announcement.word.add(1);
    wake_all(memory.header().samples);
    wake_all(memory.header().space);
  }
  return done;
}

}  // namespace hawser
