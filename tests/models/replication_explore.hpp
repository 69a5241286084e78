// The exploration: breadth-first, with actions and depth counted, and what stays possible judged at the end.
#pragma once
#include <map>

#include "replication_check.hpp"
#include "replication_store.hpp"

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
inline uint32_t hopeless(const Visited& states, const std::vector<Edge>& edges) {
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

// Names stay what they were at the start, whatever each state calls the nodes.
template <class Expand>
void print_path(const Visited& seen, uint32_t at, Expand successors) {
  std::vector<uint32_t> path;
  for (uint32_t k = at; k != NOWHERE; k = seen.parents[k]) path.push_back(k);
  int name[NODES];
  for (int n = 0; n < NODES; n++) name[n] = n;
  std::vector<Step<State>> steps;
  std::vector<Renaming> renamings;
  for (size_t j = path.size(); j-- > 1;) {
    steps.clear();
    renamings.clear();
    renamings_wanted = &renamings;
    successors(seen[path[j]], steps);
    renamings_wanted = nullptr;
    const State next = seen[path[j - 1]];
    size_t k = 0;
    while (memcmp(&steps[k].state, &next, sizeof(State))) k++;
    const bool node = steps[k].who == 'N';
    printf("  %c%d %s\n", steps[k].who, node ? name[steps[k].index] : steps[k].index, steps[k].what);
    if (options.plain) continue;
    int renamed[NODES];
    for (int n = 0; n < NODES; n++) renamed[renamings[k].to[n]] = name[n];
    memcpy(name, renamed, sizeof name);
  }
}

// How many of the states differ after the reductions.
inline size_t reduced(const Visited& seen) {
  Visited all(seen.size());
  for (uint32_t k = 0; k < seen.size(); k++) {
    State state = seen[k];
    reduce(state);
    all.add(state, NOWHERE);
  }
  return all.size();
}

// Prints one line that starts with OK, VIOLATION or LIMIT, one that says how often each action was taken, and
// a trace after a violation.
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
  for (; at < seen.size(); at++) {
    const State state = seen[at];
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
    at = hopeless(seen, edges);
    if (at != NOWHERE) wrong = "from here not everything can be committed any more";
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  const char* verdict = !wrong.empty() ? "VIOLATION" : seen.full ? "LIMIT" : "OK";
  const uint32_t last = wrong.empty() ? static_cast<uint32_t>(seen.size() - 1) : at;
  printf("%s%s%s states=%zu transitions=%llu depth=%d seconds=%.1f\n", verdict, wrong.empty() ? "" : ": ",
         wrong.c_str(), options.plain ? reduced(seen) : seen.size(),
         static_cast<unsigned long long>(seen.transitions), trace_length(seen, last), spent.count());
  printf("fired");
  for (const auto& [what, times] : fired) printf("; %s=%llu", what, static_cast<unsigned long long>(times));
  printf("\n");
  if (!wrong.empty()) print_path(seen, at, successors);
  return wrong.empty() ? 0 : 1;
}
