// Memory of the simulated processes: part of the state, and given back all at once after a run, because a
// killed process frees nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace exploring {

struct Arena {
  static constexpr size_t kBytes = 1 << 18;
  alignas(64) char bytes[kBytes];
  size_t used = 0;
  bool in_use = false;

  void* take(size_t size) {
    void* place = bytes + used;
    used += (size + 15) & ~size_t{15};
    if (used > kBytes) std::abort();
    return place;
  }
  bool has(const void* place) const { return place >= bytes && place < bytes + kBytes; }
  void clear() {
    std::memset(bytes, 0, used);
    used = 0;
  }
};
inline Arena arena;

}  // namespace exploring

void* operator new(size_t size) {
  if (exploring::arena.in_use) return exploring::arena.take(size);
  if (void* place = std::malloc(size)) return place;
  throw std::bad_alloc();
}
void operator delete(void* place) noexcept {
  if (!exploring::arena.has(place)) std::free(place);
}
void operator delete(void* place, size_t) noexcept { operator delete(place); }
