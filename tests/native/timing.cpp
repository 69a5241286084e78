// The time of day between looks at the system's clock: how far it may be from the truth, whatever the machine does.
#include <algorithm>
#include <utility>

#include "check.hpp"
#include "stopwatch.hpp"

using namespace hawser;

// A machine whose clocks do what they are told.
struct Machine {
  static inline uint64_t true_ns, set_ns, counted, ticks_a_microsecond;
  static inline uint64_t looks;            // at the wall clock
  static inline uint64_t interrupts_for_ns;  // the next look, once it has read the clock
  static inline bool is_even;

  static void begin() {
    true_ns = 5'000'000'000, set_ns = 1'700'000'000'000'000'000, counted = 77'000'000, ticks_a_microsecond = 3000;
    looks = interrupts_for_ns = 0;
    is_even = true;
  }
  static void pass(uint64_t ns) {
    true_ns += ns;
    counted += ns * ticks_a_microsecond / 1000;
  }
  static uint64_t time_of_day() { return set_ns + true_ns; }

  static uint64_t ticks() { return counted; }
  static bool counts_ticks() { return is_even; }
  static uint64_t steady_clock() { return true_ns; }
  static uint64_t wall_clock() {
    looks++;
    const uint64_t read = time_of_day();
    pass(std::exchange(interrupts_for_ns, 0));
    return read;
  }
};
using Simulated = StopwatchOf<Machine>;

static bool is_near(uint64_t a, uint64_t b, uint64_t nanoseconds) { return std::max(a, b) - std::min(a, b) <= nanoseconds; }

// One that knows how long a tick is.
static Simulated ready() {
  Machine::begin();
  Simulated stopwatch;
  for (int i = 0; i < 3; i++) {
    CHECK(stopwatch.now() == Machine::time_of_day());
    Machine::pass(15'000'000);
  }
  return stopwatch;
}

static void many_readings_take_few_looks() {
  Simulated stopwatch = ready();
  const uint64_t before = Machine::looks;
  for (int i = 0; i < 100'000; i++) {
    Machine::pass(100);
    CHECK(is_near(stopwatch.now(), Machine::time_of_day(), 5));
  }
  CHECK(Machine::looks - before <= 101);  // in 10 ms
}

static void time_never_goes_back_between_looks() {
  Simulated stopwatch = ready();
  uint64_t last = 0;
  for (int i = 0; i < 1000; i++) {
    Machine::pass(50);
    const uint64_t now = stopwatch.now();
    CHECK(now >= last);
    last = now;
  }
}

static void a_clock_that_is_set_is_noticed() {
  for (const int64_t step : {int64_t{3'600'000'000'000}, int64_t{-3'600'000'000'000}}) {
    Simulated stopwatch = ready();
    stopwatch.now();
    Machine::set_ns += static_cast<uint64_t>(step);
    Machine::pass(100'001);
    CHECK(is_near(stopwatch.now(), Machine::time_of_day(), 5));
  }
}

static void who_slept_looks() {
  Simulated stopwatch = ready();
  for (const uint64_t asleep : {uint64_t{200'000}, uint64_t{2'000'000'000}, uint64_t{86'400'000'000'000}}) {
    stopwatch.now();
    Machine::set_ns += 12'345'678;
    Machine::pass(asleep);
    CHECK(stopwatch.now() == Machine::time_of_day());
  }
}

// Between the clock and the ticks that belong to it somebody else had the processor.
static void an_interrupted_look_is_not_built_on() {
  Simulated stopwatch = ready();
  stopwatch.now();
  Machine::pass(200'000);
  Machine::interrupts_for_ns = 3'000'000;
  stopwatch.now();
  Machine::pass(10);
  CHECK(stopwatch.now() == Machine::time_of_day());
}

static void a_machine_that_was_moved_is_measured_again() {
  for (const uint64_t rate : {uint64_t{1000}, uint64_t{5000}}) {
    Simulated stopwatch = ready();
    stopwatch.now();
    Machine::ticks_a_microsecond = rate;
    Machine::counted = 1000;
    uint64_t furthest = 0;
    for (int i = 0; i < 3'000'000; i++) {  // 3 seconds
      Machine::pass(1000);
      const uint64_t now = stopwatch.now(), truth = Machine::time_of_day();
      if (i > 2'500'000) furthest = std::max(furthest, std::max(now, truth) - std::min(now, truth));
      CHECK(is_near(now, truth, 200'000));
    }
    CHECK(furthest <= 5);
  }
}

static void where_ticks_are_not_even_nobody_counts_them() {
  Machine::begin();
  Machine::is_even = false;
  Simulated stopwatch;
  for (int i = 0; i < 100; i++) {
    Machine::pass(i % 2 ? 100 : 20'000'000);
    Machine::counted = static_cast<uint64_t>(i) * 7919 % 1000;
    CHECK(stopwatch.now() == Machine::time_of_day());
  }
}

// On this machine, whatever it is: never before the look that came before it, nor after the one that follows.
static void the_system_agrees() {
  constexpr uint64_t kOff = 2000;
  Stopwatch stopwatch;
  const int64_t end = monotonic_now() + 200'000'000;
  while (monotonic_now() < end) {
    const uint64_t before = wall_clock_now(), now = stopwatch.now(), after = wall_clock_now();
    if (after - before > 1'000'000'000) continue;  // it was set
    CHECK(before <= now + kOff && now <= after + kOff);
  }
}

int main() {
  return testing::run({{"many readings take few looks", many_readings_take_few_looks},
                       {"time never goes back between looks", time_never_goes_back_between_looks},
                       {"a clock that is set is noticed", a_clock_that_is_set_is_noticed},
                       {"who slept looks", who_slept_looks},
                       {"an interrupted look is not built on", an_interrupted_look_is_not_built_on},
                       {"a machine that was moved is measured again", a_machine_that_was_moved_is_measured_again},
                       {"where ticks are not even nobody counts them", where_ticks_are_not_even_nobody_counts_them},
                       {"the system agrees", the_system_agrees}});
}
