// The time of day between looks at the system's clock: how far it may be from the truth, whatever the machine does.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "check.hpp"
#include "stopwatch.hpp"

using namespace hawser;

// A machine whose clocks do what they are told.
struct Machine {
  static inline uint64_t steady_ns, set_ns, counted, ticks_a_microsecond;
  static inline uint64_t looks, counts;           // how often the wall clock was read, and the ticks
  static inline uint64_t before_ns, after_ns;     // how long a reading takes, until the clock is read and from then on
  static inline uint64_t interrupted_ns;          // the next look at the wall clock, when the clock was read
  static inline uint64_t steady_interrupted_ns;   // the same at the steady clock, before that was read
  static inline bool is_even;

  static void begin() {
    steady_ns = 5'000'000'000, set_ns = 1'700'000'000'000'000'000, counted = 77'000'000, ticks_a_microsecond = 3000;
    looks = counts = before_ns = after_ns = interrupted_ns = steady_interrupted_ns = 0;
    is_even = true;
  }
  static void pass(uint64_t ns) {
    steady_ns += ns;
    counted += ns * ticks_a_microsecond / 1000;
  }
  // The steady clock stands still meanwhile.
  static void suspend(uint64_t ns, bool counts_on) {
    set_ns += ns;
    counted = counts_on ? counted + ns * ticks_a_microsecond / 1000 : 5;
  }
  static uint64_t time_of_day() { return set_ns + steady_ns; }

  static uint64_t ticks() { return counts++, counted; }
  static void finish_all_before() {}
  static bool counts_ticks() { return is_even; }
  static uint64_t steady_clock() {
    pass(std::exchange(steady_interrupted_ns, 0));
    return steady_ns;
  }
  static uint64_t wall_clock() {
    looks++;
    pass(before_ns);
    const uint64_t found = time_of_day();
    pass(std::exchange(interrupted_ns, 0) + after_ns);
    return found;
  }
};
using Simulated = StopwatchOf<Machine>;

static uint64_t distance(uint64_t a, uint64_t b) { return std::max(a, b) - std::min(a, b); }
static bool is_near(uint64_t a, uint64_t b, uint64_t nanoseconds) { return distance(a, b) <= nanoseconds; }

// One that knows how long a tick is.
static Simulated ready() {
  Machine::begin();
  Simulated stopwatch;
  for (int i = 0; i < 4; i++) {
    CHECK(stopwatch.now() == Machine::time_of_day());
    Machine::pass(15'000'000);
  }
  return stopwatch;
}

// The furthest from the truth while somebody publishes every 10 microseconds.
static uint64_t furthest(Simulated& stopwatch, uint64_t for_ns) {
  uint64_t most = 0;
  for (uint64_t i = 0; i < for_ns / 10'000; i++) {
    Machine::pass(10'000);
    most = std::max(most, distance(stopwatch.now(), Machine::time_of_day()));
  }
  return most;
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

// Readings that take now this long and now that long, in front of the clock or behind it.
static void time_does_not_go_back() {
  Simulated stopwatch = ready();
  uint64_t last = 0;
  for (int i = 0; i < 100'000; i++) {
    Machine::pass(static_cast<uint64_t>(i) * 7919 % 50);
    Machine::before_ns = i / 100 % 3 == 0 ? 80 : 0;
    Machine::after_ns = i / 100 % 3 == 1 ? 80 : 0;
    const uint64_t now = stopwatch.now();
    CHECK(now >= last && is_near(now, Machine::time_of_day(), 200));
    last = now;
  }
  CHECK(Machine::looks < 1000);
}

static void a_clock_that_is_set_is_noticed() {
  for (const int64_t step : {int64_t{3'600'000'000'000}, int64_t{-3'600'000'000'000}, int64_t{-2000}}) {
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

static void a_machine_that_slept_is_measured_again() {
  for (const bool counts_on : {false, true})
    for (const uint64_t asleep : {uint64_t{100'000'000}, uint64_t{1'000'000'000}, uint64_t{28'800'000'000'000}}) {
      Simulated stopwatch = ready();
      CHECK(furthest(stopwatch, 1'500'000'000) <= 5);
      Machine::suspend(asleep, counts_on);
      CHECK(furthest(stopwatch, 3'000'000'000) <= 5);
      const uint64_t before = Machine::looks;
      CHECK(furthest(stopwatch, 100'000'000) <= 5 && Machine::looks - before < 2000);  // it counts again
    }
}

// Between the clock and the ticks that belong to it somebody else had the processor.
static void an_interrupted_look_is_not_built_on() {
  Simulated stopwatch = ready();
  stopwatch.now();
  Machine::pass(200'000);
  Machine::interrupted_ns = 3'000'000;
  stopwatch.now();
  Machine::pass(10);
  CHECK(stopwatch.now() == Machine::time_of_day());
}

static void an_interrupted_measurement_is_not_believed() {
  Machine::begin();
  Simulated stopwatch;
  for (int i = 0; i < 100; i++) {
    Machine::steady_interrupted_ns = i % 2 ? 9000 : 0;
    CHECK(furthest(stopwatch, 15'000'000) <= 5);
  }
}

// Until it is measured again the time is wrong by no more than a look is good for, in ticks that are now longer.
static void a_machine_that_was_moved_is_measured_again() {
  for (const uint64_t rate : {uint64_t{1000}, uint64_t{2999}, uint64_t{5000}}) {
    Simulated stopwatch = ready();
    stopwatch.now();
    Machine::ticks_a_microsecond = rate;
    CHECK(furthest(stopwatch, 2'000'000'000) <= 200'000);
    CHECK(furthest(stopwatch, 1'000'000'000) <= 5);
  }
}

static void where_ticks_are_not_even_nobody_counts_them() {
  Machine::begin();
  Machine::is_even = false;
  Simulated stopwatch;
  for (int i = 0; i < 100; i++) {
    Machine::pass(i % 2 ? 100 : 20'000'000);
    CHECK(stopwatch.now() == Machine::time_of_day() && Machine::counts == 0);
  }
}

static void ticks_that_stand_still_are_not_counted() {
  Machine::begin();
  Machine::ticks_a_microsecond = 0;
  Simulated stopwatch;
  CHECK(furthest(stopwatch, 100'000'000) == 0);
}

// On this machine, whatever it is: at most half a microsecond before the look in front of it, or after the one behind.
static void the_system_agrees() {
  constexpr uint64_t kOff = 500;
  Stopwatch stopwatch;
  const auto offset = [] { return wall_clock_now() - static_cast<uint64_t>(monotonic_now()); };
  const int64_t end = monotonic_now() + 200'000'000;
  uint64_t set_by = offset(), set_at = 0;
  while (monotonic_now() < end) {
    const uint64_t before = wall_clock_now(), now = stopwatch.now(), after = wall_clock_now();
    // What was set, or interrupted while this looked for it, is noticed after a while.
    if (const uint64_t is = offset(); !is_near(is, set_by, kOff)) set_by = is, set_at = after;
    if (is_near(after, set_at, 1'000'000)) continue;
    CHECK(before <= now + kOff && now <= after + kOff);
  }
}

static void ticks_are_counted_where_the_kernel_counts_them() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  file >> name;
#if defined(__x86_64__)
  CHECK(SystemTime::counts_ticks() == (name == "tsc"));
#else
  CHECK(!SystemTime::counts_ticks());
#endif
}

int main() {
  return testing::run(
      {{"many readings take few looks", many_readings_take_few_looks},
       {"time does not go back", time_does_not_go_back},
       {"a clock that is set is noticed", a_clock_that_is_set_is_noticed},
       {"who slept looks", who_slept_looks},
       {"a machine that slept is measured again", a_machine_that_slept_is_measured_again},
       {"an interrupted look is not built on", an_interrupted_look_is_not_built_on},
       {"an interrupted measurement is not believed", an_interrupted_measurement_is_not_believed},
       {"a machine that was moved is measured again", a_machine_that_was_moved_is_measured_again},
       {"where ticks are not even nobody counts them", where_ticks_are_not_even_nobody_counts_them},
       {"ticks that stand still are not counted", ticks_that_stand_still_are_not_counted},
       {"the system agrees", the_system_agrees},
       {"ticks are counted where the kernel counts them", ticks_are_counted_where_the_kernel_counts_them}});
}
