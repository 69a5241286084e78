// Subscribing: a cursor into the ring, and a bit in each slot that is being read.
//
// To take: read the ring word at cursor + 1, set my bit in its slot, read the ring word again. Unchanged: the
// sample is mine to read until I clear the bit. Changed: clear it and look again. No payload byte is read in
// between. A lapped subscriber goes on at the oldest sample that is certainly still there and counts what it
// skipped, so received + missed = published, exactly.
#pragma once

#include <algorithm>
#include <deque>

#include "records.hpp"
#include "slots.hpp"
#include "taken.hpp"

namespace hawser {

// How far back a joiner may start: the last `history` samples, never more than the topic promises to keep.
inline uint64_t cursor_for_history(const Memory& memory, uint64_t head, uint64_t history) {
  const uint64_t kept = std::min<uint64_t>({history, head, memory.layout.settings.history});
  return head - kept;
}

class Subscriber {
 public:
  struct Options {
    uint32_t max_held = 0;
    bool reliable = false;
    uint32_t record = kNoRecord;
    bool commits = false;  // the record moves by commit() instead of by releasing
  };

  Subscriber(const Memory& memory, Membership membership, uint64_t cursor, uint64_t missed, Options options)
      : memory_(memory),
        membership_(std::move(membership)),
        options_(options),
        bit_(membership_.index - memory.layout.settings.max_publishers),
        mask_(uint64_t{1} << bit_ % 64),
        cursor_(cursor),
        committed_(cursor),
        missed_(missed_before_ + missed),
        lost_before_(missed) {
    settle();
    tell(TraceKind::subscribe, cursor_ - missed, kTracedSubscriber);
    if (missed) tell(TraceKind::missed, cursor_, missed);
  }

  const Membership& membership() const { return membership_; }
  uint64_t cursor() const { return cursor_; }
  uint64_t head() const { return memory_.head().load_ordered(); }
  uint64_t received() const { return received_ - received_before_; }
  uint64_t missed() const { return missed_ - missed_before_; }
  uint32_t held() const { return held_; }
  uint32_t free_places() const { return options_.max_held - held_; }
  bool closing() const { return closing_; }

  // Take the next sample if there is one. settle() must follow before the caller returns.
  bool try_take(Taken& taken) {
    require_open();
    if (held_ >= options_.max_held)
      throw Error(Kind::full, "this subscription holds " + std::to_string(held_) +
                                  " samples, as many as max_held allows; release one first");
    for (;;) {
      const uint64_t next = cursor_ + 1;
      const Word& place = memory_.ring(next);
      const uint64_t word = place.load_ordered();
      if (ring_tag(word) == tag_of(next)) [[likely]] {
        if (refer(next, place, word, taken)) return true;
      } else if (ring_tag(word) == last_lap_tag(next, memory_.layout.ring)) {
        return false;
      } else {
        skip_to_the_oldest(place, word);
      }
    }
  }

  // Copy the next sample if there is one, without referring to its slot: sound if the ring still carries it
  // afterwards, because a slot is not borrowed while it does. `room(bytes)` says where to copy to; null leaves
  // the sample for try_take. settle() must follow.
  enum class Copy { nothing, copied, left };
  template <class Room>
  Copy try_copy(const Room& room) {
    return try_copy_whole([&](const Copyable& found) { return CopyPlaces{room(found.payload), nullptr}; });
  }

  // The same with its metadata: `room(copyable)` says where both go, maybe more than once.
  template <class Room>
  Copy try_copy_whole(const Room& room) {
    require_open();
    for (;;) {
      const uint64_t next = cursor_ + 1;
      const Word& place = memory_.ring(next);
      const uint64_t word = place.load_ordered();
      if (ring_tag(word) == tag_of(next)) [[likely]] {
        const Copy copy = copy_from(next, place, word, room);
        if (copy == Copy::nothing) continue;  // overwritten meanwhile
        return copy;
      }
      if (ring_tag(word) == last_lap_tag(next, memory_.layout.ring)) return Copy::nothing;
      skip_to_the_oldest(place, word);
    }
  }

  // The quick way for many: the same for up to `count` samples, as long as each is there. `keep()` follows each.
  template <class Room, class Keep>
  void copy_run(uint64_t count, const Room& room, const Keep& keep) {
    require_open();
    const auto places = [&](const Copyable& found) { return CopyPlaces{room(found.payload), nullptr}; };
    RingWalk walk(memory_, cursor_ + 1);
    for (; count > 0 && !memory_.closed(); count--, walk.step()) {
      const uint64_t next = cursor_ + 1, word = walk.entry().load_ordered();
      if (ring_tag(word) != tag_of(next) || copy_from(next, walk.entry(), word, places) != Copy::copied) return;
      keep();
    }
  }

  // Before telling a caller that there is nothing: the head must agree. It moves after the ring, never before
  // it. Not part of a look, because its cache line is the publishers'.
  void confirm_nothing() const {
    const uint64_t next = cursor_ + 1, head = memory_.head().load_ordered();
    const uint64_t word = memory_.ring(next).load_ordered();
    if (head >= next && ring_tag(word) == last_lap_tag(next, memory_.layout.ring))
      memory_.corrupt("the ring does not carry sample " + std::to_string(next));
  }

  // Fetch what will be read a few samples from now, if it is there: the slots of the last lap are about to be
  // written, and belong in the publisher's cache.
  void prefetch() const {
    const uint64_t sequence = cursor_ + kPrefetchDistance, word = memory_.ring(sequence).load_relaxed();
    const uint32_t slot = ring_slot(word);
    if (ring_tag(word) != tag_of(sequence) || slot >= memory_.layout.slots) return;
    __builtin_prefetch(&memory_.slot(slot), 0);
    __builtin_prefetch(memory_.readable + memory_.payload_at(slot), 0);
  }

  // Tell the others how far we are: publishers that wait for us, and observers of the topic. After leaving, the entry
  // may be another one's.
  void settle() {
    if (left_ || std::exchange(settled_, uint64_t{cursor_}) == cursor_) return;
    Entry& entry = memory_.entry(membership_.index);
    entry.count.store_relaxed(received_);
    entry.missed.store_relaxed(missed_);
    if (options_.record != kNoRecord) return keep_mark();
    if (!options_.reliable) return entry.cursor.store_relaxed(cursor_);
    entry.cursor.store_ordered(cursor_);  // pairs with the publisher's look at the cursors
    wake_waiters(memory_.header().space, memory_.layout.publisher_words);
  }

  // A sample that is still held is to be taken again. False: too late, because another one was taken after it, or the
  // others know that it was taken, so that a publisher may overwrite it.
  bool put_back(const Taken& taken) {
    const bool is_last = cursor_ == taken.sequence, is_told = settled_ >= taken.sequence || committed_ >= taken.sequence;
    if ((closing_ || !is_last || is_told) && !planted(Canary::others_are_put_back)) return false;
    if (is_traced(memory_)) [[unlikely]] tell(TraceKind::returned, cursor_, taken.timestamp_ns);
    cursor_ = cursor_ - 1;
    received_--;
    lost_before_ = taken.lost_before;
    return true;
  }

  // Stop reading a slot. False: the bit was gone, which only damage can do.
  bool release(uint32_t slot, uint64_t sequence) {
    const bool was_set = memory_.references(slot, bit_ / 64).clear_bits(mask_) & mask_;
    if (is_traced(memory_)) [[unlikely]] tell(TraceKind::release, sequence);
    held_--;
    if (options_.record != kNoRecord && !options_.commits) {
      for (auto& [taken, done] : pending_)
        if (taken == sequence) done = true;
      while (!pending_.empty() && pending_.front().second) pending_.pop_front();
      keep_mark();
    }
    return was_set;
  }

  void commit() {
    require_open();
    if (options_.record == kNoRecord || !options_.commits)
      throw Error(Kind::usage, "only a subscription with a group has a position to commit");
    committed_ = cursor_;
    keep_mark();
  }

  // One slice of waiting until there may be a sample.
  void wait_for_sample(int64_t nanoseconds, int pauses = kPausesForOne) {
    if (spin_until(sleepers_.luck, [&] { return ready(); }, nanoseconds, pauses)) return;
    Sleeper sleeper(memory_.header().samples, bit_, sleepers_);
    const uint32_t seen = sleeper.value();
    if (!ready()) sleeper.sleep(seen, nanoseconds);
  }
  Signal& signal() const { return memory_.header().samples; }
  Sleepers& sleepers() { return sleepers_; }
  uint32_t bit() const { return bit_; }
  bool ready() const {
    const uint64_t next = cursor_ + 1, word = memory_.ring(next).load_ordered();
    return closing_ || memory_.closed() || ring_tag(word) != last_lap_tag(next, memory_.layout.ring);
  }

  // Publishers stop waiting for us now; the place is given up now, or with the last sample held.
  void close() {
    if (!closing_) {
      closing_ = true;
      memory_.header().reliable.clear(bit_);
      wake_waiters(memory_.header().space, memory_.layout.publisher_words);
    }
    if (held_ == 0 && !left_) {
      settle();
      left_ = true;
      Witness witness(memory_);
      leave(memory_, membership_);
      witness.tell([&] { return TraceEvent{TraceKind::unsubscribe, cursor_, membership_.owner(), kTracedSubscriber}; });
    }
  }
  void abandon() { membership_.anchor.forget(); }  // in a forked child

 private:
  void require_open() const {
    if (closing_) [[unlikely]] throw Error(Kind::closed, "this subscription is closed");
    if (memory_.closed()) [[unlikely]] memory_.deleted();
    require_membership(memory_, membership_);
  }

  bool refer(uint64_t sequence, const Word& place, uint64_t word, Taken& taken) {
    const uint32_t index = ring_slot(word);
    if (index >= memory_.layout.slots) memory_.corrupt("the ring names a slot that does not exist");
    Word& references = memory_.references(index, bit_ / 64);
    references.set_bits(mask_);  // pairs with the borrower's look at the bits
    if (!planted(Canary::take_without_second_look) && place.load_ordered() != word) {
      references.clear_bits(mask_);
      return false;
    }
    Slot& slot = memory_.slot(index);
    const uint64_t lengths = slot.lengths.load_relaxed();
    taken = {index, sequence, payload_length(lengths), metadata_length(lengths), slot.timestamp_ns.load_relaxed(),
             slot.publisher.load_relaxed(), lost_before_};
    const bool sound = slot.check.load_relaxed() == slot_check(lengths, taken.timestamp_ns, taken.publisher, sequence) &&
                       slot.sequence.load_relaxed() == sequence &&
                       taken.payload + taken.metadata <= memory_.layout.settings.slot_size;
    if (!sound && !planted(Canary::lengths_are_not_checked)) [[unlikely]] {
      references.clear_bits(mask_);
      memory_.corrupt("sample " + std::to_string(sequence) + " is damaged");
    }
    held_++;
    advance_to(sequence, taken.timestamp_ns, true);
    if (options_.record != kNoRecord && !options_.commits) pending_.emplace_back(sequence, false);
    return true;
  }

  // Out of the way: it is called if the topic is traced.
  [[gnu::noinline, gnu::cold]] void tell(TraceKind kind, uint64_t sequence, uint64_t value = 0, uint32_t deliveries = 0) const {
    trace(memory_, [&] { return TraceEvent{kind, sequence, membership_.owner(), value, 0, deliveries}; });
  }

  void advance_to(uint64_t sequence, uint64_t timestamp_ns, bool held) {
    if (is_traced(memory_)) [[unlikely]] tell(TraceKind::take, sequence, timestamp_ns, held);
    cursor_ = sequence;
    received_++;
    lost_before_ = 0;
  }

  template <class Room>
  Copy copy_from(uint64_t sequence, const Word& place, uint64_t word, const Room& room) {
    const uint32_t index = ring_slot(word);
    if (index >= memory_.layout.slots) memory_.corrupt("the ring names a slot that does not exist");
    const Slot& slot = memory_.slot(index);
    const uint64_t lengths = slot.lengths.load_relaxed();
    const Copyable found{sequence, payload_length(lengths), metadata_length(lengths), slot.timestamp_ns.load_relaxed()};
    const bool sound = slot.check.load_relaxed() ==
                           slot_check(lengths, found.timestamp_ns, slot.publisher.load_relaxed(), sequence) &&
                       found.payload + found.metadata <= memory_.layout.settings.slot_size;
    const CopyPlaces to = sound ? room(found) : CopyPlaces{};
    const uint8_t* from = memory_.readable + memory_.payload_at(index);
    if (to.payload) copy_racing(to.payload, from, found.payload);
    if (to.metadata) copy_racing(to.metadata, from + found.payload, found.metadata);
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the borrower's fence
    if (!planted(Canary::copy_without_second_look) && place.load_ordered() != word) return Copy::nothing;
    if (!sound) memory_.corrupt("sample " + std::to_string(sequence) + " is damaged");
    if (!to.payload) return Copy::left;
    advance_to(sequence, found.timestamp_ns, false);
    return Copy::copied;
  }

  void skip_to_the_oldest(const Word& place, uint64_t word) {
    const uint64_t head = next_place(memory_).head, ring = memory_.layout.ring;
    const uint64_t seen = sequence_of(ring_tag(word), head);
    if (seen > head + 1) memory_.corrupt("the ring carries a sample from the future");
    const uint64_t newest = std::max(head, seen);
    const uint64_t target = std::max<uint64_t>(cursor_, newest > ring ? newest - ring : 0);
    if (target == cursor_ && place.load_ordered() == word)
      memory_.corrupt("ring entry " + std::to_string(memory_.layout.position(cursor_ + 1)) + " is damaged");
    if (target != cursor_) tell(TraceKind::missed, target, target - cursor_);
    if (!planted(Canary::misses_are_not_counted)) {
      missed_ += target - cursor_;
      lost_before_ += target - cursor_;
    }
    cursor_ = target;
  }

  // What a later run need not see again: everything before the oldest sample still held.
  void keep_mark() {
    if (closing_ && left_) return;
    const uint64_t mark = options_.commits ? committed_ : pending_.empty() ? uint64_t{cursor_} : pending_.front().first - 1;
    memory_.record(options_.record).mark.store_ordered(mark);
    memory_.entry(membership_.index).cursor.store_ordered(mark);
    wake_waiters(memory_.header().space, memory_.layout.publisher_words);
  }

  static constexpr uint64_t kPrefetchDistance = 6;
  const Memory& memory_;
  Membership membership_;
  Options options_;
  uint32_t bit_;
  uint64_t mask_;
  Relaxed<uint64_t> cursor_;
  uint64_t committed_;
  uint64_t settled_ = UINT64_MAX;  // the cursor the others know
  // Of those who had the entry before us, and with ours on top.
  const uint64_t received_before_ = memory_.entry(membership_.index).count.load_relaxed();
  const uint64_t missed_before_ = memory_.entry(membership_.index).missed.load_relaxed();
  uint64_t received_ = received_before_;
  uint64_t missed_;
  uint64_t lost_before_ = 0;
  uint32_t held_ = 0;
  Sleepers sleepers_;
  std::deque<std::pair<uint64_t, bool>> pending_;  // taken, and whether released
  Relaxed<bool> closing_{false};
  bool left_ = false;
};

}  // namespace hawser
