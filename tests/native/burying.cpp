// Dead letters: moved once, wherever a mover dies, and back.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

constexpr uint64_t kHome = 17, kLetters = 18;  // what the regions call each other

static Description as_it_is(const Taken&, uint64_t, const std::string& metadata) { return {true, metadata}; }

struct Two {
  HeapTopic queue, letters;
  std::unique_ptr<Publisher> producer = queue.publisher(), writer = letters.publisher("mover");
  std::unique_ptr<Consumer> consumer = queue.consumer(), reader = letters.consumer("reader");

  explicit Two(uint32_t max_deliveries = 0, uint32_t room = 8) : queue(small_queue(8, max_deliveries)), letters(small_queue(room)) {}

  uint64_t bury() { return bury_with(*consumer, *writer); }
  static uint64_t bury_with(Consumer& from, Publisher& to) {
    Mover mover(from, kHome, to, ClaimState::burying);
    mover.move(UINT64_MAX, as_it_is);
    return mover.moved();
  }
  uint64_t retry(uint64_t count = UINT64_MAX) {
    Mover mover(*reader, kLetters, *producer, ClaimState::reviving);
    mover.move(count, as_it_is);
    return mover.moved();
  }
  // Message `value`, put and rejected.
  Claimed rejected(uint64_t value) {
    publish(*producer, value);
    Claimed claimed{};
    CHECK(claim(*consumer, claimed) && value_of(*consumer, claimed) == value && reject(*consumer, claimed));
    return claimed;
  }
  // Nothing is left half-way, and everything can be used.
  void check_all_is_over() {
    for (const HeapTopic* one : {&queue, &letters}) {
      const SlotCounts counts = count_slots(one->memory());
      CHECK(counts.leaked == 0 && counts.lent == 0 && counts.kept == 0 && counts.referenced == 0);
      CHECK(view_queue(one->memory()).pinned == 0);
    }
  }
};

static void rejected_ones_are_buried() {
  Two two;
  two.rejected(5);
  two.rejected(6);
  CHECK(two.consumer->found_dying() && !two.consumer->found_dying() && next_value(*two.consumer) == 0);
  CHECK(two.bury() == 2 && two.bury() == 0 && view_queue(two.queue.memory()).dying == 0);
  CHECK(next_value(*two.reader) == 5 && next_value(*two.reader) == 6 && next_value(*two.reader) == 0);
  two.check_all_is_over();
}

static void the_last_delivery_is_the_last() {
  Two two(2);
  publish(*two.producer, 9);
  Claimed claimed{};
  for (uint32_t i = 1; i <= 2; i++) {
    CHECK(claim(*two.consumer, claimed) && claim_deliveries(claimed.claim) == i);
    CHECK(two.bury() == 0 && release(*two.consumer, claimed));
  }
  CHECK(!claim(*two.consumer, claimed) && two.consumer->found_dying());
  uint32_t told = 0;
  Mover mover(*two.consumer, kHome, *two.writer, ClaimState::burying);
  mover.move(9, [&](const Taken& taken, uint64_t word, const std::string&) {
    told = claim_deliveries(word);
    CHECK(taken.sequence == 1);
    return Description{true, "because"};
  });
  CHECK(told == 2 && claim(*two.reader, claimed) && claimed.metadata == 7 && claimed.payload == 8);
  CHECK(accept(*two.reader, claimed));
  two.check_all_is_over();
}

static void letters_go_back() {
  Two two;
  for (uint64_t i = 1; i <= 4; i++) two.rejected(i);
  two.bury();
  Claimed claimed{};
  CHECK(claim(*two.reader, claimed) && two.retry(2) == 2);  // what somebody holds is left alone
  CHECK(next_value(*two.consumer) == 2 && next_value(*two.consumer) == 3 && next_value(*two.consumer) == 0);
  CHECK(release(*two.reader, claimed) && two.retry() == 2 && next_value(*two.consumer) == 1);
  CHECK(claim(*two.consumer, claimed) && value_of(*two.consumer, claimed) == 4 && !claimed.redelivered);
  CHECK(accept(*two.consumer, claimed) && two.retry() == 0);
  two.check_all_is_over();
}

static void only_those_that_are_wanted() {
  Two two;
  for (uint64_t i = 1; i <= 3; i++) two.rejected(i);
  two.bury();
  Mover mover(*two.reader, kLetters, *two.producer, ClaimState::reviving);
  mover.move(9, [](const Taken& taken, uint64_t, const std::string&) { return Description{taken.sequence == 2, ""}; });
  CHECK(mover.moved() == 1 && next_value(*two.consumer) == 2);
  Claimed claimed{};
  CHECK(claim(*two.reader, claimed) && claimed.sequence == 1 && !claimed.redelivered && accept(*two.reader, claimed));
  CHECK(next_value(*two.reader) == 3);
  two.check_all_is_over();
}

static void a_full_queue_of_letters() {
  Two two(0, 1);
  two.rejected(5);
  two.rejected(6);
  CHECK(two.bury() == 1 && two.bury() == 0 && view_queue(two.queue.memory()).dying == 1);
  CHECK(view_queue(two.letters.memory()).pinned == 0 && two.writer->loans() == 0);
  CHECK(next_value(*two.reader) == 5 && two.bury() == 1 && next_value(*two.reader) == 6);
  two.check_all_is_over();
}

static void what_does_not_fit() {
  Settings narrow = small_queue(8);
  narrow.slot_size = 8;
  HeapTopic letters(narrow);
  const auto writer = letters.publisher();
  const auto reader = letters.consumer();
  Two two;
  two.rejected(5);
  const uint32_t slot = two.producer->borrow(64, 9);
  two.producer->try_publish(slot, 64, 0);
  two.producer->put_back(slot);
  Claimed claimed{};
  CHECK(claim(*two.consumer, claimed) && reject(*two.consumer, claimed));
  two.rejected(7);
  Mover mover(*two.consumer, kHome, *writer, ClaimState::burying);
  mover.move(9, [](const Taken&, uint64_t, const std::string&) { return Description{true, "words"}; });
  CHECK(mover.moved() == 2 && mover.too_large() == 1 && view_queue(two.queue.memory()).dying == 1);
  CHECK(next_value(*reader) == 5 && next_value(*reader) == 7);
}

// A mover dies with message `rejected`, and with what it has done so far; another one goes on.
template <class Done>
static void killed_after(const Done& done) {
  Two two;
  const Claimed rejected = two.rejected(5);
  Word& claim = two.queue.memory().claim(rejected.slot);
  const uint64_t burying = claim_as(claim.load_ordered(), ClaimState::done) |
                           claim_signature(two.consumer->bit(), two.consumer->membership().incarnation, ClaimState::burying);
  done(two, claim, burying);
  die(two.consumer);
  die(two.writer);
  two.queue.recover();
  two.letters.recover();
  CHECK(!claim_accounted_for(two.queue.memory(), burying));
  const auto consumer = two.queue.consumer("another");
  const auto writer = two.letters.publisher("another");
  CHECK(next_value(*consumer) == 0);
  Two::bury_with(*consumer, *writer);
  CHECK(Two::bury_with(*consumer, *writer) == 0);
  CHECK(next_value(*two.reader) == 5 && next_value(*two.reader) == 0);
  two.check_all_is_over();
}

static void killed_before_it_is_there() {
  killed_after([](Two&, Word& claim, uint64_t burying) { claim.store_ordered(burying); });
  killed_after([](Two& two, Word& claim, uint64_t burying) {
    const uint32_t slot = two.writer->borrow(8, 9);
    two.letters.memory().slot(slot).sequence.store_ordered(0);
    two.letters.memory().origin(slot).sequence.store_ordered(1);
    two.letters.memory().origin(slot).region.store_ordered(kHome);
    two.letters.memory().origin(slot).pin.store_ordered(mix(kHome, 1) | 1);
    claim.store_ordered(burying);
  });
}

static void pin_again(Two& two) {
  const uint32_t slot = ring_slot(two.letters.memory().ring(1).load_ordered());
  two.letters.memory().origin(slot).pin.store_ordered(mix(kHome, 1) | 1);
}

static void killed_when_it_is_there() {
  killed_after([](Two& two, Word& claim, uint64_t burying) {
    CHECK(two.bury() == 1);
    pin_again(two);
    claim.store_ordered(burying);
  });
  killed_after([](Two& two, Word&, uint64_t) {
    CHECK(two.bury() == 1);
    pin_again(two);
  });
}

// The letter is read, done, and overwritten in the ring before anybody knows that it had arrived.
static void killed_when_it_is_done_there() {
  Two two(0, 2);
  const Claimed rejected = two.rejected(5);
  Word& claim = two.queue.memory().claim(rejected.slot);
  const uint64_t doomed = claim.load_ordered();
  CHECK(two.bury() == 1);
  pin_again(two);
  claim.store_ordered(doomed);
  CHECK(next_value(*two.reader) == 5);
  for (uint64_t i = 1; i < 50; i++) CHECK(publish(*two.writer, i) && next_value(*two.reader) == i);
  CHECK(two.bury() == 1 && next_value(*two.reader) == 0);
  for (uint64_t i = 1; i < 50; i++) CHECK(publish(*two.writer, i) && next_value(*two.reader) == i);
  two.check_all_is_over();
}

// Who dies while it brings a letter back leaves it to those who bring letters back.
static void killed_on_the_way_back() {
  Two two;
  two.rejected(5);
  two.bury();
  const uint32_t slot = ring_slot(two.letters.memory().ring(1).load_ordered());
  CHECK(two.retry() == 1);
  Word& claim = two.letters.memory().claim(slot);
  claim.store_ordered(claim_as(claim.load_ordered(), ClaimState::astray));
  const uint32_t there = ring_slot(two.queue.memory().ring(2).load_ordered());
  two.queue.memory().origin(there).pin.store_ordered(mix(kLetters, 1) | 1);
  CHECK(next_value(*two.reader) == 0 && view_queue(two.letters.memory()).moving == 1);
  CHECK(Two::bury_with(*two.reader, *two.producer) == 0);
  CHECK(two.retry() == 1 && next_value(*two.consumer) == 5 && next_value(*two.consumer) == 0);
  two.check_all_is_over();
}

// A queue is deleted after its mover died: its pin is nobody's, and those of other queues stay.
static void pins_of_a_deleted_queue() {
  Two two;
  two.rejected(5);
  CHECK(two.bury() == 1);
  pin_again(two);
  const uint32_t other = ring_slot(two.letters.memory().ring(1).load_ordered()) + 1;
  Origin& origin = two.letters.memory().origin(other);
  origin.sequence.store_ordered(1);
  origin.region.store_ordered(kLetters);
  origin.pin.store_ordered(pin_of(kLetters, 1));
  const std::vector<uint64_t> regions = pinning_regions(two.letters.memory());
  CHECK(regions.size() == 2 && regions[0] != regions[1]);
  CHECK(take_pins_of(two.letters.memory(), kHome) == 1 && take_pins_of(two.letters.memory(), kHome) == 0);
  CHECK(view_queue(two.letters.memory()).pinned == 1 && origin.pin.load_ordered() == pin_of(kLetters, 1));
  CHECK(take_pins_of(two.letters.memory(), kLetters) == 1 && pinning_regions(two.letters.memory()).empty());
  CHECK(next_value(*two.reader) == 5);
  two.check_all_is_over();
}

// Its message arrived, and then its pin was taken away: who still moves out of that queue does not move it again.
static void nothing_uncertain_leaves_a_deleted_queue() {
  Two two;
  const Claimed rejected = two.rejected(5);
  Word& claim = two.queue.memory().claim(rejected.slot);
  const uint64_t doomed = claim.load_ordered();
  CHECK(two.bury() == 1);
  pin_again(two);
  claim.store_ordered(doomed);
  two.queue.memory().header().state.word.store_ordered(static_cast<uint64_t>(RegionState::closed));
  CHECK(take_pins_of(two.letters.memory(), kHome) == 1);
  CHECK(two.bury() == 0 && claim.load_ordered() == doomed);
  CHECK(next_value(*two.reader) == 5 && next_value(*two.reader) == 0);
}

static void no_lease_ends_a_move() {
  HeapTopic queue(small_queue(4, 0, 1));
  const auto producer = queue.publisher();
  const auto mover = queue.consumer("mover"), other = queue.consumer("other");
  publish(*producer, 1);
  Claimed claimed{};
  CHECK(claim(*mover, claimed) && reject(*mover, claimed));
  Candidate found{1, claimed.slot, queue.memory().claim(claimed.slot).load_ordered()};
  CHECK(mover->claim_to_move(found, ClaimState::burying, claimed));
  for (int i = 0; i < 50; i++) other->look_around();
  CHECK(queue.memory().claim(claimed.slot).load_ordered() == claimed.claim);
}

// What is put into a slot that had a letter is no letter.
static void an_origin_is_forgotten() {
  Two two;
  two.rejected(5);
  two.bury();
  CHECK(next_value(*two.reader) == 5);
  for (uint64_t i = 1; i < 100; i++) CHECK(publish(*two.writer, i) && next_value(*two.reader) == i);
  for (uint32_t i = 0; i < two.letters.layout().slots; i++) CHECK(two.letters.memory().origin(i).region.load_ordered() == 0);
}

int main() {
  return run({{"rejected ones are buried", rejected_ones_are_buried},
              {"the last delivery is the last", the_last_delivery_is_the_last},
              {"letters go back", letters_go_back},
              {"only those that are wanted", only_those_that_are_wanted},
              {"a full queue of letters", a_full_queue_of_letters},
              {"what does not fit", what_does_not_fit},
              {"killed before it is there", killed_before_it_is_there},
              {"killed when it is there", killed_when_it_is_there},
              {"killed when it is done there", killed_when_it_is_done_there},
              {"killed on the way back", killed_on_the_way_back},
              {"pins of a deleted queue", pins_of_a_deleted_queue},
              {"nothing uncertain leaves a deleted queue", nothing_uncertain_leaves_a_deleted_queue},
              {"no lease ends a move", no_lease_ends_a_move},
              {"an origin is forgotten", an_origin_is_forgotten}});
}
