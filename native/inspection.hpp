// Looking at a topic or queue: for info(), ps, doctor and the tests. Changes nothing.
#pragma once

#include "reading.hpp"
#include "records.hpp"
#include "region.hpp"

namespace hawser {

struct ParticipantView {
  uint32_t index;
  bool publisher;
  std::string name;
  uint64_t pid, uid, incarnation, started_ns, joined_ns, cursor, count, missed;
  EntryState state;
  bool alive;
  bool reliable = false, durable = false;
  uint32_t held = 0;  // bits, claims or loans
};

struct SlotCounts {
  uint32_t lent = 0, referenced = 0, carried = 0, free = 0, leaked = 0;
  uint32_t kept = 0;  // of a queue: not done, or pinned
};

inline bool bit_set(const Bits& bits, uint32_t index) { return bits.words[index / 64].load_ordered() >> index % 64 & 1; }

inline bool holds_durable_record(const Memory& memory, uint64_t owner) {
  for (uint32_t i = 0; i < memory.layout.records; i++)
    if (bit_set(memory.header().durable, i) &&
        memory.record(i).word.load_ordered() == record_word(owner, RecordState::used))
      return true;
  return false;
}

inline bool is_claimed_by(const Memory& memory, uint32_t slot, uint32_t consumer, uint64_t incarnation) {
  const uint64_t claim = memory.claim(slot).load_ordered();
  return is_owned(claim) && claim_owner_bits(claim) == claim_owner_bits(claim_signature(consumer, incarnation, ClaimState::claimed));
}

// A subscriber reads it, or a consumer reads or has claimed it.
inline bool is_held_by(const Memory& memory, uint32_t slot, uint32_t bit, uint64_t incarnation) {
  return (memory.references(slot, bit / 64).load_relaxed() >> bit % 64 & 1) ||
         (memory.layout.queue && is_claimed_by(memory, slot, bit, incarnation));
}

inline std::vector<ParticipantView> view_participants(const Region& region) {
  const Memory& memory = region.memory();
  const Descriptor file = region.open_to_look();
  const uint32_t publishers = memory.layout.settings.max_publishers;
  std::vector<ParticipantView> views;
  for (uint32_t i = 0; i < memory.layout.entries; i++) {
    const Entry& entry = memory.entry(i);
    const uint64_t word = entry.word.load_ordered();
    if (entry_state(word) != EntryState::active && entry_state(word) != EntryState::dead) continue;
    ParticipantView view{i, memory.is_publisher(i), entry_name(entry), entry.pid.load_relaxed(), entry.uid.load_relaxed(),
                         entry_incarnation(word), entry.started_ns.load_relaxed(), entry.joined_ns.load_relaxed(),
                         entry.cursor.load_relaxed(), entry.count.load_relaxed() - entry.count_before.load_relaxed(),
                         entry.missed.load_relaxed() - entry.missed_before.load_relaxed(),
                         entry_state(word), file.held_elsewhere(byte::life(i))};
    view.reliable = !view.publisher && bit_set(memory.header().reliable, i - publishers);
    view.durable = view.reliable && holds_durable_record(memory, owner_word(i, view.incarnation));
    for (uint32_t slot = 0; slot < memory.layout.slots; slot++)
      view.held += view.publisher ? memory.slot(slot).state.load_relaxed() == owner_word(i, view.incarnation)
                                  : is_held_by(memory, slot, i - publishers, view.incarnation);
    views.push_back(std::move(view));
  }
  return views;
}

// Of the last participant with this owner word, alive or not; empty if the place is another one's now.
inline std::string participant_name(const Memory& memory, uint64_t owner) {
  const uint32_t index = owner_index(owner);
  if (index >= memory.layout.entries) return "";
  const Word& word = memory.entry(index).word;
  const uint64_t seen = word.load_ordered();
  const std::string name = entry_name(memory.entry(index));
  std::atomic_thread_fence(std::memory_order_acquire);  // the name before the second look
  const bool same = owner_word(index, entry_incarnation(seen)) == owner && word.load_ordered() == seen;
  return same ? name : "";
}

// Of one kind of participants: who is there, and what all that ever were have counted. No total goes back.
struct Totals {
  uint32_t alive = 0, dead = 0;
  uint64_t count = 0, missed = 0, deaths = 0;
};

struct RegionTotals {
  Totals publishers, subscribers;
};

inline bool dead_now(const Entry& entry, const Descriptor& file, uint32_t index, uint64_t word) {
  if (entry_state(word) == EntryState::dead) return true;
  return !file.held_elsewhere(byte::life(index)) && entry.word.load_ordered() == word;  // not left in order
}

inline RegionTotals view_totals(const Region& region) {
  const Memory& memory = region.memory();
  const Descriptor file = region.open_to_look();
  RegionTotals result;
  for (uint32_t i = 0; i < memory.layout.entries; i++) {
    const Entry& entry = memory.entry(i);
    Totals& totals = memory.is_publisher(i) ? result.publishers : result.subscribers;
    totals.count += entry.count.load_relaxed();
    totals.missed += entry.missed.load_relaxed();
    totals.deaths += deaths_of(entry.deaths.load_relaxed());
    const uint64_t word = entry.word.load_ordered();
    if (entry_state(word) == EntryState::free) continue;
    (dead_now(entry, file, i, word) ? totals.dead : totals.alive)++;
  }
  return result;
}

// What a watcher wants to know again and again: whether recover() would find a dead participant, and whether any process has
// the topic open.
struct Glance {
  bool dead = false, used = false;
};

inline Glance glance_at(const Region& region) {
  const Memory& memory = region.memory();
  const Descriptor file = region.open_to_look();
  Glance glance{false, file.held_elsewhere(byte::use)};
  for (uint32_t i = 0; i < memory.layout.entries && !glance.dead; i++) {
    const uint64_t word = memory.entry(i).word.load_ordered();
    glance.dead = entry_state(word) != EntryState::free && dead_now(memory.entry(i), file, i, word);
  }
  return glance;
}

inline bool claim_accounted_for(const Memory& memory, uint64_t claim) {
  if (!is_owned(claim)) return true;
  if (claim_consumer(claim) >= memory.layout.settings.max_subscribers) return false;
  const uint64_t word = memory.entry(memory.subscriber_entry(claim_consumer(claim))).word.load_ordered();
  return entry_state(word) != EntryState::free && (entry_incarnation(word) & 0xff) == claim_incarnation(claim);
}

// Whether a participant, dead or alive, accounts for what holds this slot.
inline bool accounted_for(const Memory& memory, uint32_t index) {
  const uint64_t lent = memory.slot(index).state.load_ordered();
  if (lent != 0) {
    const uint32_t owner = owner_index(lent);
    if (owner >= memory.layout.entries) return false;
    const uint64_t word = memory.entry(owner).word.load_ordered();
    if (entry_state(word) == EntryState::free || entry_incarnation(word) != owner_incarnation(lent)) return false;
  }
  for (uint32_t i = 0; i < memory.layout.bit_words; i++)
    for (uint64_t bits = memory.references(index, i).load_ordered(); bits; bits &= bits - 1) {
      const uint32_t bit = i * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      if (bit > memory.layout.settings.max_subscribers) return false;
      const Word& word = memory.entry(memory.subscriber_entry(bit)).word;
      if (entry_state(word.load_ordered()) == EntryState::free) return false;
    }
  return !memory.layout.queue || claim_accounted_for(memory, memory.claim(index).load_ordered());
}

inline SlotCounts count_slots(const Memory& memory) {
  SlotCounts counts;
  for (uint32_t i = 0; i < memory.layout.slots; i++) {
    const bool lent = memory.slot(i).state.load_ordered() != 0, in_ring = carried(memory, i), read = referenced(memory, i);
    counts.lent += lent;
    counts.carried += in_ring;
    counts.referenced += read;
    const bool kept = memory.layout.queue && kept_by_queue(memory, i);
    counts.kept += kept;
    counts.free += !lent && !in_ring && !read && !kept;
    counts.leaked += !accounted_for(memory, i);
  }
  return counts;
}

struct RecordView {
  std::string name;
  uint64_t mark, max_lag;
  bool durable, held;
};

inline std::vector<RecordView> view_records(const Region& region) {
  const Memory& memory = region.memory();
  const Descriptor file = region.open_to_look();
  std::vector<RecordView> views;
  for (uint32_t i = 0; i < memory.layout.records; i++) {
    const Record& record = memory.record(i);
    if (record_state(record.word.load_acquire()) != RecordState::used) continue;
    const std::string name = record_name(record);
    views.push_back({name, record.mark.load_relaxed(), record.max_lag.load_relaxed(),
                     bit_set(memory.header().durable, i), file.held_elsewhere(byte::record(name))});
  }
  return views;
}

}  // namespace hawser
