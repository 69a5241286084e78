// Sleeping and waking on a Signal.
//
// Waker: make the news visible, load the waiters, and if there are any take their bits away, change the value and wake
// those whose bits it took: all of them, or as many as the news is for. Sleeper: read the value, set my waiter bit, look
// for news, sleep if the value is still that one. Either the waker sees the bit or the sleeper sees the news (both
// sides are sequentially consistent), so the value need not change when there is no sleeper. Whose bit is taken is being
// woken, so that no other process wakes it again, however long it takes until it runs; it read the value before, so it does
// not fall asleep afterwards. A waker that dies in between costs a sleeper one slice of 100 ms, no more.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
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
// are far enough apart to leave the cache line to the process that is about to write it.
constexpr int64_t kSpinNanoseconds = 20'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// How long the first pause is: a caller that wants many at once gives them time to gather.
constexpr int kPausesForOne = 64;
constexpr int kPausesForMany = 256;

inline void relax_for(int pauses) {
  for (int i = 0; i < pauses; i++) relax();
}

// Whether looking around has been worth it: with more processes than processors it is not, because the process that is waited
// for does not run meanwhile. After each time in vain it is left out more often. Threads may share one: then it is
// right for the last of them.
class Luck {
 public:
  bool worth_it() {
    const uint32_t left = left_out_.load(std::memory_order_relaxed);
    if (left == 0) return true;
    left_out_.store(left - 1, std::memory_order_relaxed);
    return false;
  }
  void learn(bool found) {
    const uint32_t misses = found ? 0 : std::min(misses_.load(std::memory_order_relaxed) + 1, kMostMisses);
    misses_.store(misses, std::memory_order_relaxed);
    left_out_.store((1u << misses) - 1, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kMostMisses = 4;
  std::atomic<uint32_t> misses_{0}, left_out_{0};
};

template <class Ready>
bool spin_until(Luck& luck, const Ready& ready, int64_t nanoseconds, int pauses) {
  static const bool alone = sysconf(_SC_NPROCESSORS_ONLN) == 1;
  if (alone || !luck.worth_it()) return false;
  const int64_t until = monotonic_now() + std::min(nanoseconds, kSpinNanoseconds);
  for (;; pauses = std::min(2 * pauses, kPausesForMany)) {
    relax_for(pauses);
    const bool found = ready();
    if (!found && monotonic_now() < until) continue;
    luck.learn(found);
    return found;
  }
}

// Sleepers tell the kernel which of 32 groups they belong to.
constexpr uint32_t wake_group(uint32_t index) { return 1u << index % 32; }

inline void wake(Signal& signal, uint32_t groups) {
  signal.value.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &signal.value, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, groups);
}
inline void wake_all(Signal& signal) { wake(signal, FUTEX_BITSET_MATCH_ANY); }

// Whether anybody sleeps, or is about to, among the participants in `words` words of bits.
inline bool anybody_waits(const Signal& signal, uint32_t words) {
  uint64_t anybody = 0;
  for (uint32_t i = 0; i < words; i++) anybody |= signal.waiters.words[i].load_ordered();
  return anybody != 0;
}

// Takes the bits of up to `count` waiters; the groups they belong to.
inline uint32_t take_waiters(Signal& signal, uint32_t words, uint32_t count) {
  uint32_t groups = 0;
  for (uint32_t i = 0; i < words; i++) {
    uint64_t bits = signal.waiters.words[i].load_ordered();
    while (static_cast<uint32_t>(std::popcount(bits)) > count) bits &= bits - 1;
    if (bits == 0) continue;
    bits &= signal.waiters.words[i].clear_bits(bits);  // another process wakes the others
    count -= static_cast<uint32_t>(std::popcount(bits));
    groups |= static_cast<uint32_t>(bits) | static_cast<uint32_t>(bits >> 32);
  }
  return groups;
}

// After the news is visible: wake the sleepers. News that is for `count` of them need not wake the others: one that
// dies on its way to the news costs the others a slice.
inline void wake_waiters(Signal& signal, uint32_t words, uint32_t count = UINT32_MAX) {
  if (!anybody_waits(signal, words)) [[likely]] return;
  if (const uint32_t groups = take_waiters(signal, words, count)) wake(signal, groups);
}

// How many threads of this process sleep as one participant.
struct Sleepers {
  std::mutex mutex;
  uint32_t count = 0;
  Luck luck;
};

// One thread's turn to sleep: the participant's flag is set until it is woken, or the last of its threads is up.
class Sleeper {
 public:
  Sleeper(Signal& signal, uint32_t index, Sleepers& sleepers)
      : signal_(signal), index_(index), sleepers_(sleepers), value_(signal.value.load(std::memory_order_seq_cst)) {
    const std::lock_guard guard(sleepers_.mutex);
    sleepers_.count++;
    if (!planted(Canary::sleep_without_flag)) signal_.waiters.set(index_);
  }
  ~Sleeper() {
    const std::lock_guard guard(sleepers_.mutex);
    if (--sleepers_.count == 0) signal_.waiters.clear(index_);
  }
  Sleeper(const Sleeper&) = delete;

  uint32_t value() const { return value_; }  // as it was before the flag was set
  // Until the value is another one, a process wakes us, a signal arrives, or the time is over.
  void sleep(uint32_t seen, int64_t nanoseconds) const {
    const int64_t until = monotonic_now() + nanoseconds;
    const timespec limit{until / 1'000'000'000, until % 1'000'000'000};
    syscall(SYS_futex, &signal_.value, FUTEX_WAIT_BITSET, seen, &limit, nullptr, wake_group(index_));
  }

 private:
  Signal& signal_;
  uint32_t index_;
  Sleepers& sleepers_;
  uint32_t value_;
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
