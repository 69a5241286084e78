// One step of each process of a topic: at most one shared word is read or written in a step.
//
// A step returns its label, or null when the process cannot move.
#pragma once
#include "topic_state.hpp"

inline void forget_word(Publisher& p) {
  p.seen_tag = 0;
  p.seen_slot = NO_SLOT;
}

inline const char* start_over(Publisher& p, const char* label) {
  forget_word(p);
  p.head = 0;
  p.at = LOAD_HEAD;
  return label;
}

inline const char* load_word(State& q, Publisher& p) {
  const int next = p.head + 1;
  p.seen_tag = q.ring_tag[place(next)];
  p.seen_slot = q.ring_slot[place(next)];
  if (p.seen_tag == next && options.bug != NO_HELP) {
    forget_word(p);
    p.at = HELP_HEAD;
    return "publish: head lags";
  }
  if (p.seen_tag != last_lap(next)) return start_over(p, "publish: head is old");
  const bool skip = options.bug == RELIABLE_CHECKED_ONCE && p.checked;
  p.at = options.reliable && !skip ? RELIABLE_CURSORS : WRITE_SEQUENCE;
  return "publish: load ring word";
}

// One step reads all cursors: each is one word, and their order does not matter.
inline const char* reliable_cursors(State& q, Publisher& p) {
  for (int k = 0; k < options.reliable; k++) {
    const int t = PUBLISHERS + k;
    const bool waited_for = q.entry[t] == ACTIVE || (options.bug == WAIT_FOR_RECOVERER && q.entry[t] == DEAD);
    if (!waited_for || q.cursor[k] + RING >= p.head + 1) continue;
    if (q.life[t]) return start_over(p, "publish: blocked by a living reliable subscriber");
    p.blocker = static_cast<uint8_t>(t);
    p.blocker_incarnation = q.incarnation[t];
    p.at = MARK_BLOCKER;
    return "publish: blocked by a dead reliable subscriber";
  }
  p.checked = options.bug == RELIABLE_CHECKED_ONCE;
  p.at = WRITE_SEQUENCE;
  return "publish: reliable cursors are far enough";
}

inline bool mark_dead(State& q, int target, int incarnation) {
  if (q.entry[target] != ACTIVE || q.incarnation[target] != incarnation) return false;
  q.entry[target] = DEAD;
  return true;
}

inline const char* cas_ring(State& q, Publisher& p) {
  const int next = p.head + 1, at = place(next);
  if (q.ring_tag[at] != p.seen_tag || q.ring_slot[at] != p.seen_slot) {
    return start_over(p, "publish: CAS of the ring word lost");
  }
  q.ring_tag[at] = q.published = static_cast<uint8_t>(next);
  q.ring_slot[at] = p.slot;
  q.value[next] = p.value;
  p.value = 0;
  forget_word(p);
  p.at = MOVE_HEAD;
  return "publish: CAS of the ring word";
}

inline const char* end_publish(State& q, Publisher& p, bool keep) {
  if (keep && (!KEEP || p.kept != NO_SLOT)) return nullptr;
  if (keep) {
    p.kept = p.slot;
    p.kept_sequence = q.sequence[p.slot];
  }
  const bool idle = keep ? options.bug == KEPT_BUT_IDLE : options.bug != IDLE_BEFORE_PUBLISH;
  if (idle) q.lent[p.slot] = IDLE;
  p.slot = NO_SLOT;
  p.left--;
  p.checked = 0;
  p.at = P_READY;
  return keep ? "publish: slot stays lent for local views" : "publish: set idle";
}

// May happen between any two other steps of its publisher: the last local view is dropped.
inline const char* drop_kept(State& q, Publisher& p) {
  if (p.kept == NO_SLOT) return nullptr;
  if (options.bug != KEPT_BUT_IDLE) q.lent[p.kept] = IDLE;
  p.kept = NO_SLOT;
  p.kept_sequence = 0;
  return "last local view gone: set idle";
}

inline const char* step_borrow(State& q, int i, int choice) {
  Publisher& p = q.publisher[i];
  const bool refs_first = options.bug == REFS_BEFORE_RING;
  switch (p.at) {
    case P_READY:
      if (!p.left || q.lent[choice] != IDLE) return nullptr;
      q.lent[choice] = owner(i, p.incarnation);
      p.slot = static_cast<uint8_t>(choice);
      p.at = refs_first ? BORROW_REFS : BORROW_RING;
      return "borrow: CAS idle to lent";
    case BORROW_RING: {
      const int at = place(q.sequence[p.slot]);
      const bool there = q.ring_tag[at] == q.sequence[p.slot] && q.ring_slot[at] == p.slot;
      p.at = there ? PUT_BACK : refs_first ? WRITE_HALF : BORROW_REFS;
      return "borrow: look at the ring";
    }
    case BORROW_REFS:
      p.at = q.refs[p.slot] ? PUT_BACK : refs_first ? BORROW_RING : WRITE_HALF;
      return "borrow: look at refs";
    case PUT_BACK:
      q.lent[p.slot] = IDLE;
      p.slot = NO_SLOT;
      p.at = P_READY;
      return "borrow: put back";
  }
  return nullptr;
}

// `choice`: the slot to try when borrowing; 1 when ending means the slot stays lent.
inline const char* step_publisher(State& q, int i, int choice) {
  Publisher& p = q.publisher[i];
  switch (p.at) {
    case WRITE_HALF:
      q.payload[p.slot] = TORN;
      p.at = WRITE_REST;
      return "write half";
    case WRITE_REST:
      p.value = static_cast<uint8_t>(1 + i * 16 + (PUBLISHES - p.left) + 4 * p.incarnation);
      q.payload[p.slot] = p.value;
      if (options.bug == IDLE_BEFORE_PUBLISH) q.lent[p.slot] = IDLE;
      p.at = LOAD_HEAD;
      return "write rest";
    case LOAD_HEAD:
      p.head = q.head;
      p.at = LOAD_WORD;
      return "publish: load head";
    case LOAD_WORD:
      return load_word(q, p);
    case HELP_HEAD:
      if (q.head == p.head) q.head++;
      return start_over(p, "publish: help the head");
    case RELIABLE_CURSORS:
      return reliable_cursors(q, p);
    case MARK_BLOCKER:
      mark_dead(q, p.blocker, p.blocker_incarnation);
      p.blocker = p.blocker_incarnation = 0;
      return start_over(p, "publish: CAS active to dead");
    case WRITE_SEQUENCE:
      q.sequence[p.slot] = static_cast<uint8_t>(p.head + 1);
      p.at = CAS_RING;
      return "publish: write sequence";
    case CAS_RING:
      return cas_ring(q, p);
    case MOVE_HEAD:
      if (q.head == p.head) q.head++;
      p.head = 0;
      p.at = SET_IDLE;
      return "publish: move head";
    case SET_IDLE:
      return end_publish(q, p, choice == 1);
    case P_REGISTER:
      q.entry[i] = ACTIVE;
      p.incarnation = ++q.incarnation[i];
      q.recovery[i] = 0;
      p.at = P_READY;
      return "register: active, recovery byte dropped";
    default:
      return step_borrow(q, i, choice);
  }
  return nullptr;
}

inline void go_active(State& q, int i) {
  const int t = PUBLISHERS + i;
  q.entry[t] = ACTIVE;
  q.subscriber[i].incarnation = ++q.incarnation[t];
  if (q.recovery[t] == 1) q.recovery[t] = 0;
}

inline const char* release(State& q, int i, int which) {
  Subscriber& s = q.subscriber[i];
  if (s.held_slot[which] == NO_SLOT) return nullptr;
  q.refs[s.held_slot[which]] &= static_cast<uint8_t>(~(1 << i));
  for (int k = which; k + 1 < MAX_HELD; k++) {
    s.held_slot[k] = s.held_slot[k + 1];
    s.held_sequence[k] = s.held_sequence[k + 1];
  }
  s.held_slot[MAX_HELD - 1] = NO_SLOT;
  s.held_sequence[MAX_HELD - 1] = 0;
  return "release";
}

inline const char* read_ring_word(State& q, Subscriber& s) {
  if (held_count(s) >= MAX_HELD && options.bug != HELD_CHECKED_LATE) return nullptr;
  const int next = s.cursor + 1, tag = q.ring_tag[place(next)];
  if (tag < next) return nullptr;
  s.tag = static_cast<uint8_t>(tag);
  if (tag > next) {
    s.at = COUNT_MISSED;
    return "take: lapped";
  }
  s.slot = q.ring_slot[place(next)];
  s.at = SET_BIT;
  return "take: read ring word";
}

inline const char* reread(State& q, int i) {
  Subscriber& s = q.subscriber[i];
  const int next = s.cursor + 1, tag = q.ring_tag[place(next)];
  const bool same = (tag == s.tag && q.ring_slot[place(next)] == s.slot) || options.bug == NO_REREAD;
  if (!same || held_count(s) >= MAX_HELD) {
    s.tag = static_cast<uint8_t>(same ? 0 : tag);
    s.at = CLEAR_BIT;
    return "take: ring word changed";
  }
  const int k = held_count(s);
  s.held_slot[k] = s.slot;
  s.held_sequence[k] = s.cursor = static_cast<uint8_t>(next);
  s.received++;
  s.slot = NO_SLOT;
  s.tag = 0;
  s.at = is_reliable(i) ? STORE_CURSOR : S_READY;
  return "take: ring word unchanged, mine";
}

inline const char* count_missed(State& q, Subscriber& s) {
  int to = std::max<int>(s.cursor, q.head - RING);
  if (options.bug != LAP_BY_HEAD_ONLY) to = std::max(to, s.tag - RING);
  if (to > q.published - RING && to > s.cursor) s.miscounted = 1;
  s.missed = static_cast<uint8_t>(s.missed + to - s.cursor);
  s.cursor = static_cast<uint8_t>(to);
  s.tag = 0;
  s.at = S_READY;
  return "take: count missed";
}

inline uint8_t with_history(int head) {
  return static_cast<uint8_t>(head - std::min({options.history, head, RING}));
}

inline void place_cursor(Subscriber& s, int cursor) {
  s.cursor = s.start = static_cast<uint8_t>(cursor);
  s.received = s.missed = s.tag = 0;
}

inline const char* join_placed(State& q, int i) {
  Subscriber& s = q.subscriber[i];
  place_cursor(s, with_history(s.tag));
  if (is_reliable(i)) {
    q.cursor[i] = s.cursor;
    s.at = JOIN_ACTIVE;
    return "join: cursor placed";
  }
  if (s.cursor != with_history(q.published)) s.miscounted = 1;
  if (q.entry[PUBLISHERS + i] != ACTIVE) go_active(q, i);
  s.at = S_READY;
  return "join: cursor placed, active";
}

// `choice`: -1 takes, k releases the k-th sample held.
inline const char* step_subscriber(State& q, int i, int choice) {
  Subscriber& s = q.subscriber[i];
  switch (s.at) {
    case S_READY:
      return choice >= 0 ? release(q, i, choice) : read_ring_word(q, s);
    case SET_BIT:
      q.refs[s.slot] |= static_cast<uint8_t>(1 << i);
      s.at = REREAD;
      return "take: set bit";
    case REREAD:
      return reread(q, i);
    case CLEAR_BIT:
      q.refs[s.slot] &= static_cast<uint8_t>(~(1 << i));
      s.slot = NO_SLOT;
      s.at = s.tag ? COUNT_MISSED : S_READY;
      return "take: clear bit";
    case COUNT_MISSED:
      return count_missed(q, s);
    case STORE_CURSOR:
      q.cursor[i] = s.cursor;
      s.at = S_READY;
      return "take: store cursor";
    case JOIN_LOAD_HEAD:
      if (is_reliable(i) && options.bug != RELIABLE_JOIN_NAIVE) {
        q.cursor[i] = with_history(q.head);
        s.at = JOIN_ACTIVE;
        return "join: provisional cursor";
      }
      s.tag = q.head;
      if (options.bug == JOIN_WITHOUT_HELP) return join_placed(q, i);
      s.at = JOIN_CHECK_HEAD;
      return "join: load head";
    case JOIN_CHECK_HEAD:
      if (q.ring_tag[place(s.tag + 1)] == last_lap(s.tag + 1)) return join_placed(q, i);
      s.at = JOIN_HELP;
      return "join: head lags";
    case JOIN_HELP:
      if (q.head == s.tag) q.head++;
      s.tag = 0;
      s.at = JOIN_LOAD_HEAD;
      return "join: help the head";
    case JOIN_ACTIVE:
      go_active(q, i);
      s.at = options.bug == RELIABLE_JOIN_NAIVE ? S_READY : JOIN_RELOAD;
      return "join: active";
    case JOIN_RELOAD: {
      const int head = q.head;
      q.cursor[i] = static_cast<uint8_t>(std::clamp(std::max<int>(q.cursor[i], head + 1 - RING), 0, head));
      place_cursor(s, q.cursor[i]);
      s.at = S_READY;
      return "join: reload head, final cursor";
    }
    case S_REGISTER:
      s.at = JOIN_LOAD_HEAD;
      return "register: joins again";
  }
  return nullptr;
}

inline const char* return_a_loan(State& q, const Recoverer& r) {
  for (uint8_t& lent : q.lent) {
    const bool any = options.bug == LOANS_WITHOUT_INCARNATION && lent != IDLE && (lent & 15) == r.target + 1;
    if (r.target < PUBLISHERS && (any || lent == owner(r.target, r.incarnation))) {
      lent = IDLE;
      return "recover: CAS lent to idle";
    }
  }
  return nullptr;
}

inline const char* clear_a_bit(State& q, const Recoverer& r) {
  if (r.target < PUBLISHERS) return nullptr;
  const uint8_t bit = static_cast<uint8_t>(1 << (r.target - PUBLISHERS));
  for (uint8_t& refs : q.refs) {
    if (refs & bit) {
      refs &= static_cast<uint8_t>(~bit);
      return "recover: clear a bit";
    }
  }
  return nullptr;
}

inline const char* find_dead(State& q, Recoverer& r, int target) {
  const bool dead = q.entry[target] == DEAD || (q.entry[target] == ACTIVE && !q.life[target]);
  if (!dead) return nullptr;
  r.target = static_cast<uint8_t>(target);
  r.incarnation = q.incarnation[target];
  r.at = q.entry[target] == DEAD ? RETURN_LOANS : MARK_DEAD;
  return "recover: word active or dead, life byte free";
}

// `choice`: the participant to look at.
inline const char* step_recoverer(State& q, int i, int choice) {
  Recoverer& r = q.recoverer[i];
  const int t = r.target;
  switch (r.at) {
    case R_READY:
      return find_dead(q, r, choice);
    case MARK_DEAD:
      if (!mark_dead(q, t, r.incarnation)) {
        r = Recoverer{};
        return "recover: CAS active to dead lost";
      }
      r.at = options.bug == FREE_ENTRY_FIRST ? FREE_ENTRY : RETURN_LOANS;
      return "recover: CAS active to dead";
    case RETURN_LOANS:
      if (const char* label = return_a_loan(q, r)) return label;
      r.at = options.bug == NO_RECOVERY_LOCK ? CLEAR_BITS : LOCK_RECOVERY;
      return "recover: no more loans";
    case LOCK_RECOVERY:
      if (q.recovery[t]) {
        r = Recoverer{};
        return "recover: somebody else has the recovery byte";
      }
      q.recovery[t] = static_cast<uint8_t>(2 + i);
      r.at = REREAD_ENTRY;
      return "recover: lock recovery byte";
    case REREAD_ENTRY:
      r.at = q.entry[t] == DEAD && q.incarnation[t] == r.incarnation ? CLEAR_BITS : UNLOCK;
      return "recover: re-read the entry";
    case CLEAR_BITS:
      if (const char* label = clear_a_bit(q, r)) return label;
      r.at = FREE_ENTRY;
      return "recover: no more bits";
    case FREE_ENTRY:
      q.entry[t] = FREE;
      r.at = UNLOCK;
      return "recover: free the entry";
    case UNLOCK:
      if (q.recovery[t] == 2 + i) q.recovery[t] = 0;
      r = Recoverer{};
      return "recover: unlock";
  }
  return nullptr;
}
