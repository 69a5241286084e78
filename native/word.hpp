// A 64-bit word in shared memory: the only thing that processes change together.
//
// Orders: `load_ordered`, `store_ordered` and every read-modify-write are sequentially consistent, which
// take, borrow, publish and reliable joins need (tests/models/memory_order.py shows what breaks without);
// `acquire`, `release` and `relaxed` are used where a comment at the call names the other end of the edge.
#pragma once

#include <atomic>
#include <cstdint>

namespace hawser {

#ifdef HAWSER_EXPLORE
void explore_point();  // the interleaving explorer switches processes here
#else
inline void explore_point() {}
#endif

class Word {
 public:
  uint64_t load_ordered() const { return load(std::memory_order_seq_cst); }
  uint64_t load_acquire() const { return load(std::memory_order_acquire); }
  uint64_t load_relaxed() const { return load(std::memory_order_relaxed); }
  void store_ordered(uint64_t value) { store(value, std::memory_order_seq_cst); }
  void store_release(uint64_t value) { store(value, std::memory_order_release); }
  void store_relaxed(uint64_t value) { store(value, std::memory_order_relaxed); }

  bool exchange_if(uint64_t expected, uint64_t desired) {
    explore_point();
    return value_.compare_exchange_strong(expected, desired, std::memory_order_seq_cst);
  }
  uint64_t set_bits(uint64_t bits) {
    explore_point();
    return value_.fetch_or(bits, std::memory_order_seq_cst);
  }
  uint64_t clear_bits(uint64_t bits) {
    explore_point();
    return value_.fetch_and(~bits, std::memory_order_seq_cst);
  }
  uint64_t add(uint64_t amount) {
    explore_point();
    return value_.fetch_add(amount, std::memory_order_seq_cst);
  }

 private:
  uint64_t load(std::memory_order order) const {
    explore_point();
    return value_.load(order);
  }
  void store(uint64_t value, std::memory_order order) {
    explore_point();
    value_.store(value, order);
  }
  std::atomic<uint64_t> value_;
};
static_assert(sizeof(Word) == 8 && std::atomic<uint64_t>::is_always_lock_free);

// Fetch a cache line for writing: plain prefetching leaves it shared, and the write waits for its readers.
inline void prefetch_for_writing(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// A value of one process. The thread that has the participant's lock changes it; threads that wait read it without.
template <class T>
class Relaxed {
 public:
  explicit Relaxed(T value) : value_(value) {}
  operator T() const { return value_.load(std::memory_order_relaxed); }
  Relaxed& operator=(const Relaxed& other) { return *this = T{other}; }
  Relaxed& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }

 private:
  std::atomic<T> value_;
};

// A set with one bit per participant; as many words as the topic needs.
constexpr uint32_t kBitWords = 5;
struct Bits {
  Word words[kBitWords];
  void set(uint32_t index) { words[index / 64].set_bits(uint64_t{1} << index % 64); }
  void clear(uint32_t index) { words[index / 64].clear_bits(uint64_t{1} << index % 64); }
};

}  // namespace hawser
