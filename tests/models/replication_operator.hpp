// What operators do: elections and reconfigurations, each step guarded by the version of the metadata.
//
// An operator is what an epoch's record says; one that died is one whose next step never comes. With
// OPERATORS = 2 those of earlier epochs go on beside it, as many as there are epochs.
#pragma once
#include "replication_node.hpp"

inline const char* start_election(State& q) {
  if (q.epoch == EPOCHS || !planned(q.epoch + 1, ELECTION)) return nullptr;
  const bool decided = q.kind && q.status == COMMITTING;
  if (!decided && q.status != ELECTING) q.kind = q.old = q.added = 0;
  const bool forward = q.kind && (q.kind != CONTRACT || options.bug == CONTRACT_ROLLED_FORWARD);
  q.epoch++;
  q.status = ELECTING;
  q.leader = 0;
  Record& r = record_of(q, q.epoch);
  r.kind = ELECTION;
  r.fencing = forward ? changed(q.members, 0, q.added) : q.members;
  r.final = forward ? changed(q.members, q.old, q.added) : q.members;
  if (options.bug == COUNT_NOT_MEMBERS) r.factor = static_cast<uint8_t>(size(q.members));
  return "store: election";
}

// The head of a node that answered the fence of `epoch`, and 1.
inline int answered(const State& q, int n, int epoch) {
  const Node& node = q.node[n];
  if (node.epoch == epoch && !node.leads && !node.led) return head(node) + 1;
  return OPERATORS > 1 ? record_of(q, epoch).heard[n] : 0;
}

// The leader is the highest head of a majority; the order of answers decides which majority.
inline const char* choose(State& q, int n, int epoch) {
  Record& r = record_of(q, epoch);
  if (r.kind != ELECTION || r.chosen || !holds(r.final, n) || q.node[n].epoch != epoch) return nullptr;
  if (OPERATORS == 1 && q.epoch != epoch) return nullptr;
  uint8_t asked = r.fencing;
  int needed = majority(size(r.fencing));
  if (options.bug == FENCE_OLD_ENSEMBLE || options.bug == FENCE_OLD_MAJORITY) asked &= q.members;
  if (options.bug == FENCE_OLD_MAJORITY) needed = majority(size(asked));
  const int mine = answered(q, n, epoch);
  int answers = 0;
  for (int m = 0; m < NODES; m++) {
    const int other = holds(asked, m) ? answered(q, m, epoch) : 0;
    answers += other && (!holds(r.final, m) || other <= mine);
  }
  if (!mine || !holds(asked, n) || answers < needed) return nullptr;
  r.chosen = static_cast<Who>(n + 1);
  return "choose";
}

inline const char* finish_election(State& q) {
  if (q.status != ELECTING || !q.epoch) return nullptr;
  const Record& r = record_of(q, q.epoch);
  if (!r.accepted) return nullptr;
  q.status = STEADY;
  q.leader = r.chosen;
  q.members = r.final;
  q.kind = q.old = q.added = 0;
  return "store: elected";
}

inline const char* start_change(State& q, Kind kind, Who old, Who added) {
  if (q.status != STEADY || q.epoch == EPOCHS || !planned(q.epoch + 1, kind)) return nullptr;
  if (old && (!holds(q.members, old - 1) || old == q.leader)) return nullptr;
  if (added && holds(q.members, added - 1)) return nullptr;
  // Of two members the one that stays cannot commit anything without the old one.
  if (kind == SWAP && size(q.members) < 3 && options.bug != COUNT_NOT_MEMBERS) return nullptr;
  q.epoch++;
  q.status = PREPARING;
  q.kind = kind;
  q.old = old;
  q.added = added;
  Record& r = record_of(q, q.epoch);
  r.kind = kind;
  r.chosen = q.leader;
  r.old = old;
  r.added = added;
  if (kind == SWAP) return "store: prepare swap";
  return kind == EXPAND ? "store: prepare expand" : "store: prepare contract";
}

inline const char* prepare(State& q, int epoch) {
  Record& r = record_of(q, epoch);
  if (r.kind <= ELECTION) return nullptr;
  Node& l = q.node[r.chosen - 1];
  if (!l.leads || l.epoch >= epoch || !alive(q, r.chosen - 1)) return nullptr;
  leave_behind(q, r.chosen - 1);
  l.epoch = static_cast<uint8_t>(epoch);
  if (r.old || options.bug != REMOVED_STAYS_CUT_OFF) l.removing = r.old;
  if (r.old && options.bug != REMOVED_COUNTS) l.cursor[r.old - 1] = UNKNOWN;
  l.change = IS_PREPARED;
  if (options.bug != NO_NOTHING) append(l);
  r.flags |= PREPARED;
  return "Prepare";
}

// Whether everything that may be committed is on a majority of those who remain. What earlier leaders
// committed came before the first entry of this one.
inline bool can_lose_one(const State& q, const Record& r) {
  const int leader = r.chosen - 1;
  const Node& l = q.node[leader];
  if (options.bug == CONTRACT_UNGUARDED) return true;
  const bool fresh = options.bug == CONTRACT_BY_FRESH_LEADER;
  const int through = fresh ? l.commit : std::max(l.commit, l.nothing);
  const uint8_t remaining = changed(l.members, r.old, 0);
  return copies(q, leader, remaining, through) >= majority(size(remaining));
}

// How far a snapshot reaches; 0 if the leader gives none out. A committed entry of the current epoch is on
// a majority that the old member is not one of, and so is all before it.
inline int snapshot_end(const Node& l) {
  const int applied = std::min(l.commit, l.synced);
  if (applied < l.nothing) return 0;
  if (options.bug == SNAPSHOT_THROUGH_APPLIED) return applied;
  if (options.bug == CHANGE_UPON_CHANGE) return applied == l.commit ? applied : 0;
  return epoch_of(l.log[applied - 1]) == l.epoch ? applied : 0;
}

inline const char* install_snapshot(State& q, int epoch) {
  Record& r = record_of(q, epoch);
  if (r.kind <= ELECTION || !r.added || !(r.flags & PREPARED)) return nullptr;
  const Node& l = q.node[r.chosen - 1];
  Node& node = q.node[r.added - 1];
  if (!l.leads || l.epoch != epoch || l.change != IS_PREPARED) return nullptr;
  if (!alive(q, r.chosen - 1) || !alive(q, r.added - 1)) return nullptr;
  if (node.epoch > epoch || (node.epoch == epoch && node.installed)) return nullptr;
  const int end = snapshot_end(l);
  if (!end) return nullptr;
  if (node.epoch < epoch) move_to(q, r.added - 1, static_cast<uint8_t>(epoch));
  memset(node.log, 0, ENTRIES);
  memcpy(node.log, l.log, static_cast<size_t>(end));
  node.length = node.synced = static_cast<uint8_t>(end);
  node.installed = 1;
  r.flags |= INSTALLED;
  return "Snapshot";
}

inline const char* store_commit(State& q) {
  if (q.status != PREPARING) return nullptr;
  Record& r = record_of(q, q.epoch);
  if (!(r.flags & PREPARED) || (r.added && !(r.flags & INSTALLED))) return nullptr;
  q.status = COMMITTING;
  r.flags |= STORED;
  return "store: commit";
}

inline const char* commit_change(State& q, int epoch) {
  Record& r = record_of(q, epoch);
  if (r.kind <= ELECTION || !(r.flags & STORED) || !alive(q, r.chosen - 1)) return nullptr;
  Node& l = q.node[r.chosen - 1];
  if (!l.leads || l.epoch != epoch || l.change != IS_PREPARED) return nullptr;
  if (r.kind == CONTRACT && !can_lose_one(q, r)) return nullptr;
  l.members = changed(l.members, r.old, r.added);
  if (r.old) l.cursor[r.old - 1] = UNKNOWN;
  if (r.old || options.bug != REMOVED_STAYS_CUT_OFF) l.removing = 0;
  l.change = IS_APPLIED;
  if (l.factor && r.kind != SWAP) l.factor = static_cast<uint8_t>(l.factor + (r.kind == EXPAND ? 1 : -1));
  r.flags |= COMMITTED;
  const bool back = committable(q, r.chosen - 1) < l.commit;
  if (back && options.bug == COMMIT_RECOMPUTED) q.broken = COMMIT_BACKWARDS;
  return r.kind == SWAP ? "Commit swap" : r.kind == EXPAND ? "Commit expand" : "Commit contract";
}

inline const char* finish_change(State& q, int epoch) {
  const Record& r = record_of(q, epoch);
  if (r.kind <= ELECTION || !(r.flags & COMMITTED)) return nullptr;
  const bool current = q.epoch == epoch && q.status == COMMITTING;
  if (!current && (options.bug != FINISH_WITHOUT_COMPARING || q.epoch == epoch)) return nullptr;
  if (epoch < q.epoch) q.broken = METADATA_BACKWARDS;
  q.epoch = static_cast<uint8_t>(epoch);
  q.status = STEADY;
  q.leader = r.chosen;
  q.members = changed(q.members, r.old, r.added);
  q.kind = q.old = q.added = 0;
  return "store: changed";
}

inline const char* store_abort(State& q) {
  if (q.status != PREPARING || !options.aborts) return nullptr;
  record_of(q, q.epoch).flags |= ABORTED;
  q.status = STEADY;
  q.kind = q.old = q.added = 0;
  return "store: aborted";
}

inline const char* abort_change(State& q, int epoch) {
  const Record& r = record_of(q, epoch);
  if (r.kind <= ELECTION || !(r.flags & ABORTED) || !alive(q, r.chosen - 1)) return nullptr;
  Node& l = q.node[r.chosen - 1];
  if (!l.leads || l.epoch != epoch || l.change != IS_PREPARED) return nullptr;
  l.removing = 0;
  l.change = NO_CHANGE;
  return "Abort";
}
