// Preloaded, it takes longer over every further writable mapping of payloads, so that one thread writes through
// the first while another makes the second.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

extern "C" void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  static std::atomic<unsigned> made = 0;
  const long mapped = syscall(SYS_mmap, address, size, protection, flags, file, offset);
  if (file >= 0 && offset > 0 && (protection & PROT_WRITE) && (flags & MAP_SHARED)) usleep(10000 * made++);
  return reinterpret_cast<void*>(mapped);
}
extern "C" void* mmap64(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  return mmap(address, size, protection, flags, file, offset);
}
