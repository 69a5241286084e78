// The words of a queue and the private variables of the processes that work on it.
//
// The claim word is in the slot and tagged with the message's sequence. A producer writes it fresh before each try to
// publish: a fresh claim in the slot that the ring names for its sequence is a message nobody has claimed yet. Claims
// carry no incarnation here, which is less than the low bits that the real ones carry.
#pragma once
#include <algorithm>
#include <tuple>

#include "explorer.hpp"

#ifndef PRODUCERS
#define PRODUCERS 1
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef RING
#define RING 2
#endif
#ifndef SLOTS
#define SLOTS (RING + PRODUCERS + CONSUMERS)
#endif
#ifndef MESSAGES
#define MESSAGES 3  // by each producer
#endif
#ifndef RECOVERERS
#define RECOVERERS 1
#endif
#ifndef COPIES
#define COPIES 0  // consumers copy what they have claimed, without a bit
#endif

enum Bug {
  NO_BUG,
  REUSE_UNCLAIMED,
  ACCEPT_BY_STORE,
  BIT_AFTER_CLAIM,
  BORROW_CLAIMED,
  NO_BITS,
  RETURN_WITHOUT_LOOK,
  FREE_ENTRY_FIRST,
  CLAIM_UNPUBLISHED,
  COPY_WITHOUT_LOOK,
  RETURN_TO_FRESH,
  BIT_AFTER_END,
};

struct Options {
  int bug, kills, lease;
};
inline Options options;

constexpr int PARTICIPANTS = PRODUCERS + CONSUMERS;  // producers first
constexpr int MAX_SEQUENCE = PRODUCERS * MESSAGES + 2;
constexpr int MAX_DELIVERIES = 2;  // bounds the exploration
constexpr uint8_t TORN = 0xff, NO_SLOT = 0xff, IDLE = 0;

enum ClaimState : uint8_t { FRESH, READY, CLAIMED, DONE };
enum ProducerAt : uint8_t {
  P_READY, BORROW_RING, BORROW_CLAIM, BORROW_REFS, PUT_BACK, WRITE_HALF, WRITE_REST, LOAD_HEAD, LOAD_WORD,
  HELP_HEAD, LOAD_CLAIM, WRITE_SEQUENCE, WRITE_CLAIM, CAS_RING, MOVE_HEAD, SET_IDLE, P_DEAD, P_REGISTER
};
enum ConsumerAt : uint8_t {
  C_READY, READ_CLAIM, SET_BIT, CAS_CLAIM, SET_BIT_LATE, COPY, LOOK_AGAIN, CLEAR_BIT, HOLDS, KEEPS, READS_ON, SET_BIT_AT_END,
  C_DEAD, C_REGISTER
};
enum RecovererAt : uint8_t {
  R_READY, MARK_DEAD, RETURN_LOANS, FIND_CLAIM, LOOK_AT_ENTRY, RETURN_CLAIM, LOCK_RECOVERY, REREAD_ENTRY, CLEAR_BITS,
  FREE_ENTRY, UNLOCK, R_DEAD
};
enum EntryState : uint8_t { FREE, ACTIVE, DEAD };

struct Claim {
  uint8_t tag, state, owner, deliveries;
  bool operator==(const Claim&) const = default;
};
struct Producer {
  uint8_t at, slot, head, seen_tag, seen_slot, value, left, incarnation;
};
struct Consumer {
  uint8_t at, sequence, slot, incarnation, copied;
  Claim seen;
};
struct Recoverer {
  uint8_t at, target, incarnation, slot;
  Claim seen;
};
struct State {
  uint8_t head, ring_tag[RING], ring_slot[RING];
  uint8_t lent[SLOTS], sequence[SLOTS], refs[SLOTS], payload[SLOTS];  // lent: IDLE or owner()
  Claim claim[SLOTS];
  uint8_t entry[PARTICIPANTS], incarnation[PARTICIPANTS];  // together one word
  uint8_t life[PARTICIPANTS], recovery[PARTICIPANTS];      // recovery: 0, 1 owner, 2 + recoverer
  Producer producer[PRODUCERS];
  Consumer consumer[CONSUMERS];
  Recoverer recoverer[RECOVERERS];
  // Not shared words: what was put as which sequence, and accepted how often.
  uint8_t put, kills, value[MAX_SEQUENCE], accepted[MAX_SEQUENCE];
};

inline int place(int sequence) { return ((sequence % RING) + RING) % RING; }
inline int last_lap(int sequence) { return std::max(0, sequence - RING); }
inline uint8_t owner(int producer, int incarnation) {
  return static_cast<uint8_t>(1 + producer + 16 * incarnation);
}

inline Claim fresh(int sequence) { return Claim{static_cast<uint8_t>(sequence), FRESH, 0, 0}; }

inline bool carried(const State& q, int slot) {
  return std::any_of(q.ring_slot, q.ring_slot + RING, [&](uint8_t other) { return other == slot; });
}

// ---- exact symmetry of slots: they are sorted by everything that refers to them

inline void forget_unused(State& q, int slot) {
  const bool over = q.claim[slot].state == DONE || q.claim[slot].state == FRESH;  // not carried: of somebody who died
  bool used = q.lent[slot] != IDLE || carried(q, slot) || q.refs[slot] || !over;
  bool looked_at = false;
  for (const auto& c : q.consumer) used |= c.slot == slot;
  for (const auto& r : q.recoverer) looked_at |= r.slot == slot;
  for (const auto& p : q.producer) {
    used |= p.slot == slot;
    looked_at |= p.seen_slot == slot;
  }
  if (used) return;
  q.payload[slot] = q.sequence[slot] = 0;
  if (!looked_at) q.claim[slot] = Claim{0, DONE, 0, 0};
}

struct Signature {
  uint64_t shared, references, claim;
  uint8_t slot;
  bool operator<(const Signature& other) const {
    return std::tie(shared, references, claim) < std::tie(other.shared, other.references, other.claim);
  }
};

inline Signature signature(const State& q, int slot) {
  uint64_t shared = q.lent[slot] | q.sequence[slot] << 8 | q.refs[slot] << 16;
  shared |= uint64_t{q.payload[slot]} << 24;
  uint64_t references = 0;
  for (uint8_t other : q.ring_slot) shared = shared << 1 | (other == slot);
  for (const auto& p : q.producer) {
    references = references << 2 | (p.slot == slot) << 1 | (p.seen_slot == slot);
  }
  for (const auto& c : q.consumer) references = references << 1 | (c.slot == slot);
  for (const auto& r : q.recoverer) references = references << 1 | (r.slot == slot);
  const Claim& c = q.claim[slot];
  const uint64_t claim = uint64_t{c.tag} | uint64_t{c.state} << 8 | uint64_t{c.owner} << 16 | uint64_t{c.deliveries} << 24;
  return {shared, references, claim, static_cast<uint8_t>(slot)};
}

inline void canonical(State& q) {
  Signature order[SLOTS];
  for (int x = 0; x < SLOTS; x++) {
    forget_unused(q, x);
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
    q.claim[x] = old.claim[from];
  }
  for (uint8_t& slot : q.ring_slot) slot = to[slot];
  for (auto& p : q.producer) {
    p.slot = to[p.slot];
    p.seen_slot = to[p.seen_slot];
  }
  for (auto& c : q.consumer) c.slot = to[c.slot];
  for (auto& r : q.recoverer) r.slot = to[r.slot];
}
