// Taking: order, laps counted exactly, quotas, damage that is noticed.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

static void history_is_a_cursor() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  for (uint64_t i = 1; i <= 10; i++) publish(*publisher, i);
  for (const uint64_t history : {0u, 1u, 2u, 3u, 100u}) {
    const auto subscriber = topic.subscriber(history);
    const uint64_t kept = std::min<uint64_t>(history, topic.layout().settings.history);
    CHECK(subscriber->cursor() == 10 - kept);
    Taken taken{};
    for (uint64_t i = 10 - kept + 1; i <= 10; i++) {
      CHECK(take(*subscriber, taken) && taken.sequence == i && value_in(topic.memory(), taken.slot) == i);
      subscriber->release(taken.slot, taken.sequence);
    }
    CHECK(!take(*subscriber, taken));
    subscriber->close();
  }
}

// A subscriber that takes every `step` publishes: whatever it skipped is counted, and told with the next sample.
static void laps_are_counted(uint32_t ring, uint32_t step) {
  Settings settings = small_settings();
  settings.history = 0;
  settings.depth = ring;
  HeapTopic topic(settings);
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  uint64_t expected = 0, told = 0;
  for (uint64_t head = 1; head <= 200; head++) {
    publish(*publisher, head);
    if (head % step != 0) continue;
    Taken taken{};
    const uint64_t oldest = std::max(expected + 1, oldest_after(head, ring));
    CHECK(take(*subscriber, taken) && taken.sequence == oldest && value_in(topic.memory(), taken.slot) == oldest);
    CHECK(taken.lost_before == oldest - expected - 1);
    told += taken.lost_before;
    expected = oldest;
    CHECK(subscriber->missed() == told && subscriber->received() + subscriber->missed() == expected);
    subscriber->release(taken.slot, taken.sequence);
  }
  const Entry& entry = topic.memory().entry(subscriber->membership().index);
  CHECK(entry.count.load_relaxed() == subscriber->received() && entry.missed.load_relaxed() == told);
  CHECK(entry.cursor.load_relaxed() == expected);
}

static void every_lap_is_counted() {
  for (const uint32_t ring : {1u, 2u, 3u, 4u, 7u})
    for (const uint32_t step : {1u, 2u, 3u, 4u, 5u, 8u, 13u, 50u}) laps_are_counted(ring, step);
}

static void held_samples_do_not_change() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  Taken first{}, second{}, third{};
  publish(*publisher, 111);
  publish(*publisher, 222);
  CHECK(take(*subscriber, first) && take(*subscriber, second));
  for (uint64_t i = 0; i < 100; i++) publish(*publisher, i);
  CHECK(value_in(topic.memory(), first.slot) == 111 && value_in(topic.memory(), second.slot) == 222);
  CHECK(THROWN(full, subscriber->try_take(third)).find("max_held") != std::string::npos);
  CHECK(subscriber->release(first.slot, first.sequence) && take(*subscriber, third));
  CHECK(subscriber->held() == 2 && subscriber->free_places() == 0);
}

// Putting back is for the last one, as long as nobody was told of it and nobody has committed it.
static void what_is_put_back_is_taken_again() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  for (uint64_t i = 1; i <= 2; i++) publish(*publisher, i);
  Taken first{}, second{}, again{};
  CHECK(subscriber->try_take(first) && subscriber->try_take(second));
  CHECK(!subscriber->put_back(first) && subscriber->cursor() == 2);
  CHECK(subscriber->put_back(second) && subscriber->put_back(first) && subscriber->received() == 0);
  CHECK(subscriber->release(first.slot, first.sequence) && subscriber->release(second.slot, second.sequence));
  CHECK(subscriber->try_take(again) && again.sequence == 1);
  subscriber->settle();
  CHECK(!subscriber->put_back(again) && subscriber->cursor() == 1 && subscriber->release(again.slot, 1));
  CHECK(subscriber->try_take(again) && again.sequence == 2);
  subscriber->close();
  CHECK(!subscriber->put_back(again) && subscriber->release(again.slot, 2));
}

static void copies_need_no_bit() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  uint64_t copied = 0;
  const auto room = [&](uint64_t bytes) { return bytes == 8 ? reinterpret_cast<char*>(&copied) : nullptr; };
  CHECK(subscriber->try_copy(room) == Subscriber::Copy::nothing);
  for (uint64_t i = 1; i <= 50; i++) {
    publish(*publisher, i * 5);
    if (i % 7 == 0) continue;
    CHECK(subscriber->try_copy(room) == Subscriber::Copy::copied && copied == subscriber->cursor() * 5);
    CHECK(subscriber->held() == 0 && count_slots(topic.memory()).referenced == 0);
    CHECK(subscriber->received() + subscriber->missed() == subscriber->cursor());
  }
  const auto nowhere = [](uint64_t) -> char* { return nullptr; };
  const uint64_t cursor = subscriber->cursor();
  CHECK(subscriber->try_copy(nowhere) == Subscriber::Copy::left && subscriber->cursor() == cursor);
}

static void copies_may_have_their_metadata() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  const uint32_t slot = publisher->borrow(12, 2);
  std::memcpy(publisher->payload(slot), "payloadextra", 12);
  publisher->try_publish(slot, 7, 5);
  publisher->put_back(slot);
  char payload[8] = {}, metadata[8] = {};
  Copyable seen{};
  const auto left = [&](const Copyable& found) { seen = found; return CopyPlaces{}; };
  CHECK(subscriber->try_copy_whole(left) == Subscriber::Copy::left && subscriber->cursor() == 0);
  CHECK(seen.sequence == 1 && seen.payload == 7 && seen.metadata == 5 && seen.timestamp_ns != 0);
  const auto both = [&](const Copyable&) { return CopyPlaces{payload, metadata}; };
  CHECK(subscriber->try_copy_whole(both) == Subscriber::Copy::copied && subscriber->cursor() == 1);
  CHECK(std::string(payload) == "payload" && std::string(metadata) == "extra" && subscriber->head() == 1);
}

static void metadata_and_author_travel_along() {
  HeapTopic topic;
  const auto publisher = topic.publisher("somebody");
  const auto subscriber = topic.subscriber();
  const uint32_t slot = publisher->borrow(24, 2);
  publisher->try_publish(slot, 16, 8);
  publisher->put_back(slot);
  Taken taken{};
  CHECK(take(*subscriber, taken) && taken.payload == 16 && taken.metadata == 8 && taken.timestamp_ns != 0);
  CHECK(taken.publisher == publisher->membership().owner());
  std::string name;
  CHECK(read_name(topic.memory(), taken.slot, taken.publisher, name) && name == "somebody");
  CHECK(!read_name(topic.memory(), taken.slot, taken.publisher + 1, name));
  topic.memory().slot(taken.slot).name[0] = 'x';
  CHECK(!read_name(topic.memory(), taken.slot, taken.publisher, name));
}

static void damage_is_noticed() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  publish(*publisher, 1);
  Slot& slot = topic.memory().slot(ring_slot(topic.memory().ring(1).load_ordered()));
  for (Word* word : {&slot.lengths, &slot.timestamp_ns, &slot.publisher, &slot.sequence, &slot.check}) {
    const uint64_t before = word->load_ordered();
    Taken taken{};
    for (const uint64_t flip : {uint64_t{1}, uint64_t{1} << 24, uint64_t{1} << 63}) {
      word->store_ordered(before ^ flip);
      THROWN(corrupt, subscriber->try_take(taken));
      CHECK(subscriber->held() == 0 && subscriber->received() == 0 && slot.references.load_ordered() == 0);
    }
    word->store_ordered(before);
  }
  Taken taken{};
  CHECK(take(*subscriber, taken));
  slot.references.store_ordered(0);
  CHECK(!subscriber->release(taken.slot, taken.sequence));
}

static void closed_is_closed() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  publish(*publisher, 5);
  Taken taken{}, more{};
  CHECK(take(*subscriber, taken));
  subscriber->close();
  THROWN(closed, subscriber->try_take(more));
  CHECK(entry_state(topic.memory().entry(3).word.load_ordered()) == EntryState::active);
  for (uint64_t i = 0; i < 50; i++) publish(*publisher, i);
  CHECK(value_in(topic.memory(), taken.slot) == 5);
  CHECK(subscriber->release(taken.slot, taken.sequence));
  subscriber->close();
  CHECK(entry_state(topic.memory().entry(3).word.load_ordered()) == EntryState::free);
  topic.memory().header().state.word.store_ordered(static_cast<uint64_t>(RegionState::closed));
  THROWN(closed, publish(*publisher, 1));
  THROWN(closed, topic.subscriber());
}

// More subscribers than one word has bits: each has a bit of its own.
static void two_hundred_and_fifty_six_subscribers() {
  Settings settings = small_settings();
  settings.max_subscribers = kMaxSubscribers;
  settings.max_held = 1;
  HeapTopic topic(settings);
  const auto publisher = topic.publisher();
  std::vector<std::unique_ptr<Subscriber>> subscribers;
  for (uint32_t i = 0; i < kMaxSubscribers; i++) subscribers.push_back(topic.subscriber());
  THROWN(full, topic.subscriber());
  publish(*publisher, 99);
  Taken taken{};
  for (const auto& subscriber : subscribers) CHECK(take(*subscriber, taken) && value_in(topic.memory(), taken.slot) == 99);
  for (uint64_t i = 0; i < 20; i++) publish(*publisher, i);
  for (const auto& subscriber : subscribers) {
    CHECK(value_in(topic.memory(), taken.slot) == 99 && !try_borrow(topic.memory(), taken.slot, owner_word(1, 1)));
    CHECK(subscriber->release(taken.slot, 1));
  }
  CHECK(!referenced(topic.memory(), taken.slot));
}

int main() {
  return run({{"history is a cursor", history_is_a_cursor},
              {"every lap is counted", every_lap_is_counted},
              {"held samples do not change", held_samples_do_not_change},
              {"what is put back is taken again", what_is_put_back_is_taken_again},
              {"copies need no bit", copies_need_no_bit},
              {"copies may have their metadata", copies_may_have_their_metadata},
              {"metadata and author travel along", metadata_and_author_travel_along},
              {"damage is noticed", damage_is_noticed},
              {"closed is closed", closed_is_closed},
              {"256 subscribers", two_hundred_and_fifty_six_subscribers}});
}
