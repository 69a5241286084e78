// What must hold in every reachable state of a queue, and what each process must be able to do alone.
#pragma once
#include "queue_steps.hpp"

// Where a message is, by the shared words alone: in the ring until somebody has had it, then in its slot.
inline int slot_of(const State& q, int sequence) {
  const int at = place(sequence);
  if (q.ring_tag[at] == sequence && q.claim[q.ring_slot[at]] == fresh(sequence)) return q.ring_slot[at];
  for (int x = 0; x < SLOTS; x++) {
    if (q.claim[x].tag == sequence && q.claim[x].state != FRESH) return x;
  }
  return NO_SLOT;
}

inline bool is_ready(const State& q, int sequence) {
  const int slot = slot_of(q, sequence);
  return slot != NO_SLOT && (q.claim[slot].state == FRESH || q.claim[slot].state == READY);
}

inline int outstanding(const State& q) {
  int count = 0;
  for (int s = 1; s <= q.put; s++) count += !q.accepted[s];
  return count;
}

inline const char* check_messages(const State& q) {
  if (q.head != q.put && q.head + 1 != q.put) return "head lags by more than one";
  for (int s = 1; s <= q.put; s++) {
    if (q.accepted[s] > 1) return "message accepted twice";
    if (q.accepted[s]) continue;
    const int slot = slot_of(q, s);
    if (slot == NO_SLOT) return "message lost";
    if (q.claim[slot].tag == s && q.claim[slot].state == DONE) return "message done but not accepted";
    if (q.payload[slot] != q.value[s]) return "payload of a waiting or claimed message changed";
  }
  for (const auto& c : q.consumer) {
    const uint8_t bytes = COPIES ? c.copied : q.payload[c.slot];
    const bool reads = c.at == HOLDS || c.at == KEEPS || c.at == READS_ON || c.at == SET_BIT_AT_END;
    if (reads && bytes != q.value[c.sequence]) return "payload changed under a consumer";
  }
  return nullptr;
}

inline const char* check_living(const State& q) {
  for (int i = 0; i < PRODUCERS; i++) {
    const Producer& p = q.producer[i];
    if (p.at >= P_DEAD) continue;
    if (q.entry[i] != ACTIVE) return "a living producer is not active";
    const bool lost = p.slot != NO_SLOT && q.lent[p.slot] != owner(i, p.incarnation);
    if (lost) return "a living producer's slot was taken";
  }
  for (int i = 0; i < CONSUMERS; i++) {
    const Consumer& c = q.consumer[i];
    if (c.at >= C_DEAD) continue;
    if (q.entry[PRODUCERS + i] != ACTIVE) return "a living consumer is not active";
    const bool lost = (c.at == HOLDS || c.at == KEEPS) && !options.lease && !(q.claim[c.slot] == c.seen);
    if (lost) return "a living consumer's claim was taken";
  }
  return nullptr;
}

inline bool claim_explained(const State& q, const Claim& claim) {
  const Consumer& c = q.consumer[claim.owner];
  if (c.at >= C_DEAD) return q.entry[PRODUCERS + claim.owner] != FREE;
  const bool has = c.at == HOLDS || c.at == KEEPS || c.at == SET_BIT_LATE || c.at == COPY || c.at == LOOK_AGAIN;
  return has && c.sequence == claim.tag;
}

inline bool bit_explained(const State& q, int slot, int i) {
  const Consumer& c = q.consumer[i];
  return c.at >= C_DEAD ? q.entry[PRODUCERS + i] != FREE : c.slot == slot;
}

inline bool loan_explained(const State& q, int slot) {
  const int i = (q.lent[slot] & 15) - 1;
  const Producer& p = q.producer[i];
  return p.at >= P_DEAD ? q.entry[i] != FREE : p.slot == slot;
}

inline const char* check_leaks(const State& q) {
  for (int x = 0; x < SLOTS; x++) {
    if (q.claim[x].state == CLAIMED && !claim_explained(q, q.claim[x])) return "leaked claim";
    for (int i = 0; i < CONSUMERS; i++) {
      if ((q.refs[x] >> i & 1) && !bit_explained(q, x, i)) return "leaked reference bit";
    }
    if (q.lent[x] != IDLE && !loan_explained(q, x)) return "leaked loan";
  }
  return nullptr;
}

// ---- progress: everybody else is stopped where it is, possibly holding a lock byte

inline const char* producer_alone(State q, int i) {
  Producer& p = q.producer[i];
  if (p.at >= P_DEAD || !p.left) return nullptr;
  const int want = p.left - 1;
  int scanned = 0;
  for (int steps = 0; p.left != want; steps++) {
    if (steps > 80 + 8 * SLOTS) return "a producer alone does not finish";
    int choice = 0;
    if (p.at == P_READY) {
      while (scanned < SLOTS && q.lent[scanned] != IDLE) scanned++;
      if (scanned == SLOTS) return outstanding(q) >= RING ? nullptr : "a producer alone finds no slot";
      choice = scanned++;
    }
    if (step_producer(q, i, choice) != PUT_FULL) continue;
    for (int s = 1; s <= q.put; s++) {
      if (is_ready(q, s)) return nullptr;
    }
    return outstanding(q) < RING ? "full with room left: a stopped claimant holds up the queue" : nullptr;
  }
  return nullptr;
}

struct Candidate {
  int sequence, choice;
};

inline std::vector<Candidate> candidates(const State& q) {
  std::vector<Candidate> found;
  for (int k = 0; k < RING; k++) {
    if (q.ring_slot[k] != NO_SLOT) found.push_back({q.ring_tag[k], k});
  }
  for (int x = 0; x < SLOTS; x++) {
    if (q.claim[x].state == READY && q.claim[x].tag) found.push_back({q.claim[x].tag, RING + x});
  }
  std::sort(found.begin(), found.end(), [](auto a, auto b) { return a.sequence < b.sequence; });
  return found;
}

inline const char* consumer_alone(State q, int i) {
  Consumer& c = q.consumer[i];
  if (c.at != C_READY) return nullptr;
  int oldest = 1;
  while (oldest <= q.put && !is_ready(q, oldest)) oldest++;
  if (oldest > q.put) return nullptr;
  for (const auto& candidate : candidates(q)) {
    step_consumer(q, i, candidate.choice);
    for (int steps = 0; steps < 12 && c.at != C_READY && c.at != HOLDS; steps++) step_consumer(q, i, 0);
    if (c.at == HOLDS) break;
  }
  if (c.at != HOLDS) return "a consumer alone gets nothing though a message is ready";
  if (!options.lease && c.sequence != oldest) return "a consumer alone does not get the oldest ready message";
  return nullptr;
}

inline std::string check(const State& q) {
  const char* wrong = check_messages(q);
  if (!wrong) wrong = check_living(q);
  if (!wrong) wrong = check_leaks(q);
  for (int i = 0; !wrong && i < PRODUCERS; i++) wrong = producer_alone(q, i);
  for (int i = 0; !wrong && i < CONSUMERS; i++) wrong = consumer_alone(q, i);
  return wrong ? wrong : "";
}
