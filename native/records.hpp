// Positions kept under a name, for subscriptions that resume and for durable ones.
//
// The holder of a name keeps the name's byte locked for as long as it lives, so one name has one holder and
// only the holder looks for or makes the record of that name. Different names meet only when both take a free
// record, which is one exchange: free -> claiming{owner}; the name is written; -> used. A claim whose owner is
// dead may be taken over. Recovery never frees a record.
#pragma once

#include "recovery.hpp"

namespace hawser {

constexpr uint32_t kNoRecord = UINT32_MAX;
constexpr uint64_t record_word(uint64_t owner, RecordState state) {
  return owner << 2 | static_cast<uint64_t>(state);
}
constexpr RecordState record_state(uint64_t word) { return static_cast<RecordState>(word & 3); }
constexpr uint64_t record_owner(uint64_t word) { return word >> 2; }

inline std::string record_name(const Record& record) {
  return std::string(record.name, strnlen(record.name, sizeof record.name));
}

inline uint32_t find_record(const Memory& memory, const std::string& name) {
  for (uint32_t i = 0; i < memory.layout.records; i++) {
    const Record& record = memory.record(i);
    const uint64_t word = record.word.load_acquire();
    if (record_state(word) == RecordState::used && record_name(record) == name && record.word.load_acquire() == word) return i;
  }
  return kNoRecord;
}

template <class Liveness>
bool claimable(const Memory& memory, const Liveness& liveness, uint64_t word, uint64_t me) {
  if (record_state(word) == RecordState::free) return true;
  if (record_state(word) != RecordState::claiming) return false;
  const uint64_t owner = record_owner(word);
  if (owner == me) return true;
  const uint32_t index = owner_index(owner);
  if (index >= memory.layout.entries) memory.corrupt("a record is claimed by no entry");
  return entry_incarnation(memory.entry(index).word.load_ordered()) != owner_incarnation(owner) ||
         !liveness.alive(index);
}

// Which records a participant may take: as with the entries, the last one is the tracer's.
inline EntryRange records_for(const Memory& memory, bool tracer) {
  const uint32_t others = memory.layout.settings.max_subscribers;
  return tracer ? EntryRange{others, 1} : EntryRange{0, others};
}

// A new record; kNoRecord when all are taken. `me` holds the name's byte and is active.
template <class Liveness>
uint32_t make_record(const Memory& memory, const Liveness& liveness, const std::string& name, uint64_t me,
                     uint64_t mark, bool tracer = false) {
  const EntryRange range = records_for(memory, tracer);
  for (uint32_t i = range.first; i < range.first + range.count; i++) {
    Record& record = memory.record(i);
    const uint64_t word = record.word.load_ordered();
    if (!claimable(memory, liveness, word, me)) continue;
    const uint64_t claimed = record_word(me, RecordState::claiming);
    if (!record.word.exchange_if(word, claimed)) continue;
    std::memset(record.name, 0, sizeof record.name);
    std::memcpy(record.name, name.data(), name.size());
    record.max_lag.store_relaxed(0);
    record.mark.store_relaxed(mark);
    record.word.exchange_if(claimed, record_word(me, RecordState::used));  // releases the name to finders
    return i;
  }
  return kNoRecord;
}

// The caller holds the name's byte.
inline void drop_record(const Memory& memory, uint32_t index) {
  memory.header().durable.clear(index);
  memory.record(index).word.store_ordered(0);
  wake_all(memory.header().space);
}

}  // namespace hawser
