// The words of a topic and the private variables of the processes that work on it.
//
// Sizes are fixed when compiling, so that a state is as small as its configuration allows; what is
// explored (kills, joiners, planted defects, ...) is chosen when running.
#pragma once
#include <algorithm>

#include "explorer.hpp"

#ifndef PUBLISHERS
#define PUBLISHERS 2
#endif
#ifndef SUBSCRIBERS
#define SUBSCRIBERS 1
#endif
#ifndef RING
#define RING 1
#endif
#ifndef MAX_HELD
#define MAX_HELD 1
#endif
#ifndef PUBLISHES
#define PUBLISHES 2  // by each publisher
#endif
#ifndef RECOVERERS
#define RECOVERERS 1
#endif
#ifndef KEEP
#define KEEP 0  // 1: a publisher may keep one published slot lent, for its own views of it
#endif
#ifndef SLOTS
#define SLOTS (RING + SUBSCRIBERS * MAX_HELD + PUBLISHERS * (KEEP + 1))
#endif

enum Bug {
  NO_BUG,
  NO_REREAD,
  REFS_BEFORE_RING,
  IDLE_BEFORE_PUBLISH,
  FREE_ENTRY_FIRST,
  NO_HELP,
  LAP_BY_HEAD_ONLY,
  HELD_CHECKED_LATE,
  NO_RECOVERY_LOCK,
  JOIN_WITHOUT_HELP,
  RELIABLE_JOIN_NAIVE,
  RELIABLE_CHECKED_ONCE,
  WAIT_FOR_RECOVERER,
  KEPT_BUT_IDLE,
  LOANS_WITHOUT_INCARNATION,
};

struct Options {
  int bug, kills, joiners, reliable, history;
};
inline Options options;

constexpr int PARTICIPANTS = PUBLISHERS + SUBSCRIBERS;  // publishers first
constexpr int MAX_SEQUENCE = PUBLISHERS * PUBLISHES + 2;
constexpr uint8_t TORN = 0xff, NO_SLOT = 0xff, IDLE = 0;

enum PublisherAt : uint8_t {
  P_READY, BORROW_RING, BORROW_REFS, PUT_BACK, WRITE_HALF, WRITE_REST, LOAD_HEAD, LOAD_WORD, HELP_HEAD,
  RELIABLE_CURSORS, MARK_BLOCKER, WRITE_SEQUENCE, CAS_RING, MOVE_HEAD, SET_IDLE, P_DEAD, P_REGISTER
};
enum SubscriberAt : uint8_t {
  S_READY, SET_BIT, REREAD, CLEAR_BIT, COUNT_MISSED, STORE_CURSOR, JOIN_LOAD_HEAD, JOIN_CHECK_HEAD, JOIN_HELP,
  JOIN_ACTIVE, JOIN_RELOAD, S_DEAD, S_REGISTER
};
enum RecovererAt : uint8_t {
  R_READY, MARK_DEAD, RETURN_LOANS, LOCK_RECOVERY, REREAD_ENTRY, CLEAR_BITS, FREE_ENTRY, UNLOCK, R_DEAD
};
enum EntryState : uint8_t { FREE, ACTIVE, DEAD };

struct Publisher {
  uint8_t at, slot, head, seen_tag, seen_slot, value, left, incarnation, checked;
  uint8_t blocker, blocker_incarnation, kept, kept_sequence;
};
struct Subscriber {
  uint8_t at, cursor, tag, slot, start, received, missed, incarnation, miscounted;
  uint8_t held_slot[MAX_HELD], held_sequence[MAX_HELD];
};
struct Recoverer {
  uint8_t at, target, incarnation;
};
struct State {
  uint8_t head, ring_tag[RING], ring_slot[RING];
  uint8_t lent[SLOTS], sequence[SLOTS], refs[SLOTS], payload[SLOTS];  // lent: IDLE or owner()
  uint8_t entry[PARTICIPANTS], incarnation[PARTICIPANTS];             // together one word
  uint8_t life[PARTICIPANTS], recovery[PARTICIPANTS];                 // recovery: 0, 1 owner, 2 + recoverer
  uint8_t cursor[SUBSCRIBERS];
  Publisher publisher[PUBLISHERS];
  Subscriber subscriber[SUBSCRIBERS];
  Recoverer recoverer[RECOVERERS];
  uint8_t published, kills, value[MAX_SEQUENCE];  // not shared words: what was published as which sequence
};

inline int place(int sequence) { return ((sequence % RING) + RING) % RING; }
inline int last_lap(int sequence) { return std::max(0, sequence - RING); }
inline uint8_t owner(int publisher, int incarnation) {
  return static_cast<uint8_t>(1 + publisher + 16 * incarnation);
}
inline bool is_reliable(int subscriber) { return subscriber < options.reliable; }

inline bool carried(const State& q, int slot) {
  return std::any_of(q.ring_slot, q.ring_slot + RING, [&](uint8_t other) { return other == slot; });
}

inline int held_count(const Subscriber& s) {
  return static_cast<int>(std::count_if(s.held_slot, s.held_slot + MAX_HELD,
                                        [](uint8_t slot) { return slot != NO_SLOT; }));
}

// ---- exact symmetry of slots: they are sorted by everything that refers to them

inline bool in_private_use(const State& q, int slot) {
  bool used = false;
  for (const auto& s : q.subscriber) {
    for (uint8_t held : s.held_slot) used |= held == slot;
  }
  for (const auto& p : q.publisher) used |= p.slot == slot || p.kept == slot;
  return used;
}

struct Signature {
  uint64_t shared, references;
  uint8_t slot;
  bool operator<(const Signature& other) const {
    return shared != other.shared ? shared < other.shared : references < other.references;
  }
};

inline Signature signature(const State& q, int slot) {
  uint64_t shared = q.lent[slot] | q.sequence[slot] << 8 | q.refs[slot] << 16;
  shared |= uint64_t{q.payload[slot]} << 24;
  uint64_t references = 0;
  for (uint8_t other : q.ring_slot) shared = shared << 1 | (other == slot);
  for (const auto& p : q.publisher) {
    references = references << 3 | (p.slot == slot) << 2 | (p.seen_slot == slot) << 1 | (p.kept == slot);
  }
  for (const auto& s : q.subscriber) {
    references = references << 1 | (s.slot == slot);
    for (uint8_t held : s.held_slot) references = references << 1 | (held == slot);
  }
  return {shared, references, static_cast<uint8_t>(slot)};
}

inline void forget_invisible_values(State& q) {
  for (int v = 1; v < MAX_SEQUENCE; v++) {
    bool visible = false;
    for (int k = 0; k < RING; k++) visible |= q.ring_tag[k] == v && q.ring_slot[k] != NO_SLOT;
    for (const auto& s : q.subscriber) {
      for (uint8_t held : s.held_sequence) visible |= held == v;
    }
    for (const auto& p : q.publisher) {
      const bool may_keep = KEEP && (p.at == MOVE_HEAD || p.at == SET_IDLE) && q.sequence[p.slot] == v;
      visible |= may_keep || p.kept_sequence == v;
    }
    if (!visible) q.value[v] = 0;
  }
}

inline void canonical(State& q) {
  Signature order[SLOTS];
  for (int x = 0; x < SLOTS; x++) {
    if (q.lent[x] == IDLE && !carried(q, x) && !in_private_use(q, x)) q.payload[x] = q.sequence[x] = 0;
    order[x] = signature(q, x);
  }
  std::sort(order, order + SLOTS);
  uint8_t to[256];
  memset(to, NO_SLOT, sizeof to);
  const State old = q;
  for (int x = 0; x < SLOTS; x++) {
    const int from = order[x].slot;
    to[from] = static_cast<uint8_t>(x);
    q.lent[x] = old.lent[from];
    q.sequence[x] = old.sequence[from];
    q.refs[x] = old.refs[from];
    q.payload[x] = old.payload[from];
  }
  for (uint8_t& slot : q.ring_slot) slot = to[slot];
  for (auto& p : q.publisher) {
    p.slot = to[p.slot];
    p.seen_slot = to[p.seen_slot];
    p.kept = to[p.kept];
  }
  for (auto& s : q.subscriber) {
    s.slot = to[s.slot];
    for (uint8_t& held : s.held_slot) held = to[held];
  }
  forget_invisible_values(q);
}
