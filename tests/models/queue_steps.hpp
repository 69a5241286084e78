// One step of each process of a queue: at most one shared word is read or written in a step.
//
// A step returns its label, or null when the process cannot move.
#pragma once
#include "queue_state.hpp"

inline void forget_word(Producer& p) {
  p.seen_tag = 0;
  p.seen_slot = NO_SLOT;
}

inline const char* start_over(Producer& p, const char* label) {
  forget_word(p);
  p.head = 0;
  p.at = LOAD_HEAD;
  return label;
}

constexpr const char* PUT_FULL = "put: full";

inline const char* load_word(State& q, Producer& p) {
  const int next = p.head + 1;
  p.seen_tag = q.ring_tag[place(next)];
  p.seen_slot = q.ring_slot[place(next)];
  if (p.seen_tag == next) {
    forget_word(p);
    p.at = HELP_HEAD;
    return "put: head lags";
  }
  if (p.seen_tag != last_lap(next)) return start_over(p, "put: head is old");
  p.at = p.seen_tag ? LOAD_CLAIM : WRITE_SEQUENCE;
  return "put: load ring word";
}

inline const char* load_claim(State& q, Producer& p) {
  const Claim& claim = q.claim[p.seen_slot];
  const bool waits = claim.tag == p.seen_tag && (claim.state == FRESH || claim.state == READY);
  if (waits && options.bug != REUSE_UNCLAIMED) return start_over(p, PUT_FULL);
  p.at = WRITE_SEQUENCE;
  return "put: position may be reused";
}

inline const char* cas_ring(State& q, Producer& p) {
  const int next = p.head + 1, at = place(next);
  if (q.ring_tag[at] != p.seen_tag || q.ring_slot[at] != p.seen_slot) {
    return start_over(p, "put: CAS of the ring word lost");
  }
  q.ring_tag[at] = q.put = static_cast<uint8_t>(next);
  q.ring_slot[at] = p.slot;
  q.value[next] = p.value;
  p.value = 0;
  forget_word(p);
  p.at = MOVE_HEAD;
  return "put: CAS of the ring word";
}

inline const char* step_borrow(State& q, int i, int choice) {
  Producer& p = q.producer[i];
  switch (p.at) {
    case P_READY:
      if (!p.left || q.lent[choice] != IDLE) return nullptr;
      q.lent[choice] = owner(i, p.incarnation);
      p.slot = static_cast<uint8_t>(choice);
      p.at = BORROW_RING;
      return "borrow: CAS idle to lent";
    case BORROW_RING: {
      const int at = place(q.sequence[p.slot]);
      const bool there = q.ring_tag[at] == q.sequence[p.slot] && q.ring_slot[at] == p.slot;
      p.at = there ? PUT_BACK : options.bug == BORROW_CLAIMED ? BORROW_REFS : BORROW_CLAIM;
      return "borrow: look at the ring";
    }
    case BORROW_CLAIM: {
      const uint8_t state = q.claim[p.slot].state;
      p.at = state == DONE || state == FRESH ? BORROW_REFS : PUT_BACK;
      return "borrow: look at the claim";
    }
    case BORROW_REFS:
      p.at = q.refs[p.slot] ? PUT_BACK : WRITE_HALF;
      return "borrow: look at refs";
    case PUT_BACK:
      q.lent[p.slot] = IDLE;
      p.slot = NO_SLOT;
      p.at = P_READY;
      return "borrow: put back";
  }
  return nullptr;
}

// `choice`: the slot to try when borrowing.
inline const char* step_producer(State& q, int i, int choice) {
  Producer& p = q.producer[i];
  switch (p.at) {
    case WRITE_HALF:
      q.payload[p.slot] = TORN;
      p.at = WRITE_REST;
      return "write half";
    case WRITE_REST:
      p.value = static_cast<uint8_t>(1 + i * 16 + (MESSAGES - p.left) + 4 * p.incarnation);
      q.payload[p.slot] = p.value;
      p.at = LOAD_HEAD;
      return "write rest";
    case LOAD_HEAD:
      p.head = q.head;
      p.at = LOAD_WORD;
      return "put: load head";
    case LOAD_WORD:
      return load_word(q, p);
    case HELP_HEAD:
      if (q.head == p.head) q.head++;
      return start_over(p, "put: help the head");
    case LOAD_CLAIM:
      return load_claim(q, p);
    case WRITE_SEQUENCE:
      q.sequence[p.slot] = static_cast<uint8_t>(p.head + 1);
      p.at = WRITE_CLAIM;
      return "put: write sequence";
    case WRITE_CLAIM:
      q.claim[p.slot] = fresh(p.head + 1);
      p.at = CAS_RING;
      return "put: write a fresh claim";
    case CAS_RING:
      return cas_ring(q, p);
    case MOVE_HEAD:
      if (q.head == p.head) q.head++;
      p.head = 0;
      p.at = SET_IDLE;
      return "put: move head";
    case SET_IDLE:
      q.lent[p.slot] = IDLE;
      p.slot = NO_SLOT;
      p.left--;
      p.at = P_READY;
      return "put: set idle";
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

inline const char* reset(Consumer& c, const char* label) {
  const uint8_t incarnation = c.incarnation;
  c = Consumer{};
  c.slot = NO_SLOT;
  c.incarnation = incarnation;
  return label;
}

// A claim that a lease can end needs the bit from the beginning. Others keep the slot by themselves: who reads on when
// they end sets the bit before.
inline bool bit_first() {
  return !COPIES && options.lease && options.bug != BIT_AFTER_CLAIM && options.bug != NO_BITS;
}

inline bool may_take_over(const Claim& claim, int consumer) {
  const bool by_another = claim.state == CLAIMED && claim.owner != consumer;
  return options.lease && by_another && claim.deliveries < MAX_DELIVERIES;
}

// `choice`: a ring position, or RING + a slot whose message was returned.
inline const char* find_message(State& q, int i, int choice) {
  Consumer& c = q.consumer[i];
  if (choice < RING) {
    if (q.ring_slot[choice] == NO_SLOT) return nullptr;
    c.sequence = q.ring_tag[choice];
    c.slot = q.ring_slot[choice];
    c.at = READ_CLAIM;
    return "claim: read ring word";
  }
  const int slot = choice - RING;
  const Claim& claim = q.claim[slot];
  const bool not_published = options.bug == CLAIM_UNPUBLISHED && claim.state == FRESH;
  if (!claim.tag || !(claim.state == READY || may_take_over(claim, i) || not_published)) return nullptr;
  c.sequence = claim.tag;
  c.slot = static_cast<uint8_t>(slot);
  c.seen = claim;
  c.at = bit_first() ? SET_BIT : CAS_CLAIM;
  return "claim: found by its slot";
}

inline const char* read_claim(State& q, int i) {
  Consumer& c = q.consumer[i];
  c.seen = q.claim[c.slot];
  if (!(c.seen == fresh(c.sequence))) return reset(c, "claim: somebody has had it");
  c.at = bit_first() ? SET_BIT : CAS_CLAIM;
  return "claim: read claim word";
}

inline const char* cas_claim(State& q, int i) {
  Consumer& c = q.consumer[i];
  Claim& word = q.claim[c.slot];
  if (!(word == c.seen)) {
    if (!bit_first()) return reset(c, "claim: CAS lost");
    c.at = CLEAR_BIT;
    return "claim: CAS lost, bit still set";
  }
  word = Claim{c.sequence, CLAIMED, static_cast<uint8_t>(i), static_cast<uint8_t>(word.deliveries + 1)};
  c.seen = word;
  c.at = COPIES ? COPY : options.bug == BIT_AFTER_CLAIM ? SET_BIT_LATE : HOLDS;
  return "claim: CAS";
}

// A copy counts only if the claim is still there afterwards; then it is what was put.
inline const char* look_again(State& q, Consumer& c) {
  if (!(q.claim[c.slot] == c.seen) && options.bug != COPY_WITHOUT_LOOK) return reset(c, "copy: the claim was taken away");
  c.at = HOLDS;
  return "copy: look at the claim again";
}

inline const char* end_claim(State& q, int i, bool accept) {
  Consumer& c = q.consumer[i];
  Claim& word = q.claim[c.slot];
  if (!accept && c.seen.deliveries >= MAX_DELIVERIES) return nullptr;
  const bool mine = word == c.seen || (accept && options.bug == ACCEPT_BY_STORE);
  if (mine && accept) q.accepted[c.sequence]++;
  const uint8_t state = options.bug == RETURN_TO_FRESH ? FRESH : READY;
  const Claim returned{c.sequence, state, 0, state == FRESH ? uint8_t{0} : c.seen.deliveries};
  if (mine) word = accept ? Claim{c.sequence, DONE, 0, 0} : returned;
  const char* label = !mine ? "claim was taken away" : accept ? "accept: CAS" : "release: CAS";
  const bool reads_on = c.at == KEEPS || bit_first() || options.bug == BIT_AFTER_CLAIM;
  if (!reads_on) return reset(c, label);
  c.at = options.bug == BIT_AFTER_END ? SET_BIT_AT_END : READS_ON;
  c.seen = Claim{};
  return label;
}

// Whether somebody may read on when the claim ends is decided before.
inline const char* keep_bytes(State& q, int i) {
  Consumer& c = q.consumer[i];
  if (COPIES || options.lease || options.bug == NO_BITS) return nullptr;
  if (options.bug != BIT_AFTER_END) q.refs[c.slot] |= static_cast<uint8_t>(1 << i);
  c.at = KEEPS;
  return "read on: set bit";
}

// `choice` when ready: see find_message; when holding: 0 accepts, 1 releases, 2 is going to read on.
inline const char* step_consumer(State& q, int i, int choice) {
  Consumer& c = q.consumer[i];
  const uint8_t bit = static_cast<uint8_t>(1 << i);
  switch (c.at) {
    case C_READY:
      return find_message(q, i, choice);
    case READ_CLAIM:
      return read_claim(q, i);
    case SET_BIT:
      q.refs[c.slot] |= bit;
      c.at = CAS_CLAIM;
      return "claim: set bit";
    case CAS_CLAIM:
      return cas_claim(q, i);
    case SET_BIT_LATE:
      q.refs[c.slot] |= bit;
      c.at = HOLDS;
      return "claim: set bit late";
    case COPY:
      c.copied = q.payload[c.slot];
      c.at = LOOK_AGAIN;
      return "copy";
    case LOOK_AGAIN:
      return look_again(q, c);
    case CLEAR_BIT:
    case READS_ON:
      q.refs[c.slot] &= static_cast<uint8_t>(~bit);
      return reset(c, "clear bit");
    case SET_BIT_AT_END:
      q.refs[c.slot] |= bit;
      c.at = READS_ON;
      return "read on: set bit late";
    case HOLDS:
      return choice == 2 ? keep_bytes(q, i) : end_claim(q, i, choice == 0);
    case KEEPS:
      return end_claim(q, i, choice == 0);
    case C_REGISTER:
      q.entry[PRODUCERS + i] = ACTIVE;
      c.incarnation = ++q.incarnation[PRODUCERS + i];
      q.recovery[PRODUCERS + i] = 0;
      return reset(c, "register: active, recovery byte dropped");
  }
  return nullptr;
}

inline const char* return_a_loan(State& q, const Recoverer& r) {
  for (uint8_t& lent : q.lent) {
    if (r.target < PRODUCERS && lent == owner(r.target, r.incarnation)) {
      lent = IDLE;
      return "recover: CAS lent to idle";
    }
  }
  return nullptr;
}

inline const char* find_a_claim(State& q, Recoverer& r) {
  for (int x = 0; x < SLOTS; x++) {
    if (r.target < PRODUCERS || q.claim[x].state != CLAIMED || q.claim[x].owner != r.target - PRODUCERS) continue;
    r.slot = static_cast<uint8_t>(x);
    r.seen = q.claim[x];
    r.at = options.bug == RETURN_WITHOUT_LOOK ? RETURN_CLAIM : LOOK_AT_ENTRY;
    return "recover: load a claim";
  }
  return nullptr;
}

inline const char* return_the_claim(State& q, Recoverer& r) {
  const bool there = q.claim[r.slot] == r.seen;
  if (there) q.claim[r.slot] = Claim{r.seen.tag, READY, 0, r.seen.deliveries};
  r.slot = NO_SLOT;
  r.seen = Claim{};
  r.at = FIND_CLAIM;
  return there ? "recover: CAS claimed to ready" : "recover: the claim is another one";
}

inline const char* start_again(Recoverer& r, const char* label) {
  r = Recoverer{};
  r.slot = NO_SLOT;
  return label;
}

inline const char* clear_a_bit(State& q, const Recoverer& r) {
  if (r.target < PRODUCERS) return nullptr;
  const uint8_t bit = static_cast<uint8_t>(1 << (r.target - PRODUCERS));
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
      if (q.entry[t] != ACTIVE || q.incarnation[t] != r.incarnation) {
        return start_again(r, "recover: CAS active to dead lost");
      }
      q.entry[t] = DEAD;
      r.at = options.bug == FREE_ENTRY_FIRST ? FREE_ENTRY : RETURN_LOANS;
      return "recover: CAS active to dead";
    case RETURN_LOANS:
      if (const char* label = return_a_loan(q, r)) return label;
      r.at = FIND_CLAIM;
      return "recover: no more loans";
    case FIND_CLAIM:
      if (const char* label = find_a_claim(q, r)) return label;
      r.at = LOCK_RECOVERY;
      return "recover: no more claims";
    case LOOK_AT_ENTRY:
      if (q.entry[t] != DEAD || q.incarnation[t] != r.incarnation) return start_again(r, "recover: it is over");
      r.at = RETURN_CLAIM;
      return "recover: look at the entry again";
    case RETURN_CLAIM:
      return return_the_claim(q, r);
    case LOCK_RECOVERY:
      if (q.recovery[t]) return start_again(r, "recover: somebody else has the recovery byte");
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
      return start_again(r, "recover: unlock");
  }
  return nullptr;
}
