// A topic or queue in ordinary memory: the real algorithms and real byte locks, without a named file.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "joining.hpp"
#include "letters.hpp"
#include "queue_view.hpp"

namespace testing {

using namespace hawser;

inline Settings small_settings() {
  return {.slot_size = 64, .history = 2, .depth = 2, .max_publishers = 3, .max_subscribers = 3,
          .max_held = 2, .max_loans = 2, .ephemeral = 0, .group = 0};
}

inline Settings small_queue(uint32_t capacity = 4, uint32_t max_deliveries = 0, uint64_t lease_ns = 0) {
  return {.slot_size = 64, .history = 0, .depth = capacity, .max_publishers = 3, .max_subscribers = 3, .max_held = 4,
          .max_loans = 2, .ephemeral = 0, .group = 0, .kind = kKindQueue, .max_deliveries = max_deliveries,
          .lease_ns = lease_ns};
}

// The kernel orders a death before whoever learns of it. A race detector cannot see that and is told here.
inline std::atomic<uint64_t> deaths{0};

class ToldLiveness : public FileLiveness {
 public:
  using FileLiveness::FileLiveness;
  bool alive(uint32_t index) const {
    const bool lives = FileLiveness::alive(index);
    if (!lives) deaths.load(std::memory_order_acquire);  // pairs with die()
    return lives;
  }
};

// What being killed looks like to the others.
template <class Participant>
void die(std::unique_ptr<Participant>& participant) {
  deaths.fetch_add(1, std::memory_order_release);
  participant.reset();
}

class HeapTopic : public Host {
 public:
  explicit HeapTopic(const Settings& settings = small_settings())
      : locks_(memfd_create("hawser-test-locks", MFD_CLOEXEC)),
        bytes_(Layout(settings).total),
        base_(static_cast<uint8_t*>(std::aligned_alloc(kPage, bytes_)), &std::free),
        memory_{Layout(settings), base_.get(), nullptr, nullptr, "heap"} {
    if (ftruncate(locks_.number(), kPage) != 0) std::abort();
    std::memset(base_.get(), 0, bytes_);
    memory_.readable = memory_.writable = base_.get() + memory_.layout.payloads_at;
    memory_.max_deliveries = settings.max_deliveries;
    for (uint32_t i = 0; i < memory_.layout.ring; i++) memory_.ring(i).store_relaxed(kEmptyRingWord);
  }

  const Memory& memory() const { return memory_; }
  const Layout& layout() const { return memory_.layout; }
  std::atomic<uint32_t> reserved = 0;  // how often pages were asked for
  bool memory_is_full = false;         // asking for pages fails

  Descriptor description() const {
    const std::string path = "/proc/self/fd/" + std::to_string(locks_.number());
    return Descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  }

  void trace_to(Tracer* tracer) { memory_.tracer = tracer; }

  std::vector<Recovered> recover() const {
    const Descriptor file = description();
    return recover_all(memory_, ToldLiveness(file));
  }
  void recover_dead() override { recover(); }
  void reserve(uint64_t, uint64_t) override {
    reserved++;
    if (memory_is_full) throw Error(Kind::full, "no pages");
  }

  std::unique_ptr<Publisher> publisher(const std::string& name = "publisher") {
    Membership membership = joining::enter(memory_, description(), {0, layout().settings.max_publishers},
                                           {name, 7, 0, 1}, "max_publishers", [](uint32_t) {});
    return std::make_unique<Publisher>(memory_, *this, std::move(membership), name);
  }

  std::unique_ptr<Subscriber> subscriber(uint64_t history = 0, bool reliable = false, const std::string& name = "subscriber",
                                         uint32_t record = kNoRecord, bool commits = false) const {
    const Settings& settings = layout().settings;
    joining::Start start{cursor_for_history(memory_, next_place(memory_).head, history)};
    const auto prepare = [&](uint32_t index) {
      memory_.entry(index).cursor.store_ordered(start.cursor);
      if (reliable) memory_.header().reliable.set(index - settings.max_publishers);
    };
    Membership membership = joining::enter(memory_, description(), {settings.max_publishers, settings.max_subscribers},
                                           {name, 8, 0, 1}, "max_subscribers", prepare);
    if (reliable) joining::settle_start(memory_, start);
    return std::make_unique<Subscriber>(memory_, std::move(membership), start.cursor, start.missed,
                                        Subscriber::Options{settings.max_held, reliable, record, commits});
  }

  std::unique_ptr<Consumer> consumer(const std::string& name = "consumer", bool reserved = false) const {
    const Settings& settings = layout().settings;
    Membership membership = joining::enter(memory_, description(), {settings.max_publishers, settings.max_subscribers},
                                           {name, 9, 0, 1}, "max_consumers", [](uint32_t) {});
    const Consumer::Options options{settings.max_held, reserved, false};
    return std::make_unique<Consumer>(memory_, std::move(membership), options);
  }

  // As if `head` samples had been published, all of them empty and by nobody who is still here.
  void start_at(uint64_t head) const {
    for (uint32_t i = 0; i < layout().ring; i++) {
      const uint64_t sequence = head - i;
      Slot& slot = memory_.slot(i);
      slot.sequence.store_relaxed(sequence);
      slot.publisher.store_relaxed(owner_word(0, 1));
      memory_.name_check(i).store_relaxed(hash_bytes(slot.name, sizeof slot.name, owner_word(0, 1)));
      slot.check.store_relaxed(slot_check(0, 0, owner_word(0, 1), sequence));
      if (layout().queue) memory_.claim(i).store_relaxed(claim_as(fresh_claim(sequence), ClaimState::done));
      memory_.ring(sequence).store_relaxed(ring_word(sequence, i));
    }
    memory_.head().store_ordered(head);
  }

 private:
  const Descriptor locks_;
  const uint64_t bytes_;
  const std::unique_ptr<uint8_t, void (*)(void*)> base_;
  Memory memory_;
};

// Publish `value` as eight bytes; its sequence, or 0 when a reliable subscriber is in the way.
inline uint64_t publish(Publisher& publisher, uint64_t value) {
  const uint32_t slot = publisher.borrow(sizeof value, 1000);
  std::memcpy(publisher.payload(slot), &value, sizeof value);
  const uint64_t sequence = publisher.try_publish(slot, sizeof value, 0);
  publisher.put_back(slot);
  publisher.wake_subscribers();
  return sequence;
}

inline uint64_t value_in(const Memory& memory, uint32_t slot) {
  uint64_t value = 0;
  std::memcpy(&value, memory.readable + memory.payload_at(slot), sizeof value);
  return value;
}

inline bool claim(Consumer& consumer, Claimed& claimed) {
  const bool there = consumer.try_claim(claimed);
  consumer.settle();
  return there;
}
inline uint64_t value_of(const Consumer& consumer, const Claimed& claimed) { return value_in(consumer.memory(), claimed.slot); }
// False: the claim was taken away.
inline bool accept(Consumer& consumer, const Claimed& claimed) {
  const bool ours = consumer.accept(claimed);
  consumer.let_go(claimed.slot);
  return ours;
}
inline bool release(Consumer& consumer, const Claimed& claimed) {
  const bool ours = consumer.release(claimed);
  consumer.let_go(claimed.slot);
  return ours;
}
inline bool reject(Consumer& consumer, const Claimed& claimed) {
  const bool ours = consumer.reject(claimed);
  consumer.let_go(claimed.slot);
  return ours;
}
// The next message's value, accepted at once; 0 if there is none.
inline uint64_t next_value(Consumer& consumer) {
  Claimed claimed{};
  if (!claim(consumer, claimed)) return 0;
  const uint64_t value = value_of(consumer, claimed);
  return accept(consumer, claimed) ? value : 0;
}

inline bool take(Subscriber& subscriber, Taken& taken) {
  const bool there = subscriber.try_take(taken);
  subscriber.settle();
  return there;
}

}  // namespace testing
