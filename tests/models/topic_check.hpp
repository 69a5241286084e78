// What must hold in every reachable state of a topic, and what each process must be able to do alone.
#pragma once
#include "topic_steps.hpp"

inline const char* check_ring(const State& q) {
  if (q.head != q.published && q.head + 1 != q.published) return "head lags by more than one";
  for (int v = std::max(1, q.published - RING + 1); v <= q.published; v++) {
    if (q.ring_tag[place(v)] != v) return "ring does not carry its last sequences";
    const int slot = q.ring_slot[place(v)];
    if (q.payload[slot] != q.value[v]) return "payload of a carried sample changed";
    if (q.sequence[slot] != v) return "sequence of a carried sample changed";
  }
  for (int a = 0; a < RING; a++) {
    for (int b = 0; b < a; b++) {
      if (q.ring_slot[a] != NO_SLOT && q.ring_slot[a] == q.ring_slot[b]) return "slot carried twice";
    }
  }
  return nullptr;
}

inline const char* check_subscriber(const State& q, int i) {
  const Subscriber& s = q.subscriber[i];
  if (s.miscounted) return "a join or a lap counted what was not so";
  if (s.at == S_DEAD) return nullptr;
  for (int k = 0; k < MAX_HELD; k++) {
    if (s.held_slot[k] == NO_SLOT) continue;
    if (!(q.refs[s.held_slot[k]] >> i & 1)) return "a living subscriber's bit was cleared";
    if (q.payload[s.held_slot[k]] != q.value[s.held_sequence[k]]) return "payload changed while held";
    if (q.sequence[s.held_slot[k]] != s.held_sequence[k]) return "wrong sequence in a held sample";
  }
  if (s.at < JOIN_LOAD_HEAD && q.entry[PUBLISHERS + i] != ACTIVE) return "a living subscriber is not active";
  if (s.at < JOIN_LOAD_HEAD && s.received + s.missed != s.cursor - s.start) {
    return "received + missed is not what was published";
  }
  if (is_reliable(i) && s.missed) return "a living reliable subscriber missed a sample";
  return nullptr;
}

inline const char* check_publisher(const State& q, int i) {
  const Publisher& p = q.publisher[i];
  if (p.at >= P_DEAD) return nullptr;
  if (q.entry[i] != ACTIVE) return "a living publisher is not active";
  const bool may_lose = options.bug == IDLE_BEFORE_PUBLISH;
  if (p.slot != NO_SLOT && !may_lose && q.lent[p.slot] != owner(i, p.incarnation)) {
    return "a living publisher's slot was taken from it";
  }
  if (p.kept != NO_SLOT && q.payload[p.kept] != q.value[p.kept_sequence]) {
    return "payload changed under a local view";
  }
  if (p.at != P_READY || !p.left) return nullptr;
  for (int x = 0; x < SLOTS; x++) {
    if (q.lent[x] == IDLE && !q.refs[x] && !carried(q, x)) return nullptr;
  }
  return "no slot for a publisher that may borrow one";
}

inline bool bit_explained(const State& q, int slot, int i) {
  const Subscriber& s = q.subscriber[i];
  if (s.at == S_DEAD || s.at == S_REGISTER) return q.entry[PUBLISHERS + i] != FREE;
  const bool tentative = (s.at == REREAD || s.at == CLEAR_BIT) && s.slot == slot;
  return tentative || std::any_of(s.held_slot, s.held_slot + MAX_HELD, [&](uint8_t x) { return x == slot; });
}

inline bool loan_explained(const State& q, int slot) {
  const int i = (q.lent[slot] & 15) - 1, incarnation = q.lent[slot] >> 4;
  const Publisher& p = q.publisher[i];
  if (p.at == P_DEAD || p.at == P_REGISTER) return q.entry[i] != FREE;
  return p.incarnation == incarnation && (p.slot == slot || p.kept == slot);
}

inline const char* check_leaks(const State& q) {
  for (int x = 0; x < SLOTS; x++) {
    for (int i = 0; i < SUBSCRIBERS; i++) {
      if ((q.refs[x] >> i & 1) && !bit_explained(q, x, i)) return "leaked reference bit";
    }
    if (q.lent[x] != IDLE && !loan_explained(q, x)) return "leaked loan";
  }
  return nullptr;
}

// ---- progress: everybody else is stopped where it is, possibly holding a lock byte

inline bool blocked_by_living(const State& q, const Publisher& p) {
  for (int k = 0; k < options.reliable; k++) {
    const int t = PUBLISHERS + k;
    if (q.entry[t] == ACTIVE && q.life[t] && q.cursor[k] + RING < p.head + 1) return true;
  }
  return false;
}

inline const char* publisher_alone(State q, int i) {
  Publisher& p = q.publisher[i];
  if (p.at >= P_DEAD || !p.left) return nullptr;
  const int want = p.left - 1;
  int scanned = 0;
  for (int steps = 0; p.left != want; steps++) {
    if (steps > 60 + 8 * SLOTS) return "a publisher alone does not finish";
    if (p.at == RELIABLE_CURSORS && blocked_by_living(q, p)) return nullptr;
    int choice = 0;
    if (p.at == P_READY) {
      while (scanned < SLOTS && q.lent[scanned] != IDLE) scanned++;
      if (scanned == SLOTS) return "a publisher alone finds no slot in one scan";
      choice = scanned++;
    }
    step_publisher(q, i, choice);
  }
  return nullptr;
}

inline const char* subscriber_alone(State q, int i) {
  Subscriber& s = q.subscriber[i];
  if (s.at == S_DEAD || s.at == S_REGISTER || (s.at == S_READY && held_count(s) >= MAX_HELD)) return nullptr;
  const int received = s.received;
  const bool joining = s.at >= JOIN_LOAD_HEAD;
  for (int steps = 0; steps <= 40; steps++) {
    if (s.at == S_READY && (s.received != received || joining || held_count(s) >= MAX_HELD)) return nullptr;
    if (!step_subscriber(q, i, -1)) {
      return q.published > s.cursor ? "a subscriber alone gets nothing though a sample is there" : nullptr;
    }
  }
  return "a subscriber alone does not finish";
}

inline std::string check(const State& q) {
  const char* wrong = check_ring(q);
  for (int i = 0; !wrong && i < SUBSCRIBERS; i++) wrong = check_subscriber(q, i);
  for (int i = 0; !wrong && i < PUBLISHERS; i++) wrong = check_publisher(q, i);
  if (!wrong) wrong = check_leaks(q);
  for (int i = 0; !wrong && i < PUBLISHERS; i++) wrong = publisher_alone(q, i);
  for (int i = 0; !wrong && i < SUBSCRIBERS; i++) wrong = subscriber_alone(q, i);
  return wrong ? wrong : "";
}
