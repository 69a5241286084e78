// A small explicit-state explorer: breadth-first, every state kept once, shortest counter-example.
//
// A model gives a State (bytes only, so that equal states are equal memory), its successors and a check.
// A check that returns a text has found a violation.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

constexpr uint32_t NOWHERE = 0xffffffffu;

// Options given on the command line as name=value.
inline int option(int count, char** arguments, const char* name, int otherwise) {
  const size_t length = strlen(name);
  for (int k = 1; k < count; k++) {
    if (!strncmp(arguments[k], name, length) && arguments[k][length] == '=') {
      return atoi(arguments[k] + length + 1);
    }
  }
  return otherwise;
}

template <class State>
class Seen {
 public:
  explicit Seen(size_t limit) : limit_(limit), table_(1u << 20, NOWHERE), mask_(table_.size() - 1) {}

  void add(const State& state, uint32_t parent) {
    transitions++;
    uint64_t at = hash(state) & mask_;
    for (; table_[at] != NOWHERE; at = (at + 1) & mask_) {
      if (!memcmp(&states[table_[at]], &state, sizeof(State))) return;
    }
    if (states.size() >= limit_) {
      full = true;
      return;
    }
    table_[at] = static_cast<uint32_t>(states.size());
    states.push_back(state);
    parents.push_back(parent);
    if (states.size() * 2 > table_.size()) grow();
  }

  std::deque<State> states;
  std::vector<uint32_t> parents;
  uint64_t transitions = 0;
  bool full = false;

 private:
  static uint64_t hash(const State& state) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&state);
    uint64_t mixed = 0x9E3779B97F4A7C15ull;
    size_t at = 0;
    for (; at + 8 <= sizeof(State); at += 8) {
      uint64_t word;
      memcpy(&word, bytes + at, 8);
      mixed = (mixed ^ word) * 0xff51afd7ed558ccdull;
      mixed ^= mixed >> 32;
    }
    for (; at < sizeof(State); at++) {
      mixed = (mixed ^ bytes[at]) * 0xc4ceb9fe1a85ec53ull;
      mixed ^= mixed >> 29;
    }
    return mixed ^ (mixed >> 31);
  }

  void grow() {
    std::vector<uint32_t> larger(table_.size() * 2, NOWHERE);
    mask_ = larger.size() - 1;
    for (uint32_t k = 0; k < states.size(); k++) {
      uint64_t at = hash(states[k]) & mask_;
      while (larger[at] != NOWHERE) at = (at + 1) & mask_;
      larger[at] = k;
    }
    table_.swap(larger);
  }

  size_t limit_;
  std::vector<uint32_t> table_;
  uint64_t mask_;
};

template <class State>
struct Step {
  State state;
  char who;
  int index;
  const char* what;
};

// Collects what can happen next in a state; `canonical` maps states that differ in nothing onto one.
template <class State>
class Successors {
 public:
  Successors(const State& from, std::vector<Step<State>>& out, void (*canonical)(State&))
      : from_(from), out_(out), canonical_(canonical) {}

  // `change` works on a copy of the state and returns a label, or null when it cannot happen.
  template <class Change>
  void add(char who, int index, Change change) {
    State next = from_;
    const char* label = change(next);
    if (!label) return;
    canonical_(next);
    out_.push_back({next, who, index, label});
  }

 private:
  const State& from_;
  std::vector<Step<State>>& out_;
  void (*canonical_)(State&);
};

template <class State, class Expand>
void print_trace(const Seen<State>& seen, uint32_t at, Expand successors) {
  std::vector<uint32_t> path;
  for (uint32_t k = at; k != NOWHERE; k = seen.parents[k]) path.push_back(k);
  std::vector<Step<State>> steps;
  for (size_t j = path.size(); j-- > 1;) {
    steps.clear();
    successors(seen.states[path[j]], steps);
    for (const auto& step : steps) {
      if (!memcmp(&step.state, &seen.states[path[j - 1]], sizeof(State))) {
        printf("  %c%d %s\n", step.who, step.index, step.what);
        break;
      }
    }
  }
}

// Explores everything reachable from `initial`; `check(state)` returns "" or what is wrong.
// Prints one line that starts with OK, VIOLATION or LIMIT, and a trace after a violation.
template <class State, class Expand, class Check>
int explore(const State& initial, size_t limit, Expand successors, Check check) {
  static_assert(alignof(State) == 1, "padding would make equal states differ");
  const auto start = std::chrono::steady_clock::now();
  Seen<State> seen(limit);
  seen.add(initial, NOWHERE);
  std::vector<Step<State>> steps;
  std::string wrong;
  uint64_t finals = 0;
  uint32_t at = 0;
  for (; at < seen.states.size(); at++) {
    const State state = seen.states[at];
    wrong = check(state);
    if (!wrong.empty()) break;
    steps.clear();
    successors(state, steps);
    if (steps.empty()) finals++;
    for (const auto& step : steps) seen.add(step.state, at);
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  const char* verdict = !wrong.empty() ? "VIOLATION" : seen.full ? "LIMIT" : "OK";
  printf("%s%s%s states=%zu transitions=%llu final=%llu seconds=%.1f\n", verdict, wrong.empty() ? "" : ": ",
         wrong.c_str(), seen.states.size(), static_cast<unsigned long long>(seen.transitions),
         static_cast<unsigned long long>(finals), spent.count());
  if (!wrong.empty()) print_trace(seen, at, successors);
  return wrong.empty() ? 0 : 1;
}
