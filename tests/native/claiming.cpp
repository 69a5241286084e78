// Queues: who gets which message, what becomes of it, and how much fits.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

static void the_word_keeps_what_is_packed() {
  const uint64_t fresh = fresh_claim((uint64_t{1} << 35) + 7);
  CHECK(claim_tag(fresh) == 7 && claim_deliveries(fresh) == 0 && claim_state(fresh) == ClaimState::fresh);
  uint64_t word = claim_as(delivered_once_more(fresh), ClaimState::done) | claim_signature(255, 0x3ff, ClaimState::claimed);
  CHECK(claim_consumer(word) == 255 && claim_incarnation(word) == 0xff && claim_state(word) == ClaimState::claimed);
  CHECK(claim_tag(word) == 7 && claim_deliveries(word) == 1 && is_owned(word));
  CHECK(returned_claim(word, 0) == claim_as(word, ClaimState::ready) && claim_owner_bits(returned_claim(word, 0)) == 0);
  CHECK(returned_claim(word, 2) == returned_claim(word, 0) && claim_state(returned_claim(word, 1)) == ClaimState::doomed);
  CHECK(delivered_once_more(delivered_once_less(word)) == word);
  for (uint32_t i = 0; i < 3000; i++) word = delivered_once_more(word);
  CHECK(claim_deliveries(word) == kMaxDeliveries && claim_tag(word) == 7 && claim_consumer(word) == 255);
  CHECK(claim_state(returned_claim(claim_signature(1, 1, ClaimState::burying), 0)) == ClaimState::doomed);
  CHECK(claim_state(returned_claim(claim_signature(1, 1, ClaimState::reviving), 9)) == ClaimState::astray);
}

static void each_message_goes_to_one() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto first = queue.consumer("first"), second = queue.consumer("second");
  for (uint64_t i = 1; i <= 6; i++) CHECK(publish(*producer, i) == i);
  for (uint64_t i = 1; i <= 6; i += 2) CHECK(next_value(*first) == i && next_value(*second) == i + 1);
  CHECK(next_value(*first) == 0 && next_value(*second) == 0);
  CHECK(view_queue(queue.memory()).ready == 0 && count_slots(queue.memory()).leaked == 0);
}

static void released_ones_come_back_in_their_place() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer(), other = queue.consumer("other");
  for (uint64_t i = 1; i <= 5; i++) publish(*producer, i);
  Claimed claimed[4];
  for (auto& one : claimed) CHECK(claim(*consumer, one) && !one.redelivered && claim_deliveries(one.claim) == 1);
  CHECK(release(*consumer, claimed[2]) && release(*consumer, claimed[0]) && release(*consumer, claimed[3]));
  Claimed again{};
  CHECK(claim(*other, again) && again.sequence == 1 && again.redelivered && claim_deliveries(again.claim) == 2);
  CHECK(next_value(*other) == 3 && next_value(*consumer) == 4 && next_value(*other) == 5 && next_value(*other) == 0);
  CHECK(accept(*consumer, claimed[1]) && accept(*other, again) && !other->accept(again));
  CHECK(!consumer->release(claimed[1]) && !consumer->reject(claimed[1]));
}

static void a_full_queue_takes_nothing() {
  HeapTopic queue(small_queue(3));
  const auto producer = queue.publisher(), rival = queue.publisher("rival");
  const auto consumer = queue.consumer();
  for (uint64_t i = 1; i <= 3; i++) CHECK(publish(*producer, i) == i);
  CHECK(publish(*producer, 4) == 0 && publish(*rival, 4) == 0 && producer->blocked());
  Claimed claimed{};
  CHECK(claim(*consumer, claimed) && !producer->blocked() && publish(*rival, 4) == 4 && publish(*producer, 5) == 0);
  CHECK(release(*consumer, claimed));  // its place in the ring is gone, it is not
  CHECK(publish(*producer, 5) == 0);
  for (uint64_t i = 1; i <= 4; i++) CHECK(next_value(*consumer) == i);
  const std::string text = THROWN(full, {
    for (uint64_t i = 5;; i++) {
      const uint32_t slot = producer->borrow(8, 9);
      producer->publish(slot, 8, 0, Deadline::in(0), [](int64_t) {});
      producer->put_back(slot);
    }
  });
  CHECK(text.find("3 messages wait") != std::string::npos);
}

// A returned message that still has its place in the ring is not overwritten there either.
static void a_returned_message_keeps_its_place() {
  HeapTopic queue(small_queue(2));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  publish(*producer, 1);
  publish(*producer, 2);
  Claimed claimed{};
  CHECK(claim(*consumer, claimed) && release(*consumer, claimed) && publish(*producer, 3) == 0);
  CHECK(next_value(*consumer) == 1 && publish(*producer, 3) == 3);
}

// One that is stopped with messages holds their slots and nothing else.
static void a_stopped_consumer_holds_up_nobody() {
  HeapTopic queue(small_queue(2));
  const auto producer = queue.publisher();
  const auto stopped = queue.consumer("stopped"), other = queue.consumer("other");
  Claimed held[4];
  for (uint64_t i = 0; i < 4; i++) CHECK(publish(*producer, i + 1) && claim(*stopped, held[i]));
  for (uint64_t i = 5; i < 500; i++) CHECK(publish(*producer, i) == i && next_value(*other) == i);
  for (uint64_t i = 0; i < 4; i++) CHECK(value_of(*stopped, held[i]) == i + 1 && accept(*stopped, held[i]));
  CHECK(count_slots(queue.memory()).kept == 0);
}

static void no_more_than_max_held() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  for (uint64_t i = 1; i <= 5; i++) publish(*producer, i);
  Claimed claimed[4];
  for (auto& one : claimed) CHECK(claim(*consumer, one));
  THROWN(full, claim(*consumer, claimed[0]));
  CHECK(consumer->accept(claimed[0]));  // its bytes are still held
  THROWN(full, claim(*consumer, claimed[0]));
  consumer->let_go(claimed[0].slot);
  CHECK(claim(*consumer, claimed[0]) && claimed[0].sequence == 5);
}

static void bytes_stay_after_accept() {
  HeapTopic queue(small_queue(1));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer(), other = queue.consumer("other");
  publish(*producer, 77);
  Claimed claimed{};
  CHECK(claim(*consumer, claimed) && consumer->accept(claimed));
  for (uint64_t i = 2; i < 200; i++) CHECK(publish(*producer, i) && next_value(*other) == i);
  CHECK(value_of(*consumer, claimed) == 77 && consumer->let_go(claimed.slot));
  CHECK(count_slots(queue.memory()).referenced == 0);
}

// One bit a slot, however many in this process have the message.
static void the_same_message_twice_in_one_process() {
  HeapTopic queue(small_queue(1));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  publish(*producer, 77);
  Claimed first{}, again{};
  CHECK(claim(*consumer, first) && consumer->release(first) && claim(*consumer, again) && again.slot == first.slot);
  CHECK(consumer->let_go(first.slot) && referenced(queue.memory(), first.slot));
  CHECK(consumer->accept(again) && consumer->let_go(again.slot) && !referenced(queue.memory(), first.slot));
}

static std::string copy_next(Consumer& consumer, Claimed& claimed) {
  std::string bytes;
  const auto copied = consumer.try_claim_copy([&](const Copyable& found) {
    bytes.resize(found.payload);
    return CopyPlaces{bytes.data(), nullptr};
  }, claimed);
  consumer.settle();
  return copied == Consumer::Copy::copied ? bytes : "nothing";
}

static void copies_need_no_bit() {
  HeapTopic queue(small_queue(4));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  Claimed claimed{}, other{};
  CHECK(copy_next(*consumer, claimed) == "nothing");
  publish(*producer, 0x6161616161616161);
  publish(*producer, 0x6262626262626262);
  CHECK(copy_next(*consumer, claimed) == "aaaaaaaa" && !referenced(queue.memory(), claimed.slot) && consumer->held() == 1);
  const auto nowhere = [](const Copyable&) { return CopyPlaces{}; };
  CHECK(consumer->try_claim_copy(nowhere, other) == Consumer::Copy::left && consumer->held() == 1);
  CHECK(consumer->release(claimed));
  consumer->let_go_of_copy();
  CHECK(consumer->try_claim_copy(nowhere, other) == Consumer::Copy::left);
  CHECK(copy_next(*consumer, claimed) == "aaaaaaaa" && claimed.redelivered && consumer->accept(claimed));
  CHECK(next_value(*consumer) == 0x6262626262626262);
}

// From empty to the largest, at every position of several rings.
static void every_size_at_every_position() {
  for (uint32_t capacity = 1; capacity <= 5; capacity++) {
    HeapTopic queue(small_queue(capacity));
    const auto producer = queue.publisher();
    const auto consumer = queue.consumer();
    for (uint64_t size = 0; size <= 64; size++) {
      const uint32_t slot = producer->borrow(size, 9);
      std::memset(producer->payload(slot), static_cast<int>(size), size);
      CHECK(producer->try_publish(slot, size, 0));
      producer->put_back(slot);
      Claimed claimed{};
      CHECK(claim(*consumer, claimed) && claimed.payload == size && claimed.sequence == size + 1);
      const uint8_t* bytes = queue.memory().readable + queue.memory().payload_at(claimed.slot);
      for (uint64_t i = 0; i < size; i++) CHECK(bytes[i] == size);
      CHECK(accept(*consumer, claimed));
    }
    THROWN(usage, producer->borrow(65, 9));
  }
}

// Tags wrap: 35 bits in the claim, 48 in the ring.
static void far_along() {
  for (const uint64_t start : {(uint64_t{1} << 35) - 5, (uint64_t{1} << 48) - 5, uint64_t{1} << 40}) {
    HeapTopic queue(small_queue(3));
    queue.start_at(start);
    queue.memory().header().tail.word.store_ordered(start);
    const auto producer = queue.publisher();
    const auto consumer = queue.consumer(), other = queue.consumer("other");
    Claimed kept{};
    CHECK(publish(*producer, start + 1) == start + 1 && claim(*other, kept));
    for (uint64_t i = start + 2; i < start + 60; i++) {
      CHECK(publish(*producer, i) == i);
      if (i % 5 == 0) {
        Claimed claimed{};
        CHECK(claim(*consumer, claimed) && release(*consumer, claimed));
      }
      CHECK(next_value(*consumer) == i);
    }
    CHECK(release(*other, kept) && next_value(*consumer) == start + 1);
  }
}

static void a_late_consumer_finds_its_way() {
  HeapTopic queue(small_queue(4));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer();
  Claimed kept{};
  for (uint64_t i = 1; i <= 40; i++) {
    CHECK(publish(*producer, i) == i);
    CHECK(i == 7 ? claim(*consumer, kept) : next_value(*consumer) == i);
  }
  const auto late = queue.consumer("late");
  queue.memory().header().tail.word.store_ordered(0);  // whoever moves it may be dead
  publish(*producer, 41);
  CHECK(next_value(*late) == 41 && next_value(*late) == 0);
  CHECK(release(*consumer, kept) && next_value(*late) == 7);
}

static void the_dead_give_back_what_they_had() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  auto dying = queue.consumer("dying");
  const auto other = queue.consumer("other");
  for (uint64_t i = 1; i <= 6; i++) publish(*producer, i);
  Claimed held[3], mine{}, claimed{};
  for (auto& one : held) CHECK(claim(*dying, one));
  CHECK(copy_next(*dying, claimed) != "nothing" && claim(*other, mine) && accept(*dying, held[1]));
  CHECK(dying->accept(held[2]));  // and reads on
  die(dying);
  const auto recovered = queue.recover();
  CHECK(recovered.size() == 1 && recovered[0].claims == 2 && recovered[0].references == 1 && recovered[0].complete);
  CHECK(queue.recover().empty());
  for (const uint64_t value : {1, 4, 6}) {
    CHECK(claim(*other, claimed) && value_of(*other, claimed) == value);
    CHECK(claimed.redelivered == (value != 6) && accept(*other, claimed));
  }
  CHECK(accept(*other, mine) && next_value(*other) == 0 && count_slots(queue.memory()).leaked == 0);
}

// Only what carries the low bits of the dead incarnation goes back, and nothing once the entry is somebody else's.
static void the_next_incarnation_keeps_its_own() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  auto former = queue.consumer("consumer");
  for (uint64_t i = 1; i <= 4; i++) publish(*producer, i);
  Claimed old{}, mine{};
  CHECK(claim(*former, old));
  const uint64_t dead = entry_word(former->membership().incarnation, EntryState::dead);
  die(former);
  queue.recover();
  const auto present = queue.consumer("consumer");
  CHECK(claim(*present, mine) && mine.sequence == old.sequence && mine.claim != old.claim);
  CHECK(return_claims(queue.memory(), present->bit(), dead) == 0);  // a recoverer that was stopped for long
  CHECK(queue.memory().claim(mine.slot).load_ordered() == mine.claim && accept(*present, mine));
}

static void closing_gives_back() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer(), other = queue.consumer("other");
  publish(*producer, 1);
  publish(*producer, 2);
  Claimed held[2];
  CHECK(claim(*consumer, held[0]) && claim(*consumer, held[1]));
  consumer->close();
  THROWN(closed, consumer->try_claim(held[0]));
  CHECK(next_value(*other) == 1 && next_value(*other) == 2 && !consumer->accept(held[0]));
  CHECK(referenced(queue.memory(), held[0].slot));
  consumer->let_go(held[0].slot);
  consumer->let_go(held[1].slot);
  consumer->close();
  CHECK(queue.recover().empty() && count_slots(queue.memory()).referenced == 0);
}

static void deliveries_of_the_reserved_do_not_count() {
  HeapTopic queue(small_queue(4, 1));
  const auto producer = queue.publisher();
  auto recorder = queue.consumer("recorder", true);
  publish(*producer, 1);
  Claimed claimed{};
  for (int i = 0; i < 5; i++) {
    CHECK(claim(*recorder, claimed) && claim_deliveries(claimed.claim) == 0 && claimed.redelivered == (i > 0));
    die(recorder);
    queue.recover();
    recorder = queue.consumer("recorder", true);
  }
  const auto other = queue.consumer("other");
  CHECK(claim(*other, claimed) && claim_deliveries(claimed.claim) == 1 && claimed.redelivered && accept(*other, claimed));
}

static void what_is_ahead_counts_when_it_is_handed_out() {
  HeapTopic queue(small_queue(8, 1));
  const auto producer = queue.publisher();
  auto consumer = queue.consumer();
  for (const uint64_t value : {9, 1, 2, 3, 4}) publish(*producer, value);
  CHECK(next_value(*consumer) == 9);  // who has just come looks around first
  std::vector<Claimed> ahead;
  consumer->look_ahead();
  consumer->claim_run_ahead(3, ahead);
  CHECK(ahead.size() == 3 && consumer->hand_out(ahead[0]));
  CHECK(claim_deliveries(ahead[0].claim) == 1 && claim_deliveries(ahead[1].claim) == 0);
  Claimed last{};
  CHECK(consumer->try_claim(last, Consumer::Counted::when_handed_out) && claim_deliveries(last.claim) == 0);
  CHECK(consumer->let_go(last.slot) && consumer->release_ahead(last));
  die(consumer);
  queue.recover();
  const auto other = queue.consumer("other");
  CHECK(next_value(*other) == 2 && next_value(*other) == 3 && next_value(*other) == 4 && next_value(*other) == 0);
  CHECK(view_queue(queue.memory()).dying == 1);  // the one that was handed out, whose only delivery that was
}

static void what_is_ahead_may_be_taken_away() {
  HeapTopic queue(small_queue(8, 0, 1));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer(), other = queue.consumer("other");
  publish(*producer, 1);
  Claimed ahead{}, taken{};
  CHECK(consumer->try_claim(ahead, Consumer::Counted::when_handed_out));
  for (int i = 0; i < 1'000'000 && !claim(*other, taken); i++) other->look_around();
  CHECK(taken.sequence == 1 && !consumer->hand_out(ahead) && consumer->let_go(ahead.slot) && consumer->held() == 0);
  CHECK(accept(*other, taken));
}

static void who_has_caught_up_looks_ahead() {
  HeapTopic queue(small_queue(8));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer(), other = queue.consumer("other");
  CHECK(consumer->caught_up() && consumer->look_ahead() == 0);
  for (uint64_t i = 1; i <= 3; i++) publish(*producer, i);
  CHECK(consumer->caught_up() && consumer->look_ahead() == 3 && !consumer->caught_up());
  CHECK(next_value(*consumer) == 1 && next_value(*other) == 2 && !consumer->caught_up());
  publish(*producer, 4);
  CHECK(next_value(*consumer) == 3 && consumer->caught_up());  // of the fourth it does not know
  consumer->keep_distance(8);
  CHECK(!consumer->caught_up() && next_value(*consumer) == 4 && consumer->caught_up());
  Claimed claimed{};
  publish(*producer, 5);
  CHECK(claim(*other, claimed) && release(*other, claimed) && consumer->look_ahead() == 1);
  CHECK(next_value(*consumer) == 5);  // given back, so it is found without the ring
  CHECK(next_value(*consumer) == 0 && consumer->look_ahead() == 0 && consumer->caught_up());
}

static void leases_end() {
  HeapTopic queue(small_queue(4, 0, 1'000'000));
  const auto producer = queue.publisher();
  const auto slow = queue.consumer("slow"), other = queue.consumer("other");
  publish(*producer, 7);
  Claimed late{}, claimed{};
  CHECK(claim(*slow, late) && !claim(*other, claimed));
  while (!claim(*other, claimed)) usleep(300);
  CHECK(claimed.sequence == late.sequence && claimed.redelivered && value_of(*slow, late) == 7);
  CHECK(!slow->accept(late) && !slow->release(late) && !slow->reject(late) && accept(*other, claimed));
  for (uint64_t i = 1; i < 100; i++) CHECK(publish(*producer, i) && next_value(*other) == i);
  CHECK(value_of(*slow, late) == 7 && slow->let_go(late.slot));
}

static void looking_changes_nothing() {
  HeapTopic queue(small_queue(8, 2));
  const auto producer = queue.publisher();
  const auto consumer = queue.consumer("consumer");
  for (uint64_t i = 1; i <= 6; i++) publish(*producer, i);
  Claimed claimed[3];
  for (auto& one : claimed) claim(*consumer, one);
  CHECK(release(*consumer, claimed[0]) && reject(*consumer, claimed[1]));
  const QueueView view = view_queue(queue.memory());
  CHECK(view.ready == 4 && view.claimed == 1 && view.dying == 1 && view.oldest_ns != 0 && view.owners.size() == 1);
  CHECK(view.owners[0].name == "consumer" && view.owners[0].claimed == 1 && view.owners[0].pid == 9);
  const auto copies = peek(queue.memory(), 4);
  CHECK(copies.size() == 4 && copies[0].sequence == 1 && copies[3].sequence == 4 && copies[3].name == "publisher");
  CHECK(peek(queue.memory(), 99).size() == 6 && peek(queue.memory(), 0).empty());
  CHECK(view_queue(queue.memory()).ready == 4);
}

static void damage_is_noticed() {
  for (const uint64_t damage : {uint64_t{1} << 40, ~uint64_t{0}}) {
    HeapTopic queue(small_queue(4));
    const auto producer = queue.publisher();
    const auto consumer = queue.consumer();
    for (uint64_t i = 1; i <= 3; i++) publish(*producer, i);
    const uint32_t slot = ring_slot(queue.memory().ring(1).load_ordered());
    queue.memory().claim(slot).store_ordered(fresh_claim(1) ^ damage);
    THROWN(corrupt, next_value(*consumer));
    queue.memory().claim(slot).store_ordered(fresh_claim(1));
    CHECK(next_value(*consumer) == 1);
    queue.memory().slot(ring_slot(queue.memory().ring(2).load_ordered())).lengths.store_ordered(damage);
    THROWN(corrupt, next_value(*consumer));
    THROWN(corrupt, peek(queue.memory(), 1));
    queue.memory().header().tail.word.store_ordered(damage);
    const auto late = queue.consumer("late");
    queue.memory().claim(slot).store_ordered(claim_as(fresh_claim(1), ClaimState::done));
    for (uint64_t i = 2; i <= 3; i++) {
      const uint32_t other = ring_slot(queue.memory().ring(i).load_ordered());
      queue.memory().claim(other).store_ordered(claim_as(fresh_claim(i), ClaimState::done));
    }
    CHECK(next_value(*late) == 0);
  }
}

int main() {
  return run({{"the word keeps what is packed", the_word_keeps_what_is_packed},
              {"each message goes to one", each_message_goes_to_one},
              {"released ones come back in their place", released_ones_come_back_in_their_place},
              {"a full queue takes nothing", a_full_queue_takes_nothing},
              {"a returned message keeps its place", a_returned_message_keeps_its_place},
              {"a stopped consumer holds up nobody", a_stopped_consumer_holds_up_nobody},
              {"no more than max_held", no_more_than_max_held},
              {"bytes stay after accept", bytes_stay_after_accept},
              {"the same message twice in one process", the_same_message_twice_in_one_process},
              {"copies need no bit", copies_need_no_bit},
              {"every size at every position", every_size_at_every_position},
              {"far along", far_along},
              {"a late consumer finds its way", a_late_consumer_finds_its_way},
              {"the dead give back what they had", the_dead_give_back_what_they_had},
              {"the next incarnation keeps its own", the_next_incarnation_keeps_its_own},
              {"closing gives back", closing_gives_back},
              {"deliveries of the reserved do not count", deliveries_of_the_reserved_do_not_count},
              {"what is ahead counts when it is handed out", what_is_ahead_counts_when_it_is_handed_out},
              {"what is ahead may be taken away", what_is_ahead_may_be_taken_away},
              {"who has caught up looks ahead", who_has_caught_up_looks_ahead},
              {"leases end", leases_end},
              {"looking changes nothing", looking_changes_nothing},
              {"damage is noticed", damage_is_noticed}});
}
