// Joining a topic as a publisher or a subscriber. Whoever joins recovers the dead first, its own former
// self among them, and finds its place among those that are free.
#pragma once

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
  if (!membership)
    throw Error(Kind::full, memory.label + ": all " + std::to_string(range.count) + " places of " + limit +
                                " are taken; close one, or create the topic with a larger " + limit);
  if (memory.closed()) {
    leave(memory, *membership);
    throw Error(Kind::closed, memory.label + ": the topic was deleted; open it again");
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

}  // namespace joining

// `exclusive`: nobody else publishes while this one lives.
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
  Membership membership = joining::enter(memory, file, {0, memory.layout.settings.max_publishers}, me, "max_publishers",
                                         [&](uint32_t index) { memory.header().space.waiters.clear(index); });
  return std::make_unique<Publisher>(memory, region, std::move(membership), name);
}

inline std::unique_ptr<Subscriber> join_as_subscriber(Region& region, const std::string& name,
                                                      const SubscribeOptions& options) {
  joining::check_name(name);
  const Memory& memory = region.memory();
  const Settings& settings = memory.layout.settings;
  const uint32_t max_held = options.max_held ? options.max_held : settings.max_held;
  if (max_held > settings.max_held)
    throw Error(Kind::usage, "max_held " + std::to_string(max_held) + " is more than the topic's " + std::to_string(settings.max_held));
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
  Membership membership = joining::enter(memory, file, {settings.max_publishers, settings.max_subscribers}, me,
                                         "max_subscribers", prepare);
  if (options.reliable && !planted(Canary::join_without_second_look)) joining::settle_start(memory, start);
  if (!options.record.empty() && start.record == kNoRecord) {
    const Descriptor probe = region.open_again();
    start.record = make_record(memory, FileLiveness(probe), options.record, membership.owner(), start.cursor);
    if (start.record == kNoRecord) {
      memory.header().reliable.clear(membership.index - settings.max_publishers);
      leave(memory, membership);
      throw Error(Kind::full, memory.label + ": all " + std::to_string(settings.max_subscribers) +
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
