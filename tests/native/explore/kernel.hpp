// The few system calls that the algorithms make, simulated for several processes in one.
//
// The program is linked with --wrap for each of them. Locks belong to descriptions, as the kernel has it: one
// lives while its descriptor is open or a page is mapped through it, and dies with its process. Outside a
// simulated run every call goes to the real kernel.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "fibers.hpp"
#include "word.hpp"

namespace exploring {

class Kernel {
 public:
  static constexpr int kFirstDescriptor = 1000;
  static constexpr int kNobody = -1;

  bool simulating = false;
  int process = kNobody;     // who runs
  struct stat file{};        // what fstat says of the topic's file
  std::array<const void*, 8> asleep{};  // by process: the futex word it sleeps on
  std::array<uint64_t, 8> groups{};     // by process: of whom it is woken with
  std::array<uint64_t, 8> readings{};   // by process: of the clock, 0 or 1

  void reset() {
    descriptions_ = {};
    locks_ = {};
    asleep = {};
    groups = {};
    readings = {};
    process = kNobody;
  }

  // A second passes between two readings, to and fro, so that the state stays finite.
  time_t seconds() {
    if (process == kNobody) return 1;
    auto& reading = readings[static_cast<size_t>(process)];
    reading ^= 1;
    return static_cast<time_t>(2 - reading);
  }

  int open_description() {
    for (size_t i = 0; i < descriptions_.size(); i++)
      if (descriptions_[i].references == 0) {
        descriptions_[i] = {process, 1};
        return kFirstDescriptor + static_cast<int>(i);
      }
    std::abort();
  }
  bool owns(int descriptor) const { return descriptor >= kFirstDescriptor; }
  void refer(int descriptor) { descriptions_[index(descriptor)].references++; }
  void drop(int descriptor) {
    auto& description = descriptions_[index(descriptor)];
    if (description.references > 0 && --description.references == 0) unlock_all(index(descriptor));
  }

  // A page mapped through a description, as an address that is never touched.
  void* page_of(int descriptor) { return pages_ + index(descriptor) * 4096; }
  bool owns_page(const void* address) const { return address >= pages_ && address < pages_ + sizeof pages_; }
  int descriptor_of(const void* address) const {
    return kFirstDescriptor + static_cast<int>((static_cast<const char*>(address) - pages_) / 4096);
  }

  int control(int descriptor, int command, struct flock* request) {
    const size_t me = index(descriptor);
    if (command == F_OFD_SETLK && request->l_type == F_UNLCK) {
      for (auto& lock : locks_)
        if (lock.used && lock.description == me && lock.byte == request->l_start) lock = {};
      return 0;
    }
    const Lock* other = conflicting(me, *request);
    if (command == F_OFD_GETLK) {
      if (!other) request->l_type = F_UNLCK;
      return 0;
    }
    if (other) {
      errno = EAGAIN;
      return -1;
    }
    add_lock(me, *request);
    return 0;
  }

  void kill(int victim) {
    for (size_t i = 0; i < descriptions_.size(); i++)
      if (descriptions_[i].references > 0 && descriptions_[i].process == victim) {
        descriptions_[i] = {};
        unlock_all(i);
      }
    asleep[static_cast<size_t>(victim)] = nullptr;
  }

  void wake(const void* word, uint32_t woken) {
    for (size_t i = 0; i < asleep.size(); i++)
      if (asleep[i] == word && (groups[i] & woken)) asleep[i] = nullptr;
  }

  uint64_t hash(uint64_t seed) const {
    seed = hash_words(descriptions_.data(), sizeof descriptions_, seed);
    seed = hash_words(readings.data(), sizeof readings, seed);
    return hash_words(asleep.data(), sizeof asleep, hash_words(locks_.data(), sizeof locks_, seed));
  }

 private:
  struct Description {
    int process = kNobody;
    int references = 0;
  };
  struct Lock {
    uint64_t used = 0;
    size_t description = 0;
    off_t byte = 0;
    uint64_t exclusive = 0;
  };

  static size_t index(int descriptor) { return static_cast<size_t>(descriptor - kFirstDescriptor); }
  void unlock_all(size_t description) {
    for (auto& lock : locks_)
      if (lock.used && lock.description == description) lock = {};
  }
  const Lock* conflicting(size_t me, const struct flock& request) const {
    for (const auto& lock : locks_)
      if (lock.used && lock.description != me && lock.byte == request.l_start &&
          (lock.exclusive || request.l_type == F_WRLCK))
        return &lock;
    return nullptr;
  }
  void add_lock(size_t me, const struct flock& request) {
    Lock* free = nullptr;
    for (auto& lock : locks_) {
      if (lock.used && lock.description == me && lock.byte == request.l_start) free = &lock;
      if (!lock.used && !free) free = &lock;
    }
    if (!free) std::abort();
    *free = {1, me, request.l_start, request.l_type == F_WRLCK};
  }

  std::array<Description, 24> descriptions_{};
  std::array<Lock, 32> locks_{};
  alignas(4096) inline static char pages_[24 * 4096];
};

inline Kernel kernel;

}  // namespace exploring

extern "C" {

int __real_open(const char*, int, ...);
int __real_close(int);
int __real_fstat(int, struct stat*);
int __real_fcntl(int, int, ...);
int __real_fallocate(int, int, off_t, off_t);
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_munmap(void*, size_t);
int __real_madvise(void*, size_t, int);
long __real_syscall(long, ...);
pid_t __real_getpid();
int __real_clock_gettime(clockid_t, struct timespec*);
long __real_sysconf(int);
int __real_pthread_mutex_lock(pthread_mutex_t*);
int __real_pthread_mutex_unlock(pthread_mutex_t*);

void explore_sleep(const void* word);  // the scheduler runs others until the sleeper is woken

int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  if (!exploring::kernel.simulating) return __real_open(path, flags, mode);
  if (std::strncmp(path, "/proc/", 6) == 0) return -1;
  return exploring::kernel.open_description();
}
int __wrap_close(int descriptor) {
  if (!exploring::kernel.owns(descriptor)) return __real_close(descriptor);
  exploring::kernel.drop(descriptor);
  return 0;
}
int __wrap_fstat(int descriptor, struct stat* info) {
  if (!exploring::kernel.owns(descriptor)) return __real_fstat(descriptor, info);
  *info = exploring::kernel.file;
  return 0;
}
int __wrap_fcntl(int descriptor, int command, ...) {
  va_list rest;
  va_start(rest, command);
  auto* request = va_arg(rest, struct flock*);
  va_end(rest);
  if (!exploring::kernel.owns(descriptor)) return __real_fcntl(descriptor, command, request);
  hawser::explore_point();
  return exploring::kernel.control(descriptor, command, request);
}
int __wrap_fallocate(int descriptor, int mode, off_t at, off_t bytes) {
  return exploring::kernel.owns(descriptor) ? 0 : __real_fallocate(descriptor, mode, at, bytes);
}
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
  if (!exploring::kernel.owns(descriptor)) return __real_mmap(at, bytes, protection, flags, descriptor, offset);
  exploring::kernel.refer(descriptor);
  return exploring::kernel.page_of(descriptor);
}
int __wrap_munmap(void* at, size_t bytes) {
  if (!exploring::kernel.owns_page(at)) return __real_munmap(at, bytes);
  hawser::explore_point();
  exploring::kernel.drop(exploring::kernel.descriptor_of(at));
  return 0;
}
int __wrap_madvise(void* at, size_t bytes, int advice) {
  return exploring::kernel.owns_page(at) ? 0 : __real_madvise(at, bytes, advice);
}
long __wrap_syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  auto* word = va_arg(rest, uint32_t*);
  const int operation = va_arg(rest, int);
  const uint32_t value = va_arg(rest, uint32_t);
  auto* limit = va_arg(rest, void*);
  auto* other = va_arg(rest, void*);
  const uint32_t groups = va_arg(rest, uint32_t);
  va_end(rest);
  auto& kernel = exploring::kernel;
  if (!kernel.simulating) return __real_syscall(number, word, operation, value, limit, other, groups);
  if (number != SYS_futex) std::abort();
  hawser::explore_point();
  if (operation == FUTEX_WAKE_BITSET) {
    kernel.wake(word, groups);
  } else if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) {
    kernel.groups[static_cast<size_t>(kernel.process)] = groups;
    explore_sleep(word);
  }
  return 0;
}
pid_t __wrap_getpid() { return exploring::kernel.simulating ? 100 + exploring::kernel.process : __real_getpid(); }
int __wrap_clock_gettime(clockid_t clock, struct timespec* now) {
  if (!exploring::kernel.simulating) return __real_clock_gettime(clock, now);
  *now = {clock == CLOCK_MONOTONIC ? exploring::kernel.seconds() : 1, 0};
  return 0;
}
// Nobody looks around before it sleeps: that changes nothing, and this clock would not let it end.
long __wrap_sysconf(int name) { return name == _SC_NPROCESSORS_ONLN ? 1 : __real_sysconf(name); }
// Each process has its own mutex, which nobody else in it ever holds.
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  return exploring::kernel.simulating ? 0 : __real_pthread_mutex_lock(mutex);
}
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  return exploring::kernel.simulating ? 0 : __real_pthread_mutex_unlock(mutex);
}
}
