// A forked child shares the memory of its parent's participants and owns none of them. The epoch tells the
// two apart: every native object remembers the epoch it was made in and does nothing in another one.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <mutex>

#include "error.hpp"

namespace hawser {

inline uint64_t fork_epoch = 1;

// Held while a descriptor with a lock is open: a child forked then would keep the lock alive.
inline std::mutex& no_fork_mutex() {
  static std::mutex mutex;
  return mutex;
}

inline void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { no_fork_mutex().lock(); }, [] { no_fork_mutex().unlock(); },
                   [] {
                     fork_epoch++;
                     no_fork_mutex().unlock();
                   });
  });
}

class MadeHere {
 public:
  bool here() const { return epoch_ == fork_epoch; }
  void require() const {
    if (!here()) [[unlikely]] refuse();
  }

 private:
  [[noreturn, gnu::noinline, gnu::cold]] static void refuse() {
    throw Error(Kind::usage, "this object belongs to the parent process; after a fork connect again in the child");
  }

  uint64_t epoch_ = fork_epoch;
};

}  // namespace hawser
