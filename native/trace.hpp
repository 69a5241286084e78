// The trace: what happened in a domain, as records in one ring that all its topics and queues share.
//
// Record p, counted from 0 for the life of the ring, is 8 words at place p mod R: {p + 1, what happened, check}. A
// writer takes its position by one addition to the head and never waits for anybody. The check is a hash of the other
// seven words, so a record counts exactly if it is whole and of the position that is being read: what a killed writer
// left half written, what two writers made together because one was stopped while the ring went a lap further, and
// what was overwritten while it was read are no records. No order of the words matters, so none is asked for.
//
// A position is taken before the thing happens that others can see, and its record is written afterwards: by then the
// writer knows that it did. So whatever happened has a record or a position that is lost, and a cause comes before
// its effects. A taker's record is written before its caller has the sample. A position for something that did not
// happen gets a record of nothing.
//
// A reader goes through the positions and gives each one as read or as lost: lost when the head is a lap ahead of it,
// or when it has been missing for a second by the reader's own calls. A writer that is slower than that finds its
// record unread, and no reader misled.
//
// The switch is one word in the header of a region: 0, or the ring's identity and the level. While it is 0 a trace
// point costs its load and a branch. A process maps the ring at its first record; one that cannot counts, beside the
// switch, what it did not write. Tracing is never an error of the traced participant.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "canary.hpp"
#include "layout.hpp"
#include "waiting.hpp"

namespace hawser {

enum class TraceKind : uint64_t {
  publish = 1,   // value: payload length
  take,          // value: the message's timestamp, as of all that follow but where it says otherwise; deliveries: 1
                 // if the sample has its slot, which it releases, 0 if it is a copy
  release,       // value 0
  put,           // value: payload length
  claim,
  accept,
  returned,      // a claim was given back; of a subscriber: its last take does not count
  rejected,      // a claim was given back, and the message is to go to the dead letters
  subscribe,     // joined; value: 1 as a publisher, 2 as a subscriber; sequence: its cursor
  unsubscribe,   // left; the same
  recover,       // value: owner word of the dead
  missed,        // sequence: the last one missed; value: how many
  moved,         // the message left this queue for another one
  nothing,       // the position was taken for something that did not happen
  switched,      // the region is traced differently from here on, or was not traced up to here; value: the level
};

// The value of subscribe and unsubscribe.
constexpr uint64_t kTracedPublisher = 1, kTracedSubscriber = 2;

// `looked_at`: as metadata, but only temporarily: it ends with the last observer.
enum class TraceLevel : uint64_t { off = 0, metadata = 1, payload = 2, looked_at = 3 };
constexpr uint64_t kTraceLevelBits = 3;  // of the switch

constexpr uint32_t kTraceWords = 8;
constexpr uint64_t kTraceRecordBytes = kTraceWords * sizeof(Word);
constexpr int64_t kTraceHoleNanoseconds = 1'000'000'000;
using TraceWords = std::array<uint64_t, kTraceWords>;

// Four multiplications that do not wait for each other: each folds two words, so that no word can change, or come from
// another record, without changing all of the result.
constexpr uint64_t fold_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
constexpr uint64_t trace_check(const TraceWords& words) {
  return fold_product(words[0] ^ 0x9e3779b97f4a7c15ull, words[1] ^ 0xff51afd7ed558ccdull) ^
         fold_product(words[2] ^ 0xc4ceb9fe1a85ec53ull, words[3] ^ 0x2545f4914f6cdd1dull) ^
         fold_product(words[4] ^ 0xd6e8feb86659fd93ull, words[5] ^ 0xa0761d6478bd642full) ^
         fold_product(words[6] ^ 0xe7037ed1a0b428dbull, words[0] ^ 0x8ebc6af09c88c6e3ull);
}

// What a record says, but for where it is, who wrote it and of which region.
struct TraceEvent {
  TraceKind kind;
  uint64_t sequence = 0, owner = 0, value = 0;
  uint64_t time_ns = 0;  // 0: now
  uint32_t deliveries = 0;
};

// The mapped ring: where head and records are. Owns nothing.
class TraceRing {
 public:
  // `records` is a power of two.
  TraceRing(Word& head, Word* words, uint64_t records, uint64_t identity)
      : head_(head), words_(words), mask_(records - 1), identity_(identity) {}

  uint64_t identity() const { return identity_; }
  uint64_t records() const { return mask_ + 1; }
  uint64_t head() const { return head_.load_ordered(); }
  uint64_t take_position() const {
    const uint64_t position = head_.add(1);
    prefetch_for_writing(at(position + kPrefetchDistance));
    return position;
  }

  void write(uint64_t position, TraceWords words) const {
    words[0] = position + 1;
    words[7] = trace_check(words);
    Word* record = at(position);
    for (uint32_t i = 0; i < kTraceWords; i++) record[i].store_relaxed(words[i]);
  }

  // False: the record of this position is not there.
  bool read(uint64_t position, TraceWords& words) const {
    const Word* record = at(position);
    for (uint32_t i = 0; i < kTraceWords; i++) words[i] = record[i].load_relaxed();
    return words[0] == position + 1 && (words[7] == trace_check(words) || planted(Canary::trace_without_check));
  }

 private:
  Word* at(uint64_t position) const { return words_ + (position & mask_) * kTraceWords; }

  static constexpr uint64_t kPrefetchDistance = 4;
  Word& head_;
  Word* words_;
  uint64_t mask_;
  uint64_t identity_;
};

// A reader's way through the ring.
class TraceReader {
 public:
  explicit TraceReader(const TraceRing& ring) : ring_(ring) {}

  // Appends whole records to `found`, at most `maximum`; the position of the first. What is between `position` and it
  // is lost. None: nothing is there yet, and the next call begins where this one says.
  uint64_t read(uint64_t position, uint64_t maximum, int64_t now, std::vector<TraceWords>& found) {
    const uint64_t head = ring_.head();
    if (position > head || head > kLastPosition)
      throw Error(Kind::corrupt, "the trace is at position " + std::to_string(head) + " and was read up to " + std::to_string(position) +
                                     ": this is another ring, or a damaged one, which is to be removed");
    uint64_t first = find_first(position, head, now);
    TraceWords words;
    for (uint64_t next = first; next < head && found.size() < maximum && ring_.read(next, words); next++)
      found.push_back(words);
    return first;
  }

 private:
  uint64_t oldest() const {
    const uint64_t head = ring_.head();
    return head > ring_.records() ? head - ring_.records() : 0;
  }

  // The first position that is not lost: one that can be read, or one that must be waited for.
  uint64_t find_first(uint64_t position, uint64_t head, int64_t now) {
    TraceWords words;
    for (uint64_t next = std::max(position, oldest());; next = std::max(next + 1, oldest())) {
      if (next >= head || ring_.read(next, words)) return next;
      if (!is_lost(next, head, now)) return next;
    }
  }

  // A writer that takes the same place a lap later has moved the head before. Of the others, those that were missing along
  // with the first one have been missing as long.
  bool is_lost(uint64_t position, uint64_t head, int64_t now) {
    if (position < oldest()) return true;
    if (position >= holes_from_ && position < holes_until_) return now - missing_since_ >= kTraceHoleNanoseconds;
    holes_from_ = position;
    holes_until_ = head;
    missing_since_ = now;
    return false;
  }

  static constexpr uint64_t kLastPosition = uint64_t{1} << 62;  // no ring gets that far
  TraceRing ring_;
  uint64_t holes_from_ = 0, holes_until_ = 0;  // what is missing between these
  int64_t missing_since_ = 0;
};

// How a region finds the ring that its switch names.
class Tracer {
 public:
  explicit Tracer(uint64_t region) : region_(region), process_(static_cast<uint64_t>(getpid())) {}
  virtual ~Tracer() = default;

  // Null: it cannot be mapped now.
  const TraceRing* ring(uint64_t identity) {
    const TraceRing* ring = ring_.load(std::memory_order_acquire);  // pairs with the store of whoever mapped it
    if (ring && ring->identity() == identity) [[likely]] return ring;
    ring = map(identity);
    if (ring) ring_.store(ring, std::memory_order_release);
    return ring;
  }

  TraceWords words_of(const TraceEvent& event) const {
    const uint64_t time = event.time_ns ? event.time_ns : wall_clock_now();
    const uint64_t about = static_cast<uint64_t>(event.kind) | uint64_t{event.deliveries} << 8 | process_ << 32;
    return {0, time, region_, event.sequence, event.owner, about, event.value, 0};
  }

 protected:
  // A ring stays mapped as long as the process lives: another thread may be writing to it.
  virtual const TraceRing* map(uint64_t identity) noexcept = 0;

 private:
  const uint64_t region_, process_;
  std::atomic<const TraceRing*> ring_{nullptr};
};

inline uint64_t is_traced(const Memory& memory) { return memory.header().tracing.ring.load(std::memory_order_relaxed); }

// The work of a trace point, out of the way of those that are off. `traced` is the switch as it was found.
struct TracePoint {
  static const TraceRing* ring(const Memory& memory, uint64_t traced) {
    return memory.tracer ? memory.tracer->ring(traced & ~kTraceLevelBits) : nullptr;
  }
  [[gnu::noinline, gnu::cold]] static uint64_t take_position(const Memory& memory, uint64_t traced) {
    const TraceRing* found = ring(memory, traced);
    return found ? found->take_position() : kNoPosition;
  }
  // What had no position before it happened gets none afterwards: who is killed in between would not be missed.
  [[gnu::noinline, gnu::cold]] static void write(const Memory& memory, uint64_t traced, uint64_t position, TraceEvent event) {
    const TraceRing* found = position == kNoPosition ? nullptr : ring(memory, traced);
    if (found) return found->write(position, memory.tracer->words_of(event));
    if (event.kind != TraceKind::nothing) memory.header().tracing.unwritten.add(1);
  }
  static constexpr uint64_t kNoPosition = UINT64_MAX;
};

// A position for something that is about to happen, if the region is traced.
class Witness {
 public:
  explicit Witness(const Memory& memory) : Witness(memory, is_traced(memory)) {}
  Witness(const Memory& memory, uint64_t traced) : memory_(memory), traced_(traced) {
    if (traced_ && !planted(Canary::trace_after_the_fact)) [[unlikely]] take_position();
  }
  ~Witness() {
    if (traced_) [[unlikely]] TracePoint::write(memory_, traced_, position_, {TraceKind::nothing});
  }
  Witness(const Witness&) = delete;

  // It has happened. `event()` is called if the event is traced.
  template <class Event>
  [[gnu::always_inline]] void tell(const Event& event) {
    if (!traced_) [[likely]] return;
    if (planted(Canary::trace_after_the_fact)) take_position();
    TracePoint::write(memory_, std::exchange(traced_, 0), position_, event());
  }

 private:
  void take_position() { position_ = TracePoint::take_position(memory_, traced_); }

  const Memory& memory_;
  uint64_t traced_;
  uint64_t position_ = TracePoint::kNoPosition;
};

// Something that no other process could see before this.
template <class Event>
void trace(const Memory& memory, const Event& event) {
  if (const uint64_t traced = is_traced(memory)) [[unlikely]]
    TracePoint::write(memory, traced, TracePoint::take_position(memory, traced), event());
}

// From one switch to another; false: it was not `from`. Told in the ring that the region leaves and in the one that it
// goes to: what was not traced lies between two such records, or before or behind one.
inline bool switch_tracing(const Memory& memory, uint64_t from, uint64_t to) {
  const bool another_ring = (from ^ to) & ~kTraceLevelBits;
  Witness leaving(memory, from), entering(memory, another_ring ? to : 0);
  if (!memory.header().tracing.ring.compare_exchange_strong(from, to, std::memory_order_relaxed)) return false;
  const auto switched = [&] { return TraceEvent{.kind = TraceKind::switched, .value = to & kTraceLevelBits}; };
  leaving.tell(switched);
  entering.tell(switched);
  return true;
}

}  // namespace hawser
