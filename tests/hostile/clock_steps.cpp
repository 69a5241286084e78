// Preloaded, it steps the wall clock ten years forwards and back again with every look at it.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, struct timespec* now) {
  static thread_local bool forwards = false;
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME && result == 0) {
    forwards = !forwards;
    now->tv_sec += (forwards ? 1 : -1) * 10L * 365 * 86400;
  }
  return result;
}
