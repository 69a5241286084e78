// The ring: the order of a topic and its history.
//
// Entry `sequence % ring` holds {48 bits of the sequence, 16 bits of the slot}. Publishing sample h+1 is one
// exchange of the entry at h+1 from its last lap's word (sequence h+1-ring, or empty) to {h+1, slot}. Before
// it the sample does not exist; after it, it is delivered to everyone. The head is moved afterwards by
// any publisher that comes by, so it is behind the ring by one at most, and a head h counts only if the entry of h+1
// still has its last lap's word. Tags are compared for equality only; a tag that is neither this lap's nor
// the last lap's, while the head stands still, cannot be made by Hawser.
#pragma once

#include "canary.hpp"
#include "layout.hpp"

namespace hawser {

constexpr uint32_t kNoSlot = 0xffff;
constexpr uint64_t kEmptyRingWord = kNoSlot;
constexpr uint64_t kTagMask = (uint64_t{1} << 48) - 1;

constexpr uint64_t ring_word(uint64_t sequence, uint32_t slot) { return sequence << 16 | slot; }
constexpr uint64_t ring_tag(uint64_t word) { return word >> 16; }
constexpr uint32_t ring_slot(uint64_t word) { return static_cast<uint32_t>(word & 0xffff); }
constexpr uint64_t tag_of(uint64_t sequence) { return sequence & kTagMask; }
constexpr uint64_t last_lap_tag(uint64_t sequence, uint32_t ring) {
  return sequence > ring ? tag_of(sequence - ring) : 0;
}
// Whether the entry of `sequence` still has its last lap's word: exactly the empty one in the first lap.
constexpr bool is_of_last_lap(uint64_t word, uint64_t sequence, uint32_t ring) {
  return sequence > ring ? ring_tag(word) == tag_of(sequence - ring) : word == kEmptyRingWord;
}
// The sequence with this tag that is nearest to `near`.
constexpr uint64_t sequence_of(uint64_t tag, uint64_t near) {
  const auto distance = static_cast<int64_t>((tag - near) << 16) >> 16;
  return near + static_cast<uint64_t>(distance);
}

// The place for the next sample: the head it follows, its entry of the ring, and the word it replaces there.
struct Place {
  uint64_t head;
  Word& entry;
  uint64_t word;
};

// Whether a word of the ring delivers sample `sequence`: the slot it names says so, too.
inline bool delivers(const Memory& memory, uint64_t word, uint64_t sequence) {
  return ring_tag(word) == tag_of(sequence) && ring_slot(word) < memory.layout.slots &&
         memory.slot(ring_slot(word)).sequence.load_relaxed() == sequence;
}

// Whether the ring carries sample `head`, as it must while that is the head. Only the slot can tell heads
// apart that have the same tag, and no ring gets that far.
inline bool carries_head(const Memory& memory, uint64_t head) {
  if (head == 0) return true;
  const uint64_t word = memory.ring(head).load_ordered();
  return head > kTagMask ? delivers(memory, word, head) : ring_tag(word) == tag_of(head);
}

// A head that counts, and the word at the entry after it. Helps where a publisher was held up.
inline Place next_place(const Memory& memory) {
  for (;;) {
    const uint64_t head = memory.head().load_ordered();      // pairs with the head's exchange
    Word& entry = memory.ring(head + 1);
    const uint64_t word = entry.load_ordered();  // pairs with the ring's exchange
    if (is_of_last_lap(word, head + 1, memory.layout.ring)) {
      if (carries_head(memory, head)) [[likely]] return {head, entry, word};
    } else if (delivers(memory, word, head + 1)) {
      if (planted(Canary::head_is_never_helped)) continue;
      memory.head().exchange_if(head, head + 1);
      continue;
    }
    if (memory.head().load_ordered() == head && entry.load_ordered() == word) {
      memory.corrupt("ring entry " + std::to_string(memory.layout.position(head + 1)) + " does not belong to head " +
                     std::to_string(head));
    }
  }
}

// Entries of the ring one after the other, without computing where each of them is.
class RingWalk {
 public:
  RingWalk(const Memory& memory, uint64_t sequence)
      : first_(&memory.ring(0)), end_(first_ + memory.layout.ring), entry_(&memory.ring(sequence)) {}
  Word& entry() const { return *entry_; }
  void step() {
    if (++entry_ == end_) entry_ = first_;
  }

 private:
  Word* const first_;
  Word* const end_;
  Word* entry_;
};

// Oldest sequence the ring still carries when the head is `head`; head + 1 when there is none.
inline uint64_t oldest_after(uint64_t head, uint32_t ring) { return head > ring ? head - ring + 1 : 1; }

}  // namespace hawser
