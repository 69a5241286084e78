// States that differ only in which node is which, or in messages that nobody would take, are one.
#pragma once
#include "replication_state.hpp"

struct Renaming {
  uint8_t to[NODES];

  uint8_t mask(uint8_t from) const {
    uint8_t result = 0;
    for (int n = 0; n < NODES; n++) {
      if (holds(from, n)) result = static_cast<uint8_t>(result | bit(to[n]));
    }
    return result;
  }
  Who who(Who from) const { return static_cast<Who>(from ? to[from - 1] + 1 : 0); }
};

inline void rename_leader(Node& l, const Renaming& names) {
  if (!l.leads) return;
  uint8_t cursor[NODES];
  memcpy(cursor, l.cursor, NODES);
  for (int m = 0; m < NODES; m++) l.cursor[names.to[m]] = cursor[m];
  l.members = names.mask(l.members);
  l.removing = names.who(l.removing);
}

inline State renamed(const State& q, const Renaming& names) {
  State r = q;
  for (int n = 0; n < NODES; n++) {
    r.node[names.to[n]] = q.node[n];
    rename_leader(r.node[names.to[n]], names);
  }
  for (Node& past : r.past) rename_leader(past, names);
  for (int e = 0; e < EPOCHS; e++) {
    Record& record = r.record[e];
    if (!record.kind) continue;
    record.fencing = names.mask(record.fencing);
    record.final = names.mask(record.final);
    record.chosen = names.who(record.chosen);
    record.old = names.who(record.old);
    record.added = names.who(record.added);
    for (int n = 0; OPERATORS > 1 && n < NODES; n++) record.heard[names.to[n]] = q.record[e].heard[n];
  }
  r.members = names.mask(r.members);
  r.leader = names.who(r.leader);
  r.old = names.who(r.old);
  r.added = names.who(r.added);
  r.dead = names.mask(r.dead);
  return r;
}

inline uint64_t mix(uint64_t into, uint64_t value) {
  into = (into ^ value) * 0xff51afd7ed558ccdull;
  return into ^ (into >> 29);
}

// What can be said of a node without naming any other.
inline uint64_t description(const State& q, int n) {
  const Node& node = q.node[n];
  uint64_t words[2] = {0, 0};
  memcpy(words, &node, std::min(sizeof words, offsetof(Node, members)));
  uint64_t result = mix(mix(words[0], words[1]), node.leads);
  result = mix(result, node.commit | size(node.members) << 8 | node.change << 16 | node.nothing << 24);
  uint64_t place = holds(q.members, n) | holds(q.dead, n) << 1 | (q.leader == n + 1) << 2;
  place |= (q.old == n + 1) << 3 | (q.added == n + 1) << 4;
  result = mix(result, place);
  for (const Record& record : q.record) {
    if (!record.kind) continue;
    place = holds(record.fencing, n) | holds(record.final, n) << 1 | (record.chosen == n + 1) << 2;
    place |= (record.old == n + 1) << 3 | (record.added == n + 1) << 4;
    if (OPERATORS > 1) place |= static_cast<uint64_t>(record.heard[n]) << 8;
    result = mix(result, place);
  }
  uint64_t followed = 0;
  const auto follow = [&](const Node& l, uint64_t salt) {
    place = l.cursor[n] | holds(l.members, n) << 8 | (l.removing == n + 1) << 9;
    if (l.leads) followed += mix(l.epoch + salt, place);
  };
  for (const Node& l : q.node) follow(l, 0);
  for (const Node& l : q.past) follow(l, 64);
  return mix(result, followed);
}

// Where reduce() writes down what it did, for a trace.
inline std::vector<Renaming>* renamings_wanted = nullptr;

// The least of all renamings that sort the nodes by their descriptions.
inline void rename_canonically(State& q) {
  uint64_t described[NODES];
  int order[NODES];
  for (int n = 0; n < NODES; n++) {
    described[n] = description(q, n);
    order[n] = n;
  }
  std::sort(order, order + NODES, [&](int a, int b) {
    return described[a] != described[b] ? described[a] < described[b] : a < b;
  });
  const State from = q;
  Renaming least{};
  bool first = true;
  const auto consider = [&] {
    Renaming names;
    for (int k = 0; k < NODES; k++) names.to[order[k]] = static_cast<uint8_t>(k);
    const State candidate = renamed(from, names);
    if (first || memcmp(&candidate, &q, sizeof q) < 0) {
      q = candidate;
      least = names;
    }
    first = false;
  };
  // Every order within each group of equal descriptions, like the digits of a counter.
  for (bool more = true; more;) {
    consider();
    more = false;
    for (int start = 0; start < NODES && !more;) {
      int end = start + 1;
      while (end < NODES && described[order[end]] == described[order[start]]) end++;
      more = std::next_permutation(order + start, order + end);
      start = end;
    }
  }
  if (renamings_wanted) renamings_wanted->push_back(least);
}

// An election that was completed or given up: what is left are fences that some node would still obey, and
// the word to lead that the chosen node would still obey.
inline void forget_election(State& q, int epoch) {
  Record& r = record_of(q, epoch);
  if (q.epoch == epoch && q.status == ELECTING) return;
  bool open = OPERATORS > 1 && !r.chosen;
  if (open) {
    open = false;
    for (int n = 0; n < NODES; n++) open |= holds(r.final, n) && q.node[n].epoch <= epoch;
  }
  if (open) return;
  if (OPERATORS > 1) memset(r.heard, 0, HEARD);
  uint8_t below = 0;
  for (int n = 0; n < NODES; n++) {
    if (holds(r.fencing, n) && q.node[n].epoch < epoch) below = static_cast<uint8_t>(below | bit(n));
  }
  r.fencing = below;
  const Node* chosen = r.chosen ? &q.node[r.chosen - 1] : nullptr;
  const bool obeyed = chosen && chosen->epoch == epoch && (!chosen->led || options.bug == LEADS_AGAIN);
  if (!obeyed) r.final = r.accepted = r.factor = r.chosen = 0;
  if (!r.fencing && !r.chosen) r = Record{};
}

// A change that was completed, aborted or overtaken: its requests matter to a leader that still would obey.
inline void forget_change(State& q, int epoch) {
  Record& r = record_of(q, epoch);
  if (q.epoch == epoch && q.status != STEADY) return;
  if (options.bug == FINISH_WITHOUT_COMPARING) return;
  const Node& l = q.node[r.chosen - 1];
  const bool obeyed = l.epoch < epoch || (l.epoch == epoch && l.change == IS_PREPARED);
  if (!l.leads || !obeyed) r = Record{};
}

// Requests of a leader that is gone, to nodes that have gone on as well.
inline void forget_past(State& q, Node& past) {
  for (int n = 0; n < NODES; n++) {
    const Node& node = q.node[n];
    if (node.epoch < past.epoch || (node.epoch == past.epoch && !node.leads)) continue;
    past.members = static_cast<uint8_t>(past.members & ~bit(n));
    past.cursor[n] = UNKNOWN;
  }
  if (!past.members) past = Node{};
}

// Having led, or having installed, in an epoch in which nobody would ask for it again.
inline void forget_vow(State& q, int n) {
  Node& node = q.node[n];
  if (!node.epoch || node.leads) return;
  const Record& r = record_of(q, node.epoch);
  if (r.kind != ELECTION || r.chosen != n + 1) node.led = 0;
  if (r.kind <= ELECTION || r.added != n + 1) node.installed = 0;
}

inline void reduce(State& q) {
  for (int epoch = 1; epoch <= EPOCHS; epoch++) {
    const Record& r = record_of(q, epoch);
    if (r.kind == ELECTION) forget_election(q, epoch);
    else if (r.kind) forget_change(q, epoch);
  }
  for (int n = 0; n < NODES; n++) forget_vow(q, n);
  for (Node& past : q.past) forget_past(q, past);
  rename_canonically(q);
}

inline void canonical(State& q) {
  if (!options.plain) reduce(q);
}
