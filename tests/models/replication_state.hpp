// The replicated log: what nodes, operators and the metadata store remember.
//
// Nothing that was sent is stored. A request of an epoch stays possible as long as its receiver's guards
// would take it, so loss, delay, repetition and reordering are there without a network; docs/decisions/0025
// says why this leaves nothing out. With LATE = 1 requests of leaders that are gone are explored too.
#pragma once
#include <algorithm>

#include "explorer.hpp"

#ifndef NODES
#define NODES 3
#endif
#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifndef VALUES
#define VALUES 1
#endif
#ifndef OPERATORS
#define OPERATORS 1
#endif
#ifndef LATE
#define LATE 0
#endif
// Each epoch has one leader and so one no-op.
constexpr int ENTRIES = EPOCHS + VALUES;
constexpr int HEARD = OPERATORS > 1 ? NODES : 0;
constexpr int PAST = LATE ? EPOCHS : 0;
static_assert(NODES <= 5 && EPOCHS <= 7 && ENTRIES <= 15);

enum Bug {
  NO_BUG,
  TRUNCATE_ONCE,
  COUNT_NOT_MEMBERS,
  FINISH_WITHOUT_COMPARING,
  COMMIT_RECOMPUTED,
  CONTRACT_UNGUARDED,
  OLD_EPOCH_ACK,
  FENCE_OLD_ENSEMBLE,
  FENCE_OLD_MAJORITY,
  NO_NOTHING,
  CONTRACT_ROLLED_FORWARD,
  ACK_BEFORE_SYNC,
  PRIOR_EPOCH_COUNTS,
  REMOVED_COUNTS,
  LEADS_AGAIN,
  TRUNCATE_ANY_HEAD,
  CONTRACT_BY_FRESH_LEADER,
  SNAPSHOT_THROUGH_APPLIED,
  CHANGE_UPON_CHANGE,
  SYNCED_HEAD_REPORTED,
  HEARTBEAT_COMMITS_UNMATCHED,
  REMOVED_STAYS_CUT_OFF
};

struct Options {
  int bug, plan, members, deaths, aborts, live, settled, plain;
};
inline Options options;

enum Kind : uint8_t { NO_KIND, ELECTION, SWAP, EXPAND, CONTRACT };
enum Status : uint8_t { ELECTING, STEADY, PREPARING, COMMITTING };
// What is answered, or stored, in a reconfiguration.
enum Flag : uint8_t { PREPARED = 1, INSTALLED = 2, STORED = 4, COMMITTED = 8, ABORTED = 16 };
enum Broken : uint8_t {
  SOUND,
  TWO_LEADERS,
  TWO_HISTORIES,
  CONFLICT,
  ACK_LOST,
  COMMITTED_CUT,
  COMMIT_BACKWARDS,
  METADATA_BACKWARDS,
  FALSE_COMMIT
};
enum Change : uint8_t { NO_CHANGE, IS_PREPARED, IS_APPLIED };

// A cursor is 0 while the follower's head is not known to be in the log, otherwise what it confirmed and 1.
constexpr uint8_t UNKNOWN = 0;
constexpr uint8_t STUCK = 0xff;  // only in OLD_EPOCH_ACK
// In an entry: written by a leader that led in its epoch before (only in LEADS_AGAIN).
constexpr uint8_t AGAIN = 0x10;

using Id = uint8_t;   // epoch * 16 + index; the head of an empty log is 0
using Who = uint8_t;  // a node and 1, or 0

struct Node {
  uint8_t epoch, led, installed;  // the vow; installed: in this epoch
  uint8_t length, synced, log[ENTRIES];
  uint8_t stale_target;  // of a Truncate that may arrive again (only in TRUNCATE_ANY_HEAD)
  uint8_t leads;
  // Of a leader, volatile.
  uint8_t members, commit, nothing, change, factor;  // nothing: the index of its first no-op
  Who removing;
  uint8_t cursor[NODES];
};

// What the operator of an epoch has said and heard.
struct Record {
  uint8_t kind;
  uint8_t fencing, final, accepted, factor;  // of an election; accepted: times it was
  Who chosen, old, added;                    // chosen: whom the operator told to lead or to prepare
  uint8_t flags;                             // of a reconfiguration
  uint8_t heard[HEARD];                      // heads answered by nodes that moved on, and 1
};

struct State {
  Node node[NODES];
  Record record[EPOCHS];  // of epoch k + 1
  Node past[PAST];        // the leader of epoch k + 1 as it was when it went
  // The metadata; its version is the pair (epoch, status).
  uint8_t epoch, status, members, kind;
  Who leader, old, added;
  // What nobody knows: everything ever committed, the epochs it was committed in, and what is left to happen.
  uint8_t committed, history[ENTRIES], committed_in[ENTRIES];
  uint8_t values, dead, broken;
};
static_assert(sizeof(State) == (NODES + PAST) * sizeof(Node) + EPOCHS * sizeof(Record) + 11 + 2 * ENTRIES);

inline uint8_t bit(int n) { return static_cast<uint8_t>(1 << n); }
inline bool holds(uint8_t mask, int n) { return mask >> n & 1; }
inline int size(uint8_t mask) { return __builtin_popcount(mask); }
inline int majority(int members) { return members / 2 + 1; }
inline uint8_t epoch_of(uint8_t entry) { return entry & 0xf; }
inline Record& record_of(State& q, int epoch) { return q.record[epoch - 1]; }
inline const Record& record_of(const State& q, int epoch) { return q.record[epoch - 1]; }
inline bool alive(const State& q, int n) { return !holds(q.dead, n); }

inline Id id_at(const Node& n, int index) {
  return static_cast<Id>(index ? epoch_of(n.log[index - 1]) * 16 + index : 0);
}
inline Id head(const Node& n) { return id_at(n, n.length); }

inline bool has(const Node& n, Id id) {
  const int index = id & 0xf;
  return index <= n.length && id_at(n, index) == id;
}

// The digit of the plan for an epoch says what it may be: a Kind, or 9 for any.
inline bool planned(int epoch, Kind kind) {
  int plan = options.plan;
  for (int k = EPOCHS; k > epoch; k--) plan /= 10;
  return plan % 10 == kind || plan % 10 == 9;
}

// How much was committed in `epoch` or before.
inline int committed_by(const State& q, int epoch) {
  int count = q.committed;
  while (count && q.committed_in[count - 1] > epoch) count--;
  return count;
}

inline uint8_t changed(uint8_t members, Who old, Who added) {
  if (old) members = static_cast<uint8_t>(members & ~bit(old - 1));
  if (added) members = static_cast<uint8_t>(members | bit(added - 1));
  return members;
}
