// The time of day, many times in a row.
//
// The system's clock costs a quarter of what it takes to publish a small message. Most of that is care: the processor
// has to have done everything else before it counts its ticks. A message does not need that. So between two looks at the
// system's clock, a tenth of a millisecond apart at most, the time is the last look and the ticks since then.
//
// This only where the system's own clock counts the same ticks: then they go on evenly and are the same on all
// processors. A clock that is set is noticed with the next look.
#pragma once

#include <fcntl.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "waiting.hpp"

namespace hawser {

struct SystemTime {
  static uint64_t wall_clock() { return wall_clock_now(); }
  static uint64_t steady_clock() { return static_cast<uint64_t>(monotonic_now()); }
#if defined(__x86_64__)
  static uint64_t ticks() { return __rdtsc(); }
  static bool counts_ticks() {
    static const bool is_so = [] {
      char name[4] = {};
      const int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
      if (file < 0) return false;
      const ssize_t size = read(file, name, sizeof name);
      close(file);
      return size == 4 && std::memcmp(name, "tsc\n", 4) == 0;
    }();
    return is_so;
  }
#else
  static uint64_t ticks() { return 0; }
  static bool counts_ticks() { return false; }
#endif
};

// For one thread at a time.
template <class Time>
class StopwatchOf {
 public:
  uint64_t now() {
    const uint64_t since = Time::ticks() - looked_at_;
    if (since < good_for_) [[likely]] return wall_clock_ + (since * nanoseconds_a_tick_ >> kFraction);
    return look();
  }

 private:
  struct Reading {
    uint64_t nanoseconds, ticks;
    bool exact;  // nothing came between the two
  };
  template <class Clock>
  static Reading read(const Clock& clock) {
    const uint64_t before = Time::ticks(), nanoseconds = clock(), after = Time::ticks();
    return {nanoseconds, before + (after - before) / 2, after - before < kMostTicksALook};
  }

  [[gnu::noinline]] uint64_t look() {
    if (!Time::counts_ticks()) return Time::wall_clock();
    if (Time::ticks() - measured_.ticks >= measured_for_) measure(read(Time::steady_clock));
    const Reading now = read(Time::wall_clock);
    looked_at_ = now.ticks;
    wall_clock_ = now.nanoseconds;
    good_for_ = now.exact ? ticks_in(kGoodForNanoseconds) : 0;
    return now.nanoseconds;
  }

  // How long a tick is, from the last reading of the steady clock to this one. A machine that was moved may count
  // faster than before.
  void measure(const Reading& now) {
    if (!now.exact) return;
    const uint64_t nanoseconds = now.nanoseconds - measured_.nanoseconds, ticks = now.ticks - measured_.ticks;
    if (nanoseconds < kMeasuredNanoseconds) return;
    const bool believable = measured_.ticks != 0 && nanoseconds <= kMostMeasuredNanoseconds &&
                            ticks > nanoseconds / kMostNanosecondsATick;
    nanoseconds_a_tick_ = believable ? (nanoseconds << kFraction) / ticks : 0;
    measured_ = now;
    measured_for_ = ticks_in(kMeasuredForNanoseconds);
  }

  uint64_t ticks_in(uint64_t nanoseconds) const {  // 0: nobody knows
    return nanoseconds_a_tick_ == 0 ? 0 : (nanoseconds << kFraction) / nanoseconds_a_tick_;
  }

  static constexpr int kFraction = 30;  // bits behind the point
  static constexpr uint64_t kGoodForNanoseconds = 100'000;
  static constexpr uint64_t kMeasuredNanoseconds = 10'000'000, kMostMeasuredNanoseconds = 10'000'000'000;
  static constexpr uint64_t kMeasuredForNanoseconds = 1'000'000'000;
  static constexpr uint64_t kMostNanosecondsATick = 100;
  static constexpr uint64_t kMostTicksALook = 2000;
  uint64_t looked_at_ = 0, wall_clock_ = 0;
  uint64_t good_for_ = 0;            // ticks
  uint64_t nanoseconds_a_tick_ = 0;  // 0: nobody knows
  Reading measured_{};
  uint64_t measured_for_ = 0;  // ticks
};
using Stopwatch = StopwatchOf<SystemTime>;

}  // namespace hawser
