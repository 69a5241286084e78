// Runs: many messages the quick way, and what ends them.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

// Values from one on, the quick way; how many went out.
static uint64_t run_of(Publisher& publisher, uint64_t first, size_t count) {
  uint64_t value = 0, published = 0;
  publisher.publish_run(count, 1, published, [&](size_t i) {
    value = first + i;
    return Publisher::Small{&value, sizeof value};
  });
  publisher.wake_subscribers();
  return published;
}
// Once round the ring: every slot in it was evicted, or will be, by this publisher.
static uint64_t go_round(Publisher& publisher) {
  const uint64_t samples = publisher.memory().layout.ring + 1;
  for (uint64_t i = 1; i <= samples; i++) CHECK(publish(publisher, i) == i);
  return samples;
}
static void publish_empty(Publisher& publisher) {
  const uint32_t slot = publisher.borrow(0, 1000);
  CHECK(publisher.try_publish(slot, 0, 0) != 0);
  publisher.put_back(slot);
}
static uint64_t copy_next(Subscriber& subscriber) {
  uint64_t value = 0;
  subscriber.try_copy([&](uint64_t) { return reinterpret_cast<char*>(&value); });
  subscriber.settle();
  return value;
}

static void a_run_is_as_good_as_single_ones() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  CHECK(run_of(*publisher, 1, 3) == 0);  // nothing evicted yet
  const uint64_t before = go_round(*publisher);
  const auto subscriber = topic.subscriber();
  CHECK(run_of(*publisher, before + 1, 3) == 3 && publisher->last() == before + 3 && publisher->loans() == 0);
  for (uint64_t i = before + 1; i <= before + 3; i++) CHECK(copy_next(*subscriber) == i);
  uint64_t values[2] = {}, copied = 0;
  CHECK(publish(*publisher, 70) && run_of(*publisher, 71, 1) == 1);
  const auto room = [&](uint64_t) { return reinterpret_cast<char*>(&values[copied]); };
  subscriber->copy_run(9, room, [&] { copied++; });
  CHECK(copied == 2 && values[0] == 70 && values[1] == 71 && subscriber->received() == 5 && subscriber->missed() == 0);
  CHECK(count_slots(topic.memory()).leaked == 0 && count_slots(topic.memory()).lent == 0);
}

static void others_end_a_run() {
  HeapTopic topic;
  const auto publisher = topic.publisher(), rival = topic.publisher("rival");
  const uint64_t before = go_round(*publisher);
  CHECK(publish(*rival, 1) == before + 1 && run_of(*publisher, 1, 3) == 0);
  CHECK(publish(*publisher, 2) == before + 2 && run_of(*publisher, 3, 1) == 1);
  const auto faithful = topic.subscriber(0, true, "faithful");
  CHECK(run_of(*publisher, 10, 9) == topic.layout().ring);  // then it is in the way
  CHECK(publish(*publisher, 20) == 0 && copy_next(*faithful) == 10 && publish(*publisher, 20) != 0);
  CHECK(run_of(*publisher, 21, 9) == 0 && copy_next(*faithful) == 11 && run_of(*publisher, 21, 9) == 1);
}

static void a_run_needs_memory() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  for (uint32_t i = 0; i <= topic.layout().slots; i++) publish_empty(*publisher);
  CHECK(topic.reserved == 0);
  topic.memory_is_full = true;
  CHECK(run_of(*publisher, 1, 3) == 0 && count_slots(topic.memory()).lent == 0);
  THROWN(full, publish(*publisher, 1));
  topic.memory_is_full = false;
  CHECK(publish(*publisher, 1) != 0 && topic.reserved > 0);
}

static void a_run_forgets_where_letters_came_from() {
  HeapTopic queue(small_queue());
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  for (uint64_t i = 1; i <= queue.layout().ring + 1; i++) CHECK(publish(*producer, i) == i && next_value(*consumer) == i);
  for (uint32_t i = 0; i < queue.layout().slots; i++) queue.memory().origin(i).region.store_relaxed(7);
  CHECK(run_of(*producer, 1, 2) == 2);
  for (uint64_t sequence : {queue.layout().ring + 2, queue.layout().ring + 3})
    CHECK(queue.memory().origin(ring_slot(queue.memory().ring(sequence).load_ordered())).region.load_relaxed() == 0);
}

static void a_run_sees_that_it_is_over() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  go_round(*publisher);
  uint64_t value = 0, published = 0;
  publisher->publish_run(9, 1, published, [&](size_t i) {
    if (i == 1) topic.memory().header().state.word.store_ordered(static_cast<uint64_t>(RegionState::closed));
    return Publisher::Small{&value, sizeof value};
  });
  CHECK(published == 2);
  THROWN(closed, run_of(*publisher, 1, 1));
}

struct Copies {
  std::vector<Claimed> claims;
  uint64_t values[8] = {};
  void get(Consumer& consumer, uint64_t count) {
    consumer.look_ahead();
    consumer.claim_run(count, claims, [&](uint64_t) { return reinterpret_cast<char*>(&values[claims.size() - 1]); }, [] {});
    consumer.settle();
  }
};

static void many_are_claimed_in_order() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer(), other = queue.consumer("other");
  for (uint64_t i = 1; i <= 7; i++) publish(*producer, i);
  CHECK(next_value(*consumer) == 1);
  Claimed claimed{};
  CHECK(next_value(*other) == 2 && claim(*other, claimed) && value_of(*other, claimed) == 3);
  Copies copies;
  copies.get(*consumer, 9);  // behind what others have had it ends before it begins
  CHECK(copies.claims.empty() && next_value(*consumer) == 4);
  copies.get(*consumer, 2);
  CHECK(copies.claims.size() == 2 && copies.values[0] == 5 && copies.values[1] == 6 && consumer->held() == 2);
  CHECK(release(*other, claimed));
  copies.get(*consumer, 9);  // what came back goes first, and not in a run
  CHECK(copies.claims.size() == 2 && next_value(*consumer) == 3 && next_value(*consumer) == 7);
  for (const Claimed& one : copies.claims) CHECK(consumer->accept(one)), consumer->let_go_of_copy();
  CHECK(consumer->held() == 0 && view_queue(queue.memory()).ready == 0);
}

static void damage_leaves_no_claim() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  for (uint64_t i = 1; i <= 4; i++) publish(*producer, i);
  CHECK(next_value(*consumer) == 1);
  Word& check = queue.memory().slot(ring_slot(queue.memory().ring(3).load_ordered())).check;
  check.store_relaxed(check.load_relaxed() ^ 1);
  Copies copies;
  THROWN(corrupt, copies.get(*consumer, 9));
  CHECK(copies.claims.size() == 1 && copies.values[0] == 2 && consumer->held() == 1);
}

int main() {
  return run({{"a run is as good as single ones", a_run_is_as_good_as_single_ones},
              {"others end a run", others_end_a_run},
              {"a run needs memory", a_run_needs_memory},
              {"a run forgets where letters came from", a_run_forgets_where_letters_came_from},
              {"a run sees that it is over", a_run_sees_that_it_is_over},
              {"many are claimed in order", many_are_claimed_in_order},
              {"damage leaves no claim", damage_leaves_no_claim}});
}
