// Slots: who may write one, who is reading one, and in a queue whether its message is done.
//
// `state` says which publisher a slot is lent to; `references` has one bit per subscriber that reads it.
// To borrow: exchange idle for my own word; then see that the ring does not carry the slot (at the position
// its sequence names); then that no one refers to it; in that order; put it back on either. A taker sets its
// bit and then looks at the ring again, so one of the two always sees the other. In a queue the claim comes between
// ring and references: a consumer sets its bit and then exchanges the claim, which fails once the message is done.
#pragma once

#include "claims.hpp"

namespace hawser {

constexpr uint64_t pack_lengths(uint64_t payload, uint32_t metadata) { return payload << 24 | metadata; }
constexpr uint64_t payload_length(uint64_t lengths) { return lengths >> 24; }
constexpr uint32_t metadata_length(uint64_t lengths) { return static_cast<uint32_t>(lengths & kMaxMetadata); }

// Ties a slot's words together, so that none can be changed alone without being noticed.
constexpr uint64_t slot_check(uint64_t lengths, uint64_t timestamp, uint64_t publisher, uint64_t sequence) {
  return mix(mix(lengths * 0x9e3779b97f4a7c15ull ^ timestamp, publisher), sequence);
}

constexpr uint64_t pack_backed(uint64_t pages) { return pages | (~pages & 0xffffffff) << 32; }
inline uint64_t backed_pages(const Memory& memory, uint64_t word) {
  const uint64_t pages = word & 0xffffffff;
  if (word != 0 && word != pack_backed(pages)) memory.corrupt("a slot's count of reserved pages is damaged");
  return pages;
}

inline bool carried(const Memory& memory, uint32_t index) {
  const uint64_t sequence = memory.slot(index).sequence.load_relaxed();
  return sequence != 0 && memory.ring(sequence).load_ordered() == ring_word(sequence, index);
}

inline bool referenced(const Memory& memory, uint32_t index) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < memory.layout.bit_words; i++) bits |= memory.references(index, i).load_ordered();
  return bits != 0;
}

// Copies bytes that may be overwritten meanwhile; the caller finds out afterwards.
inline void copy_racing(char* to, const uint8_t* from, size_t size) {
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const uint64_t value = __atomic_load_n(reinterpret_cast<const uint64_t*>(from + i), __ATOMIC_RELAXED);
    std::memcpy(to + i, &value, 8);
  }
  for (; i < size; i++) to[i] = static_cast<char>(__atomic_load_n(from + i, __ATOMIC_RELAXED));
}

// Give a lent slot back. Releases what the owner wrote to the next borrower.
inline void set_idle(const Memory& memory, uint32_t index) { memory.slot(index).state.store_release(0); }

// In a queue: whether the message is not done, or a mover must still find out that it is here.
inline bool kept_by_queue(const Memory& memory, uint32_t index) {
  return !is_over(memory.claim(index).load_ordered()) || memory.origin(index).pin.load_ordered() != 0;
}

inline bool in_use(const Memory& memory, uint32_t index) {
  return (memory.layout.queue && kept_by_queue(memory, index)) || referenced(memory, index);
}

inline bool borrowable(const Memory& memory, uint32_t index) {
  return memory.slot(index).state.load_relaxed() == 0 && !in_use(memory, index) && !carried(memory, index);
}

// A first look, at `borrowable` or `in_use`, is cheaper where it is likely to fail.
inline bool try_borrow(const Memory& memory, uint32_t index, uint64_t owner) {
  if (!memory.slot(index).state.exchange_if(0, owner)) return false;
  if (!carried(memory, index) && (planted(Canary::references_before_ring) || !in_use(memory, index))) return true;
  set_idle(memory, index);
  return false;
}

}  // namespace hawser
