// The replicated log: elections, truncation, commitment, reconfigurations, restarts.
//
// Run as: replication bug=0 plan=1111 members=3 deaths=0 aborts=0 live=0 settled=0 plain=0 limit=60000000
// `plan` has a digit for each epoch: 1 election, 2 swap, 3 expand, 4 contract, 9 any of them. With live=1 a
// state with everything committed must be reachable from every state in which another election is left;
// with live=2 from every state whose leader is up, without any other. With settled=1 the first epoch is over.
// With plain=1 nothing is reduced on the way; how many states the reductions leave is counted at the end.
#include "replication_explore.hpp"
#include "replication_operator.hpp"

static void pair_successors(const State& from, Successors<State>& out, int leader, int n) {
  if (!alive(from, n) || !from.node[leader].leads) return;
  out.add('N', n, [&](State& q) { return heartbeat(q, leader, n); });
  out.add('N', n, [&](State& q) { return truncate(q, leader, n); });
  out.add('N', n, [&](State& q) { return add_entry(q, leader, n); });
  out.add('N', leader, [&](State& q) { return deposed(q, leader, n); });
}

static void late_successors(const State& from, Successors<State>& out, int n) {
  for (const Node& past : from.past) {
    if (!past.leads || !alive(from, n)) continue;
    out.add('N', n, [&](State& q) { return late_heartbeat(q, past, n); });
    out.add('N', n, [&](State& q) { return late_truncate(q, past, n); });
    for (int previous = 0; previous < past.length; previous++) {
      out.add('N', n, [&](State& q) { return late_entry(q, past, n, previous); });
    }
  }
}

static void node_successors(const State& from, Successors<State>& out, int n) {
  if (!alive(from, n)) return;
  for (int epoch = 1; epoch <= EPOCHS; epoch++) {
    out.add('N', n, [&](State& q) { return fence(q, n, epoch); });
    out.add('N', n, [&](State& q) { return become_leader(q, n, epoch); });
    out.add('O', epoch, [&](State& q) { return choose(q, n, epoch); });
  }
  for (int other = 0; other < NODES; other++) pair_successors(from, out, n, other);
  late_successors(from, out, n);
  out.add('N', n, [&](State& q) { return truncate_again(q, n); });
  out.add('N', n, [&](State& q) { return propose(q, n); });
  out.add('N', n, [&](State& q) { return sync(q, n); });
  out.add('N', n, [&](State& q) { return commit(q, n); });
  for (int kept = from.node[n].synced; kept <= from.node[n].length; kept++) {
    out.add('N', n, [&](State& q) { return restart(q, n, kept); });
  }
  out.add('N', n, [&](State& q) { return die(q, n); });
}

static void change_successors(const State& from, Successors<State>& out) {
  if (from.status == STEADY) {
    const int epoch = from.epoch + 1;
    for (Who a = 1; a <= NODES; a++) {
      out.add('O', epoch, [&](State& q) { return start_change(q, EXPAND, 0, a); });
      out.add('O', epoch, [&](State& q) { return start_change(q, CONTRACT, a, 0); });
      for (Who b = 1; b <= NODES; b++) {
        out.add('O', epoch, [&](State& q) { return start_change(q, SWAP, a, b); });
      }
    }
  }
  out.add('O', from.epoch, [&](State& q) { return store_commit(q); });
  out.add('O', from.epoch, [&](State& q) { return store_abort(q); });
  for (int epoch = 1; epoch <= EPOCHS; epoch++) {
    if (from.record[epoch - 1].kind <= ELECTION) continue;
    out.add('N', from.record[epoch - 1].chosen - 1, [&](State& q) { return prepare(q, epoch); });
    out.add('O', epoch, [&](State& q) { return install_snapshot(q, epoch); });
    out.add('N', from.record[epoch - 1].chosen - 1, [&](State& q) { return commit_change(q, epoch); });
    out.add('O', epoch, [&](State& q) { return finish_change(q, epoch); });
    out.add('N', from.record[epoch - 1].chosen - 1, [&](State& q) { return abort_change(q, epoch); });
  }
}

static void successors(const State& from, std::vector<Step<State>>& out) {
  Successors<State> all(from, out, canonical);
  all.add('O', from.epoch + 1, [&](State& q) { return start_election(q); });
  all.add('O', from.epoch, [&](State& q) { return finish_election(q); });
  change_successors(from, all);
  for (int n = 0; n < NODES; n++) node_successors(from, all, n);
}

// The first election is over, and all members have its no-op.
static void settle(State& q) {
  q.epoch = 1;
  q.status = STEADY;
  q.leader = 1;
  q.committed = q.history[0] = q.committed_in[0] = 1;
  for (int n = 0; n < options.members; n++) {
    Node& node = q.node[n];
    node.epoch = node.length = node.synced = node.log[0] = 1;
  }
  Node& l = q.node[0];
  l.led = l.leads = l.commit = l.nothing = 1;
  l.members = q.members;
  if (options.bug == COUNT_NOT_MEMBERS) l.factor = static_cast<uint8_t>(options.members);
  for (int n = 1; n < options.members; n++) l.cursor[n] = 2;
}

static State initial() {
  State q{};
  q.members = static_cast<uint8_t>((1 << options.members) - 1);
  q.values = VALUES;
  if (options.settled) settle(q);
  canonical(q);
  return q;
}

int main(int count, char** arguments) {
  const auto given = [&](const char* name, int otherwise) {
    return option(count, arguments, name, otherwise);
  };
  options = {given("bug", NO_BUG), given("plan", 1111), given("members", 3), given("deaths", 0),
             given("aborts", 0),   given("live", 0),    given("settled", 0), given("plain", 0)};
  printf("replication nodes=%d members=%d epochs=%d values=%d operators=%d late=%d plan=%d ", NODES,
         options.members, EPOCHS, VALUES, OPERATORS, LATE, options.plan);
  printf("deaths=%d aborts=%d live=%d settled=%d bug=%d: ", options.deaths, options.aborts, options.live,
         options.settled, options.bug);
  return explore_replication(initial(), static_cast<size_t>(given("limit", 60000000)), successors);
}
