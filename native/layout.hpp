// What the file of a topic or queue looks like, byte by byte (docs/formats/topic-region.md says the same in prose).
//
// A queue is a topic without history whose slots have claims (claims.hpp): its publishers are called producers, its
// subscribers consumers.
//
//   header | entries (publishers, subscribers, tracer) | records | ring | slots | payloads
//
// Everything a process needs to find its way is computed from the settings once, when it attaches, and
// compared with the file; later no offset, count or size is ever read from shared memory. What is read from
// it (slot numbers, lengths) is loaded once, checked against the layout, then used.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "error.hpp"
#include "word.hpp"

namespace hawser {

constexpr uint32_t kFormatVersion = 4;
constexpr char kMagic[8] = {'H', 'A', 'W', 'S', 'E', 'R', '\r', '\n'};
constexpr uint32_t kKindTopic = 1;
constexpr uint32_t kKindQueue = 2;
constexpr uint32_t kMaxSlots = 65534;  // a ring word has 16 bits for the slot, and one value means none
constexpr uint32_t kMaxSubscribers = 256;
constexpr uint32_t kMaxPublishers = 256;
constexpr uint64_t kMaxSlotSize = (uint64_t{1} << 40) - 1;  // a slot has 40 bits for the length
constexpr uint32_t kMaxMetadata = (1u << 24) - 1;
constexpr uint32_t kNameBytes = 56;  // of a participant, with its terminating zero
constexpr uint32_t kRecordNameBytes = 96;
constexpr uint32_t kTextBytes = 256;  // of a name and of a schema
constexpr uint32_t kMaxDeliveries = 1023;  // a claim has 10 bits for them
constexpr uint32_t kPage = 4096;

struct Settings {
  uint64_t slot_size;
  uint32_t history;
  uint32_t depth;
  uint32_t max_publishers;
  uint32_t max_subscribers;
  uint32_t max_held;
  uint32_t max_loans;
  uint32_t ephemeral;
  uint32_t group;
  uint32_t kind = kKindTopic;
  uint32_t max_deliveries = 0;  // of a queue; 0: no bound
  uint64_t lease_ns = 0;        // of a queue; 0: none
};
static_assert(sizeof(Settings) == 56);

// A futex word and its sleepers. `value` changes when there is news for a sleeper.
struct alignas(64) Signal {
  std::atomic<uint32_t> value;
  uint32_t unused;
  Bits waiters;
};
static_assert(sizeof(Signal) == 64);

struct alignas(64) Line {  // one word on a cache line of its own
  Word word;
};

// Whether and where to it is traced (trace.hpp), on a line that is only read. Not a Word: nothing depends on when it is
// seen, so that the explorer need not switch processes there.
struct alignas(64) Tracing {
  std::atomic<uint64_t> ring;  // 0, or the ring's identity and the level
  Word unwritten;              // records of processes that could not map that ring
};

// What the file says about itself; written once, before anybody else can see it.
struct Label {
  char magic[8];
  uint32_t format_version;
  uint32_t kind;  // as in the settings: readers of the first bytes find it here
  uint64_t layout_hash;
  uint8_t uuid[16];
  char boot_id[40];
  uint64_t created_ns;
  Settings settings;
  char name[kTextBytes];
  char schema[kTextBytes];
  char dead_letter[kTextBytes];  // of a queue: where dead letters go; empty for its own
  uint8_t reserved[112];
};
static_assert(sizeof(Label) == 1024 && offsetof(Label, kind) == 12 && offsetof(Label, name) == 144);

struct Header {
  Label label;
  Line state;          // open, closing, closed
  Line head;           // sequence of the newest sample; behind the ring by one at most
  Line announcement;   // counts recoveries
  Signal samples;      // subscribers sleep here
  Signal space;        // publishers sleep here
  alignas(64) Bits reliable;  // subscribers that publishers wait for
  alignas(64) Bits durable;   // records that publishers wait for
  Line waits;          // counts joins that publishers must wait for from then on
  Line tail;           // of a queue: every message up to here was claimed once; behind by any number
  Line returns;        // of a queue: counts messages that were given back
  Tracing tracing;
};
static_assert(offsetof(Header, state) == 1024 && sizeof(Header) <= kPage);

// The words "closing" and "closed", because damage that looks like the end of a topic would remove it.
enum class RegionState : uint64_t { open = 0, closing = 0x676e69736f6c63, closed = 0x6465736f6c63 };

// A participant. `word` is {incarnation, state}; the entry belongs to the holder of its life byte.
struct alignas(64) Entry {
  Word word;
  Word pid;
  Word uid;
  Word started_ns;  // of the process, since boot
  Word joined_ns;   // wall clock
  Word count_before;   // what `count` and `missed` were when the owner joined
  Word missed_before;
  Word deaths;         // see pack_deaths
  // Written by the owner alone, on a line of its own.
  alignas(64) Word cursor;  // what publishers wait for, when reliable
  Word count;   // of all who ever had this entry: an owner goes on where the one before it ended, so that
  Word missed;  // nothing has to be moved, and no total can go back, whichever process dies
  alignas(64) Word name[8];  // bytes, zero behind the last; words, because others read it while it is written
};
static_assert(sizeof(Entry) == 192);

enum class EntryState : uint64_t { free = 0, active = 1, dead = 2 };
constexpr uint64_t entry_word(uint64_t incarnation, EntryState state) {
  return incarnation << 8 | static_cast<uint64_t>(state);
}
constexpr EntryState entry_state(uint64_t word) { return static_cast<EntryState>(word & 0xff); }
constexpr uint64_t entry_incarnation(uint64_t word) { return word >> 8; }

// How many owners of an entry died and were recovered, and which incarnation was counted last: one word, so
// that a reader that finds this incarnation in it knows that it is counted.
constexpr uint64_t pack_deaths(uint64_t incarnation, uint64_t count) { return incarnation << 32 | (count & 0xffffffff); }
constexpr uint64_t deaths_of(uint64_t word) { return word & 0xffffffff; }

// A position kept under a name. `word` is {owner, state}.
struct alignas(64) Record {
  Word word;
  Word mark;     // every sample up to here is done with
  Word max_lag;  // of a durable one whose holder is dead; 0 for ever
  Word reserved;
  char name[kRecordNameBytes];
};
static_assert(sizeof(Record) == 128);

enum class RecordState : uint64_t { free = 0, claiming = 1, used = 2 };

// One payload's place. Subscribers read the first cache line; `state`, which its publisher writes once more after
// the sample is out, is on the second, so that the two do not meet. A consumer changes `references` and the claim,
// which is therefore on the first, too.
struct alignas(64) Slot {
  Word references;   // one bit per subscriber 0..63
  Word sequence;
  Word lengths;      // payload in 40 bits, metadata behind it in 24
  Word timestamp_ns;
  Word publisher;    // who wrote it, as in `state`; 0 while `name` is being changed
  Word check;        // of the four words above
  Word backed;       // pages reserved so far, and their complement
  Word last;         // of a queue: the claim; of a topic: the check of `name`
  Word state;        // 0 idle, else the publisher it is lent to
  char name[kNameBytes];  // of the publisher
};
static_assert(sizeof(Slot) == 128 && offsetof(Slot, state) == 64);
struct alignas(64) MoreReferences {  // behind the slot when a topic allows more than 63 subscribers
  Word words[kBitWords - 1];
  Word unused[4];
};
static_assert(sizeof(MoreReferences) == 64);
struct alignas(64) Origin {  // behind that, in a queue: where a message that was moved here comes from
  Word name_check;
  Word region;    // the first 8 bytes of that region's uuid; 0: it was put here
  Word sequence;  // there
  Word pin;       // a hash of both while it is being moved: the slot is not lent while this is not 0
  Word unused[4];
};
static_assert(sizeof(Origin) == 64);

// A participant in 64 bits: incarnation and entry. Never 0.
constexpr uint64_t owner_word(uint32_t index, uint64_t incarnation) { return incarnation << 16 | (index + 1); }
constexpr uint32_t owner_index(uint64_t owner) { return static_cast<uint32_t>(owner & 0xffff) - 1; }
constexpr uint64_t owner_incarnation(uint64_t owner) { return owner >> 16; }

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdull;
  return hash ^ hash >> 32;
}
inline uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0x9e3779b97f4a7c15ull) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; i++) seed = mix(seed, bytes[i]);
  return mix(seed, size);
}

struct Layout {
  Settings settings{};
  uint32_t ring = 0;          // entries of the ring
  uint32_t slots = 0;
  uint32_t entries = 0;
  uint32_t records = 0;
  uint32_t bit_words = 0;     // words of a set of subscribers
  uint32_t publisher_words = 0;  // the same of publishers
  uint32_t slot_bytes = 0;    // of a slot's control part
  uint32_t origin_at = 0;     // within it, in a queue
  bool queue = false;
  uint64_t payload_bytes = 0;  // from one payload to the next
  uint64_t entries_at = 0, records_at = 0, ring_at = 0, slots_at = 0, payloads_at = 0, total = 0;
  uint64_t ring_inverse = 0;  // 2^64 / ring, rounded up

  explicit Layout(const Settings& given) : settings(given) {
    check();
    ring = given.history + given.depth;
    const uint64_t wanted = uint64_t{ring} + uint64_t{given.max_subscribers + 1} * given.max_held +
                            uint64_t{given.max_publishers} * (given.max_loans + 1);
    if (wanted > kMaxSlots)
      throw Error(Kind::usage, "these settings need " + std::to_string(wanted) + " slots, at most " +
                                   std::to_string(kMaxSlots) + " are possible; lower history, depth, max_held, "
                                   "max_subscribers or max_publishers");
    slots = static_cast<uint32_t>(wanted);
    records = given.max_subscribers + 1;  // the last one is the tracer's, as the last entry is
    entries = given.max_publishers + records;
    bit_words = (given.max_subscribers + 1 + 63) / 64;
    publisher_words = (given.max_publishers + 63) / 64;
    queue = given.kind == kKindQueue;
    origin_at = sizeof(Slot) + (bit_words > 1 ? sizeof(MoreReferences) : 0);
    slot_bytes = origin_at + (queue ? sizeof(Origin) : 0);
    payload_bytes = (given.slot_size + 63) / 64 * 64;
    entries_at = kPage;
    records_at = entries_at + uint64_t{entries} * sizeof(Entry);
    ring_at = records_at + uint64_t{records} * sizeof(Record);
    slots_at = (ring_at + uint64_t{ring} * 8 + 63) / 64 * 64;
    payloads_at = (slots_at + uint64_t{slots} * slot_bytes + kPage - 1) / kPage * kPage;
    total = (payloads_at + slots * payload_bytes + kPage - 1) / kPage * kPage;
    ring_inverse = ring == 1 ? 0 : ~uint64_t{0} / ring + 1;
  }

  uint64_t hash() const {
    uint64_t hash = mix(kFormatVersion, sizeof(Header));
    for (uint64_t value : {settings.slot_size, uint64_t{settings.history}, uint64_t{settings.depth},
                           uint64_t{settings.max_publishers}, uint64_t{settings.max_subscribers},
                           uint64_t{settings.max_held}, uint64_t{settings.max_loans},
                           uint64_t{settings.ephemeral}, uint64_t{settings.group}, uint64_t{settings.kind},
                           uint64_t{settings.max_deliveries}, settings.lease_ns, entries_at, records_at, ring_at,
                           slots_at, payloads_at, total})
      hash = mix(hash, value);
    return hash;
  }

  // sequence % ring without a division: exact while sequence * ring < 2^64, for which the branch tests.
  uint32_t position(uint64_t sequence) const {
    if (sequence >> 48) [[unlikely]] return static_cast<uint32_t>(sequence % ring);
    const auto quotient = static_cast<uint64_t>(static_cast<unsigned __int128>(ring_inverse) * sequence >> 64);
    return ring == 1 ? 0 : static_cast<uint32_t>(sequence - quotient * ring);
  }

 private:
  void check() const {
    const auto bound = [](const char* what, uint64_t value, uint64_t low, uint64_t high) {
      if (value < low || value > high)
        throw Error(Kind::usage, std::string(what) + " is " + std::to_string(value) + ", must be " +
                                     std::to_string(low) + " to " + std::to_string(high));
    };
    bound("slot_size", settings.slot_size, 1, kMaxSlotSize);
    bound("history", settings.history, 0, kMaxSlots);
    bound("depth", settings.depth, 1, kMaxSlots);
    bound("max_publishers", settings.max_publishers, 1, kMaxPublishers);
    bound("max_subscribers", settings.max_subscribers, 1, kMaxSubscribers);
    bound("max_held", settings.max_held, 1, kMaxSlots);
    bound("max_loans", settings.max_loans, 1, kMaxSlots);
    bound("ephemeral", settings.ephemeral, 0, 1);
    bound("group", settings.group, 0, 1);
    bound("kind", settings.kind, kKindTopic, kKindQueue);
    const bool is_queue = settings.kind == kKindQueue;
    if (is_queue) bound("history of a queue", settings.history, 0, 0);
    bound("max_deliveries", settings.max_deliveries, 0, is_queue ? kMaxDeliveries : 0);
    bound("lease_ns", settings.lease_ns, 0, is_queue ? INT64_MAX : 0);
  }
};

class Tracer;

// The mapped file: where everything is. Owns nothing.
struct Memory {
  const Layout layout;
  uint8_t* const base;
  const uint8_t* readable = nullptr;  // payloads, mapped read-only
  uint8_t* writable = nullptr;        // payloads, mapped when this process publishes
  std::string label;                  // the file's path, for errors
  uint32_t max_deliveries = 0;        // of a queue, after which a message is doomed; 0: no bound
  Tracer* tracer = nullptr;           // null: what is to be traced is counted and not written
  Word* const ring_words = reinterpret_cast<Word*>(base + layout.ring_at);
  uint8_t* const slot_words = base + layout.slots_at;

  Header& header() const { return *reinterpret_cast<Header*>(base); }
  Word& head() const { return header().head.word; }
  Entry& entry(uint32_t index) const {
    return reinterpret_cast<Entry*>(base + layout.entries_at)[index];
  }
  Record& record(uint32_t index) const {
    return reinterpret_cast<Record*>(base + layout.records_at)[index];
  }
  Word& ring(uint64_t sequence) const {
    return ring_words[layout.position(sequence)];
  }
  Slot& slot(uint32_t index) const {
    return *reinterpret_cast<Slot*>(slot_words + uint64_t{index} * layout.slot_bytes);
  }
  Word& references(uint32_t index, uint32_t word) const {
    Slot& place = slot(index);
    return word == 0 ? place.references : reinterpret_cast<MoreReferences*>(&place + 1)->words[word - 1];
  }
  Origin& origin(uint32_t index) const {  // of a queue
    return *reinterpret_cast<Origin*>(reinterpret_cast<uint8_t*>(&slot(index)) + layout.origin_at);
  }
  Word& claim(uint32_t index) const { return slot(index).last; }  // of a queue
  Word& name_check(uint32_t index) const { return layout.queue ? origin(index).name_check : slot(index).last; }
  uint64_t payload_at(uint32_t index) const { return uint64_t{index} * layout.payload_bytes; }

  uint32_t subscriber_entry(uint32_t bit) const { return layout.settings.max_publishers + bit; }
  bool is_publisher(uint32_t index) const { return index < layout.settings.max_publishers; }
  bool closed() const {
    return header().state.word.load_relaxed() == static_cast<uint64_t>(RegionState::closed);
  }
  const char* noun() const { return layout.queue ? "queue" : "topic"; }
  [[noreturn]] void corrupt(const std::string& what) const {
    throw Error(Kind::corrupt, label + ": " + what +
                                   "; the file was changed by something other than Hawser: delete the " + noun());
  }
  [[noreturn]] void deleted() const {
    throw Error(Kind::closed, label + ": the " + noun() + " was deleted; open it again");
  }
};

}  // namespace hawser
