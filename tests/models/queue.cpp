// Queues: ring, slots, claim words, reference bits, leases, liveness, recovery.
//
// Explored sequentially consistently, one access to a shared word in a step, with processes killed at any
// step and restarted. Run as: queue bug=0 kills=1 lease=0 limit=60000000
#include "queue_check.hpp"

static Producer dead_producer(const Producer& p) {
  Producer dead{};
  dead.at = P_DEAD;
  dead.slot = dead.seen_slot = NO_SLOT;
  // A value once written is never written again: a restarted producer goes on with the next one.
  const bool written = p.at > WRITE_REST && p.at < P_DEAD;
  dead.left = static_cast<uint8_t>(p.left - (p.left && written));
  return dead;
}

static void drop_locks(State& q, int participant) {
  q.life[participant] = 0;
  if (q.recovery[participant] == 1) q.recovery[participant] = 0;
}

static bool may_register(const State& q, int participant) {
  return q.entry[participant] == FREE && !q.life[participant] && !q.recovery[participant];
}

static void producer_successors(const State& from, Successors<State>& out, int i) {
  const Producer& p = from.producer[i];
  for (int choice = 0; choice < (p.at == P_READY ? SLOTS : 1); choice++) {
    out.add('P', i, [&](State& q) { return step_producer(q, i, choice); });
  }
  if (p.at == P_DEAD && p.left && may_register(from, i)) {
    out.add('P', i, [&](State& q) {
      q.recovery[i] = q.life[i] = 1;
      q.producer[i].at = P_REGISTER;
      return "restart: lock recovery and life bytes";
    });
  }
  if (from.kills && p.at != P_DEAD && (p.at != P_READY || p.left)) {
    out.add('P', i, [&](State& q) {
      q.kills--;
      q.producer[i] = dead_producer(p);
      drop_locks(q, i);
      return "KILLED";
    });
  }
}

static void consumer_successors(const State& from, Successors<State>& out, int i) {
  const Consumer& c = from.consumer[i];
  const int t = PRODUCERS + i;
  const int choices = c.at == C_READY ? RING + SLOTS : c.at == HOLDS ? 3 : c.at == KEEPS ? 2 : 1;
  for (int choice = 0; choice < choices; choice++) {
    out.add('C', i, [&](State& q) { return step_consumer(q, i, choice); });
  }
  if (c.at == C_DEAD && may_register(from, t)) {
    out.add('C', i, [&](State& q) {
      q.recovery[t] = q.life[t] = 1;
      q.consumer[i].at = C_REGISTER;
      return "restart: lock recovery and life bytes";
    });
  }
  if (from.kills && c.at != C_DEAD) {
    out.add('C', i, [&](State& q) {
      q.kills--;
      q.consumer[i] = Consumer{};
      q.consumer[i].at = C_DEAD;
      q.consumer[i].slot = NO_SLOT;
      drop_locks(q, t);
      return "KILLED";
    });
  }
}

static void recoverer_successors(const State& from, Successors<State>& out, int i) {
  const Recoverer& r = from.recoverer[i];
  for (int choice = 0; choice < (r.at == R_READY ? PARTICIPANTS : 1); choice++) {
    out.add('R', i, [&](State& q) { return step_recoverer(q, i, choice); });
  }
  if (from.kills && r.at != R_READY && r.at != R_DEAD) {
    out.add('R', i, [&](State& q) {
      q.kills--;
      if (q.recovery[r.target] == 2 + i) q.recovery[r.target] = 0;
      start_again(q.recoverer[i], "");
      q.recoverer[i].at = R_DEAD;
      return "KILLED";
    });
  }
}

static void successors(const State& from, std::vector<Step<State>>& out) {
  Successors<State> all(from, out, canonical);
  for (int i = 0; i < PRODUCERS; i++) producer_successors(from, all, i);
  for (int i = 0; i < CONSUMERS; i++) consumer_successors(from, all, i);
  for (int i = 0; i < RECOVERERS; i++) recoverer_successors(from, all, i);
}

static State initial() {
  State q{};
  memset(q.ring_slot, NO_SLOT, RING);
  memset(q.life, 1, PARTICIPANTS);
  memset(q.entry, ACTIVE, PARTICIPANTS);
  for (Claim& claim : q.claim) claim.state = DONE;
  for (auto& p : q.producer) {
    p.slot = p.seen_slot = NO_SLOT;
    p.left = MESSAGES;
  }
  for (auto& c : q.consumer) c.slot = NO_SLOT;
  for (auto& r : q.recoverer) r.slot = NO_SLOT;
  q.kills = static_cast<uint8_t>(options.kills);
  canonical(q);
  return q;
}

int main(int count, char** arguments) {
  const auto given = [&](const char* name, int otherwise) {
    return option(count, arguments, name, otherwise);
  };
  options = {given("bug", NO_BUG), given("kills", 1), given("lease", 0)};
  printf("queue producers=%d consumers=%d ring=%d slots=%d messages=%d recoverers=%d copies=%d ", PRODUCERS,
         CONSUMERS, RING, SLOTS, MESSAGES, RECOVERERS, COPIES);
  printf("kills=%d lease=%d bug=%d: ", options.kills, options.lease, options.bug);
  return explore(initial(), static_cast<size_t>(given("limit", 60000000)), successors, check);
}
