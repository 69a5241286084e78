// Where everything is: positions, offsets, limits.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

static Settings with_ring(uint32_t history, uint32_t depth) {
  Settings settings = small_settings();
  settings.history = history;
  settings.depth = depth;
  return settings;
}

static void position_is_the_remainder() {
  std::vector<uint32_t> rings = {127, 128, 129, 255, 256, 257, 1000, 4096, 32767, 32768, 60000, 65000, 65511};
  for (uint32_t ring = 1; ring <= 70; ring++) rings.push_back(ring);
  for (const uint32_t ring : rings) {
    const Layout layout(with_ring(0, ring));
    CHECK(layout.ring == ring);
    uint64_t random = ring;
    for (uint32_t i = 0; i < 2000; i++) {
      random = mix(random, i);
      for (const uint64_t sequence : {uint64_t{i}, random, random >> 16, random >> 17, random >> 40, kTagMask - i,
                                      kTagMask + i, ~uint64_t{0} - i, kTagMask / ring * ring - i, kTagMask / ring * ring})
        CHECK(layout.position(sequence) == sequence % ring);
    }
    CHECK(layout.position(kTagMask) == kTagMask % ring);
  }
}

static void parts_follow_each_other() {
  for (const uint32_t subscribers : {1u, 62u, 63u, 64u, 255u, 256u})
    for (const uint64_t slot_size : {uint64_t{1}, uint64_t{64}, uint64_t{65}, uint64_t{4096}, kMaxSlotSize}) {
      Settings settings = small_settings();
      settings.max_subscribers = subscribers;
      settings.slot_size = slot_size;
      const Layout layout(settings);
      CHECK(layout.slots == 4 + (subscribers + 1) * 2 + 3 * 3);
      CHECK(layout.entries == 3 + subscribers + 1);
      CHECK(layout.bit_words * 64 > subscribers && layout.bit_words <= kBitWords);
      CHECK(layout.entries_at >= sizeof(Header) && layout.entries_at % 64 == 0);
      CHECK(layout.records_at >= layout.entries_at + layout.entries * sizeof(Entry));
      CHECK(layout.ring_at >= layout.records_at + subscribers * sizeof(Record));
      CHECK(layout.slots_at >= layout.ring_at + layout.ring * sizeof(Word) && layout.slots_at % 64 == 0);
      CHECK(layout.payloads_at >= layout.slots_at + uint64_t{layout.slots} * layout.slot_bytes);
      CHECK(layout.payloads_at % kPage == 0 && layout.total % kPage == 0);
      CHECK(layout.payload_bytes >= slot_size && layout.payload_bytes % 64 == 0);
      CHECK((layout.total - layout.payloads_at) / layout.payload_bytes >= layout.slots);
    }
}

static void limits_are_refused() {
  const auto refused = [](auto member, auto value) {
    Settings settings = small_settings();
    settings.*member = value;
    THROWN(usage, Layout{settings});
  };
  refused(&Settings::slot_size, 0);
  refused(&Settings::slot_size, kMaxSlotSize + 1);
  refused(&Settings::depth, 0);
  refused(&Settings::max_publishers, 0);
  refused(&Settings::max_publishers, kMaxPublishers + 1);
  refused(&Settings::max_subscribers, 0);
  refused(&Settings::max_subscribers, kMaxSubscribers + 1);
  refused(&Settings::max_held, 0);
  refused(&Settings::max_loans, 0);
  refused(&Settings::ephemeral, 2);
  refused(&Settings::group, 2);
  refused(&Settings::history, kMaxSlots);
  refused(&Settings::history, UINT32_MAX);
  refused(&Settings::max_held, UINT32_MAX);
  refused(&Settings::max_loans, UINT32_MAX);
  const uint32_t others = Layout(with_ring(0, 1)).slots - 1;
  CHECK(Layout(with_ring(kMaxSlots - others - 1, 1)).slots == kMaxSlots);
  THROWN(usage, Layout(with_ring(kMaxSlots - others, 1)));
}

static void a_queue_has_more_and_less() {
  const Layout topic(small_settings()), queue(small_queue(4));
  CHECK(!topic.queue && queue.queue && queue.slot_bytes == topic.slot_bytes + sizeof(Origin));
  CHECK(queue.ring == 4 && queue.origin_at == sizeof(Slot));
  Settings many = small_queue(4);
  many.max_subscribers = 200;
  CHECK(Layout(many).origin_at == sizeof(Slot) + sizeof(MoreReferences));
  const auto refuse = [](Settings settings, auto member, auto value) {
    settings.*member = value;
    THROWN(usage, Layout{settings});
  };
  refuse(small_settings(), &Settings::kind, 3u);
  refuse(small_settings(), &Settings::max_deliveries, 1u);
  refuse(small_settings(), &Settings::lease_ns, 1u);
  refuse(small_queue(4), &Settings::history, 1u);
  refuse(small_queue(4), &Settings::max_deliveries, kMaxDeliveries + 1);
  CHECK(Layout(small_queue(4, 1)).hash() != queue.hash() && Layout(small_queue(4, 0, 1)).hash() != queue.hash());
}

static void hash_tells_settings_apart() {
  const uint64_t hash = Layout(small_settings()).hash();
  const auto differs = [&](auto member) {
    Settings settings = small_settings();
    settings.*member = settings.*member == 0 ? 1 : settings.*member + 1;
    return Layout(settings).hash() != hash;
  };
  CHECK(Layout(small_settings()).hash() == hash);
  CHECK(differs(&Settings::slot_size) && differs(&Settings::history) && differs(&Settings::depth));
  CHECK(differs(&Settings::max_publishers) && differs(&Settings::max_subscribers));
  CHECK(differs(&Settings::max_held) && differs(&Settings::max_loans));
  CHECK(differs(&Settings::ephemeral) && differs(&Settings::group));
}

static void words_keep_what_is_packed() {
  const uint64_t owner = owner_word(511, 77);
  CHECK(owner_index(owner) == 511 && owner_incarnation(owner) == 77 && owner_word(0, 0) != 0);
  const uint64_t word = entry_word(77, EntryState::dead);
  CHECK(entry_incarnation(word) == 77 && entry_state(word) == EntryState::dead);
  const uint64_t lengths = pack_lengths(kMaxSlotSize - 1, kMaxMetadata);
  CHECK(payload_length(lengths) == kMaxSlotSize - 1 && metadata_length(lengths) == kMaxMetadata);
  const HeapTopic topic;
  CHECK(backed_pages(topic.memory(), 0) == 0);
  CHECK(backed_pages(topic.memory(), pack_backed(kMaxSlotSize / kPage)) == kMaxSlotSize / kPage);
  THROWN(corrupt, backed_pages(topic.memory(), pack_backed(3) ^ 1));
  CHECK(slot_check(1, 2, 3, 4) != slot_check(1, 2, 3, 5) && slot_check(1, 2, 3, 4) != slot_check(2, 1, 3, 4));
}

int main() {
  return run({{"position is the remainder", position_is_the_remainder},
              {"parts follow each other", parts_follow_each_other},
              {"limits are refused", limits_are_refused},
              {"a queue has more and less", a_queue_has_more_and_less},
              {"hash tells settings apart", hash_tells_settings_apart},
              {"words keep what is packed", words_keep_what_is_packed}});
}
