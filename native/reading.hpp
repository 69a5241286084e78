// Reading the history without taking part: copies, by the push counter (seed 4's readOldest and readNewest).
//
// A slot is not borrowed while the ring carries it, so a copy is sound if the ring word is the same before
// and after it. Needs no place among the subscribers and writes nothing.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "slots.hpp"

namespace hawser {

struct Copied {
  uint64_t sequence;
  uint64_t timestamp_ns;
  uint64_t publisher;
  std::string name;  // of the publisher
  std::string payload;
  std::string metadata;
};

// False: what the slot says is not the name of that publisher.
inline bool read_name(const Memory& memory, uint32_t index, uint64_t publisher, std::string& name) {
  char bytes[kNameBytes];
  std::memcpy(bytes, memory.slot(index).name, sizeof bytes);
  name.assign(bytes, strnlen(bytes, sizeof bytes));
  return memory.name_check(index).load_acquire() == hash_bytes(bytes, sizeof bytes, publisher);
}

// What a slot says about sample `sequence`, and its bytes, which may be overwritten meanwhile. False: the slot's words
// do not belong together.
inline bool copy_slot(const Memory& memory, uint32_t index, uint64_t sequence, Copied& copied) {
  const Slot& slot = memory.slot(index);
  const uint64_t lengths = slot.lengths.load_relaxed(), payload = payload_length(lengths);
  const uint32_t metadata = metadata_length(lengths);
  copied.sequence = sequence;
  copied.timestamp_ns = slot.timestamp_ns.load_relaxed();
  copied.publisher = slot.publisher.load_relaxed();
  if (slot.check.load_relaxed() != slot_check(lengths, copied.timestamp_ns, copied.publisher, sequence) ||
      payload + metadata > memory.layout.settings.slot_size)
    return false;
  std::string bytes(payload + metadata, '\0');
  copy_racing(bytes.data(), memory.readable + memory.payload_at(index), bytes.size());
  copied.metadata = bytes.substr(payload);
  bytes.resize(payload);
  copied.payload = std::move(bytes);
  return read_name(memory, index, copied.publisher, copied.name);
}

// False: the sample is not (or no longer) in the ring.
inline bool read_sample(const Memory& memory, uint64_t sequence, Copied& copied) {
  const Word& place = memory.ring(sequence);
  const uint64_t word = place.load_ordered();
  if (ring_tag(word) != tag_of(sequence)) return false;
  const uint32_t index = ring_slot(word);
  if (index >= memory.layout.slots) memory.corrupt("the ring names a slot that does not exist");
  const bool sound = copy_slot(memory, index, sequence, copied);
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
  if (place.load_ordered() != word) return false;
  if (!sound) memory.corrupt("sample " + std::to_string(sequence) + " is damaged");
  return true;
}

struct ReadRange {
  uint64_t first;  // sequence to start at
  uint64_t missed;
  uint64_t head;
};

inline ReadRange range_after(const Memory& memory, uint64_t after) {
  const uint64_t head = next_place(memory).head;
  if (after > head)
    throw Error(Kind::out_of_range, "after=" + std::to_string(after) + " is ahead of the newest offset " +
                                        std::to_string(head) + "; it belongs to another or a deleted topic");
  const uint64_t oldest = oldest_after(head, memory.layout.ring);
  const uint64_t first = std::max(after + 1, oldest);
  return {first, first - (after + 1), head};
}

struct ReadSamples {
  std::vector<Copied> samples;
  uint64_t last;
  uint64_t missed;
};

// The `count` samples next after `after`, oldest first. Overwritten while reading: counted as missed.
inline ReadSamples read_oldest(const Memory& memory, uint64_t count, uint64_t after) {
  ReadSamples result{{}, after, 0};
  Copied copied{};
  uint64_t vanished = 0;
  while (result.samples.size() < count) {
    const ReadRange range = range_after(memory, result.last);
    result.missed += range.missed;
    result.last += range.missed;
    if (range.first > range.head) break;
    if (!read_sample(memory, range.first, copied)) {
      // Overwritten just now, then the next range begins later; otherwise it was never there.
      if (std::exchange(vanished, range.first) == range.first)
        memory.corrupt("the ring does not carry sample " + std::to_string(range.first));
      continue;
    }
    result.samples.push_back(std::move(copied));
    result.last = range.first;
  }
  return result;
}

// The newest `count` samples after `after`, oldest first; `missed` also counts what was passed over.
inline ReadSamples read_newest(const Memory& memory, uint64_t count, uint64_t after) {
  const ReadRange range = range_after(memory, after);
  const uint64_t there = range.head + 1 - range.first;
  const uint64_t passed = there > count ? there - count : 0;
  ReadSamples result = read_oldest(memory, std::min(count, there), range.first + passed - 1);
  result.missed += range.missed + passed;
  return result;
}

// First kept sample at or after a wall-clock time; head + 1 when there is none.
inline uint64_t offset_at(const Memory& memory, uint64_t timestamp_ns) {
  const uint64_t head = next_place(memory).head;
  const uint64_t kept = std::min<uint64_t>(head, memory.layout.settings.history);
  for (uint64_t sequence = head - kept + 1; sequence <= head; sequence++) {
    const uint64_t word = memory.ring(sequence).load_ordered();
    if (ring_tag(word) != tag_of(sequence) || ring_slot(word) >= memory.layout.slots) continue;
    const uint64_t when = memory.slot(ring_slot(word)).timestamp_ns.load_relaxed();
    if (memory.ring(sequence).load_ordered() == word && when >= timestamp_ns) return sequence;
  }
  return head + 1;
}

}  // namespace hawser
