// The time of day, many times in a row.
//
// A look at the system's clock costs more than all the atomic operations of publishing a small message. Most of that is
// care: the processor has to have done everything else before it counts its ticks. A message does not need that. So
// between two looks, a tenth of a millisecond apart at most, the time is the last look and the ticks since then.
//
// This is done only where the system's own clock counts the same ticks: then they go on evenly and are the same on all
// processors. How long a tick is, is believed when two measurements in a row agree. A clock that is set is noticed with
// the next look.
#pragma once

#include <fcntl.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "waiting.hpp"

namespace hawser {

struct SystemTime {
  static uint64_t wall_clock() { return wall_clock_now(); }
  static uint64_t steady_clock() { return static_cast<uint64_t>(monotonic_now()); }
#if defined(__x86_64__)
  static uint64_t ticks() { return __rdtsc(); }
  static void finish_all_before() { _mm_lfence(); }
  static bool counts_ticks() {
    char name[4] = {};
    const int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t size = read(file, name, sizeof name);
    close(file);
    return size == 4 && std::memcmp(name, "tsc\n", 4) == 0;
  }
#else
  static uint64_t ticks() { return 0; }
  static void finish_all_before() {}
  static bool counts_ticks() { return false; }
#endif
};

// For one thread at a time: in Python, the holder of the GIL.
template <class Time>
class StopwatchOf {
 public:
  uint64_t now() {
    if (good_for_ != 0) [[likely]] {
      const uint64_t since = Time::ticks() - looked_at_;
      if (since < good_for_) [[likely]] return last_ = wall_clock_ + (since * tick_ >> kFraction);
    }
    return last_ = look();
  }

 private:
  struct Reading {
    uint64_t nanoseconds, ticks;
    bool exact;  // it took no longer than a reading does that nothing interrupts
  };
  template <class Clock>
  static Reading read(const Clock& clock) {
    Time::finish_all_before();
    const uint64_t before = Time::ticks(), nanoseconds = clock(), after = Time::ticks();
    return {nanoseconds, before + (after - before) / 2, after - before < kMostTicksAReading};
  }

  [[gnu::noinline]] uint64_t look() {
    if (!counts_ticks_) return Time::wall_clock();
    const Reading now = read(Time::wall_clock);
    if (now.nanoseconds - measured_at_ >= (tick_ == 0 ? kMeasuredNanoseconds : kMeasuredForNanoseconds)) {
      measured_at_ = now.nanoseconds;
      measure(read(Time::steady_clock));
    }
    // Two looks are not off by the same; that is no reason to go back.
    const bool is_just_before = now.nanoseconds < last_ && last_ - now.nanoseconds < kMostOffNanoseconds;
    looked_at_ = now.ticks;
    wall_clock_ = is_just_before ? last_ : now.nanoseconds;
    good_for_ = now.exact && tick_ != 0 ? (kGoodForNanoseconds << kFraction) / tick_ : 0;
    return wall_clock_;
  }

  // How long a tick is, from one reading of the steady clock to the next. A machine that slept, or was moved to another
  // one, has counted on, or begun anew, or counts faster than before: then this does not agree with what was before.
  void measure(const Reading& now) {
    if (!now.exact) return;
    const uint64_t nanoseconds = now.nanoseconds - measured_.nanoseconds, ticks = now.ticks - measured_.ticks;
    if (nanoseconds < kMeasuredNanoseconds) return;
    const bool is_measured = nanoseconds <= kMostMeasuredNanoseconds && ticks != 0;
    const uint64_t length = is_measured ? (nanoseconds << kFraction) / ticks : 0;
    const uint64_t difference = std::max(length, last_length_) - std::min(length, last_length_);
    tick_ = difference <= length >> kAgreeingBits ? length : 0;
    last_length_ = length;
    measured_ = now;
  }

  static constexpr int kFraction = 30;  // bits behind the point
  static constexpr int kAgreeingBits = 10;
  static constexpr uint64_t kGoodForNanoseconds = 100'000;
  static constexpr uint64_t kMostOffNanoseconds = 1000;
  static constexpr uint64_t kMeasuredNanoseconds = 10'000'000, kMostMeasuredNanoseconds = 10'000'000'000;
  static constexpr uint64_t kMeasuredForNanoseconds = 1'000'000'000;
  static constexpr uint64_t kMostTicksAReading = 500;
  const bool counts_ticks_ = Time::counts_ticks();
  uint64_t last_ = 0;  // what was said last
  uint64_t looked_at_ = 0, wall_clock_ = 0;
  uint64_t good_for_ = 0;  // ticks
  uint64_t tick_ = 0;      // in nanoseconds, times 2^kFraction; 0: not known
  uint64_t last_length_ = 0;
  uint64_t measured_at_ = 0;  // on the wall clock
  Reading measured_{};
};
using Stopwatch = StopwatchOf<SystemTime>;

}  // namespace hawser
