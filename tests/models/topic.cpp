// Topics: ring, slots, reference bits, joins, reliable subscribers, liveness, recovery.
//
// Explored sequentially consistently, one access to a shared word in a step, with processes killed at any
// step and restarted. Run as: topic bug=0 kills=1 joiners=0 reliable=0 history=0 limit=60000000
#include "topic_check.hpp"

static Publisher dead_publisher(const Publisher& p) {
  Publisher dead{};
  dead.at = P_DEAD;
  dead.slot = dead.seen_slot = dead.kept = NO_SLOT;
  // A value once written is never written again: a restarted publisher goes on with the next one.
  const bool written = p.at > WRITE_REST && p.at < P_DEAD;
  dead.left = static_cast<uint8_t>(p.left - (p.left && written));
  return dead;
}

static Subscriber dead_subscriber() {
  Subscriber dead{};
  dead.at = S_DEAD;
  dead.slot = NO_SLOT;
  memset(dead.held_slot, NO_SLOT, MAX_HELD);
  return dead;
}

static void drop_locks(State& q, int participant) {
  q.life[participant] = 0;
  if (q.recovery[participant] == 1) q.recovery[participant] = 0;
}

static bool may_register(const State& q, int participant) {
  return q.entry[participant] == FREE && !q.life[participant] && !q.recovery[participant];
}

static void publisher_successors(const State& from, Successors<State>& out, int i) {
  const Publisher& p = from.publisher[i];
  const int choices = p.at == P_READY ? SLOTS : p.at == SET_IDLE ? 1 + KEEP : 1;
  for (int choice = 0; choice < choices; choice++) {
    out.add('P', i, [&](State& q) { return step_publisher(q, i, choice); });
  }
  if (p.at < P_DEAD) out.add('P', i, [&](State& q) { return drop_kept(q, q.publisher[i]); });
  if (p.at == P_DEAD && p.left && may_register(from, i)) {
    out.add('P', i, [&](State& q) {
      q.recovery[i] = q.life[i] = 1;
      q.publisher[i].at = P_REGISTER;
      return "restart: lock recovery and life bytes";
    });
  }
  const bool at_rest = p.at == P_READY && !p.left && p.kept == NO_SLOT;
  if (from.kills && p.at != P_DEAD && !at_rest) {
    out.add('P', i, [&](State& q) {
      q.kills--;
      q.publisher[i] = dead_publisher(p);
      drop_locks(q, i);
      return "KILLED";
    });
  }
}

static void subscriber_successors(const State& from, Successors<State>& out, int i) {
  const Subscriber& s = from.subscriber[i];
  const int t = PUBLISHERS + i;
  for (int choice = -1; choice < (s.at == S_READY ? MAX_HELD : 0); choice++) {
    out.add('S', i, [&](State& q) { return step_subscriber(q, i, choice); });
  }
  if (s.at == S_DEAD && may_register(from, t)) {
    out.add('S', i, [&](State& q) {
      q.recovery[t] = q.life[t] = 1;
      q.subscriber[i].at = S_REGISTER;
      return "restart: lock recovery and life bytes";
    });
  }
  if (from.kills && s.at != S_DEAD) {
    out.add('S', i, [&](State& q) {
      q.kills--;
      q.subscriber[i] = dead_subscriber();
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
      q.recoverer[i] = Recoverer{R_DEAD, 0, 0};
      return "KILLED";
    });
  }
}

static void successors(const State& from, std::vector<Step<State>>& out) {
  Successors<State> all(from, out, canonical);
  for (int i = 0; i < PUBLISHERS; i++) publisher_successors(from, all, i);
  for (int i = 0; i < SUBSCRIBERS; i++) subscriber_successors(from, all, i);
  for (int i = 0; i < RECOVERERS; i++) recoverer_successors(from, all, i);
}

static State initial() {
  State q{};
  memset(q.ring_slot, NO_SLOT, RING);
  memset(q.life, 1, PARTICIPANTS);
  memset(q.entry, ACTIVE, PARTICIPANTS);
  for (auto& p : q.publisher) {
    p.slot = p.seen_slot = p.kept = NO_SLOT;
    p.left = PUBLISHES;
  }
  for (int i = 0; i < SUBSCRIBERS; i++) {
    q.subscriber[i].slot = NO_SLOT;
    memset(q.subscriber[i].held_slot, NO_SLOT, MAX_HELD);
    if (i < SUBSCRIBERS - options.joiners) continue;
    q.subscriber[i].at = JOIN_LOAD_HEAD;
    q.entry[PUBLISHERS + i] = FREE;
    q.recovery[PUBLISHERS + i] = 1;
  }
  q.kills = static_cast<uint8_t>(options.kills);
  canonical(q);
  return q;
}

int main(int count, char** arguments) {
  const auto given = [&](const char* name, int otherwise) {
    return option(count, arguments, name, otherwise);
  };
  options = {given("bug", NO_BUG), given("kills", 1), given("joiners", 0), given("reliable", 0),
             given("history", 0)};
  printf("topic publishers=%d subscribers=%d ring=%d slots=%d held=%d publishes=%d recoverers=%d keep=%d ",
         PUBLISHERS, SUBSCRIBERS, RING, SLOTS, MAX_HELD, PUBLISHES, RECOVERERS, KEEP);
  printf("kills=%d joiners=%d reliable=%d history=%d bug=%d: ", options.kills, options.joiners,
         options.reliable, options.history, options.bug);
  return explore(initial(), static_cast<size_t>(given("limit", 60000000)), successors, check);
}
