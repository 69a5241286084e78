// Preloaded, it adds to the wall clock what a file says: a number of seconds, eight bytes, which may change.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const long* ahead_seconds = nullptr;

__attribute__((constructor)) static void open_file() {
  const char* path = getenv("WALL_CLOCK_AHEAD");
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* memory = mmap(nullptr, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) ahead_seconds = static_cast<volatile const long*>(memory);
  close(file);
}

extern "C" int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME && result == 0 && ahead_seconds) now->tv_sec += *ahead_seconds;
  return result;
}
