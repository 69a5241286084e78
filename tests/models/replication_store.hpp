// Where states are kept: packed, each once.
#pragma once
#include <memory>

#include "replication_symmetry.hpp"

// A state without its zeros: which bytes are not zero, then those.
struct Packed {
  static constexpr size_t MARKS = (sizeof(State) + 7) / 8;

  explicit Packed(const State& state) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(&state);
    memset(bytes, 0, MARKS);
    // Without a branch: which bytes are zero is anybody's guess.
    for (size_t k = 0; k < sizeof(State); k++) {
      const unsigned set = from[k] != 0;
      bytes[k / 8] = static_cast<uint8_t>(bytes[k / 8] | set << k % 8);
      bytes[length] = from[k];
      length += set;
    }
  }

  static State unpack(const uint8_t* bytes) {
    State state{};
    uint8_t* to = reinterpret_cast<uint8_t*>(&state);
    const uint8_t* next = bytes + MARKS;
    for (size_t k = 0; k < sizeof(State); k++) {
      if (bytes[k / 8] >> k % 8 & 1) to[k] = *next++;
    }
    return state;
  }

  uint8_t bytes[MARKS + sizeof(State) + 1];
  size_t length = MARKS;
};

// The states met so far, each once, with the state it was first met from.
class Visited {
 public:
  explicit Visited(size_t limit) : limit_(limit), table_(1u << 16, NOWHERE) {}

  // The place of the state, or NOWHERE if there is no more room.
  uint32_t add(const State& state, uint32_t parent) {
    transitions++;
    const Packed packed(state);
    const uint32_t hashed = hash(packed);
    uint64_t at = hashed & (table_.size() - 1);
    for (; table_[at] != NOWHERE; at = (at + 1) & (table_.size() - 1)) {
      const uint32_t place = table_[at];
      if (hashes_[place] == hashed && !memcmp(packed.bytes, starts_[place], packed.length)) return place;
    }
    if (size() >= limit_) {
      full = true;
      return NOWHERE;
    }
    const uint32_t place = static_cast<uint32_t>(size());
    table_[at] = place;
    starts_.push_back(keep(packed));
    hashes_.push_back(hashed);
    parents.push_back(parent);
    if (size() * 2 > table_.size()) grow();
    return place;
  }

  size_t size() const { return starts_.size(); }
  State operator[](uint32_t place) const { return Packed::unpack(starts_[place]); }

  std::vector<uint32_t> parents;
  uint64_t transitions = 0;
  bool full = false;

 private:
  static constexpr size_t CHUNK = 1 << 22;

  // Bytes that start alike have the same marks and so the same length; comparing others may read past them.
  const uint8_t* keep(const Packed& packed) {
    if (chunks_.empty() || used_ + packed.length > CHUNK) {
      chunks_.push_back(std::make_unique<uint8_t[]>(CHUNK + sizeof(Packed)));
      used_ = 0;
    }
    uint8_t* start = chunks_.back().get() + used_;
    memcpy(start, packed.bytes, packed.length);
    used_ += packed.length;
    return start;
  }

  static uint32_t hash(const Packed& packed) {
    uint64_t mixed = packed.length;
    for (size_t at = 0; at < packed.length; at += 8) {
      uint64_t word = 0;
      memcpy(&word, packed.bytes + at, std::min<size_t>(8, packed.length - at));
      mixed = mix(mixed, word);
    }
    return static_cast<uint32_t>(mixed ^ (mixed >> 32));
  }

  void grow() {
    table_.assign(table_.size() * 2, NOWHERE);
    for (uint32_t k = 0; k < size(); k++) {
      uint64_t at = hashes_[k] & (table_.size() - 1);
      while (table_[at] != NOWHERE) at = (at + 1) & (table_.size() - 1);
      table_[at] = k;
    }
  }

  size_t limit_;
  size_t used_ = 0;
  std::vector<uint32_t> table_;
  std::vector<uint32_t> hashes_;
  std::vector<const uint8_t*> starts_;
  std::vector<std::unique_ptr<uint8_t[]>> chunks_;
};
