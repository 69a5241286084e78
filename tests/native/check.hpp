// Checks for small test programs: a program is a list of tests, prints how many checks held, and stops at the
// first that does not.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>

#include "error.hpp"

namespace testing {

inline std::atomic<uint64_t> checks{0};
inline const char* running = "";

inline void check(bool holds, const char* text, const char* file, int line) {
  checks.fetch_add(1, std::memory_order_relaxed);
  if (holds) return;
  std::fprintf(stderr, "%s:%d: in '%s': %s does not hold\n", file, line, running, text);
  std::fflush(stderr);
  std::abort();
}

// The text of the Error of this kind that `act` throws.
template <class Act>
std::string thrown(hawser::Kind kind, const char* file, int line, const Act& act) {
  try {
    act();
  } catch (const hawser::Error& error) {
    check(error.kind() == kind, error.what(), file, line);
    return error.what();
  }
  check(false, "an error is thrown", file, line);
  return "";
}

struct Test {
  const char* name;
  void (*run)();
};

inline int run(std::initializer_list<Test> tests) {
  for (const Test& test : tests) {
    running = test.name;
    test.run();
  }
  std::printf("tests=%zu checks=%llu\n", tests.size(), static_cast<unsigned long long>(checks.load()));
  return 0;
}

}  // namespace testing

#define CHECK(condition) testing::check((condition), #condition, __FILE__, __LINE__)
#define THROWN(kind, act) testing::thrown(hawser::Kind::kind, __FILE__, __LINE__, [&] { act; })
