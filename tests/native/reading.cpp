// Reading the history by copies, and positions kept under a name.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

static uint64_t value_of(const Copied& copied) {
  uint64_t value = 0;
  std::memcpy(&value, copied.payload.data(), std::min(sizeof value, copied.payload.size()));
  return value;
}

static void check_samples(const ReadSamples& read, uint64_t first, uint64_t last) {
  CHECK(read.samples.size() == last + 1 - first && read.last == last);
  for (uint64_t i = first; i <= last; i++) {
    const Copied& copied = read.samples[i - first];
    CHECK(copied.sequence == i && value_of(copied) == i * 7 && copied.name == "author" && copied.metadata.empty());
  }
}

static void the_ring_is_read_in_order() {
  HeapTopic topic;
  const auto publisher = topic.publisher("author");
  const uint64_t ring = topic.layout().ring;
  CHECK(read_oldest(topic.memory(), 5, 0).samples.empty() && read_newest(topic.memory(), 5, 0).samples.empty());
  for (uint64_t head = 1; head <= 12; head++) {
    publish(*publisher, head * 7);
    const uint64_t oldest = oldest_after(head, static_cast<uint32_t>(ring));
    check_samples(read_oldest(topic.memory(), 100, 0), oldest, head);
    check_samples(read_newest(topic.memory(), 100, 0), oldest, head);
    check_samples(read_newest(topic.memory(), 1, 0), head, head);
    check_samples(read_oldest(topic.memory(), 1, 0), oldest, oldest);
    CHECK(read_oldest(topic.memory(), 100, 0).missed == oldest - 1);
    CHECK(read_newest(topic.memory(), 1, 0).missed == head - 1);
    CHECK(read_newest(topic.memory(), 1, head - 1).missed == 0);
    CHECK(read_oldest(topic.memory(), 5, head).samples.empty());
    THROWN(out_of_range, read_oldest(topic.memory(), 5, head + 1));
  }
}

static void reading_goes_on_where_it_stopped() {
  HeapTopic topic;
  const auto publisher = topic.publisher("author");
  uint64_t last = 0, seen = 0, missed = 0;
  for (uint64_t head = 1; head <= 100; head++) {
    publish(*publisher, head * 7);
    if (head % 3 != 0 && head % 7 != 0) continue;
    const ReadSamples read = read_oldest(topic.memory(), 3, last);
    seen += read.samples.size();
    missed += read.missed;
    last = read.last;
    CHECK(seen + missed == last);
  }
}

static void times_lead_to_offsets() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  CHECK(offset_at(topic.memory(), 0) == 1);
  for (uint64_t i = 1; i <= 9; i++) publish(*publisher, i);
  const uint64_t kept = topic.layout().settings.history;
  CHECK(offset_at(topic.memory(), 0) == 9 - kept + 1);
  CHECK(offset_at(topic.memory(), ~uint64_t{0}) == 10);
  Copied copied{};
  CHECK(read_sample(topic.memory(), 9, copied) && offset_at(topic.memory(), copied.timestamp_ns) <= 9);
}

static void damage_is_not_passed_off_as_a_sample() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  publish(*publisher, 1);
  const uint32_t index = ring_slot(topic.memory().ring(1).load_ordered());
  Slot& slot = topic.memory().slot(index);
  Copied copied{};
  for (Word* word : {&slot.lengths, &slot.timestamp_ns, &slot.publisher, &slot.check, &topic.memory().name_check(index)}) {
    const uint64_t before = word->load_ordered();
    word->store_ordered(before ^ 1);
    THROWN(corrupt, read_sample(topic.memory(), 1, copied));
    word->store_ordered(before);
  }
  CHECK(read_sample(topic.memory(), 1, copied) && !read_sample(topic.memory(), 2, copied));
  topic.memory().ring(1).store_ordered(ring_word(1, topic.layout().slots));
  THROWN(corrupt, read_sample(topic.memory(), 1, copied));
}

static void copies_of_every_length() {
  alignas(8) uint8_t from[64];
  for (uint8_t i = 0; i < sizeof from; i++) from[i] = static_cast<uint8_t>(i * 37 + 1);
  for (size_t size = 0; size <= sizeof from; size++) {
    std::string to(size, '\0');
    copy_racing(to.data(), from, size);
    CHECK(std::memcmp(to.data(), from, size) == 0);
  }
}

int main() {
  return run({{"the ring is read in order", the_ring_is_read_in_order},
              {"reading goes on where it stopped", reading_goes_on_where_it_stopped},
              {"times lead to offsets", times_lead_to_offsets},
              {"damage is not passed off as a sample", damage_is_not_passed_off_as_a_sample},
              {"copies of every length", copies_of_every_length}});
}
