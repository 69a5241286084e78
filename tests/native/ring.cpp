// The ring: tags, laps, the head, and sequences that outgrow the 48 bits of a tag.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

constexpr uint64_t kWrap = uint64_t{1} << 48;

static void tags_name_the_nearest_sequence() {
  for (const uint64_t near : {uint64_t{1} << 47, kWrap - 2, kWrap, kWrap + 3, 5 * kWrap - 1, 9 * kWrap + 7})
    for (uint64_t distance = 0; distance < 2000; distance++) {
      CHECK(sequence_of(tag_of(near + distance), near) == near + distance);
      CHECK(sequence_of(tag_of(near - distance), near) == near - distance);
    }
  CHECK(ring_tag(ring_word(kWrap + 5, 9)) == 5 && ring_slot(ring_word(kWrap + 5, 9)) == 9);
  CHECK(last_lap_tag(4, 4) == 0 && last_lap_tag(5, 4) == 1 && last_lap_tag(kWrap + 1, 4) == kWrap - 3);
  CHECK(oldest_after(0, 4) == 1 && oldest_after(4, 4) == 1 && oldest_after(5, 4) == 2);
}

static void sequences_are_dense_from_one() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  for (uint64_t i = 1; i <= 50; i++) {
    CHECK(publish(*publisher, i) == i);
    CHECK(next_place(topic.memory()).head == i);
  }
}

// Somebody was killed between the commit and the head: the sample is there and the next comer moves the head.
static void a_head_left_behind_is_helped() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  for (uint64_t i = 1; i <= 9; i++) {
    CHECK(publish(*publisher, i) == i);
    topic.memory().head().store_ordered(i - 1);
    Taken taken{};
    CHECK(take(*subscriber, taken) && taken.sequence == i && value_in(topic.memory(), taken.slot) == i);
    subscriber->release(taken.slot, taken.sequence);
    if (i % 3 == 0) CHECK(cursor_for_history(topic.memory(), next_place(topic.memory()).head, 1) == i - 1);
  }
}

static void a_foreign_word_is_damage() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  publish(*publisher, 1);
  topic.memory().ring(2).store_ordered(ring_word(77, 1));
  THROWN(corrupt, publish(*publisher, 2));
  topic.memory().ring(1).store_ordered(ring_word(1, topic.layout().slots));
  Taken taken{};
  THROWN(corrupt, take(*subscriber, taken));
  CHECK(subscriber->held() == 0);
}

static void publish_and_take_across_the_wrap(uint64_t start, uint32_t lag) {
  HeapTopic topic;
  topic.start_at(start);
  const auto publisher = topic.publisher();
  const auto prompt = topic.subscriber();
  const auto lapped = topic.subscriber();
  const uint64_t ring = topic.layout().ring;
  for (uint64_t i = start + 1; i <= start + 40; i++) {
    CHECK(publish(*publisher, i * 3) == i);
    Taken taken{};
    CHECK(take(*prompt, taken) && taken.sequence == i && value_in(topic.memory(), taken.slot) == i * 3);
    prompt->release(taken.slot, taken.sequence);
    CHECK(!take(*prompt, taken));
    if ((i - start) % lag != 0) continue;
    const uint64_t expected = std::max(lapped->cursor() + 1, i - ring + 1);
    CHECK(take(*lapped, taken) && taken.sequence == expected && value_in(topic.memory(), taken.slot) == expected * 3);
    CHECK(lapped->received() + lapped->missed() == expected - start);
    lapped->release(taken.slot, taken.sequence);
  }
  CHECK(prompt->missed() == 0 && prompt->received() == 40);
  const ReadSamples read = read_newest(topic.memory(), 100, 0);
  CHECK(read.samples.size() == ring && read.last == start + 40 && read.missed == start + 40 - ring);
  CHECK(count_slots(topic.memory()).carried == ring && count_slots(topic.memory()).leaked == 0);
}

static void tags_wrap() {
  for (const uint32_t lag : {1u, 2u, 5u, 9u})
    for (const uint64_t before : {20u, 4u, 1u, 0u}) {
      publish_and_take_across_the_wrap(kWrap - before, lag);
      publish_and_take_across_the_wrap(3 * kWrap - before, lag);
    }
}

static void reliable_waits_hold_across_the_wrap() {
  HeapTopic topic;
  topic.start_at(kWrap - 2);
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber(0, true);
  const uint64_t ring = topic.layout().ring;
  for (uint64_t i = 0; i < ring; i++) CHECK(publish(*publisher, i) == kWrap - 1 + i);
  CHECK(publish(*publisher, 0) == 0);
  Taken taken{};
  CHECK(take(*subscriber, taken) && taken.sequence == kWrap - 1);
  CHECK(publish(*publisher, 0) == kWrap - 1 + ring);
}

int main() {
  return run({{"tags name the nearest sequence", tags_name_the_nearest_sequence},
              {"sequences are dense from one", sequences_are_dense_from_one},
              {"a head left behind is helped", a_head_left_behind_is_helped},
              {"a foreign word is damage", a_foreign_word_is_damage},
              {"tags wrap", tags_wrap},
              {"reliable waits hold across the wrap", reliable_waits_hold_across_the_wrap}});
}
