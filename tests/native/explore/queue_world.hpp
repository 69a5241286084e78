// What must hold in a queue whenever anybody has made a step, and at the end: nothing put is lost, nothing is accepted
// twice, bytes stay as long as somebody reads them, and the last consumer gets what is left, the oldest first.
#pragma once

#include "world.hpp"

namespace exploring {

inline void World::watch_claims() {
  for (uint32_t i = 0; i < memory_.layout.slots; i++) {
    const uint64_t claim = memory_.claim(i).load_ordered();
    if (claim_state(claim) == ClaimState::done && claim_tag(claim) != 0) truth_.done[claim_tag(claim)] = 1;
  }
}

// The ring carries it for its first consumer, or its slot has a claim that is not done.
inline bool World::is_kept(uint64_t sequence) const {
  for (uint32_t i = 0; i < memory_.layout.slots; i++) {
    const uint64_t claim = memory_.claim(i).load_ordered();
    if (claim_tag(claim) != sequence || !is_message(memory_, i, claim)) continue;
    if (value_in(i) != truth_.values[sequence] || word_in(i, 1) != truth_.values[sequence])
      throw Violation{"the payload of a message that is not done changed"};
    return true;
  }
  return false;
}

inline void World::check_messages() const {
  for (uint64_t i = 1; i <= truth_.published; i++)
    if (!truth_.done[i] && !is_kept(i)) throw Violation{"a message was lost"};
}

inline void World::check_consumer(const Process& process) const {
  for (uint32_t i = 0; i < process.held_count; i++) {
    const Held& held = process.held[i];
    const auto slot = static_cast<uint32_t>(held.slot);
    const bool has_bit = memory_.references(slot, 0).load_ordered() >> process.consumer->bit() & 1;
    if (memory_.layout.settings.lease_ns != 0 && !has_bit) throw Violation{"the bit of a living consumer was cleared"};
    if (value_in(slot) != truth_.values[held.sequence] || word_in(slot, 1) != truth_.values[held.sequence])
      throw Violation{"a payload changed while it was held"};
    if (memory_.layout.settings.lease_ns == 0 && memory_.claim(slot).load_ordered() != held.claim)
      throw Violation{"the claim of a living consumer was taken"};
  }
}

// Everybody who lives gives back what it holds; one consumer that comes last accepts all, a producer fills the queue
// again, and every message was accepted once.
inline void World::end_queue() {
  uint32_t lent = 0;
  for (auto& process : processes_) {
    lent += !process.dead && process.publisher && process.lent != kNoSlotLent;
    for (uint32_t i = 0; i < process.held_count && !process.dead; i++) {
      Claimed claimed{};
      claimed.slot = static_cast<uint32_t>(process.held[i].slot);
      claimed.claim = process.held[i].claim;
      process.consumer->release(claimed);
      if (!process.consumer->let_go(claimed.slot)) throw Violation{"a bit was gone before its message was let go of"};
    }
    process.held_count = 0;
  }
  const auto consumer = join_as_consumer(*region_, "last");
  const auto producer = join_as_publisher(*region_, "last", false);
  Mover mover(*consumer, region_->number(), *producer, ClaimState::burying);
  mover.move(UINT64_MAX, [](const Taken&, uint64_t, const std::string&) { return Description{true, ""}; });
  for (uint64_t i = 0, more = 2 * memory_.layout.ring + 1; i <= more; i++) {
    watch();
    Claimed claimed{};
    for (uint64_t before = 0; consumer->try_claim(claimed); before = claimed.sequence) {
      if (claimed.sequence <= before) throw Violation{"messages came in another order"};
      if (value_in(claimed.slot) != truth_.values[claimed.sequence]) throw Violation{"a wrong payload was claimed"};
      if (!consumer->accept(claimed)) throw Violation{"the claim of the last consumer was taken"};
      count_accepted(claimed.sequence);
      consumer->let_go(claimed.slot);
      consumer->settle();
    }
    watch();
    check();
    if (view_queue(memory_).ready != 0) throw Violation{"a message is ready and nobody gets it"};
    const uint32_t slot = i < more ? producer->borrow(kPayloadBytes, 1) : kNoSlot;
    for (uint32_t half = 0; half < 2 && i < more; half++) write(slot, half, (uint64_t{9} << 32) + i + 1);
    if (i < more && producer->try_publish(slot, kPayloadBytes, 0) == 0) throw Violation{"an empty queue is full"};
    if (i < more) producer->put_back(slot);
  }
  for (uint64_t i = 1; i <= truth_.published; i++) {
    if (!truth_.done[i]) throw Violation{"a message stays for ever"};
    for (uint64_t k = i + 1; k <= truth_.published; k++)
      if (truth_.values[i] == truth_.values[k] && truth_.accepted[i] + truth_.accepted[k] > 1)
        throw Violation{"a message was moved twice"};
  }
  consumer->close();
  producer->close();
  const SlotCounts counts = count_slots(memory_);
  if (counts.leaked != 0 || counts.lent != lent || counts.referenced != 0 || counts.kept != 0)
    throw Violation{"a slot was not given back"};
}

}  // namespace exploring
