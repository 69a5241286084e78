// One topic or queue, its simulated processes, and what must hold whenever anybody has made a step.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "arena.hpp"
#include "joining.hpp"
#include "kernel.hpp"
#include "letters.hpp"
#include "queue_view.hpp"

namespace exploring {

using namespace hawser;

constexpr uint32_t kMaxProcesses = 5;
constexpr uint64_t kMaxSamples = 24;
constexpr uint64_t kPayloadBytes = 16;  // a value, twice: a torn one is seen
constexpr uint64_t kNoSlotLent = UINT64_MAX;

struct Violation {
  std::string text;
};

struct Held {
  uint64_t slot = 0;
  uint64_t sequence = 0;
  uint64_t claim = 0;  // of a message
};

struct Facts {  // of a process; words only, because they are hashed
  uint64_t reliable = 0;
  uint64_t dead = 0;
  uint64_t start = 0;     // the cursor it began with
  uint64_t passed = 0;    // the cursor at the last look
  uint64_t skipped = 0;   // missed at the last look
  uint64_t lent = kNoSlotLent;
  uint64_t values = 0;    // written so far
  std::array<Held, 4> held{};
  uint64_t held_count = 0;
};

struct Process : Facts {
  const char* name = "";
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<Subscriber> subscriber;
  std::unique_ptr<Consumer> consumer;
};

// What is true, as told by watching the ring: the samples and their values.
struct Truth {
  uint64_t published = 0;
  std::array<uint64_t, kMaxSamples> values{};
  std::array<uint64_t, kMaxSamples> done{};      // of a queue, as told by watching the claims
  std::array<uint64_t, kMaxSamples> accepted{};  // how often somebody was told that it has accepted it
};

class World {
 public:
  explicit World(const Region::Place& place, const Settings& settings)
      : region_(Region::attach(place, &settings, "")), memory_(region_->memory()) {
    region_->map_writable();
    const Descriptor file = region_->open_again();
    __real_fstat(file.number(), &kernel.file);
    blank_.assign(memory_.base, memory_.base + memory_.layout.payloads_at);
  }
  ~World() { region_->remove(true); }
  World(const World&) = delete;

  std::string complaint;  // of a process about what it saw

  Region& region() { return *region_; }
  const Memory& memory() const { return memory_; }
  const Truth& truth() const { return truth_; }
  void count_accepted(uint64_t sequence) {
    if (++truth_.accepted[sequence] > 1) throw Violation{"a message was accepted twice"};
  }
  Process& process(uint32_t number) { return processes_[number]; }

  void reset() {
    for (auto& process : processes_) process = Process{};
    truth_ = Truth{};
    std::memcpy(memory_.base, blank_.data(), blank_.size());
    std::memset(memory_.writable, 0, memory_.layout.slots * memory_.layout.payload_bytes);
    arena.clear();
  }

  uint64_t hash() const;
  void watch();              // after every step, replayed or new: see what was published and skipped
  void check();              // after every new step: throw what is wrong
  void check_the_end();      // when nobody can go on: recover, use everything, count everything

  uint64_t value_in(uint64_t slot) const { return word_in(slot, 0); }
  uint64_t word_in(uint64_t slot, uint32_t which) const {
    uint64_t value;
    std::memcpy(&value, memory_.readable + memory_.payload_at(static_cast<uint32_t>(slot)) + which * 8, 8);
    return value;
  }
  void write(uint32_t slot, uint32_t which, uint64_t value) const {
    std::memcpy(memory_.writable + memory_.payload_at(slot) + which * 8, &value, 8);
  }

 private:
  void check_ring() const;
  void check_subscriber(const Process& process) const;
  void watch_ring();
  void watch_subscriber(Process& process) const;
  void check_publisher(const Process& process) const;
  void check_sleepers() const;
  void watch_claims();
  void check_messages() const;
  void check_consumer(const Process& process) const;
  bool is_kept(uint64_t sequence) const;
  void end_queue();
  void end_topic();
  void use_everything();
  void drain(Process& process) const;

  std::shared_ptr<Region> region_;
  const Memory& memory_;
  std::vector<uint8_t> blank_;
  std::array<Process, kMaxProcesses> processes_;
  Truth truth_;
};

inline uint64_t World::hash() const {
  const Layout& layout = memory_.layout;
  uint64_t hash = hash_words(memory_.base + sizeof(Label), sizeof(Header) - sizeof(Label), truth_.published);
  hash = hash_words(memory_.base + layout.entries_at, layout.payloads_at - layout.entries_at, hash);
  for (uint32_t slot = 0; slot < layout.slots; slot++)
    hash = hash_words(memory_.readable + memory_.payload_at(slot), kPayloadBytes, hash);
  for (const auto& process : processes_)
    hash = hash_words(static_cast<const Facts*>(&process), sizeof(Facts), hash);
  hash = hash_words(&truth_, sizeof truth_, hash);
  return kernel.hash(hash_words(arena.bytes, arena.used, hash));
}

inline void World::watch() {
  watch_ring();
  if (memory_.layout.queue) watch_claims();
  for (auto& process : processes_)
    if (process.subscriber && !process.dead) watch_subscriber(process);
}

inline void World::watch_subscriber(Process& process) const {
  const Subscriber& subscriber = *process.subscriber;
  if (subscriber.missed() != process.skipped && subscriber.cursor() + memory_.layout.ring > truth_.published)
    throw Violation{"a sample that was still there was counted as missed"};
  if (subscriber.cursor() < process.passed) throw Violation{"a cursor went back"};
  process.passed = subscriber.cursor();
  process.skipped = subscriber.missed();
}

inline void World::watch_ring() {
  const uint64_t next = truth_.published + 1;
  const uint64_t word = memory_.ring(next).load_ordered();
  if (ring_tag(word) != next) return;
  if (next >= kMaxSamples) throw Violation{"the scenario publishes too much"};
  truth_.published = next;
  truth_.values[next] = value_in(ring_slot(word));
  if (truth_.values[next] == 0 || word_in(ring_slot(word), 1) != truth_.values[next])
    throw Violation{"a torn sample was published"};
  for (uint64_t i = 1; i < next; i++)
    if (truth_.values[i] == truth_.values[next] && !memory_.layout.queue) throw Violation{"a sample was published twice"};
}

inline void World::check_ring() const {
  const uint64_t head = memory_.head().load_ordered(), published = truth_.published;
  if (head != published && head + 1 != published) throw Violation{"the head is behind by more than one"};
  const uint64_t ring = memory_.layout.ring;
  for (uint64_t i = published > ring ? published - ring + 1 : 1; i <= published; i++) {
    const uint64_t word = memory_.ring(i).load_ordered();
    if (ring_tag(word) != i) throw Violation{"the ring does not carry its last samples"};
    const uint32_t slot = ring_slot(word);
    if (value_in(slot) != truth_.values[i] || word_in(slot, 1) != truth_.values[i])
      throw Violation{"the payload of a carried sample changed"};
    if (memory_.slot(slot).sequence.load_ordered() != i) throw Violation{"the sequence of a carried sample changed"};
    for (uint64_t k = i + 1; k <= published; k++)
      if (ring_slot(memory_.ring(k).load_ordered()) == slot) throw Violation{"a slot is carried twice"};
  }
}

inline void World::check_subscriber(const Process& process) const {
  const Subscriber& subscriber = *process.subscriber;
  for (uint32_t i = 0; i < process.held_count; i++) {
    const Held& held = process.held[i];
    const uint32_t bit = subscriber.bit();
    if (!(memory_.references(static_cast<uint32_t>(held.slot), bit / 64).load_ordered() >> bit % 64 & 1))
      throw Violation{"the bit of a living subscriber was cleared"};
    if (value_in(held.slot) != truth_.values[held.sequence] || word_in(held.slot, 1) != truth_.values[held.sequence])
      throw Violation{"a payload changed while it was held"};
  }
  if (subscriber.received() + subscriber.missed() != subscriber.cursor() - process.start)
    throw Violation{"received + missed is not what was published"};
  if (process.reliable && subscriber.missed() != 0) throw Violation{"a reliable subscriber missed a sample"};
  if (process.reliable && !subscriber.closing() && subscriber.cursor() + memory_.layout.ring < truth_.published)
    throw Violation{"a sample was overwritten before a reliable subscriber had it"};
}

inline void World::check_publisher(const Process& process) const {
  if (process.lent == kNoSlotLent) return;
  if (memory_.slot(static_cast<uint32_t>(process.lent)).state.load_ordered() != process.publisher->membership().owner())
    throw Violation{"the loan of a living publisher was taken from it"};
}

inline void World::check() {
  check_ring();
  for (auto& process : processes_) {
    if (process.dead) continue;
    if (process.subscriber) check_subscriber(process);
    if (process.publisher) check_publisher(process);
    if (process.consumer) check_consumer(process);
  }
  if (memory_.layout.queue) check_messages();
  if (count_slots(memory_).leaked != 0) throw Violation{"a slot is held by nobody"};
}

inline void World::drain(Process& process) const {
  Taken taken{};
  for (uint32_t i = 0; i < process.held_count; i++)
    if (!process.subscriber->release(static_cast<uint32_t>(process.held[i].slot), process.held[i].sequence))
      throw Violation{"a bit was gone before its sample was released"};
  process.held_count = 0;
  while (process.subscriber->try_take(taken)) {
    if (value_in(taken.slot) != truth_.values[taken.sequence]) throw Violation{"a wrong payload was taken"};
    process.subscriber->release(taken.slot, taken.sequence);
  }
  process.subscriber->settle();
  if (process.subscriber->received() + process.subscriber->missed() != truth_.published - process.start)
    throw Violation{"received + missed is not what was published, at the end"};
}

// A fresh publisher fills the ring twice, so that every free slot that should be found is found.
inline void World::use_everything() {
  const auto publisher = join_as_publisher(*region_, "last", false);
  for (uint64_t i = 0; i < 2 * memory_.layout.ring + 1; i++) {
    const uint32_t slot = publisher->borrow(kPayloadBytes, 1);
    for (uint32_t half = 0; half < 2; half++) write(slot, half, (uint64_t{9} << 32) + i + 1);
    if (publisher->try_publish(slot, kPayloadBytes, 0) == 0) throw Violation{"a publisher waits for nobody"};
    publisher->put_back(slot);
    watch_ring();
    check_ring();
    for (auto& process : processes_)
      if (process.subscriber && !process.dead) drain(process);
  }
  publisher->close();
}

inline void World::check_sleepers() const {
  for (size_t i = 0; i < processes_.size(); i++) {
    const Process& process = processes_[i];
    if (!kernel.asleep[i] || process.dead) continue;
    if ((process.subscriber && process.subscriber->ready()) || (process.publisher && process.publisher->ready()) ||
        (process.consumer && (process.consumer->ready() || view_queue(memory_).ready > 0)))
      throw Violation{"somebody sleeps though there is news"};
  }
}

inline void World::check_the_end() {
  check_sleepers();
  kernel.process = kMaxProcesses;
  region_->recover();
  memory_.layout.queue ? end_queue() : end_topic();
  for (uint32_t i = 0; i < memory_.layout.entries; i++)
    if (entry_state(memory_.entry(i).word.load_ordered()) == EntryState::dead) throw Violation{"a dead entry stayed"};
  kernel.process = Kernel::kNobody;
}

inline void World::end_topic() {
  uint32_t lent = 0;
  for (auto& process : processes_) {
    if (process.dead) continue;
    if (process.subscriber) drain(process);
    lent += process.publisher && process.lent != kNoSlotLent;
  }
  use_everything();
  const SlotCounts counts = count_slots(memory_);
  if (counts.leaked != 0 || counts.lent != lent || counts.referenced != 0) throw Violation{"a slot was not given back"};
}

}  // namespace exploring

#include "queue_world.hpp"
