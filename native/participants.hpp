// Who takes part: the entries, how one is joined and left, and how the dead are recognised.
//
// An entry's word is {incarnation, state}. Joining: recovery byte, word still free, life byte, identity,
// word active, recovery byte given back. Leaving: word free, then the life byte goes. So an active word whose
// life byte is free means dead, always, and another one's word is changed only from active to dead.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "locks.hpp"
#include "waiting.hpp"

namespace hawser {

struct Identity {
  std::string name;
  uint64_t pid;
  uint64_t uid;
  uint64_t started_ns;  // of the process, since boot
};

// Entries first..first+count-1 of one kind.
struct EntryRange {
  uint32_t first;
  uint32_t count;
};

// What makes a process a participant. Dropping it without leave() is what dying looks like to the others.
struct Membership {
  uint32_t index = 0;
  uint64_t incarnation = 0;
  Anchor anchor;
  uint64_t owner() const { return owner_word(index, incarnation); }
};

inline void write_identity(Entry& entry, const Identity& identity) {
  entry.pid.store_relaxed(identity.pid);
  entry.uid.store_relaxed(identity.uid);
  entry.started_ns.store_relaxed(identity.started_ns);
  entry.joined_ns.store_relaxed(static_cast<uint64_t>(clock_now(CLOCK_REALTIME)));
  entry.cursor.store_relaxed(0);
  if (planted(Canary::counts_start_anew)) entry.count.store_relaxed(0), entry.missed.store_relaxed(0);
  entry.count_before.store_relaxed(entry.count.load_relaxed());
  entry.missed_before.store_relaxed(entry.missed.load_relaxed());
  uint64_t name[sizeof entry.name / sizeof(Word)] = {};
  std::memcpy(name, identity.name.data(), std::min(identity.name.size(), sizeof name));
  for (size_t i = 0; i < std::size(name); i++) entry.name[i].store_relaxed(name[i]);
}

// Of the owner of the entry; only as true as the entry's word is the same before and after.
inline std::string entry_name(const Entry& entry) {
  char name[sizeof entry.name];
  for (size_t i = 0; i < std::size(entry.name); i++) {
    const uint64_t word = entry.name[i].load_relaxed();
    std::memcpy(name + i * sizeof word, &word, sizeof word);
  }
  return std::string(name, strnlen(name, sizeof name));
}

// Take entry `index` if it is free. `prepare(index)` runs before others can see the entry.
template <class Prepare>
bool try_enter(const Memory& memory, const Descriptor& descriptor, uint32_t index, const Identity& identity,
               const Prepare& prepare, Membership& membership) {
  Entry& entry = memory.entry(index);
  if (entry_state(entry.word.load_acquire()) != EntryState::free) return false;
  if (!descriptor.try_lock(byte::recovery(index))) return false;
  const uint64_t word = entry.word.load_ordered();  // again: it may have been joined before we had the byte
  if (entry_state(word) != EntryState::free || !descriptor.try_lock(byte::life(index))) {
    descriptor.unlock(byte::recovery(index));
    return false;
  }
  membership.index = index;
  membership.incarnation = entry_incarnation(word) + 1;
  membership.anchor = Anchor(descriptor);
  write_identity(entry, identity);
  prepare(index);
  // Ordered: a reliable subscriber is seen by every publisher whose head it does not see.
  entry.word.store_ordered(entry_word(membership.incarnation, EntryState::active));
  descriptor.unlock(byte::recovery(index));
  return true;
}

// The descriptor may already hold other bytes; they live as long as the membership.
template <class Prepare>
std::optional<Membership> join(const Memory& memory, const Descriptor& descriptor, EntryRange range,
                               const Identity& identity, const Prepare& prepare) {
  Membership membership;
  for (uint32_t i = 0; i < range.count; i++)
    if (try_enter(memory, descriptor, range.first + i, identity, prepare, membership)) return membership;
  return std::nullopt;
}

inline void leave(const Memory& memory, Membership& membership) {
  memory.entry(membership.index)
      .word.exchange_if(entry_word(membership.incarnation, EntryState::active),
                        entry_word(membership.incarnation, EntryState::free));
  membership.anchor.drop();
}

// Checked in every operation: an entry of ours that changed was changed by something other than Hawser.
inline void require_membership(const Memory& memory, const Membership& membership) {
  if (memory.entry(membership.index).word.load_relaxed() !=
      entry_word(membership.incarnation, EntryState::active)) [[unlikely]]
    memory.corrupt("entry " + std::to_string(membership.index) + " no longer names its living owner");
}

}  // namespace hawser
