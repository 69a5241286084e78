// Publishing: borrow a slot, write it, and let one exchange in the ring deliver it. The producers of a queue are
// publishers, too: only what they wait for is another thing, unclaimed messages instead of reliable
// subscribers.
#pragma once

#include <sched.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "participants.hpp"
#include "slots.hpp"
#include "trace.hpp"

namespace hawser {

// What the algorithms need from the file behind the memory.
class Host {
 public:
  virtual ~Host() = default;
  virtual void recover_dead() = 0;
  virtual void reserve(uint64_t payload_offset, uint64_t bytes) = 0;  // throws Full
};

// Who keeps the oldest sample from being overwritten.
struct Blocker {
  bool record;  // a kept position, else a living subscriber
  uint32_t index;
};

// The slowest of those that publishers wait for.
struct Slowest {
  uint64_t position = UINT64_MAX;  // everything up to here may be overwritten
  std::optional<Blocker> blocker;  // who needs the sample that the next publish would overwrite

  void meet(uint64_t at) { position = std::min(position, at); }
};

inline Slowest find_slowest(const Memory& memory, uint64_t head, uint64_t evicted) {
  const Header& header = memory.header();
  Slowest slowest;
  for (uint32_t i = 0; i < memory.layout.bit_words; i++) {
    for (uint64_t bits = header.reliable.words[i].load_ordered(); bits; bits &= bits - 1) {
      const uint32_t bit = i * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      if (bit > memory.layout.settings.max_subscribers) memory.corrupt("a subscriber that cannot exist is reliable");
      const Entry& entry = memory.entry(memory.subscriber_entry(bit));
      if (entry_state(entry.word.load_ordered()) != EntryState::active) continue;  // pairs with the joiner's
      const uint64_t cursor = entry.cursor.load_ordered();                         // and the taker's store
      slowest.meet(cursor);
      if (cursor < evicted) slowest.blocker = Blocker{false, memory.subscriber_entry(bit)};
    }
    for (uint64_t bits = header.durable.words[i].load_ordered(); bits; bits &= bits - 1) {
      const uint32_t index = i * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      if (index >= memory.layout.records) memory.corrupt("a record that cannot exist is durable");
      const Record& record = memory.record(index);
      const uint64_t mark = record.mark.load_ordered(), max_lag = record.max_lag.load_relaxed();
      slowest.meet(mark);
      if (mark < evicted && (max_lag == 0 || head - mark < max_lag)) slowest.blocker = Blocker{true, index};
    }
  }
  return slowest;
}

// Slots that a publisher has evicted, the last one first: each at most once a lap of the ring, and no more of them than
// there are slots.
class Evicted {
 public:
  explicit Evicted(uint32_t slots) : places_(std::bit_ceil(slots + 1)) {}
  uint32_t size() const { return last_ - first_; }
  void add(uint32_t slot) { at(last_++) = slot; }
  void postpone(uint32_t slot) { at(--first_) = slot; }  // it comes after all others
  uint32_t take() { return at(--last_); }

 private:
  uint32_t& at(uint32_t place) { return places_[place & (places_.size() - 1)]; }
  std::vector<uint32_t> places_;
  uint32_t first_ = 0, last_ = 0;
};

// A participant that publishers must wait for from now on: its entry or record says so already.
inline void announce_wait(const Memory& memory) { memory.header().waits.word.add(1); }

class Publisher {
 public:
  Publisher(const Memory& memory, Host& host, Membership membership, const std::string& name)
      : memory_(memory), host_(host), membership_(std::move(membership)), owner_(membership_.owner()) {
    std::memcpy(name_, name.data(), name.size());
    name_check_ = hash_bytes(name_, sizeof name_, owner_);
    trace(memory_, [&] { return TraceEvent{TraceKind::subscribe, 0, owner_, kTracedPublisher}; });
  }

  const Memory& memory() const { return memory_; }
  const Membership& membership() const { return membership_; }
  uint32_t loans() const { return loans_; }
  bool closing() const { return closing_; }
  uint64_t last() const { return last_; }  // our last sample; 0: none yet

  // A slot of at least `bytes`, lent to us. `quota` is how many may be lent before this one.
  uint32_t borrow(uint64_t bytes, uint32_t quota) {
    const uint32_t slot = try_to_borrow(bytes, quota);
    if (slot == kNoSlot) refuse_slots();
    return slot;
  }

  // The same; kNoSlot if there is none, which can happen in a queue: wait_for_space then waits for one.
  uint32_t try_to_borrow(uint64_t bytes, uint32_t quota) {
    require_open();
    if (bytes > memory_.layout.settings.slot_size) refuse_size(bytes);
    if (loans_ >= quota)
      throw Error(Kind::full, "this publisher has " + std::to_string(loans_) +
                                  " loans, as many as max_loans allows; publish or drop one, and let go of arrays of former ones");
    const uint32_t slot = find_slot();
    starved_ = slot == kNoSlot;
    if (slot == kNoSlot) return kNoSlot;
    loans_++;
    begin_writing(slot);
    try {
      if (!planted(Canary::lent_without_backing)) back(slot, bytes);
    } catch (...) {
      put_back(slot);
      throw;
    }
    return slot;
  }

  uint8_t* payload(uint32_t slot) const { return memory_.writable + memory_.payload_at(slot); }

  void put_back(uint32_t slot) {
    set_idle(memory_, slot);
    loans_--;
  }

  // Deliver a lent slot: its sequence, or 0 when a sample that is still wanted would be lost by it. The slot
  // stays lent: give it up with put_back when no view of it is left.
  uint64_t try_publish(uint32_t index, uint64_t payload, uint32_t metadata, uint64_t timestamp = wall_clock_now()) {
    require_open();
    const uint64_t lengths = annotate(index, payload, metadata, timestamp);
    if (planted(Canary::idle_before_publish)) set_idle(memory_, index);
    for (;;) {
      const Place place = find_place();
      if (must_wait(place)) [[unlikely]] return 0;
      if (place_in_ring(place, index, lengths, timestamp)) return last_;
    }
  }

  // The quick way for many: publishes up to `count` small messages as long as everything is ordinary, and adds them to
  // `published` as they go out. Ordinary is: no other publishes, no one is in the way, and the slot is one that we
  // evicted and that has memory. The steps are those of try_to_borrow and try_publish; what is not ordinary is left to
  // them. `next(i)` says where message i is; a null pointer leaves it to them, too.
  struct Small {
    const void* data = nullptr;
    size_t size = 0;
  };
  template <class Next>
  void publish_run(size_t count, uint64_t timestamp, uint64_t& published, const Next& next) {
    require_open();
    const size_t most_bytes = std::min<uint64_t>(memory_.layout.settings.slot_size, kPage);
    RingWalk walk(memory_, last_ + 1);
    for (size_t i = 0; i < count && last_ != 0 && evicted_.size() != 0 && !memory_.closed(); i++, walk.step()) {
      const Small message = next(i);
      const Place place{last_, walk.entry(), walk.entry().load_ordered()};  // pairs with the ring's exchange
      if (!message.data || message.size > most_bytes || !is_next(place)) return;
      if (!planted(Canary::runs_wait_for_nobody) && must_wait(place)) return;
      const uint32_t index = evicted_.take();
      if (!try_borrow(memory_, index, owner_)) return evicted_.add(index);
      const Lent lent{memory_, index};
      if (!publish_small(place, index, message, timestamp)) return evicted_.add(index);
      published++;
    }
  }

  // In the middle of many, when another one has published behind our last one: let others go on for a while, if that
  // was worth it lately. A publisher that has the ring's lines to itself publishes many in the time in which two that fight for
  // them publish a few; but who publishes one at a time does not give way, and then our own turn is over at once.
  void give_way() {
    if (memory_.head().load_relaxed() == last_) return;
    if (const uint64_t before = std::exchange(gave_way_at_, 0)) turns_in_vain_ = count_ - before < kFar ? turns_in_vain_ + 1 : 0;
    if (turns_in_vain_ >= kTurnsInVain && ++turns_left_out_ % kTurnsLeftOut != 0) return;
    relax_for(kPausesForMany);
    gave_way_at_ = count_;
  }

  // After one message that went out by itself: two that publish so at the same time are together no faster than one.
  // Who has lost some exchanges lets another process have the processor, if one wants it, maybe one that takes.
  void stand_aside() {
    if (lost_ < kManyLost) [[likely]] return;
    lost_ = 0;
    sched_yield();
  }

  // After one or several samples: wake the sleepers for them. A message is for one consumer.
  void wake_subscribers() {
    const uint32_t count = std::exchange(unannounced_, 0);
    if (count != 0) wake_waiters(memory_.header().samples, memory_.layout.bit_words, memory_.layout.queue ? count : UINT32_MAX);
  }

  // Which reliable subscriber is in the way now.
  std::optional<Blocker> blocker() const {
    const uint64_t head = next_place(memory_).head, ring = memory_.layout.ring;
    return head < ring ? std::nullopt : find_slowest(memory_, head, head + 1 - ring).blocker;
  }

  // Whether anybody is in the way now. Remembers nothing, so that a thread may wait while another one publishes.
  bool blocked() const {
    const Place place = next_place(memory_);
    if (place.head < memory_.layout.ring) return false;
    return memory_.layout.queue ? waits_in_ring(memory_, place) : blocker().has_value();
  }

  // Deliver, waiting while a participant is in the way; `sleep(nanoseconds)` is one slice of waiting (wait_for_space,
  // without whatever lock the caller holds). The dead are never waited for: a queue's messages wait in the ring for
  // anybody, a topic's only for those that live.
  template <class Sleep>
  uint64_t publish(uint32_t index, uint64_t payload, uint32_t metadata, const Deadline& deadline, const Sleep& sleep,
                   uint64_t timestamp = wall_clock_now()) {
    for (;;) {
      uint64_t sequence = try_publish(index, payload, metadata, timestamp);
      if (sequence) [[likely]] return sequence;
      const bool last_try = deadline.over();
      if ((last_try && !memory_.layout.queue) || monotonic_now() - recovered_at_ > kSliceNanoseconds) {
        host_.recover_dead();
        recovered_at_ = monotonic_now();
        sequence = try_publish(index, payload, metadata, timestamp);
        if (sequence) return sequence;
      }
      if (last_try) memory_.layout.queue ? refuse_messages() : refuse_for(blocker());
      sleep(deadline.slice());
    }
  }

  // One slice of waiting until there may be space. Consumers do not wake producers for every place: the first slices
  // are short.
  void wait_for_space(int64_t nanoseconds) {
    if (spin_until(sleepers_.luck, [&] { return ready(); }, nanoseconds, kPausesForOne)) return;
    const int64_t first = memory_.layout.queue ? kFirstSlice : kSliceNanoseconds;
    slice_ = std::min<int64_t>(in_vain_ == count_ ? 2 * slice_ : first, kSliceNanoseconds);
    in_vain_ = count_;
    Sleeper sleeper(memory_.header().space, membership_.index, sleepers_);
    const uint32_t seen = sleeper.value();
    if (!ready()) sleeper.sleep(seen, std::min<int64_t>(nanoseconds, slice_));
  }
  Signal& signal() const { return memory_.header().space; }
  Sleepers& sleepers() { return sleepers_; }
  bool ready() const {
    if (closing_ || memory_.closed()) return true;
    return starved_ ? any_borrowable() : !blocked();
  }

  // Why nothing can be borrowed or put now.
  [[noreturn]] void refuse_slots() const {
    uint32_t doomed = 0;
    for (uint32_t i = 0; i < memory_.layout.slots; i++)
      doomed += claim_state(memory_.claim(i).load_ordered()) == ClaimState::doomed;
    const std::string held = ": consumers hold or gave back so many messages that no slot is free; let them accept and "
                             "drop some, or wait longer";
    const std::string dying = ": no slot is free, and messages wait to become dead letters (" + std::to_string(doomed) +
                              "); see that there is room in dead_letters()";
    throw Error(Kind::full, memory_.label + (doomed ? dying : held));
  }

  // The place is given up now, or with the last loan.
  void close() {
    closing_ = true;
    if (loans_ == 0 && !left_) {
      left_ = true;
      Witness witness(memory_);
      leave(memory_, membership_);
      witness.tell([&] { return TraceEvent{TraceKind::unsubscribe, 0, owner_, kTracedPublisher}; });
    }
  }
  void abandon() { membership_.anchor.forget(); }  // in a forked child

 private:
  struct Lent {  // until the end of its block
    const Memory& memory;
    uint32_t index;
    ~Lent() { set_idle(memory, index); }
  };

  // Before the first byte goes into a slot just borrowed.
  void begin_writing(uint32_t index) const {
    if (memory_.layout.queue && memory_.origin(index).region.load_relaxed() != 0) memory_.origin(index).region.store_relaxed(0);
    std::atomic_thread_fence(std::memory_order_release);  // pairs with the fence of whoever copies without a bit
  }

  // The slot, written but for these words, becomes the sample at a place. False: another one was faster.
  bool place_in_ring(const Place& place, uint32_t index, uint64_t lengths, uint64_t timestamp) {
    Slot& slot = memory_.slot(index);
    const uint64_t sequence = place.head + 1;
    slot.sequence.store_relaxed(sequence);
    slot.check.store_relaxed(slot_check(lengths, timestamp, owner_, sequence));
    if (memory_.layout.queue) slot.last.store_relaxed(fresh_claim(sequence));
    if (!commit(place, index, payload_length(lengths), timestamp)) return lost_++, false;
    last_ = sequence;
    memory_.head().exchange_if(place.head, sequence);
    remember_evicted(ring_slot(place.word));
    prefetch(sequence);
    count_ = count_ + 1;
    memory_.entry(membership_.index).count.store_relaxed(count_);
    unannounced_++;
    return true;
  }

  // Releases the payload to every taker that reads this word. False: another one was faster.
  bool commit(const Place& place, uint32_t index, uint64_t payload, uint64_t timestamp) {
    const uint64_t sequence = place.head + 1;
    Witness witness(memory_);
    if (!place.entry.exchange_if(place.word, ring_word(sequence, index))) return false;
    witness.tell([&] {
      return TraceEvent{memory_.layout.queue ? TraceKind::put : TraceKind::publish, sequence, owner_, payload, timestamp};
    });
    return true;
  }

  // Right after our own last sample, if no other has published since; else wherever the head leads.
  Place find_place() const {
    Word& entry = memory_.ring(last_ + 1);
    const Place place{last_, entry, entry.load_ordered()};  // pairs with the ring's exchange
    return last_ != 0 && is_next(place) ? place : next_place(memory_);
  }
  bool is_next(const Place& place) const {
    return is_of_last_lap(place.word, place.head + 1, memory_.layout.ring) && memory_.head().load_relaxed() == place.head;
  }

  // Into a borrowed slot whose first page is reserved.
  bool publish_small(const Place& place, uint32_t index, const Small& message, uint64_t timestamp) {
    if (backed_pages(memory_, memory_.slot(index).backed.load_relaxed()) == 0) [[unlikely]] return false;
    begin_writing(index);
    std::memcpy(payload(index), message.data, message.size);
    return place_in_ring(place, index, annotate(index, message.size, 0, timestamp), timestamp);
  }

  // What the slot says about itself before it has a place; its lengths.
  uint64_t annotate(uint32_t index, uint64_t payload, uint32_t metadata, uint64_t timestamp) {
    const uint64_t lengths = pack_lengths(payload, metadata);
    sign(index);
    memory_.slot(index).lengths.store_relaxed(lengths);
    memory_.slot(index).timestamp_ns.store_relaxed(timestamp);
    return lengths;
  }

  // Whether the sample that would be overwritten is still wanted.
  bool must_wait(const Place& place) {
    if (place.head < memory_.layout.ring) return false;
    return memory_.layout.queue ? waits_in_ring(memory_, place) : blocker_at(place.head).has_value();
  }

  // Who would lose a sample if the one after `head` were published. Cursors only grow, so what was found
  // once holds until it is used up, or until a participant joins: either we see the join counted, or the joiner
  // sees our head and starts behind what we overwrite.
  std::optional<Blocker> blocker_at(uint64_t head) {
    const uint64_t evicted = head + 1 - memory_.layout.ring;
    const uint64_t waits = memory_.header().waits.word.load_ordered();
    if (evicted <= slowest_ && (waits == waits_ || planted(Canary::joins_are_not_noticed))) [[likely]] return std::nullopt;
    const Slowest found = find_slowest(memory_, head, evicted);
    slowest_ = found.position;
    waits_ = waits;
    return found.blocker;
  }

  void require_open() const {
    if (closing_) [[unlikely]] throw Error(Kind::closed, "this publisher is closed");
    if (memory_.closed()) [[unlikely]] memory_.deleted();
    require_membership(memory_, membership_);
  }

  [[noreturn]] void refuse_size(uint64_t bytes) const {
    throw Error(Kind::usage, "a message of " + std::to_string(bytes) + " bytes (with key and headers) does not fit slot_size " +
                                 std::to_string(memory_.layout.settings.slot_size) + "; create the " + memory_.noun() +
                                 " with a larger slot_size");
  }

  [[noreturn]] void refuse_messages() const {
    throw Error(Kind::full, memory_.label + ": full, " + std::to_string(memory_.layout.ring) +
                                " messages wait for a consumer; wait longer, or let more consumers work");
  }

  [[noreturn]] void refuse_for(const std::optional<Blocker>& blocker) const {
    if (!blocker) throw Error(Kind::full, memory_.label + ": a reliable subscriber was in the way; try again");
    if (blocker->record)
      throw Error(Kind::full, memory_.label + ": full for the durable subscriber '" +
                                  std::string(memory_.record(blocker->index).name, kRecordNameBytes).c_str() +
                                  "'; start it again, or forget it");
    throw Error(Kind::full, memory_.label + ": full for the reliable subscriber '" +
                                entry_name(memory_.entry(blocker->index)) + "' (pid " +
                                std::to_string(memory_.entry(blocker->index).pid.load_relaxed()) +
                                "); wait longer, or let it take faster");
  }

  // Slots we evicted are tried first: nearly always the last one is free, and memory use stays with what is
  // in use. One that is still being read waits for its turn; one that another one took is forgotten.
  std::optional<uint32_t> find_evicted() {
    for (uint32_t tries = std::min(evicted_.size(), 8u); tries > 0; tries--) {
      const uint32_t index = evicted_.take();
      if (try_borrow(memory_, index, owner_)) [[likely]] return index;
      if (in_use(memory_, index)) evicted_.postpone(index);
    }
    return std::nullopt;
  }

  // By construction there always is one, but for a queue: messages that came back have no holder.
  uint32_t find_slot() {
    if (const auto index = find_evicted()) return *index;
    const uint32_t slots = memory_.layout.slots;
    for (int round = 0; round < (memory_.layout.queue ? kRoundsOfQueue : kRounds); round++) {
      for (uint32_t i = 0; i < slots; i++) {
        next_ = next_ + 1 < slots ? next_ + 1 : 0;
        if (borrowable(memory_, next_) && try_borrow(memory_, next_, owner_)) return next_;
      }
      host_.recover_dead();
    }
    if (memory_.layout.queue) return kNoSlot;
    memory_.corrupt("no slot is free, though by construction one must be");
  }

  bool any_borrowable() const {
    for (uint32_t i = 0; i < memory_.layout.slots; i++)
      if (borrowable(memory_, i)) return true;
    return false;
  }

  // The slot that a publish evicts is the one borrowed for the next: fetch from the subscribers' caches what
  // will be written a few publishes from now.
  void prefetch(uint64_t sequence) const {
    const uint32_t slot = ring_slot(memory_.ring(sequence + kPrefetchDistance).load_relaxed());
    if (slot >= memory_.layout.slots) return;
    if (sequence % kRingWordsALine == 0) prefetch_for_writing(&memory_.ring(sequence + 2 * kPrefetchDistance));
    prefetch_for_writing(&memory_.slot(slot));
    prefetch_for_writing(&memory_.slot(slot).state);
    if (memory_.layout.queue) prefetch_for_writing(&memory_.origin(slot));
    prefetch_for_writing(memory_.writable + memory_.payload_at(slot));
  }

  void remember_evicted(uint32_t index) {
    if (index < memory_.layout.slots && evicted_.size() < memory_.layout.slots) evicted_.add(index);
  }

  // Reserve the pages a sample needs. Slots smaller than a page are reserved many at a time: a system call for
  // each would cost more than its first message.
  void back(uint32_t index, uint64_t bytes) {
    Slot& slot = memory_.slot(index);
    const uint64_t pages = (bytes + kPage - 1) / kPage, size = memory_.layout.payload_bytes;
    if (pages <= backed_pages(memory_, slot.backed.load_relaxed())) [[likely]] return;
    if (size < kPage && back_neighbours(index)) return;
    host_.reserve(memory_.payload_at(index), std::min(pages * kPage, size));
    slot.backed.store_relaxed(pack_backed(pages));
  }

  // False: there is not enough memory for all of them.
  bool back_neighbours(uint32_t index) {
    const uint64_t size = memory_.layout.payload_bytes;
    const auto together = static_cast<uint32_t>(kReserveBytes / size);
    const uint32_t first = index / together * together, end = std::min(first + together, memory_.layout.slots);
    try {
      host_.reserve(memory_.payload_at(first), (end - first) * size);
    } catch (const Error& error) {
      if (error.kind() != Kind::full) throw;
      return false;
    }
    for (uint32_t i = first; i < end; i++) memory_.slot(i).backed.store_relaxed(pack_backed(1));
    return true;
  }

  // The publisher's name travels in the slot, so that history names its authors after they are gone. While
  // it is being changed the slot names no publisher: a publisher killed here leaves no false signature.
  void sign(uint32_t index) {
    Slot& slot = memory_.slot(index);
    if (signed_[index] && slot.publisher.load_relaxed() == owner_) [[likely]] return;
    signed_[index] = 1;
    slot.publisher.store_relaxed(0);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memcpy(slot.name, name_, sizeof slot.name);
    memory_.name_check(index).store_release(name_check_);
    slot.publisher.store_release(owner_);
  }

  static constexpr int64_t kFirstSlice = 2'000'000;
  static constexpr uint64_t kFar = 8;
  static constexpr uint32_t kTurnsInVain = 6, kTurnsLeftOut = 256;
  static constexpr uint32_t kManyLost = 16;
  static constexpr int kRounds = 20;
  static constexpr int kRoundsOfQueue = 2;
  static constexpr uint64_t kPrefetchDistance = 8, kRingWordsALine = 8;
  static constexpr uint64_t kReserveBytes = 64 << 10;
  const Memory& memory_;
  Host& host_;
  Membership membership_;
  uint64_t owner_;
  char name_[kNameBytes] = {};
  uint64_t name_check_ = 0;
  Sleepers sleepers_;
  uint32_t loans_ = 0;
  std::vector<uint8_t> signed_ = std::vector<uint8_t>(memory_.layout.slots);  // slots that have our name
  Evicted evicted_{memory_.layout.slots};
  uint32_t next_ = 0;
  Relaxed<uint64_t> count_{memory_.entry(membership_.index).count.load_relaxed()};
  uint64_t last_ = 0;  // our last sample
  uint64_t gave_way_at_ = 0;  // how many samples there were then; 0: what came of it is known
  uint32_t turns_in_vain_ = 0, turns_left_out_ = 0;
  uint32_t lost_ = 0;  // exchanges in which another one was faster, since we stood aside
  uint32_t unannounced_ = 0;  // samples without a wake-up yet
  Relaxed<int64_t> slice_{kSliceNanoseconds};  // of waiting for space, the last time
  Relaxed<uint64_t> in_vain_{UINT64_MAX};      // how many samples there were then
  int64_t recovered_at_ = 0;  // when we last looked for the dead that were in the way
  uint64_t slowest_ = 0;  // no one to wait for is before this position, as of `waits_` joins
  uint64_t waits_ = 0;
  Relaxed<bool> starved_{false};  // the last look for a slot found none
  Relaxed<bool> closing_{false};
  bool left_ = false;
};

}  // namespace hawser
