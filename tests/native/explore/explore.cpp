// Explores the real headers: every interleaving of a few processes, killed at any step.
//
// Usage: explore [scenario=NAME] [preemptions=N|all] [kills=N] [seconds=N]; preemptions and kills replace each
// scenario's own. One line a scenario: OK when it was exhausted, LIMIT when the time was over. Exit status 1 after a
// VIOLATION, whose schedule is printed.
#include "search.hpp"

#include <cstdlib>

namespace exploring {

Search* search = nullptr;
World* world = nullptr;

// What the processes do. Everything below runs on a fiber, as the process that kernel.process names.

Process& me() { return world->process(static_cast<uint32_t>(kernel.process)); }

bool publish_once() {
  Process& process = me();
  const uint32_t slot = process.publisher->borrow(kPayloadBytes, 2);
  process.lent = slot;
  const uint64_t value = (static_cast<uint64_t>(kernel.process) + 1) << 32 | ++process.values;
  for (uint32_t half = 0; half < 2; half++) {
    explore_point();
    world->write(slot, half, value);
  }
  const uint64_t sequence = process.publisher->try_publish(slot, kPayloadBytes, 0);
  process.lent = kNoSlotLent;
  process.publisher->put_back(slot);
  process.publisher->wake_subscribers();
  return sequence != 0;
}

bool take_once() {
  Process& process = me();
  Taken taken{};
  if (!process.subscriber->try_take(taken)) return false;
  if (world->value_in(taken.slot) != world->truth().values[taken.sequence] || taken.payload != kPayloadBytes)
    throw Violation{"a wrong sample was taken"};
  process.held[process.held_count++] = {taken.slot, taken.sequence};
  process.subscriber->settle();
  return true;
}

bool copy_once() {
  Process& process = me();
  uint64_t values[2] = {};
  const auto room = [&](uint64_t) {
    explore_point();
    return reinterpret_cast<char*>(values);
  };
  if (process.subscriber->try_copy(room) != Subscriber::Copy::copied) return false;
  const uint64_t value = world->truth().values[process.subscriber->cursor()];
  if (values[0] != value || values[1] != value) throw Violation{"a wrong sample was copied"};
  process.subscriber->settle();
  return true;
}

void release_once() {
  Process& process = me();
  if (process.held_count == 0) return;
  const Held held = process.held[0];
  std::copy(process.held.begin() + 1, process.held.end(), process.held.begin());
  process.held_count--;
  if (!process.subscriber->release(static_cast<uint32_t>(held.slot), held.sequence))
    throw Violation{"the bit of a held sample was gone"};
}

bool claim_once() {
  Process& process = me();
  Claimed claimed{};
  const bool there = process.consumer->try_claim(claimed);
  if (there) {
    if (world->value_in(claimed.slot) != world->truth().values[claimed.sequence]) throw Violation{"a wrong message was claimed"};
    process.held[process.held_count++] = {claimed.slot, claimed.sequence, claimed.claim};
  }
  process.consumer->settle();
  return there;
}

// The message claimed first: `verdict` says what becomes of it.
template <class Verdict>
void settle_once(const Verdict& verdict) {
  Process& process = me();
  if (process.held_count == 0) return;
  const Held held = process.held[0];
  Claimed claimed{};
  claimed.slot = static_cast<uint32_t>(held.slot);
  claimed.claim = held.claim;
  process.held[0].claim = 0;  // from here on it may be anybody's; the bytes are still ours
  const bool leased = world->memory().layout.settings.lease_ns != 0;
  std::copy(process.held.begin() + 1, process.held.end(), process.held.begin());
  process.held_count--;
  if (!verdict(claimed, held.sequence) && !leased) throw Violation{"the claim of a living consumer was taken"};
  explore_point();
  if (world->value_in(held.slot) != world->truth().values[held.sequence]) throw Violation{"a payload changed before it was let go of"};
  if (!process.consumer->let_go(claimed.slot)) throw Violation{"the bit of a held message was gone"};
  process.consumer->wake_producers();
}
void accept_once() {
  settle_once([](const Claimed& claimed, uint64_t sequence) {
    const bool ours = me().consumer->accept(claimed);
    if (ours) world->count_accepted(sequence);
    return ours;
  });
}
void release_claim() {
  settle_once([](const Claimed& claimed, uint64_t) { return me().consumer->release(claimed); });
}
void reject_claim() {
  settle_once([](const Claimed& claimed, uint64_t) { return me().consumer->reject(claimed); });
}
void bury_once() {
  Mover mover(*me().consumer, world->region().number(), *me().publisher, ClaimState::burying);
  mover.move(1, [](const Taken&, uint64_t, const std::string&) { return Description{true, ""}; });
}

void join_consumer() { me().consumer = join_as_consumer(world->region(), me().name); }
// The first look through all slots is over when the search begins.
void join_and_look() {
  join_consumer();
  me().consumer->look_around();
}

void join_publisher() { me().publisher = join_as_publisher(world->region(), me().name, false); }

void join_subscriber(uint64_t history, bool reliable) {
  SubscribeOptions options;
  options.history = history;
  options.reliable = reliable;
  Process& process = me();
  auto subscriber = join_as_subscriber(world->region(), process.name, options);
  process.start = process.passed = subscriber->cursor();
  process.reliable = reliable;
  process.subscriber = std::move(subscriber);
}

// Errors and violations must not leave the fiber; the search throws them again.

template <void (*body)()>
void guarded() {
  try {
    body();
    explore_point();  // at rest: can be killed with what it holds
  } catch (const Violation& violation) {
    world->complaint = violation.text;
  } catch (const Error& error) {
    world->complaint = std::string("an error: ") + error.what();
  }
}

// Setting up: as process `number`, without stopping.
template <class Act>
void as(uint32_t number, const char* name, const Act& act) {
  kernel.process = static_cast<int>(number);
  me().name = name;
  act();
  world->watch();
}
void is_dead(uint32_t number) {
  kernel.kill(static_cast<int>(number));
  world->process(number).dead = 1;
}
template <void (*body)()>
void will(uint32_t number, const char* name) {
  world->process(number).name = name;
  search->start(number, &guarded<body>);
}

template <int count>
void publish_some() {
  for (int i = 0; i < count; i++) publish_once();
}
// The quick way as far as it goes, and one message the long way wherever it does not.
template <size_t count>
void publish_in_runs() {
  Process& process = me();
  for (const uint64_t end = process.values + count; process.values < end;) {
    const uint64_t before = process.values;
    std::array<uint64_t, 2> payload{};
    process.publisher->publish_run(end - before, 1, process.values, [&](size_t i) {
      payload.fill((static_cast<uint64_t>(kernel.process) + 1) << 32 | (before + i + 1));
      return Publisher::Small{payload.data(), kPayloadBytes};
    });
    if (process.values == before) publish_once();
  }
  process.publisher->wake_subscribers();
}
template <int count>
void take_and_release() {
  for (int i = 0; i < count; i++)
    if (take_once()) release_once();
}
template <int count>
void copy_some() {
  for (int i = 0; i < count; i++) copy_once();
}
// The quick way; one the long way if there is none.
template <size_t count>
void copy_in_runs() {
  Subscriber& subscriber = *me().subscriber;
  std::array<uint64_t, 2> values{};
  size_t copied = 0;
  const auto room = [&](uint64_t) {
    explore_point();
    return reinterpret_cast<char*>(values.data());
  };
  subscriber.copy_run(count, room, [&] {
    const uint64_t value = world->truth().values[subscriber.cursor()];
    if (values[0] != value || values[1] != value) throw Violation{"a wrong sample was copied"};
    copied++;
  });
  subscriber.settle();
  if (copied == 0) copy_once();
}
template <int count>
void take_and_hold() {
  for (int i = 0; i < count; i++) take_once();
}
void recover_once() { world->region().recover(); }

template <int count>
void claim_and_accept() {
  for (int i = 0; i < count; i++)
    if (claim_once()) accept_once();
}
// Copies of what is there, the quick way, accepted together; one the long way if there is none.
template <size_t count>
void claim_run_and_accept() {
  Consumer& consumer = *me().consumer;
  std::vector<Claimed> claims;
  claims.reserve(count);
  std::array<std::array<uint64_t, 2>, count> values{};
  consumer.look_ahead();
  const auto room = [&](uint64_t) {
    explore_point();
    return reinterpret_cast<char*>(values[claims.size() - 1].data());
  };
  consumer.claim_run(count, claims, room, [] {});
  consumer.settle();
  for (size_t i = 0; i < claims.size(); i++) {
    const uint64_t value = world->truth().values[claims[i].sequence];
    if (values[i][0] != value || values[i][1] != value) throw Violation{"a wrong message was copied"};
    if (!consumer.accept(claims[i])) throw Violation{"the claim of a living consumer was taken"};
    world->count_accepted(claims[i].sequence);
    consumer.let_go_of_copy();
    consumer.wake_producers();
  }
  if (claims.empty() && claim_once()) accept_once();
}
template <int count>
void claim_and_hold() {
  for (int i = 0; i < count; i++) claim_once();
}
void claim_release_and_accept() {
  if (claim_once()) release_claim();
  if (claim_once()) accept_once();
}

}  // namespace exploring

#include "scenarios.hpp"

namespace exploring {

struct Wish {
  std::string scenario;
  std::optional<uint64_t> preemptions, kills;
  double seconds = 1e9;
};

bool run_scenario(const Scenario& scenario, const std::string& directory, const Wish& wish) {
  World one({directory + "/explored.topic", directory + "/.lock", "explored"}, scenario.settings);
  Limits limits = scenario.limits;
  limits.preemptions = wish.preemptions.value_or(limits.preemptions);
  limits.kills = wish.kills.value_or(limits.kills);
  limits.seconds = wish.seconds;
  Search the(one, limits, [&](World&) { scenario.set_up(); });
  world = &one;
  search = &the;
  std::string verdict;
  try {
    verdict = the.run() ? "OK" : "LIMIT";
  } catch (const Violation& violation) {
    verdict = "VIOLATION: " + violation.text;
  } catch (const Error& error) {
    verdict = std::string("VIOLATION: an error: ") + error.what();
  }
  arena.in_use = kernel.simulating = exploring_now = false;
  const bool bounded = limits.preemptions != UINT64_MAX;
  std::printf("%s: %s schedules=%llu states=%llu complete=%llu longest=%llu kills=%llu preemptions=%s seconds=%.1f\n",
              scenario.name, verdict.c_str(), static_cast<unsigned long long>(the.schedules),
              static_cast<unsigned long long>(the.states()), static_cast<unsigned long long>(the.complete),
              static_cast<unsigned long long>(the.longest), static_cast<unsigned long long>(limits.kills),
              bounded ? std::to_string(limits.preemptions).c_str() : "all", the.seconds());
  if (verdict[0] == 'V') the.print_schedule();
  std::fflush(stdout);
  return verdict[0] != 'V';
}

}  // namespace exploring

int main(int count, char** arguments) {
  exploring::Wish wish;
  for (int i = 1; i < count; i++) {
    const std::string argument = arguments[i], value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("scenario=")) wish.scenario = value;
    if (argument.starts_with("preemptions=")) wish.preemptions = value == "all" ? UINT64_MAX : std::stoull(value);
    if (argument.starts_with("kills=")) wish.kills = std::stoull(value);
    if (argument.starts_with("seconds=")) wish.seconds = std::stod(value);
  }
  char directory[] = "/dev/shm/hawser-test-explore-XXXXXX";
  if (!mkdtemp(directory)) return 2;
  bool all = true;
  for (const auto& scenario : exploring::scenarios)
    if (wish.scenario.empty() || wish.scenario == scenario.name) all = exploring::run_scenario(scenario, directory, wish) && all;
  unlink((std::string(directory) + "/.lock").c_str());
  rmdir(directory);
  return all ? 0 : 1;
}
