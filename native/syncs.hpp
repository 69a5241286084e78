// Files that are synced to the disk by threads that never need the interpreter: a sync begins when it is asked for,
// whatever Python does meanwhile, and that it has ended is seen at a descriptor that event loops wait for.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "error.hpp"
#include "fork.hpp"
#include "waiting.hpp"

namespace hawser {

// These are synced one behind the other, and stay open until then.
struct Sync {
  uint64_t number;
  std::vector<int> descriptors;
};

// One that has ended: 0 or the errno of the first file that could not be synced, and how long it took.
struct Synced {
  uint64_t number;
  int error;
  int64_t nanoseconds;
};

class Syncs {
 public:
  explicit Syncs(uint32_t threads) {
    if (threads == 0) throw Error(Kind::usage, "syncs need a thread at least");
    watch_forks();
    if (state_->ended_descriptor < 0) throw Error(Kind::unavailable, "no descriptor for syncs; allow more open files");
    const SignalsBlocked blocked;
    try {
      for (uint32_t number = 0; number < threads; number++) std::thread(serve, state_).detach();
    } catch (...) {
      state_->stop();
      throw Error(Kind::unavailable, "no thread for syncs; allow this process more of them");
    }
  }
  Syncs(const Syncs&) = delete;
  Syncs& operator=(const Syncs&) = delete;
  ~Syncs() { close(); }

  // The threads keep what they share, and go when nothing is left to be synced. A forked child has none of them.
  void close() {
    if (made_.here()) state_->stop();
  }

  // Readable when some have ended.
  int descriptor() const { return state_->ended_descriptor; }

  void begin(std::vector<Sync> syncs) {
    made_.require();
    const size_t count = syncs.size();
    {
      const std::lock_guard held(state_->mutex);
      if (state_->stopped) throw Error(Kind::closed, "these syncs are closed");
      for (Sync& each : syncs) state_->wanted.push_back(std::move(each));
    }
    for (size_t woken = 0; woken < count; woken++) state_->news.notify_one();
  }

  // Those that have ended since the last call.
  std::vector<Synced> ended() {
    made_.require();
    uint64_t count;
    while (read(state_->ended_descriptor, &count, sizeof count) < 0 && errno == EINTR) {}
    const std::lock_guard held(state_->mutex);
    return std::exchange(state_->ended, {});
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable news;
    std::deque<Sync> wanted;
    std::vector<Synced> ended;
    bool stopped = false;
    const int ended_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ~State() {
      if (ended_descriptor >= 0) ::close(ended_descriptor);
    }
    void stop() {
      {
        const std::lock_guard held(mutex);
        stopped = true;
      }
      news.notify_all();
    }
  };

  // Threads made meanwhile take no signals: these are for Python's own.
  class SignalsBlocked {
   public:
    SignalsBlocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_;
  };

  static void serve(std::shared_ptr<State> state) {
    pthread_setname_np(pthread_self(), "hawser-sync");
    std::unique_lock held(state->mutex);
    for (;;) {
      state->news.wait(held, [&] { return state->stopped || !state->wanted.empty(); });
      if (state->wanted.empty()) return;
      const Sync wanted = std::move(state->wanted.front());
      state->wanted.pop_front();
      held.unlock();
      const Synced synced = run(wanted);
      held.lock();
      state->ended.push_back(synced);
      // Of the others the one who reads it hears, too.
      if (state->ended.size() == 1) eventfd_write(state->ended_descriptor, 1);
    }
  }

  static Synced run(const Sync& wanted) {
    const int64_t began = monotonic_now();
    int error = 0;
    for (const int descriptor : wanted.descriptors)
      while (!error && fdatasync(descriptor) < 0)
        if (errno != EINTR) error = errno;
    return {wanted.number, error, monotonic_now() - began};
  }

  const MadeHere made_{};
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace hawser
