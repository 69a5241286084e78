// Sleeping and waking on a Signal.
//
// Waker: make the news visible, load the waiters, and if there are any change the value and wake all.
// Sleeper: set my waiter bit, read the value, look for news, sleep if the value is still that one. Either the
// waker sees the bit or the sleeper sees the news (both sides are sequentially consistent), so the value need
// not change when nobody sleeps. A waker that dies in between costs a sleeper one slice of 100 ms, no more.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <mutex>

#include "canary.hpp"
#include "layout.hpp"

namespace hawser {

constexpr int64_t kSliceNanoseconds = 100'000'000;

inline int64_t clock_now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}
inline int64_t monotonic_now() { return clock_now(CLOCK_MONOTONIC); }
// Within a few milliseconds, for a fraction of the price.
inline int64_t coarse_now() { return clock_now(CLOCK_MONOTONIC_COARSE); }
inline uint64_t wall_clock_now() { return static_cast<uint64_t>(clock_now(CLOCK_REALTIME)); }

// Before sleeping, look around for a moment: what comes within it costs neither side a system call. The looks
// are far enough apart to leave the cache line to whoever is about to write it.
constexpr int64_t kSpinNanoseconds = 20'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// How long the first pause is: whoever wants many at once gives them time to gather.
constexpr int kPausesForOne = 64;
constexpr int kPausesForMany = 256;

inline void relax_for(int pauses) {
  for (int i = 0; i < pauses; i++) relax();
}

template <class Ready>
bool spin_until(const Ready& ready, int64_t nanoseconds, int pauses) {
  static const bool alone = sysconf(_SC_NPROCESSORS_ONLN) == 1;
  if (alone) return false;
  const int64_t until = monotonic_now() + std::min(nanoseconds, kSpinNanoseconds);
  for (;; pauses = std::min(2 * pauses, kPausesForMany)) {
    relax_for(pauses);
    if (ready()) return true;
    if (monotonic_now() >= until) return false;
  }
}

inline void wake_all(Signal& signal) {
  signal.value.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &signal.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// After the news is visible: wake whoever sleeps among the participants in `words` words of bits.
inline void wake_waiters(Signal& signal, uint32_t words) {
  uint64_t anybody = 0;
  for (uint32_t i = 0; i < words; i++) anybody |= signal.waiters.words[i].load_ordered();
  if (anybody) [[unlikely]] wake_all(signal);
}

// How many threads of this process sleep as one participant.
struct Sleepers {
  std::mutex mutex;
  uint32_t count = 0;
};

// One thread's turn to sleep: the participant's flag is set for as long as any of them lives.
class Sleeper {
 public:
  Sleeper(Signal& signal, uint32_t index, Sleepers& sleepers) : signal_(signal), index_(index), sleepers_(sleepers) {
    const std::lock_guard guard(sleepers_.mutex);
    if (sleepers_.count++ == 0 && !planted(Canary::sleep_without_flag)) signal_.waiters.set(index_);
  }
  ~Sleeper() {
    const std::lock_guard guard(sleepers_.mutex);
    if (--sleepers_.count == 0) signal_.waiters.clear(index_);
  }
  Sleeper(const Sleeper&) = delete;

  uint32_t value() const { return signal_.value.load(std::memory_order_seq_cst); }
  // Until the value is another one, somebody wakes us, a signal arrives, or the time is over.
  void sleep(uint32_t seen, int64_t nanoseconds) const {
    const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    syscall(SYS_futex, &signal_.value, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }

 private:
  Signal& signal_;
  uint32_t index_;
  Sleepers& sleepers_;
};

// A deadline on the monotonic clock; `for_ever` has none, and one in 0 seconds is over without a look at it.
class Deadline {
 public:
  static Deadline for_ever() { return Deadline(INT64_MAX); }
  static Deadline in(double seconds) {
    if (seconds == 0) return Deadline(0);
    return Deadline(seconds > 1e9 ? INT64_MAX : monotonic_now() + static_cast<int64_t>(seconds * 1e9));
  }
  bool over() const { return at_ == 0 || (at_ != INT64_MAX && monotonic_now() >= at_); }
  // How long to sleep now: never longer than a slice, after which the sleeper looks around.
  int64_t slice() const {
    if (at_ == INT64_MAX) return kSliceNanoseconds;
    const int64_t left = at_ - monotonic_now();
    return left < 0 ? 0 : left < kSliceNanoseconds ? left : kSliceNanoseconds;
  }

 private:
  explicit Deadline(int64_t at) : at_(at) {}
  int64_t at_;
};

}  // namespace hawser
