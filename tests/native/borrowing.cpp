// Slots: who may borrow one, in what order they are tried, and that there is always one.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

static void only_a_free_slot_is_lent() {
  HeapTopic topic;
  const Memory& memory = topic.memory();
  const auto publisher = topic.publisher();
  const uint64_t me = publisher->membership().owner();
  CHECK(try_borrow(memory, 0, me) && !try_borrow(memory, 0, me));
  CHECK(memory.slot(0).state.load_ordered() == me);
  set_idle(memory, 0);
  memory.references(0, 0).set_bits(2);
  CHECK(!try_borrow(memory, 0, me) && memory.slot(0).state.load_ordered() == 0);
  memory.references(0, 0).clear_bits(2);
  memory.slot(0).sequence.store_relaxed(1);
  memory.ring(1).store_ordered(ring_word(1, 0));
  CHECK(carried(memory, 0) && !try_borrow(memory, 0, me) && memory.slot(0).state.load_ordered() == 0);
  memory.ring(1).store_ordered(ring_word(1, 1));
  CHECK(!carried(memory, 0) && try_borrow(memory, 0, me));
}

static void bits_in_every_word_count() {
  Settings settings = small_settings();
  settings.max_subscribers = kMaxSubscribers;
  const HeapTopic topic(settings);
  for (uint32_t bit = 0; bit <= kMaxSubscribers; bit++) {
    topic.memory().references(3, bit / 64).set_bits(uint64_t{1} << bit % 64);
    CHECK(referenced(topic.memory(), 3) && !referenced(topic.memory(), 2) && !referenced(topic.memory(), 4));
    CHECK(!try_borrow(topic.memory(), 3, owner_word(0, 1)));
    topic.memory().references(3, bit / 64).clear_bits(uint64_t{1} << bit % 64);
  }
  CHECK(try_borrow(topic.memory(), 3, owner_word(0, 1)));
}

static void what_was_evicted_is_used_first() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  for (uint64_t i = 1; i <= topic.layout().ring + 1; i++) publish(*publisher, i);
  const uint32_t evicted = 1;  // the slot of sample 1, the first that was lent
  const uint32_t again = publisher->borrow(8, 2);
  CHECK(again == evicted);
  publisher->put_back(again);
  for (uint64_t i = 0; i < 1000; i++) publish(*publisher, i);
  uint32_t used = 0;
  for (uint32_t i = 0; i < topic.layout().slots; i++) used += topic.memory().slot(i).sequence.load_relaxed() != 0;
  CHECK(used <= topic.layout().ring + 2);
}

static void quota_and_size_are_refused_before_anything_changes() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const uint32_t first = publisher->borrow(64, 2), second = publisher->borrow(0, 2);
  CHECK(first != second && publisher->loans() == 2);
  CHECK(THROWN(full, publisher->borrow(1, 2)).find("max_loans") != std::string::npos);
  publisher->put_back(second);
  CHECK(THROWN(usage, publisher->borrow(65, 2)).find("slot_size") != std::string::npos);
  publisher->put_back(first);
  CHECK(publisher->loans() == 0 && count_slots(topic.memory()).lent == 0);
}

static void pages_are_reserved_once() {
  Settings settings = small_settings();
  settings.slot_size = 5 * kPage;
  HeapTopic topic(settings);
  const auto publisher = topic.publisher();
  topic.memory_is_full = true;
  THROWN(full, publisher->borrow(1, 2));
  CHECK(publisher->loans() == 0 && count_slots(topic.memory()).lent == 0);
  topic.memory_is_full = false;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{kPage}, uint64_t{kPage + 1}, settings.slot_size})
    for (uint32_t i = 0; i < 4 * topic.layout().slots; i++) publisher->put_back(publisher->borrow(bytes, 1));
  const uint32_t asked = topic.reserved;
  for (uint32_t i = 0; i < 4 * topic.layout().slots; i++) publisher->put_back(publisher->borrow(settings.slot_size, 1));
  CHECK(topic.reserved == asked);
}

// Everybody holds and borrows all it may: each publisher still finds the slot it publishes with.
static void there_is_always_a_slot() {
  HeapTopic topic;
  const Settings& settings = topic.layout().settings;
  std::vector<std::unique_ptr<Publisher>> publishers;
  std::vector<std::unique_ptr<Subscriber>> subscribers;
  for (uint32_t i = 0; i < settings.max_publishers; i++) publishers.push_back(topic.publisher());
  for (uint32_t i = 0; i < settings.max_subscribers; i++) subscribers.push_back(topic.subscriber());
  THROWN(full, topic.publisher());
  THROWN(full, topic.subscriber());
  Taken taken{};
  for (const auto& subscriber : subscribers)
    for (uint32_t held = 0; held < settings.max_held; held++) {
      do publish(*publishers[0], 1);
      while (count_slots(topic.memory()).carried < topic.layout().ring);
      while (subscriber->cursor() + 1 < next_place(topic.memory()).head && take(*subscriber, taken))
        subscriber->release(taken.slot, taken.sequence);
      CHECK(take(*subscriber, taken));
    }
  for (const auto& publisher : publishers)
    for (uint32_t i = 0; i < settings.max_loans; i++) publisher->borrow(8, settings.max_loans);
  for (uint64_t i = 0; i < 200; i++) CHECK(publish(*publishers[i % settings.max_publishers], i) != 0);
  THROWN(full, subscribers[0]->try_take(taken));
}

static void a_second_view_keeps_the_slot_lent() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const uint32_t slot = publisher->borrow(8, 2);
  CHECK(publisher->try_publish(slot, 8, 0) == 1);
  for (uint64_t i = 0; i < 50; i++) publish(*publisher, i);
  CHECK(topic.memory().slot(slot).state.load_ordered() == publisher->membership().owner());
  CHECK(topic.memory().slot(slot).sequence.load_ordered() == 1);
  publisher->close();
  CHECK(!topic.recover().size() && publisher->closing());
  publisher->put_back(slot);
  publisher->close();
  CHECK(count_slots(topic.memory()).leaked == 0 && count_slots(topic.memory()).lent == 0);
}

int main() {
  return run({{"only a free slot is lent", only_a_free_slot_is_lent},
              {"bits in every word count", bits_in_every_word_count},
              {"what was evicted is used first", what_was_evicted_is_used_first},
              {"quota and size are refused before anything changes", quota_and_size_are_refused_before_anything_changes},
              {"pages are reserved once", pages_are_reserved_once},
              {"there is always a slot", there_is_always_a_slot},
              {"a second view keeps the slot lent", a_second_view_keeps_the_slot_lent}});
}
