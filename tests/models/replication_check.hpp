// What must hold in every state, and what must stay possible from every state.
#pragma once
#include "replication_state.hpp"

inline std::string named(const char* what, int n) {
  return std::string(what) + " (node " + std::to_string(n) + ")";
}

inline std::string check_log(const State& q, int n) {
  const Node& node = q.node[n];
  if (node.synced > node.length || node.epoch > q.epoch) return named("impossible node", n);
  for (int k = 0; k < node.length; k++) {
    if (epoch_of(node.log[k]) > node.epoch) return named("an entry of an epoch not yet entered", n);
    if (k && epoch_of(node.log[k]) < epoch_of(node.log[k - 1])) return named("epochs of a log decrease", n);
  }
  for (int m = 0; m < n; m++) {
    const Node& other = q.node[m];
    int last = std::min(node.length, other.length);
    while (last && id_at(node, last) != id_at(other, last)) last--;
    if (memcmp(node.log, other.log, static_cast<size_t>(last))) return named("same entry, other prefix", n);
  }
  return "";
}

inline std::string check_leader(const State& q, int n) {
  const Node& l = q.node[n];
  for (int m = 0; m < n; m++) {
    if (q.node[m].leads && q.node[m].epoch == l.epoch) return named("two leaders in one epoch", n);
  }
  const int committed = committed_by(q, l.epoch);
  if (l.length < committed || memcmp(l.log, q.history, static_cast<size_t>(committed))) {
    return named("a leader lacks a committed entry", n);
  }
  if (l.commit > std::min(l.length, q.committed)) return named("false commit index", n);
  const bool settled = q.status == STEADY && q.leader == n + 1 && l.epoch == q.epoch;
  if (settled && l.members != q.members) return named("leader and metadata disagree about the members", n);
  return "";
}

// What a cursor claims is on the follower's disk, unless the follower has been told otherwise since.
inline std::string check_cursors(const State& q, int leader) {
  const Node& l = q.node[leader];
  for (int n = 0; n < NODES; n++) {
    if (l.cursor[n] == UNKNOWN) continue;
    const int confirmed = l.cursor[n] - 1;
    const Node& node = q.node[n];
    if (!holds(l.members, n) || confirmed > l.length) return named("cursor out of place", n);
    if (node.epoch > l.epoch) continue;
    if (node.synced < confirmed || memcmp(node.log, l.log, static_cast<size_t>(confirmed))) {
      return named("a follower lacks what it confirmed", n);
    }
  }
  return "";
}

inline std::string check(const State& q) {
  static const char* const broken[] = {"",
                                       "two nodes were leaders in one epoch",
                                       "two histories were committed",
                                       "an entry conflicts with the follower's log",
                                       "a follower lacks the previous entry it confirmed",
                                       "a committed entry is cut",
                                       "the commit index goes back",
                                       "the metadata goes back",
                                       "a follower takes as committed what is not"};
  if (q.broken) return broken[q.broken];
  std::string wrong;
  for (int n = 0; n < NODES && wrong.empty(); n++) {
    wrong = check_log(q, n);
    if (wrong.empty() && q.node[n].leads) wrong = check_leader(q, n);
    // Only restates the guards: a planted defect has to show in what it does.
    if (wrong.empty() && q.node[n].leads && options.bug == NO_BUG) wrong = check_cursors(q, n);
  }
  const bool stray = q.status != ELECTING && (!q.leader || !holds(q.members, q.leader - 1));
  return wrong.empty() && stray ? "the leader is not a member" : wrong;
}

// Nothing is left to do: everything is committed, everywhere.
inline bool is_done(const State& q) {
  if (q.status != STEADY) return false;
  const Node& l = q.node[q.leader - 1];
  if (!l.leads || l.commit != l.length || l.synced != l.length || l.removing) return false;
  for (int n = 0; n < NODES; n++) {
    if (n == q.leader - 1 || !holds(q.members, n) || !alive(q, n)) continue;
    if (l.cursor[n] != l.length + 1) return false;
  }
  return true;
}

// From here nothing needs to go wrong any more. Either the leader is up, or there may be another election.
inline bool has_hope(const State& q) {
  if (options.live == 1) return q.epoch < EPOCHS && planned(q.epoch + 1, ELECTION);
  return q.status != ELECTING && q.node[q.leader - 1].leads;
}
