// Moving a message to another queue: a dying one to the dead letters, a letter back to where it came from.
//
// Two regions have two words, so a mover can be killed with the message in both or in neither. What decides it is a
// pin in the slot that the message gets over there: the slot says where it comes from, and is not lent again while it
// is pinned, whatever becomes of the message there.
//
//   1. claim it at home, burying or reviving;
//   2. if it was found doomed or astray, another mover may have moved it before: look for its pin over there. Published:
//      go to 5. Not published, and never will be: take the pin away;
//   3. over there: borrow a slot, write the message, its origin, then the pin;
//   4. publish it;
//   5. at home: done;
//   6. take the pin away, give the slot back.
//
// A mover that dies before 5 leaves the message doomed or astray at home, by recovery, so that the next mover
// looks for the pin. No consumer takes such a message, and no lease ends a move: one mover at a time, until it is
// done or dead. One that dies between 5 and 6 leaves a pin for a message that is done; the next move from the same
// queue takes it away. Where that queue was deleted, the mover of any queue's dead letters does: it reads whose pins there
// are, then which regions exist, and takes away those of the others. Who still moves out of a deleted region relies on
// no pin: a message that may have been moved before stays where it is.
#pragma once

#include "consumer.hpp"
#include "publisher.hpp"

namespace hawser {

// How a message that moves is described over there, or that it is to stay where it is.
struct Description {
  bool wanted;
  std::string metadata;
};

// Of this message alone: who was stopped before it took a pin away does not take that of the slot's next message.
inline uint64_t pin_of(uint64_t region, uint64_t sequence) { return mix(region, sequence) | 1; }

// The numbers of the regions that the pins here are for messages of, each once.
inline std::vector<uint64_t> pinning_regions(const Memory& memory) {
  std::vector<uint64_t> regions;
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    if (memory.origin(i).pin.load_ordered() == 0) continue;  // pairs with put's store
    const uint64_t region = memory.origin(i).region.load_relaxed();
    if (std::find(regions.begin(), regions.end(), region) == regions.end()) regions.push_back(region);
  }
  return regions;
}

// Take away the pins for messages of a region that was deleted; how many there were.
inline uint32_t take_pins_of(const Memory& memory, uint64_t region) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    Origin& origin = memory.origin(i);
    const uint64_t pin = origin.pin.load_ordered();  // pairs with put's store
    if (pin == 0 || origin.region.load_relaxed() != region || pin != pin_of(region, origin.sequence.load_relaxed())) continue;
    taken += origin.pin.exchange_if(pin, 0);
  }
  return taken;
}

class Mover {
 public:
  // `home` is what the pins over there call the consumer's region.
  Mover(Consumer& consumer, uint64_t home, Publisher& publisher, ClaimState moving)
      : consumer_(consumer),
        publisher_(publisher),
        here_(consumer.memory()),
        there_(publisher.memory()),
        home_(home),
        moving_(moving) {}

  uint64_t moved() const { return moved_; }
  uint64_t too_large() const { return too_large_; }  // left where they are, because they do not fit over there
  bool full() const { return full_; }                // there is more to move, and no room over there

  // Up to `count`, the oldest first; stops when the other queue is full. `describe(taken, claim, metadata)` gives
  // the Description of each, from its metadata here.
  template <class Describe>
  void move(uint64_t count, const Describe& describe) {
    take_finished_pins(0);
    for (const Candidate& found : candidates()) {
      if (moved_ == count) break;
      Claimed claimed{};
      if (!consumer_.describe(found, claimed)) continue;
      const std::string metadata = metadata_of(claimed);
      if (here_.claim(found.slot).load_ordered() != found.word) continue;  // it has gone, and its bytes with it
      Description description = describe(claimed, found.word, metadata);
      if (!description.wanted || !fits(claimed, metadata, description)) continue;
      if (consumer_.claim_to_move(found, moving_, claimed) && !move_one(found, claimed, description.metadata)) break;
    }
    if (moved_ == 0) return;
    publisher_.wake_subscribers();
    consumer_.wake_producers(static_cast<uint32_t>(moved_));
  }

 private:
  // What may be moved now, the oldest first.
  std::vector<Candidate> candidates() const {
    std::vector<Candidate> found;
    for (uint32_t i = 0; i < here_.layout.slots; i++) {
      const uint64_t word = here_.claim(i).load_ordered();
      const uint64_t sequence = here_.slot(i).sequence.load_relaxed();
      if (may_move(i, word) && claim_tag(word) == claim_tag_of(sequence)) found.push_back({sequence, i, word});
    }
    std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.sequence < b.sequence; });
    return found;
  }
  bool may_move(uint32_t slot, uint64_t word) const {
    const ClaimState state = claim_state(word);
    if (moving_ == ClaimState::burying) return state == ClaimState::doomed;
    return state == ClaimState::astray || state == ClaimState::ready || (state == ClaimState::fresh && carried(here_, slot));
  }

  // Counts only if the claim is the same afterwards.
  std::string metadata_of(const Taken& taken) const {
    std::string bytes(taken.metadata, '\0');
    copy_racing(bytes.data(), here_.readable + here_.payload_at(taken.slot) + taken.payload, bytes.size());
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
    return bytes;
  }

  // Over there is less room, perhaps: then the message goes as it is, if it can.
  bool fits(const Taken& taken, const std::string& before, Description& description) {
    const uint64_t room = there_.layout.settings.slot_size;
    if (taken.payload + description.metadata.size() > room) description.metadata = before;
    const bool fitting = taken.payload + description.metadata.size() <= room;
    too_large_ += !fitting;
    return fitting;
  }

  // False: there is no room over there, and the message is at home again.
  bool move_one(const Candidate& found, const Claimed& claimed, const std::string& metadata) {
    const ClaimState before = claim_state(found.word);
    const bool uncertain = before == ClaimState::doomed || before == ClaimState::astray;
    uint32_t slot = uncertain ? take_finished_pins(claimed.sequence) : kNoSlot;
    const bool is_there = slot != kNoSlot && published(slot);
    if (slot != kNoSlot && !is_there) unpin(slot, pin_of(home_, claimed.sequence));
    // After the look for the pin: who takes away the pins of a deleted region has seen that it is closed.
    if (uncertain && !is_there && here_.closed()) return put_back(claimed), false;
    try {
      if (!is_there) slot = put(claimed, metadata);
    } catch (...) {
      put_back(claimed);
      throw;
    }
    if (slot == kNoSlot) return put_back(claimed), full_ = true, false;
    finish(claimed, slot, !is_there);
    return true;
  }

  // Steps 3 and 4: the slot it got, or kNoSlot.
  uint32_t put(const Claimed& claimed, const std::string& metadata) {
    const uint32_t slot = publisher_.try_to_borrow(claimed.payload + metadata.size(), there_.layout.settings.max_loans + 1);
    if (slot == kNoSlot) return kNoSlot;
    there_.slot(slot).sequence.store_relaxed(0);  // so that it names no message while it is pinned and not published
    std::memcpy(publisher_.payload(slot), here_.readable + here_.payload_at(claimed.slot), claimed.payload);
    std::memcpy(publisher_.payload(slot) + claimed.payload, metadata.data(), metadata.size());
    Origin& origin = there_.origin(slot);
    origin.sequence.store_relaxed(claimed.sequence);
    origin.region.store_relaxed(home_);
    if (!planted(Canary::moved_without_pin)) origin.pin.store_ordered(pin_of(home_, claimed.sequence));  // releases the origin
    const auto undo = [&] {
      origin.pin.store_ordered(0);
      publisher_.put_back(slot);
    };
    try {
      if (publisher_.try_publish(slot, claimed.payload, static_cast<uint32_t>(metadata.size()), claimed.timestamp_ns)) return slot;
    } catch (...) {
      undo();
      throw;
    }
    undo();
    return kNoSlot;
  }

  // Steps 5 and 6.
  void finish(const Claimed& claimed, uint32_t slot, bool lent) {
    Witness witness(here_);
    if (here_.claim(claimed.slot).exchange_if(claimed.claim, claim_as(claimed.claim, ClaimState::done))) {
      witness.tell([&] {
        return TraceEvent{TraceKind::moved, claimed.sequence, consumer_.membership().owner(), claimed.timestamp_ns, 0,
                          claim_deliveries(claimed.claim)};
      });
      unpin(slot, pin_of(home_, claimed.sequence));
      moved_++;
    }
    if (lent) publisher_.put_back(slot);
  }

  // It is certainly not over there. No consumer is woken for it: room over there is what it waits for.
  void put_back(const Claimed& claimed) const {
    const ClaimState state = moving_ == ClaimState::burying ? ClaimState::doomed : ClaimState::ready;
    here_.claim(claimed.slot).exchange_if(claimed.claim, claim_as(claimed.claim, state));
    if (moving_ == ClaimState::reviving) announce_returns(here_);
  }

  void unpin(uint32_t slot, uint64_t pin) const { there_.origin(slot).pin.exchange_if(pin, 0); }

  // The slot over there that is pinned for message `sequence` of ours, or kNoSlot. Pins of other messages of ours that
  // are done are taken away on the way.
  uint32_t take_finished_pins(uint64_t sequence) const {
    uint32_t found = kNoSlot;
    for (uint32_t i = 0; i < there_.layout.slots; i++) {
      const uint64_t pin = there_.origin(i).pin.load_ordered();  // pairs with put's store
      const uint64_t origin = there_.origin(i).sequence.load_relaxed();
      if (pin == 0 || there_.origin(i).region.load_relaxed() != home_ || pin != pin_of(home_, origin)) continue;
      if (origin == sequence) {
        found = i;
      } else if (!is_undone(origin)) {
        unpin(i, pin);
      }
    }
    return found;
  }

  bool is_undone(uint64_t sequence) const {
    for (uint32_t i = 0; i < here_.layout.slots; i++) {
      const uint64_t word = here_.claim(i).load_ordered();
      if (here_.slot(i).sequence.load_relaxed() == sequence && claim_tag(word) == claim_tag_of(sequence) &&
          claim_state(word) != ClaimState::done)
        return true;
    }
    return false;
  }

  // Whether a pinned slot's message was delivered over there, and perhaps done: then the ring carries it, or somebody
  // has had it.
  bool published(uint32_t slot) const {
    const uint64_t sequence = there_.slot(slot).sequence.load_ordered();
    if (sequence == 0) return false;
    if (carried(there_, slot)) return true;
    const uint64_t claim = there_.claim(slot).load_ordered();  // after the ring, which lets go only of what was claimed
    return claim_tag(claim) == claim_tag_of(sequence) && claim != fresh_claim(sequence);
  }

  Consumer& consumer_;
  Publisher& publisher_;
  const Memory& here_;
  const Memory& there_;
  const uint64_t home_;
  const ClaimState moving_;
  uint64_t moved_ = 0;
  uint64_t too_large_ = 0;
  bool full_ = false;
};

}  // namespace hawser
