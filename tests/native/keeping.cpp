// Records: positions that outlive their holder; and publishers that wait for the reliable and the durable.
#include <thread>

#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

struct Living {
  bool alive(uint32_t) const { return lives; }
  bool lives = true;
};

static void records_are_made_found_and_dropped() {
  HeapTopic topic;
  const Memory& memory = topic.memory();
  const auto holder = topic.subscriber();
  const uint64_t me = holder->membership().owner();
  CHECK(find_record(memory, "a") == kNoRecord);
  const uint32_t first = make_record(memory, Living{}, "a", me, 5), second = make_record(memory, Living{}, "b", me, 6);
  CHECK(first != second && find_record(memory, "a") == first && find_record(memory, "b") == second);
  CHECK(memory.record(first).mark.load_ordered() == 5 && record_name(memory.record(second)) == "b");
  CHECK(make_record(memory, Living{}, "c", me, 0) != kNoRecord && make_record(memory, Living{}, "d", me, 0) == kNoRecord);
  drop_record(memory, first);
  CHECK(find_record(memory, "a") == kNoRecord && make_record(memory, Living{}, "d", me, 9) == first);
  const std::string longest(kRecordNameBytes - 1, 'x');
  drop_record(memory, second);
  CHECK(find_record(memory, longest) == kNoRecord && make_record(memory, Living{}, longest, me, 1) == second);
  CHECK(find_record(memory, longest) == second);
}

static void a_claim_of_the_dead_is_taken_over() {
  HeapTopic topic;
  const Memory& memory = topic.memory();
  const auto other = topic.subscriber();
  const uint64_t claim = record_word(other->membership().owner(), RecordState::claiming);
  for (uint32_t i = 0; i < 3; i++) memory.record(i).word.store_ordered(claim);
  const uint64_t me = owner_word(4, 1);
  CHECK(make_record(memory, Living{true}, "a", me, 1) == kNoRecord);
  CHECK(make_record(memory, Living{false}, "a", me, 1) == 0);
  other->close();
  CHECK(make_record(memory, Living{true}, "b", me, 1) == kNoRecord);
  const auto next = topic.subscriber();  // the same entry, the next incarnation
  CHECK(next->membership().index == 3 && make_record(memory, Living{true}, "b", me, 1) == 1);
  memory.record(2).word.store_ordered(record_word(owner_word(topic.layout().entries, 1), RecordState::claiming));
  THROWN(corrupt, make_record(memory, Living{true}, "c", me, 1));
}

static void the_mark_follows_what_is_released() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const uint32_t record = make_record(topic.memory(), Living{}, "r", owner_word(3, 1), 0);
  const auto subscriber = topic.subscriber(0, false, "subscriber", record);
  const auto mark = [&] { return topic.memory().record(record).mark.load_ordered(); };
  for (uint64_t i = 1; i <= 4; i++) publish(*publisher, i);
  Taken first{}, second{}, third{};
  CHECK(take(*subscriber, first) && mark() == 0 && take(*subscriber, second) && mark() == 0);
  subscriber->release(second.slot, second.sequence);
  CHECK(mark() == 0);
  CHECK(take(*subscriber, third) && mark() == 0);
  subscriber->release(first.slot, first.sequence);
  CHECK(mark() == 2);
  subscriber->release(third.slot, third.sequence);
  CHECK(mark() == 3);
}

static void a_group_commits() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const uint32_t record = make_record(topic.memory(), Living{}, "g", owner_word(3, 1), 0);
  const auto subscriber = topic.subscriber(0, false, "subscriber", record, true);
  for (uint64_t i = 1; i <= 3; i++) publish(*publisher, i);
  Taken taken{};
  CHECK(take(*subscriber, taken) && subscriber->release(taken.slot, taken.sequence));
  CHECK(topic.memory().record(record).mark.load_ordered() == 0);
  subscriber->commit();
  CHECK(topic.memory().record(record).mark.load_ordered() == 1);
  THROWN(usage, topic.subscriber()->commit());
}

static void a_reliable_subscriber_loses_nothing() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber(0, true, "slow one");
  uint64_t published = 0;
  Taken taken{};
  for (uint64_t i = 0; i < 500; i++) {
    published += publish(*publisher, published + 1) != 0;
    CHECK(published - subscriber->cursor() <= topic.layout().ring);
    if (i % 3 != 0) continue;
    CHECK(take(*subscriber, taken) && value_in(topic.memory(), taken.slot) == taken.sequence);
    subscriber->release(taken.slot, taken.sequence);
  }
  CHECK(subscriber->missed() == 0 && publish(*publisher, 0) == 0 && publisher->blocker() && !publisher->ready());
  const auto sleep = [](int64_t) {};
  const uint32_t slot = publisher->borrow(8, 1);
  const std::string text = THROWN(full, publisher->publish(slot, 8, 0, Deadline::in(0), sleep));
  CHECK(text.find("slow one") != std::string::npos);
  subscriber->close();
  CHECK(publisher->publish(slot, 8, 0, Deadline::in(0), sleep) != 0);
}

static void a_durable_position_is_waited_for() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const uint64_t ring = topic.layout().ring;
  const uint32_t record = make_record(topic.memory(), Living{}, "kept", owner_word(3, 1), 0);
  topic.memory().header().durable.set(record);
  for (uint64_t i = 0; i < ring; i++) CHECK(publish(*publisher, i) == i + 1);
  CHECK(publish(*publisher, 0) == 0);
  const uint32_t slot = publisher->borrow(8, 1);
  const std::string text = THROWN(full, publisher->publish(slot, 8, 0, Deadline::in(0), [](int64_t) {}));
  CHECK(text.find("kept") != std::string::npos);
  topic.memory().record(record).mark.store_ordered(1);
  CHECK(publish(*publisher, 0) == ring + 1 && publish(*publisher, 0) == 0);
  topic.memory().record(record).max_lag.store_ordered(ring);
  CHECK(publish(*publisher, 0) == ring + 2);
  drop_record(topic.memory(), record);
  CHECK(publish(*publisher, 0) == ring + 3);
}

static void the_dead_are_not_waited_for() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  auto dying = topic.subscriber(0, true);
  for (uint64_t i = 0; i < topic.layout().ring; i++) publish(*publisher, i);
  CHECK(publish(*publisher, 0) == 0);
  die(dying);
  const uint32_t slot = publisher->borrow(8, 1);
  CHECK(publisher->publish(slot, 8, 0, Deadline::for_ever(), [](int64_t) { std::abort(); }) != 0);
}

static void a_sleeping_publisher_is_woken() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber(0, true);
  std::thread reader([&] {
    Taken taken{};
    for (uint64_t i = 1; i <= 300;) {
      if (!take(*subscriber, taken)) {
        subscriber->wait_for_sample(kSliceNanoseconds);
        continue;
      }
      CHECK(taken.sequence == i && value_in(topic.memory(), taken.slot) == i);
      subscriber->release(taken.slot, taken.sequence);
      i++;
    }
  });
  for (uint64_t i = 1; i <= 300; i++) {
    const uint32_t slot = publisher->borrow(8, 1);
    std::memcpy(publisher->payload(slot), &i, sizeof i);
    const auto sleep = [&](int64_t nanoseconds) { publisher->wait_for_space(nanoseconds); };
    CHECK(publisher->publish(slot, 8, 0, Deadline::for_ever(), sleep) == i);
    publisher->put_back(slot);
    publisher->wake_subscribers();
  }
  reader.join();
  CHECK(subscriber->missed() == 0 && topic.memory().header().samples.waiters.words[0].load_ordered() == 0);
}

int main() {
  return run({{"records are made, found and dropped", records_are_made_found_and_dropped},
              {"a claim of the dead is taken over", a_claim_of_the_dead_is_taken_over},
              {"the mark follows what is released", the_mark_follows_what_is_released},
              {"a group commits", a_group_commits},
              {"a reliable subscriber loses nothing", a_reliable_subscriber_loses_nothing},
              {"a durable position is waited for", a_durable_position_is_waited_for},
              {"the dead are not waited for", the_dead_are_not_waited_for},
              {"a sleeping publisher is woken", a_sleeping_publisher_is_woken}});
}
