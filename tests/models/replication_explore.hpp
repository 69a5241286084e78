// The exploration: breadth-first, with actions and depth counted, and what stays possible judged at the end.
#pragma once
#include <map>

#include "replication_check.hpp"
#include "replication_symmetry.hpp"

// The states met so far, each once, with the state it was first met from.
class Visited {
 public:
  explicit Visited(size_t limit) : limit_(limit), table_(1u << 16, NOWHERE) {}

  // The place of the state, or NOWHERE if there is no more room.
  uint32_t add(const State& state, uint32_t parent) {
    transitions++;
    const uint64_t mask = table_.size() - 1;
    uint64_t at = hash(state) & mask;
    for (; table_[at] != NOWHERE; at = (at + 1) & mask) {
      if (!memcmp(&states[table_[at]], &state, sizeof(State))) return table_[at];
    }
    if (states.size() >= limit_) {
      full = true;
      return NOWHERE;
    }
    const uint32_t place = static_cast<uint32_t>(states.size());
    table_[at] = place;
    states.push_back(state);
    parents.push_back(parent);
    if (states.size() * 2 > table_.size()) grow();
    return place;
  }

  std::deque<State> states;
  std::vector<uint32_t> parents;
  uint64_t transitions = 0;
  bool full = false;

 private:
  static uint64_t hash(const State& state) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&state);
    uint64_t mixed = 0x9E3779B97F4A7C15ull;
    for (size_t at = 0; at < sizeof(State); at += 8) {
      uint64_t word = 0;
      memcpy(&word, bytes + at, std::min<size_t>(8, sizeof(State) - at));
      mixed = mix(mixed, word);
    }
    return mixed ^ (mixed >> 31);
  }

  void grow() {
    table_.assign(table_.size() * 2, NOWHERE);
    const uint64_t mask = table_.size() - 1;
    for (uint32_t k = 0; k < states.size(); k++) {
      uint64_t at = hash(states[k]) & mask;
      while (table_[at] != NOWHERE) at = (at + 1) & mask;
      table_[at] = k;
    }
  }

  size_t limit_;
  std::vector<uint32_t> table_;
};

// A step that nothing has to go wrong for, and that asks for nothing new.
inline bool is_helpful(const char* what) {
  if (!strcmp(what, "RESTART") || !strcmp(what, "DIES") || !strcmp(what, "Propose")) return false;
  const bool starts = !strcmp(what, "store: election") || !strncmp(what, "store: prepare", 14);
  return options.live == 1 || !starts;
}

struct Edge {
  uint32_t from, to;
};

// A state with hope from which no helpful steps lead to one where all is done, or NOWHERE.
inline uint32_t hopeless(const std::deque<State>& states, const std::vector<Edge>& edges) {
  std::vector<uint32_t> first(states.size() + 1, 0);
  for (const Edge& edge : edges) first[edge.to + 1]++;
  for (size_t k = 0; k < states.size(); k++) first[k + 1] += first[k];
  std::vector<uint32_t> from(edges.size());
  std::vector<uint32_t> place(first.begin(), first.end() - 1);
  for (const Edge& edge : edges) from[place[edge.to]++] = edge.from;
  std::vector<uint32_t> waiting;
  std::vector<bool> reaches(states.size(), false);
  for (uint32_t k = 0; k < states.size(); k++) {
    if (!is_done(states[k])) continue;
    reaches[k] = true;
    waiting.push_back(k);
  }
  while (!waiting.empty()) {
    const uint32_t to = waiting.back();
    waiting.pop_back();
    for (uint32_t k = first[to]; k < first[to + 1]; k++) {
      if (reaches[from[k]]) continue;
      reaches[from[k]] = true;
      waiting.push_back(from[k]);
    }
  }
  for (uint32_t k = 0; k < states.size(); k++) {
    if (!reaches[k] && has_hope(states[k])) return k;
  }
  return NOWHERE;
}

inline int trace_length(const Visited& seen, uint32_t at) {
  int length = 0;
  for (uint32_t k = seen.parents[at]; k != NOWHERE; k = seen.parents[k]) length++;
  return length;
}

template <class Expand>
void print_path(const Visited& seen, uint32_t at, Expand successors) {
  std::vector<uint32_t> path;
  for (uint32_t k = at; k != NOWHERE; k = seen.parents[k]) path.push_back(k);
  std::vector<Step<State>> steps;
  for (size_t j = path.size(); j-- > 1;) {
    steps.clear();
    successors(seen.states[path[j]], steps);
    for (const auto& step : steps) {
      if (memcmp(&step.state, &seen.states[path[j - 1]], sizeof(State))) continue;
      printf("  %c%d %s\n", step.who, step.index, step.what);
      break;
    }
  }
}

// Prints one line that starts with OK, VIOLATION or LIMIT, one that says how often each action was taken, and a
// trace after a violation.
template <class Expand>
int explore_replication(const State& initial, size_t limit, Expand successors) {
  static_assert(alignof(State) == 1, "padding would make equal states differ");
  const auto start = std::chrono::steady_clock::now();
  Visited seen(limit);
  seen.add(initial, NOWHERE);
  std::vector<Step<State>> steps;
  std::vector<Edge> edges;
  std::map<const char*, uint64_t> fired;
  std::string wrong;
  uint32_t at = 0;
  for (; at < seen.states.size(); at++) {
    const State state = seen.states[at];
    wrong = check(state);
    if (!wrong.empty()) break;
    steps.clear();
    successors(state, steps);
    for (const auto& step : steps) {
      const uint32_t to = seen.add(step.state, at);
      fired[step.what]++;
      if (options.live && to != NOWHERE && is_helpful(step.what)) edges.push_back({at, to});
    }
  }
  if (wrong.empty() && options.live && !seen.full) {
    at = hopeless(seen.states, edges);
    if (at != NOWHERE) wrong = "from here not everything can be committed any more";
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  const char* verdict = !wrong.empty() ? "VIOLATION" : seen.full ? "LIMIT" : "OK";
  const uint32_t last = wrong.empty() ? static_cast<uint32_t>(seen.states.size() - 1) : at;
  printf("%s%s%s states=%zu transitions=%llu depth=%d seconds=%.1f\n", verdict, wrong.empty() ? "" : ": ",
         wrong.c_str(), seen.states.size(), static_cast<unsigned long long>(seen.transitions),
         trace_length(seen, last), spent.count());
  printf("fired");
  for (const auto& [what, times] : fired) printf("; %s=%llu", what, static_cast<unsigned long long>(times));
  printf("\n");
  if (!wrong.empty()) print_path(seen, at, successors);
  return wrong.empty() ? 0 : 1;
}
