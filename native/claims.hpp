// The claim: whose a message of a queue is. One word in its slot; everything that can happen to a message is one
// exchange of it.
//
//   {tag: 35 bits of the sequence | deliveries: 10 | incarnation: 8 | consumer: 8 | state: 3}
//
//   fresh     put, and never claimed yet; a message only if the ring carries the slot
//   claimed   by this consumer, for this delivery
//   ready     given back: released, its consumer died, or its lease was over
//   done      accepted, or moved away
//   doomed    to go to the dead letters: it was rejected, or given back after its last delivery; or who was moving it
//             died, so that it may be there already
//   burying   by this consumer: it is moving it to the dead letters
//   reviving  by this consumer: it is moving a dead letter back to its queue
//   astray    who was moving it back died: it may be there already, so only who moves letters to there may have it
//
// A producer writes `fresh` with the sequence before each try to publish, while the slot is lent to it. So a fresh
// claim of sequence s, found in the slot that the ring names for s, is a message that was never claimed: words are
// compared for equality, nothing is ever older or newer. A position of the ring may be used again when its message
// is neither fresh nor ready: from the first claim on its slot carries it, not the ring. A slot may be written when
// its claim is done (or fresh, of a producer that died before it published) and the ring does not carry it.
//
// Deliveries stay at their highest value. The low bits of the incarnation are enough: who returns the claims of the
// dead looks at the entry again in between, and a living owner is the only one with its entry.
//
// Orders: each exchange is sequentially consistent. A claim acquires the payload by the load of the ring word, or of
// the claim that released it; `done` is loaded in order by who borrows, after the ring and before the references
// (tests/models/memory_order.py).
#pragma once

#include "ring.hpp"
#include "trace.hpp"

namespace hawser {

enum class ClaimState : uint64_t { done = 0, fresh = 1, ready = 2, claimed = 3, doomed = 4, burying = 5, reviving = 6, astray = 7 };

constexpr uint32_t kClaimTagShift = 29;
constexpr uint64_t kClaimTagMask = (uint64_t{1} << 35) - 1;

constexpr ClaimState claim_state(uint64_t word) { return static_cast<ClaimState>(word & 7); }
constexpr uint32_t claim_consumer(uint64_t word) { return static_cast<uint32_t>(word >> 3 & 0xff); }
constexpr uint32_t claim_incarnation(uint64_t word) { return static_cast<uint32_t>(word >> 11 & 0xff); }
constexpr uint32_t claim_deliveries(uint64_t word) { return static_cast<uint32_t>(word >> 19 & 0x3ff); }
constexpr uint64_t claim_tag(uint64_t word) { return word >> kClaimTagShift; }
constexpr uint64_t claim_tag_of(uint64_t sequence) { return sequence & kClaimTagMask; }

// Tag and deliveries of `word`, in another state that has no owner.
constexpr uint64_t claim_as(uint64_t word, ClaimState state) {
  return (word & ~((uint64_t{1} << 19) - 1)) | static_cast<uint64_t>(state);
}
// The same with an owner: the low bits of its incarnation, its number among consumers, and the state.
constexpr uint64_t claim_signature(uint32_t consumer, uint64_t incarnation, ClaimState state) {
  return (incarnation & 0xff) << 11 | uint64_t{consumer} << 3 | static_cast<uint64_t>(state);
}
constexpr uint64_t claim_owner_bits(uint64_t word) { return word & (uint64_t{0xffff} << 3); }
constexpr uint64_t fresh_claim(uint64_t sequence) {
  return sequence << kClaimTagShift | static_cast<uint64_t>(ClaimState::fresh);
}
// One delivery more.
constexpr uint64_t delivered_once_more(uint64_t word) {
  return claim_deliveries(word) == kMaxDeliveries ? word : word + (uint64_t{1} << 19);
}
constexpr uint64_t delivered_once_less(uint64_t word) { return word - (uint64_t{1} << 19); }  // of one that was delivered
static_assert(claim_tag(fresh_claim(~uint64_t{0})) == kClaimTagMask && claim_state(0) == ClaimState::done);
static_assert(claim_deliveries(delivered_once_more(fresh_claim(5))) == 1);

constexpr bool is_owned(uint64_t word) {
  const ClaimState state = claim_state(word);
  return state == ClaimState::claimed || state == ClaimState::burying || state == ClaimState::reviving;
}
// What becomes of a claim whose owner gives it back, or is dead: one that was being moved may have arrived, and one
// that has had its last delivery (0: no bound) is not delivered again.
constexpr uint64_t returned_claim(uint64_t word, uint32_t max_deliveries) {
  const ClaimState state = claim_state(word);
  const bool last = max_deliveries != 0 && claim_deliveries(word) >= max_deliveries;
  return claim_as(word, state == ClaimState::burying    ? ClaimState::doomed
                        : state == ClaimState::reviving ? ClaimState::astray
                        : last                          ? ClaimState::doomed
                                                        : ClaimState::ready);
}

// Whether the message of the last lap, at the place for the next one, still waits for its first consumer or for
// another one. While the ring carries a slot its claim is of that message.
inline bool waits_in_ring(const Memory& memory, const Place& place) {
  const uint32_t slot = ring_slot(place.word);
  if (slot >= memory.layout.slots) memory.corrupt("the ring names a slot that does not exist");
  const uint64_t claim = memory.claim(slot).load_ordered();  // pairs with the claim's exchange
  const ClaimState state = claim_state(claim);
  if (claim_tag(claim) != claim_tag_of(ring_tag(place.word))) [[unlikely]] {
    if (place.entry.load_ordered() != place.word) return false;  // another process was faster
    memory.corrupt("ring entry " + std::to_string(memory.layout.position(place.head + 1)) + " names the slot of another message");
  }
  if (planted(Canary::unclaimed_positions_are_reused)) return false;
  return state == ClaimState::fresh || state == ClaimState::ready;
}

// Whether the claim lets another process write the slot, given that the ring does not carry it.
inline bool is_over(uint64_t claim) {
  const ClaimState state = claim_state(claim);
  return state == ClaimState::done || state == ClaimState::fresh || planted(Canary::undone_slots_are_lent);
}

// What has happened, for the trace, when a claim became `word`.
constexpr TraceKind kind_of_change(uint64_t word) {
  switch (claim_state(word)) {
    case ClaimState::claimed: return TraceKind::claim;
    case ClaimState::done: return TraceKind::accept;
    case ClaimState::doomed: return TraceKind::rejected;
    default: return TraceKind::returned;
  }
}

// Give back a claim of `owner` that was seen; false: it has changed meanwhile. The slot's words are read before, because
// they are another process's afterwards. Of a move only its end is traced.
inline bool try_return(const Memory& memory, uint32_t slot, uint64_t owner, uint64_t seen) {
  const uint64_t word = returned_claim(seen, memory.max_deliveries);
  const uint64_t sequence = memory.slot(slot).sequence.load_relaxed(), timestamp = memory.slot(slot).timestamp_ns.load_relaxed();
  if (claim_state(seen) != ClaimState::claimed) return memory.claim(slot).exchange_if(seen, word);
  Witness witness(memory);
  if (!memory.claim(slot).exchange_if(seen, word)) return false;
  witness.tell([&] { return TraceEvent{kind_of_change(word), sequence, owner, timestamp, 0, claim_deliveries(word)}; });
  return true;
}

// After messages were returned: a consumer that searches sees that there may be others than before.
inline void announce_returns(const Memory& memory) {
  if (!planted(Canary::release_without_hint)) memory.header().returns.word.add(1);
}

}  // namespace hawser
