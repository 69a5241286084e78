// The search: every order in which the processes of a scenario can step, depth first.
//
// A schedule is run from the start, replaying the choices made so far and adding new ones until everybody is
// done or the state is one that was seen before: shared memory, locks, and each process's stack, registers and
// heap, by a 64-bit hash. With a bound on preemptions, states are told apart by what is left of it.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>

#include "world.hpp"

namespace exploring {

struct Limits {
  uint64_t kills = 0;
  uint64_t preemptions = UINT64_MAX;  // of a process that could have gone on
  double seconds = 1e9;
};

struct Action {
  uint8_t process = 0;
  bool kills = false;
};

struct Node {
  std::vector<Action> actions;
  size_t chosen = 0;
  uint64_t hash = 0;
  int current = Kernel::kNobody;
};

// States seen so far: an open table of hashes.
class Seen {
 public:
  bool add(uint64_t hash) {
    hash |= hash == 0;
    if (2 * (count_ + 1) > table_.size()) grow();
    uint64_t at = hash & (table_.size() - 1);
    for (; table_[at] != 0; at = (at + 1) & (table_.size() - 1))
      if (table_[at] == hash) return false;
    table_[at] = hash;
    count_++;
    return true;
  }
  uint64_t count() const { return count_; }

 private:
  void grow() {
    std::vector<uint64_t> old(table_.empty() ? 1 << 16 : table_.size() * 2);
    old.swap(table_);
    count_ = 0;
    for (const uint64_t hash : old)
      if (hash != 0) add(hash);
  }
  std::vector<uint64_t> table_;
  uint64_t count_ = 0;
};

class Search {
 public:
  Search(World& world, const Limits& limits, std::function<void(World&)> set_up)
      : world_(world), limits_(limits), set_up_(std::move(set_up)) {}

  // Throws the first Violation found; false when the time was over first.
  bool run() {
    do {
      schedules++;
      run_one_schedule();
      if (schedules % 1024 == 0 && seconds() > limits_.seconds) return false;
    } while (next_schedule());
    return true;
  }

  uint64_t schedules = 0, complete = 0, longest = 0;
  uint64_t states() const { return seen_.count(); }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }
  void print_schedule() const;

  // For set_up: what a process does, and acting as one before the search starts.
  void start(uint32_t number, void (*body)()) { fibers_[number].prepare(body); }

 private:
  struct Outside {  // the search's own memory is not part of the state
    Outside() { arena.in_use = false; }
    ~Outside() { arena.in_use = true; }
  };

  void run_one_schedule();
  bool next_schedule();
  bool choose(Action& action);
  bool is_new(Node& node);
  std::vector<Action> possible() const;
  void apply_kill(uint32_t victim);
  bool can_run(uint32_t number) const {
    return fibers_[number].can_run() && (kernel.asleep[number] == nullptr || kills_ < limits_.kills);
  }

  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  World& world_;
  const Limits limits_;
  const std::function<void(World&)> set_up_;
  std::array<Fiber, kMaxProcesses> fibers_;
  std::vector<Node> path_;
  Seen seen_;
  size_t depth_ = 0;
  int current_ = Kernel::kNobody;
  uint64_t kills_ = 0;        // left
  uint64_t preemptions_ = 0;  // left
};

inline bool exploring_now = false;  // false: accesses are not stopped at

inline void Search::run_one_schedule() {
  constexpr size_t kMostSteps = 20'000;
  depth_ = 0;
  current_ = Kernel::kNobody;
  kills_ = limits_.kills;
  preemptions_ = limits_.preemptions;
  kernel.simulating = true;
  kernel.reset();
  world_.reset();
  for (auto& fiber : fibers_) fiber.kill();
  arena.in_use = true;
  set_up_(world_);
  world_.watch();
  for (Action action; choose(action);) {
    if (depth_ > kMostSteps) throw Violation{"somebody does not finish"};
    if (action.kills) {
      apply_kill(action.process);
      continue;
    }
    if (current_ != action.process && current_ != Kernel::kNobody && can_run(static_cast<uint32_t>(current_))) preemptions_--;
    current_ = action.process;
    kernel.process = current_;
    kernel.asleep[action.process] = nullptr;
    exploring_now = true;
    fibers_[action.process].resume();
    exploring_now = false;
    fibers_[action.process].take_hash();
    if (!world_.complaint.empty()) throw Violation{world_.complaint};
    world_.watch();
  }
  arena.in_use = false;
  longest = std::max<uint64_t>(longest, depth_);
}

inline void Search::apply_kill(uint32_t victim) {
  kills_--;
  fibers_[victim].kill();
  kernel.kill(static_cast<int>(victim));
  world_.process(victim).dead = 1;
}

inline std::vector<Action> Search::possible() const {
  std::vector<Action> actions;
  const bool goes_on = current_ != Kernel::kNobody && can_run(static_cast<uint32_t>(current_));
  if (goes_on) actions.push_back({static_cast<uint8_t>(current_), false});
  for (uint8_t i = 0; i < kMaxProcesses; i++)
    if (i != current_ && can_run(i) && (!goes_on || preemptions_ > 0)) actions.push_back({i, false});
  for (uint8_t i = 0; i < kMaxProcesses && kills_ > 0; i++)
    if (fibers_[i].state() == Fiber::State::parked) actions.push_back({i, true});
  return actions;
}

// Whether the state was not seen before. A process that comes back to a state of its own by its steps alone
// would go round for ever.
inline bool Search::is_new(Node& node) {
  uint64_t hash = world_.hash();
  for (const auto& fiber : fibers_) {
    const uint64_t parts[] = {fiber.hash(), static_cast<uint64_t>(fiber.state())};
    hash = hash_words(parts, sizeof parts, hash);
  }
  const bool bounded = limits_.preemptions != UINT64_MAX;
  const uint64_t left[] = {kills_, bounded ? preemptions_ : 0, bounded ? static_cast<uint64_t>(current_) : 0};
  node.hash = hash_words(left, sizeof left, hash);
  node.current = current_;
  if (seen_.add(node.hash)) return true;
  for (size_t i = path_.size(); i-- > 0 && path_[i].current == current_;)
    if (path_[i].hash == node.hash) throw Violation{"somebody goes round in circles, alone"};
  return false;
}

// False: this schedule ends here.
inline bool Search::choose(Action& action) {
  const Outside outside;
  if (depth_ == path_.size()) {
    world_.check();
    Node node;
    if (!is_new(node)) return false;
    node.actions = possible();
    if (node.actions.empty()) {
      complete++;
      world_.check_the_end();
      return false;
    }
    path_.push_back(std::move(node));
  }
  const Node& node = path_[depth_++];
  action = node.actions[node.chosen];
  return true;
}

inline bool Search::next_schedule() {
  while (!path_.empty() && ++path_.back().chosen == path_.back().actions.size()) path_.pop_back();
  return !path_.empty();
}

inline void Search::print_schedule() const {
  std::string line;
  for (size_t i = 0; i < depth_;) {
    const Action action = path_[i].actions[path_[i].chosen];
    size_t steps = 0;
    const auto same = [&](const Node& node) {
      const Action other = node.actions[node.chosen];
      return other.process == action.process && other.kills == action.kills;
    };
    while (i < depth_ && same(path_[i])) i++, steps++;
    line += std::string(action.kills ? "  KILL " : "  ") + world_.process(action.process).name;
    if (!action.kills) line += " x" + std::to_string(steps);
  }
  std::printf("  schedule:%s\n", line.c_str());
}

}  // namespace exploring

void hawser::explore_point() {
  if (exploring::exploring_now) exploring::Fiber::park();
}

extern "C" void explore_sleep(const void* word) {
  if (!exploring::exploring_now) return;
  exploring::kernel.asleep[static_cast<size_t>(exploring::kernel.process)] = word;
  exploring::Fiber::park();
}
