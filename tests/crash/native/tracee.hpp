// A child process under the control of ptrace: stepped, brought to a point again, killed or stopped there.
//
// A point is "just after instruction X was executed for the n-th time". One run is single-stepped to find the
// points; every later run goes to its point with a breakpoint, which is hundreds of times faster. Runs are
// forked from one process, so addresses are the same in all of them.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace crash {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void require(bool holds, const std::string& what) {
  if (!holds) throw Failure(what);
}

struct Point {
  uint64_t instruction = 0;  // 0: before the first one
  uint32_t occurrence = 0;
  uint64_t step = 0;
  bool changed = false;      // shared memory was changed by it
  bool system_call = false;
};

// Where an operation begins and ends, for both sides of the fork.
inline void operation_begins() { asm volatile("int3" ::: "memory"); }
[[gnu::noinline]] inline void operation_ends() { asm volatile("nop" ::: "memory"); }
inline uint64_t end_address() { return reinterpret_cast<uint64_t>(&operation_ends); }

class Tracee {
 public:
  explicit Tracee(pid_t process) : process_(process) {}
  ~Tracee() { end(); }
  Tracee(const Tracee&) = delete;

  static void be_traced() { ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }

  // Returns when the child stands at the beginning of its operation.
  void await_begin() { await_trap("before its operation"); }

  // To the point, or to the end of the operation: then false.
  bool run_to(const Point& point) {
    if (point.instruction == 0) return true;
    Breakpoint end(process_, end_address()), here(process_, point.instruction);
    for (uint32_t hits = 1;; hits++) {
      command(PTRACE_CONT);
      await_trap("on its way to a point");
      const uint64_t at = instruction() - 1;
      ptrace(PTRACE_POKEUSER, process_, offsetof(user, regs.rip), at);
      if (at == end_address()) return false;
      here.lift();
      step();
      if (hits == point.occurrence) return true;
      here.set();
    }
  }

  // Step to the end of the operation; `changed()` says whether shared memory is another than at its last call.
  template <class Changed>
  std::vector<Point> record(const Changed& changed, uint64_t& steps) {
    std::vector<Point> points;
    std::unordered_map<uint64_t, uint32_t> occurrences;
    for (steps = 0;; steps++) {
      const uint64_t at = instruction();
      if (at == end_address()) return points;
      const bool call = is_system_call(at);
      step();
      points.push_back({at, ++occurrences[at], steps + 1, changed(call), call});
    }
  }

  // A real SIGKILL; returns when the kernel has taken everything back.
  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) > 0) {
    }
    process_ = 0;
  }

  // A real SIGSTOP: not traced any more, and not running.
  void stop() {
    ptrace(PTRACE_DETACH, process_, nullptr, SIGSTOP);
    int status = 0;
    require(waitpid(process_, &status, WUNTRACED) == process_ && WIFSTOPPED(status), "the child did not stop");
  }
  void go_on() { kill(process_, SIGCONT); }
  void let_go() { ptrace(PTRACE_DETACH, process_, nullptr, nullptr); }
  bool gone() {
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) != process_) return false;
    process_ = 0;
    return true;
  }

 private:
  // One byte of the child's code replaced while this lives.
  class Breakpoint {
   public:
    Breakpoint(pid_t process, uint64_t at) : process_(process), at_(at) {
      original_ = ptrace(PTRACE_PEEKTEXT, process_, at_, nullptr);
      set();
    }
    ~Breakpoint() { lift(); }
    Breakpoint(const Breakpoint&) = delete;
    void set() const { ptrace(PTRACE_POKETEXT, process_, at_, (original_ & ~0xffL) | 0xcc); }
    void lift() const { ptrace(PTRACE_POKETEXT, process_, at_, original_); }

   private:
    pid_t process_;
    uint64_t at_;
    long original_;
  };

  uint64_t instruction() const {
    return static_cast<uint64_t>(ptrace(PTRACE_PEEKUSER, process_, offsetof(user, regs.rip), nullptr));
  }
  void command(__ptrace_request request) const {
    require(ptrace(request, process_, nullptr, nullptr) == 0, "the child cannot be traced");
  }
  void step() {
    command(PTRACE_SINGLESTEP);
    await_trap("while stepping");
  }
  void await_trap(const char* when) {
    int status = 0;
    require(waitpid(process_, &status, 0) == process_, "the child is lost");
    if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) return;
    if (!WIFSTOPPED(status)) process_ = 0;
    throw Failure(std::string("the child ended or got a signal ") + when + ", status " + std::to_string(status));
  }
  bool is_system_call(uint64_t at) {
    const auto [entry, fresh] = system_calls_.try_emplace(at, false);
    if (fresh) entry->second = (ptrace(PTRACE_PEEKTEXT, process_, at, nullptr) & 0xffff) == 0x050f;
    return entry->second;
  }

  pid_t process_;
  std::unordered_map<uint64_t, bool> system_calls_;
};

}  // namespace crash
