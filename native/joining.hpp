// Joining a topic as a publisher or a subscriber, or a queue as a producer or a consumer. A joiner recovers the dead first, its own former
// self among them, and finds its place among those that are free.
#pragma once

#include "consumer.hpp"
#include "region.hpp"
#include "subscriber.hpp"

namespace hawser {

struct SubscribeOptions {
  uint64_t history = 0;
  uint64_t start = 0;  // an offset, or 0 for `history`
  bool reliable = false;
  bool durable = false;
  std::string record;
  bool commits = false;
  uint64_t max_lag = 0;
  uint32_t max_held = 0;  // 0: the topic's
  bool tracer = false;    // at the place that is kept for one
};

namespace joining {

inline Identity identity(const std::string& name) {
  return {name, static_cast<uint64_t>(getpid()), static_cast<uint64_t>(getuid()), process_start_ns()};
}

inline void check_name(const std::string& name) {
  if (name.empty() || name.size() >= kNameBytes)
    throw Error(Kind::usage, "a participant's name has 1 to " + std::to_string(kNameBytes - 1) + " bytes, this one has " +
                                 std::to_string(name.size()));
}

template <class Prepare>
Membership enter(const Memory& memory, const Descriptor& file, EntryRange range, const Identity& me,
                 const char* limit, const Prepare& prepare) {
  auto membership = join(memory, file, range, me, prepare);
  if (!membership && !limit) throw Error(Kind::full, memory.label + ": another process traces its payloads; end that process first");
  if (!membership)
    throw Error(Kind::full, memory.label + ": all " + std::to_string(range.count) + " places of " + limit +
                                " are taken; close one, or create the " + memory.noun() + " with a larger " + limit);
  if (memory.closed()) {
    leave(memory, *membership);
    memory.deleted();
  }
  return std::move(*membership);
}

inline uint64_t starting_cursor(const Memory& memory, const SubscribeOptions& options, uint64_t head) {
  if (options.start == 0) return cursor_for_history(memory, head, options.history);
  const uint64_t oldest = oldest_after(head, memory.layout.ring);
  if (options.start < oldest || options.start > head + 1)
    throw Error(Kind::out_of_range, memory.label + ": offset " + std::to_string(options.start) + " is not there; the topic has " +
                                        std::to_string(oldest) + " to " + std::to_string(head) + ", next is " + std::to_string(head + 1));
  return options.start - 1;
}

[[noreturn]] inline void refuse_record(const Memory& memory, const std::string& name) {
  throw Error(Kind::usage, memory.label + ": the position '" + name + "' is held by a living subscription; close that one and release its samples first");
}

// Where a subscription starts, what it skipped, and which record it has.
struct Start {
  uint64_t cursor;
  uint64_t missed = 0;
  uint32_t record = kNoRecord;
  bool was_kept = false;  // publishers have been waiting for the record all the time
};

inline Start find_start(const Memory& memory, const SubscribeOptions& options) {
  const uint64_t head = next_place(memory).head;
  const uint32_t kept = options.record.empty() ? kNoRecord : find_record(memory, options.record);
  if (kept == kNoRecord) return {starting_cursor(memory, options, head)};
  const Record& record = memory.record(kept);
  Start start{record.mark.load_ordered(), 0, kept};
  if (start.cursor > head) memory.corrupt("the kept position '" + options.record + "' is ahead of the topic");
  const bool durable = memory.header().durable.words[start.record / 64].load_ordered() >> start.record % 64 & 1;
  start.was_kept = durable && record.max_lag.load_ordered() == 0;
  return start;
}

// After the entry is active publishers wait for its cursor; what they may have overwritten before they saw it
// is skipped. A position they have been waiting for all the time has lost nothing.
inline void settle_start(const Memory& memory, Start& start) {
  announce_wait(memory);  // after the active word, before the look at the head
  const uint64_t head = next_place(memory).head, ring = memory.layout.ring;
  const uint64_t margin = start.was_kept ? 0 : 1;
  const uint64_t safe = head + margin > ring ? head + margin - ring : 0;
  if (safe <= start.cursor) return;
  if (start.record != kNoRecord) start.missed = safe - start.cursor;
  start.cursor = safe;
}

// The record of the consumer that a queue is reserved for, or kNoRecord.
inline uint32_t reservation(const Memory& memory) {
  for (uint32_t i = 0; i < memory.layout.settings.max_subscribers; i++)
    if (record_state(memory.record(i).word.load_acquire()) == RecordState::used) return i;
  return kNoRecord;
}

// The bytes that say who may consume: shared by all, or held alone by the one that has reserved the queue.
inline void reserve_queue(const Memory& memory, const Descriptor& file, const std::string& name, bool reserve) {
  if (reserve && !file.try_lock(byte::record(name)))
    throw Error(Kind::usage, memory.label + ": it is reserved by a living consumer of the same name, '" + name + "'; end that one first");
  const bool locked = file.try_lock(byte::consuming, reserve);
  const uint32_t record = reservation(memory);
  const std::string holder = record == kNoRecord ? "" : record_name(memory.record(record));
  if (locked && (record == kNoRecord || (reserve && holder == name))) return;
  if (!locked && reserve)
    throw Error(Kind::usage, memory.label + ": it has consumers, and who reserves a queue must be the only one; close them first");
  throw Error(Kind::usage, memory.label + ": it is recorded by '" + holder +
                               "', which alone gets its messages; stop that agent, and forget its reservation: hawser queue forget");
}

inline void keep_reservation(const Memory& memory, const FileLiveness& liveness, const std::string& name,
                             const Membership& membership) {
  if (find_record(memory, name) == kNoRecord && make_record(memory, liveness, name, membership.owner(), 0) == kNoRecord)
    memory.corrupt("a queue has no place for a reservation");
}

inline void require_kind(const Memory& memory, bool queue) {
  if (memory.layout.queue != queue)
    throw Error(Kind::usage, memory.label + " is a " + memory.noun() + ", which has no " + (queue ? "consumers" : "subscribers"));
}

}  // namespace joining

// `exclusive`: no other publishes while this one lives.
inline std::unique_ptr<Publisher> join_as_publisher(Region& region, const std::string& name, bool exclusive) {
  joining::check_name(name);
  const Memory& memory = region.memory();
  const Identity me = joining::identity(name);
  region.recover();
  const std::lock_guard no_fork(no_fork_mutex());
  region.map_writable();
  const Descriptor file = region.open_again();
  if (!file.try_lock(byte::publishing, exclusive))
    throw Error(Kind::usage, memory.label + (exclusive ? ": it has a publisher already, so there can be no exclusive one"
                                                       : ": it has an exclusive publisher; close that one first"));
  const char* limit = memory.layout.queue ? "max_producers" : "max_publishers";
  Membership membership = joining::enter(memory, file, {0, memory.layout.settings.max_publishers}, me, limit,
                                         [&](uint32_t index) { memory.header().space.waiters.clear(index); });
  return std::make_unique<Publisher>(memory, region, std::move(membership), name);
}

inline std::unique_ptr<Subscriber> join_as_subscriber(Region& region, const std::string& name,
                                                      const SubscribeOptions& options) {
  joining::check_name(name);
  const Memory& memory = region.memory();
  joining::require_kind(memory, false);
  const Settings& settings = memory.layout.settings;
  const uint32_t max_held = options.max_held ? options.max_held : settings.max_held;
  if (max_held > settings.max_held)
    throw Error(Kind::usage, "max_held " + std::to_string(max_held) + " is more than the topic's " + std::to_string(settings.max_held));
  if (const uint64_t kept = uint64_t{settings.history} + settings.depth; options.max_lag > kept)
    throw Error(Kind::usage, "max_lag " + std::to_string(options.max_lag) + " is more than the " + std::to_string(kept) +
                                 " samples that the topic keeps: publishers would wait for ever; give at most that, or none");
  if (options.record.size() >= kRecordNameBytes)
    throw Error(Kind::usage, "the name of a kept position has at most " + std::to_string(kRecordNameBytes - 1) + " bytes");
  const Identity me = joining::identity(name);
  region.recover();
  const std::lock_guard no_fork(no_fork_mutex());
  const Descriptor file = region.open_again();
  if (!options.record.empty() && !file.try_lock(byte::record(options.record))) joining::refuse_record(memory, options.record);
  joining::Start start = joining::find_start(memory, options);
  const auto prepare = [&](uint32_t index) {
    const uint32_t bit = index - settings.max_publishers;
    memory.header().samples.waiters.clear(bit);
    memory.entry(index).cursor.store_ordered(start.cursor);  // provisional
    if (options.reliable) memory.header().reliable.set(bit);
    if (!options.reliable) memory.header().reliable.clear(bit);
  };
  const EntryRange records = records_for(memory, options.tracer);
  Membership membership = joining::enter(memory, file, {settings.max_publishers + records.first, records.count}, me,
                                         options.tracer ? nullptr : "max_subscribers", prepare);
  if (options.reliable && !planted(Canary::join_without_second_look)) joining::settle_start(memory, start);
  if (!options.record.empty() && start.record == kNoRecord) {
    const Descriptor probe = region.open_again();
    start.record = make_record(memory, FileLiveness(probe), options.record, membership.owner(), start.cursor, options.tracer);
    if (start.record == kNoRecord) {
      memory.header().reliable.clear(membership.index - settings.max_publishers);
      leave(memory, membership);
      throw Error(Kind::full, memory.label + ": all " + std::to_string(records.count) +
                                  " kept positions are in use; forget one");
    }
  }
  if (start.record != kNoRecord) {
    memory.record(start.record).word.store_ordered(record_word(membership.owner(), RecordState::used));
    memory.record(start.record).max_lag.store_ordered(options.durable ? options.max_lag : 0);
    if (!options.durable) memory.header().durable.clear(start.record);
    if (options.durable) memory.header().durable.set(start.record);
    if (options.durable) announce_wait(memory);
  }
  return std::make_unique<Subscriber>(memory, std::move(membership), start.cursor, start.missed,
                                      Subscriber::Options{max_held, options.reliable, start.record, options.commits});
}

// As a consumer; `reserve`: no other consumes while this one lives, nor after its death until its record is
// forgotten.
inline std::unique_ptr<Consumer> join_as_consumer(Region& region, const std::string& name, uint32_t wanted_held = 0,
                                                  bool reserve = false) {
  joining::check_name(name);
  const Memory& memory = region.memory();
  joining::require_kind(memory, true);
  const Settings& settings = memory.layout.settings;
  const uint32_t allowed = settings.max_held * (reserve ? settings.max_subscribers : 1);
  if (wanted_held > allowed)
    throw Error(Kind::usage, "max_held " + std::to_string(wanted_held) + " is more than the queue's " + std::to_string(allowed));
  const Identity me = joining::identity(name);
  region.recover();
  const std::lock_guard no_fork(no_fork_mutex());
  const Descriptor file = region.open_again(), probe = region.open_again();
  joining::reserve_queue(memory, file, name, reserve);
  // Claims of a consumer that died meanwhile must be back before we claim: older messages go before newer ones.
  if (reserve) recover_all(memory, FileLiveness(probe));
  const auto prepare = [&](uint32_t index) { memory.header().samples.waiters.clear(index - settings.max_publishers); };
  Membership membership = joining::enter(memory, file, {settings.max_publishers, settings.max_subscribers}, me,
                                         "max_consumers", prepare);
  if (reserve) joining::keep_reservation(memory, FileLiveness(probe), name, membership);
  const Consumer::Options options{wanted_held ? wanted_held : allowed, reserve, region.keeps_letters()};
  return std::make_unique<Consumer>(memory, std::move(membership), options);
}

inline bool forget_record(Region& region, const std::string& name) {
  const std::lock_guard no_fork(no_fork_mutex());
  const Descriptor file = region.open_again();
  if (!file.try_lock(byte::record(name))) joining::refuse_record(region.memory(), name);
  const uint32_t record = find_record(region.memory(), name);
  if (record == kNoRecord) return false;
  drop_record(region.memory(), record);
  return true;
}

}  // namespace hawser
