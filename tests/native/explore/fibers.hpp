// Simulated processes: each runs on a stack of its own and stops before every access to shared memory.
//
// What a process has done so far is its stack and its registers, so these are hashed to recognise a state.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace exploring {

inline uint64_t hash_words(const void* data, size_t bytes, uint64_t hash) {
  const auto* at = static_cast<const char*>(data);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, at + i, 8);
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 29;
  }
  return hash;
}

class Fiber {
 public:
  enum class State : uint64_t { fresh, parked, finished, killed };

  Fiber()
      : stack_(static_cast<char*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (stack_ == MAP_FAILED) std::abort();
  }
  Fiber(const Fiber&) = delete;

  State state() const { return state_; }
  bool can_run() const { return state_ == State::fresh || state_ == State::parked; }
  uint64_t hash() const { return hash_; }

  void prepare(void (*body)()) {
    std::memset(stack_ + kStackBytes - kUsedBytes, 0, kUsedBytes);
    body_ = body;
    state_ = State::fresh;
    hash_ = 0;
  }
  void kill() { stop(State::killed); }

  // From the scheduler: run until the next park() or the end.
  void resume() {
    running_ = this;
    if (_setjmp(scheduler_) != 0) return;
    if (state_ == State::parked) _longjmp(context_, 1);
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = stack_;
    start.uc_stack.ss_size = kStackBytes;
    start.uc_link = nullptr;
    makecontext(&start, &enter, 0);
    setcontext(&start);
  }

  // From the process: let the scheduler decide.
  __attribute__((noinline)) static void park() {
    Fiber& me = *running_;
    me.low_ = static_cast<char*>(__builtin_alloca(16));
    me.state_ = State::parked;
    if (_setjmp(me.context_) == 0) _longjmp(scheduler_, 1);
  }

  void take_hash() {
    if (state_ != State::parked) return;
    const auto live = static_cast<size_t>(stack_ + kStackBytes - low_);
    hash_ = hash_words(context_, sizeof context_, hash_words(low_, live & ~size_t{7}, live));
  }

 private:
  static constexpr size_t kStackBytes = 256 << 10;
  static constexpr size_t kUsedBytes = 12 << 10;  // what is cleared; deeper frames are rare

  static void enter() {
    running_->body_();
    running_->stop(State::finished);
    _longjmp(scheduler_, 1);
  }
  void stop(State state) {
    state_ = state;
    hash_ = 0;
  }

  inline static Fiber* running_ = nullptr;
  inline static jmp_buf scheduler_;
  char* const stack_;
  char* low_ = nullptr;
  jmp_buf context_{};
  void (*body_)() = nullptr;
  State state_ = State::finished;
  uint64_t hash_ = 0;
};

}  // namespace exploring
