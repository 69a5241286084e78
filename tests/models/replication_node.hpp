// What a node does: fencing, leading, replication, commitment, restarts.
//
// Each step is one message taken together with all that its receiver does at once, and with its answer: an
// answer only tells a leader what it may use later, and every use is a step of its own that may never come.
#pragma once
#include "replication_state.hpp"

inline void stop_leading(Node& n) {
  n.leads = n.members = n.commit = n.nothing = n.change = n.factor = n.removing = 0;
  memset(n.cursor, UNKNOWN, NODES);
}

// What a leader has sent may arrive when it no longer leads, or leads in a later epoch.
inline void leave_behind(State& q, int n) {
  if (!LATE || !q.node[n].leads) return;
  Node& past = q.past[q.node[n].epoch - 1];
  past = q.node[n];
  const uint8_t unsent = static_cast<uint8_t>(bit(n) | (past.removing ? bit(past.removing - 1) : 0));
  past.members = static_cast<uint8_t>(past.members & ~unsent);
  past.led = past.synced = past.commit = past.nothing = past.change = past.factor = past.removing = 0;
}

inline void append(Node& n, bool again = false) {
  if (n.length == ENTRIES) abort();
  n.log[n.length++] = static_cast<uint8_t>(n.epoch | (again ? AGAIN : 0));
}

// An operator may choose by an answer whose sender has moved on since.
inline void remember_answer(State& q, int n) {
  const Node& node = q.node[n];
  if (OPERATORS == 1 || !node.epoch) return;
  Record& r = record_of(q, node.epoch);
  if (r.kind == ELECTION && !r.chosen && r.final) r.heard[n] = static_cast<uint8_t>(head(node) + 1);
}

inline int reported(const Node& n) { return options.bug == SYNCED_HEAD_REPORTED ? n.synced : n.length; }

// A head that is reported covers the whole log: what is not synced yet is synced before.
inline void move_to(State& q, int n, uint8_t epoch) {
  Node& node = q.node[n];
  if (epoch <= node.epoch) abort();
  remember_answer(q, n);
  leave_behind(q, n);
  node.epoch = epoch;
  node.led = node.installed = node.stale_target = 0;
  stop_leading(node);
  if (options.bug != SYNCED_HEAD_REPORTED) node.synced = node.length;
}

inline const char* fence(State& q, int n, int epoch) {
  const Record& r = record_of(q, epoch);
  if (r.kind != ELECTION || !holds(r.fencing, n) || q.node[n].epoch >= epoch) return nullptr;
  move_to(q, n, static_cast<uint8_t>(epoch));
  q.node[n].synced = q.node[n].length;
  return "Fence";
}

inline const char* become_leader(State& q, int n, int epoch) {
  Record& r = record_of(q, epoch);
  Node& node = q.node[n];
  if (r.kind != ELECTION || r.chosen != n + 1 || node.epoch != epoch || node.leads) return nullptr;
  if (node.led && options.bug != LEADS_AGAIN) return nullptr;
  if (r.accepted > 1) return nullptr;
  if (r.accepted && !node.led) q.broken = TWO_LEADERS;
  r.accepted++;
  node.led = node.leads = 1;
  node.members = r.final;
  if (options.bug == COUNT_NOT_MEMBERS) node.factor = r.factor;
  node.nothing = static_cast<uint8_t>(node.length + 1);
  if (options.bug != NO_NOTHING && node.length < ENTRIES) append(node, r.accepted > 1);
  return "BecomeLeader";
}

inline bool follows(const State& q, int leader, int n) {
  const Node& l = q.node[leader];
  if (n == leader || !l.leads || !holds(l.members, n)) return false;
  return l.removing != n + 1 || options.bug == REMOVED_COUNTS;
}

inline bool listens(const State& q, int leader, int n) {
  const Node& node = q.node[n];
  return node.epoch < q.node[leader].epoch || (node.epoch == q.node[leader].epoch && !node.leads);
}

// Heartbeats, the follower map and AddFollower: the leader learns a head of its epoch.
inline const char* heartbeat(State& q, int leader, int n) {
  Node& l = q.node[leader];
  Node& node = q.node[n];
  if (!follows(q, leader, n) || !listens(q, leader, n) || l.cursor[n] == STUCK) return nullptr;
  const bool adopts = node.epoch < l.epoch;
  if (adopts) move_to(q, n, l.epoch);
  if (options.bug == HEARTBEAT_COMMITS_UNMATCHED) {
    const int commit = std::min(l.commit, node.length);
    if (memcmp(node.log, q.history, static_cast<size_t>(commit))) q.broken = FALSE_COMMIT;
  }
  const uint8_t cursor = static_cast<uint8_t>(reported(node) + 1);
  const bool attaches = has(l, id_at(node, reported(node))) && l.cursor[n] < cursor;
  if (attaches) l.cursor[n] = cursor;
  return attaches ? "Heartbeat, attached" : adopts ? "Heartbeat" : nullptr;
}

inline void drop_above(State& q, Node& n, Id target) {
  const int known = std::min<int>(n.length, committed_by(q, n.epoch));
  const bool matches = !memcmp(n.log, q.history, static_cast<size_t>(known));
  while (n.length && head(n) > target) n.log[--n.length] = 0;
  n.synced = std::min(n.synced, n.length);
  if (matches && n.length < known && options.bug == NO_BUG) q.broken = COMMITTED_CUT;
}

// The highest entry of the leader that is not of a later epoch than the head.
inline Id target_for(const Node& l, Id head) {
  int index = l.length;
  while (index && epoch_of(l.log[index - 1]) > (head >> 4)) index--;
  return id_at(l, index);
}

inline const char* truncate(State& q, int leader, int n) {
  Node& l = q.node[leader];
  Node& node = q.node[n];
  if (!follows(q, leader, n) || node.epoch != l.epoch || node.leads) return nullptr;
  if (has(l, id_at(node, reported(node)))) return nullptr;
  const Id target = target_for(l, head(node));
  drop_above(q, node, target);
  if (options.bug == TRUNCATE_ANY_HEAD) node.stale_target = static_cast<uint8_t>(target + 1);
  if (options.bug == TRUNCATE_ONCE) l.cursor[n] = static_cast<uint8_t>(node.length + 1);
  return "Truncate";
}

inline const char* truncate_again(State& q, int n) {
  Node& node = q.node[n];
  if (!node.stale_target || node.leads || head(node) < node.stale_target) return nullptr;
  drop_above(q, node, static_cast<Id>(node.stale_target - 1));
  return "Truncate again";
}

// One entry in a step: more at once are several steps with nothing in between.
inline const char* add_entry(State& q, int leader, int n) {
  Node& l = q.node[leader];
  Node& node = q.node[n];
  if (!follows(q, leader, n) || !listens(q, leader, n)) return nullptr;
  if (l.cursor[n] == UNKNOWN || l.cursor[n] == STUCK) return nullptr;
  const int previous = l.cursor[n] - 1;
  if (previous >= l.length) return nullptr;
  const bool adopts = node.epoch < l.epoch;
  if (adopts) move_to(q, n, l.epoch);
  if (!has(node, id_at(l, previous)) && options.bug != TRUNCATE_ONCE) {
    if (options.bug == NO_BUG) q.broken = ACK_LOST;
    l.cursor[n] = UNKNOWN;
    return "AddEntries, refused";
  }
  if (node.length == previous) {
    node.log[node.length++] = l.log[previous];
    if (options.bug != ACK_BEFORE_SYNC) node.synced = node.length;
  } else if (epoch_of(node.log[previous]) != epoch_of(l.log[previous])) {
    q.broken = CONFLICT;
  }
  l.cursor[n] = adopts && options.bug == OLD_EPOCH_ACK ? STUCK : static_cast<uint8_t>(previous + 2);
  return "AddEntries";
}

// The same three from a leader that is gone; nobody hears the answers.
inline const char* late_heartbeat(State& q, const Node& l, int n) {
  if (!holds(l.members, n) || q.node[n].epoch >= l.epoch) return nullptr;
  move_to(q, n, l.epoch);
  return "late Heartbeat";
}

inline const char* late_truncate(State& q, const Node& l, int n) {
  Node& node = q.node[n];
  if (!holds(l.members, n) || node.epoch != l.epoch || node.leads || has(l, head(node))) return nullptr;
  drop_above(q, node, target_for(l, head(node)));
  return "late Truncate";
}

inline const char* late_entry(State& q, const Node& l, int n, int previous) {
  Node& node = q.node[n];
  if (!holds(l.members, n) || l.cursor[n] == UNKNOWN || previous < l.cursor[n] - 1) return nullptr;
  if (node.epoch > l.epoch || (node.epoch == l.epoch && node.leads)) return nullptr;
  const bool adopts = node.epoch < l.epoch;
  if (adopts) move_to(q, n, l.epoch);
  if (!has(node, id_at(l, previous))) return adopts ? "late AddEntries, refused" : nullptr;
  if (node.length > previous) {
    if (epoch_of(node.log[previous]) != epoch_of(l.log[previous])) q.broken = CONFLICT;
    return adopts || q.broken ? "late AddEntries" : nullptr;
  }
  node.log[node.length++] = l.log[previous];
  node.synced = node.length;
  return "late AddEntries";
}

inline const char* deposed(State& q, int leader, int n) {
  Node& l = q.node[leader];
  if (!follows(q, leader, n) || q.node[n].epoch <= l.epoch) return nullptr;
  l.synced = l.length;
  leave_behind(q, leader);
  stop_leading(l);
  return "deposed by an answer";
}

inline const char* propose(State& q, int leader) {
  Node& l = q.node[leader];
  if (!l.leads || !q.values || l.length == ENTRIES) return nullptr;
  q.values--;
  append(l, epoch_of(l.log[l.length - 1]) == l.epoch && (l.log[l.length - 1] & AGAIN));
  return "Propose";
}

inline const char* sync(State& q, int n) {
  Node& node = q.node[n];
  if (node.synced == node.length) return nullptr;
  node.synced = node.length;
  return "Synced";
}

// How many of `members` are known to have everything through `index`.
inline int copies(const State& q, int leader, uint8_t members, int index) {
  const Node& l = q.node[leader];
  int count = 0;
  for (int n = 0; n < NODES; n++) {
    if (!holds(members, n)) continue;
    if (n == leader) count += l.synced >= index;
    else if (follows(q, leader, n)) count += l.cursor[n] != STUCK && l.cursor[n] > index;
  }
  return count;
}

inline int quorum(const Node& l) { return majority(l.factor ? l.factor : size(l.members)); }

// The highest index that may be committed, or 0.
inline int committable(const State& q, int leader) {
  const Node& l = q.node[leader];
  for (int index = l.length; index; index--) {
    if (epoch_of(l.log[index - 1]) != l.epoch && options.bug != PRIOR_EPOCH_COUNTS) break;
    if (copies(q, leader, l.members, index) >= quorum(l)) return index;
  }
  return 0;
}

inline const char* commit(State& q, int leader) {
  Node& l = q.node[leader];
  if (!l.leads) return nullptr;
  const int index = committable(q, leader);
  if (index <= l.commit) return nullptr;
  l.commit = static_cast<uint8_t>(index);
  if (memcmp(l.log, q.history, static_cast<size_t>(std::min<int>(index, q.committed)))) {
    q.broken = TWO_HISTORIES;
  } else if (index > q.committed) {
    memcpy(q.history, l.log, static_cast<size_t>(index));
    memset(q.committed_in + q.committed, l.epoch, static_cast<size_t>(index - q.committed));
    q.committed = static_cast<uint8_t>(index);
  }
  const bool bumped = l.nothing <= l.length && epoch_of(l.log[l.nothing - 1]) != l.epoch;
  return bumped ? "commit in the epoch of a change" : "commit";
}

// Forgets what is volatile, and of the log what the disk did not keep.
inline const char* restart(State& q, int n, int kept) {
  Node& node = q.node[n];
  if (kept < node.synced || kept > node.length || !(node.leads || node.synced < node.length)) return nullptr;
  leave_behind(q, n);
  while (node.length > kept) node.log[--node.length] = 0;
  node.synced = node.length;
  stop_leading(node);
  return "RESTART";
}

inline const char* die(State& q, int n) {
  if (size(q.dead) >= options.deaths || !alive(q, n)) return nullptr;
  leave_behind(q, n);
  q.dead = static_cast<uint8_t>(q.dead | bit(n));
  stop_leading(q.node[n]);
  return "DIES";
}
