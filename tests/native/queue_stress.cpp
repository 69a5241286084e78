// Threads as producers and consumers that join, work, and leave or die with messages in hand, while others recover
// them, take their leases over, and move what is dying to the dead letters. Every message is accepted exactly once,
// there or here. Copies without a bit and peek are left out: they read bytes that may be overwritten meanwhile and look
// at the claim afterwards, which a race detector cannot know.
//
// Usage: queue_stress [rounds]
#include <thread>

#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

namespace {

constexpr uint32_t kProducers = 2, kConsumers = 3;
constexpr uint64_t kWords = 4;      // of a payload, all equal
constexpr uint64_t kMost = 400000;  // messages of one producer
constexpr uint64_t kHome = 3;

Settings sized(uint32_t capacity, uint32_t max_deliveries, uint64_t lease_ns) {
  return {.slot_size = kWords * 8, .history = 0, .depth = capacity, .max_publishers = kProducers + 2,
          .max_subscribers = kConsumers + 1, .max_held = 3, .max_loans = 1, .ephemeral = 0, .group = 0, .kind = kKindQueue,
          .max_deliveries = max_deliveries, .lease_ns = lease_ns};
}

struct Storm {
  HeapTopic queue, letters{sized(2, 0, 0)};
  const uint32_t rounds;
  std::atomic<uint64_t> put{0}, accepted{0}, buried{0}, returned{0}, lost{0}, deaths{0}, runs{0};
  std::atomic<uint32_t> producing{0}, working{0};
  std::vector<std::atomic<uint8_t>> seen = std::vector<std::atomic<uint8_t>>(kProducers * kMost);

  Storm(uint64_t lease_ns, uint32_t given) : queue(sized(4, 6, lease_ns)), rounds(given) {}
  void count_accepted(uint64_t value) { CHECK(seen[value].fetch_add(1) == 0); }
};
uint32_t all_rounds = 100;
std::unique_ptr<Storm> storm;

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(mix(seed, 1)) {}
  uint64_t roll(uint64_t sides) { return (state_ = mix(state_, sides)) % sides; }

 private:
  uint64_t state_;
};

// A place may be held up for a moment by somebody who is recovering it.
template <class Join>
auto keep_trying(HeapTopic& topic, const Join& join) {
  for (;;) {
    try {
      return join();
    } catch (const Error& error) {
      CHECK(error.kind() == Kind::full);
      topic.recover();
      std::this_thread::yield();
    }
  }
}

uint64_t read_payload(const Memory& memory, uint32_t slot) {
  const uint64_t value = value_in(memory, slot);
  for (uint64_t i = 1; i < kWords; i++)
    CHECK(std::memcmp(memory.readable + memory.payload_at(slot) + i * 8, &value, 8) == 0);
  return value;
}

// False: there is no room just now.
bool put_one(Publisher& producer, uint64_t value) {
  const uint32_t slot = producer.try_to_borrow(kWords * 8, 2);
  if (slot == kNoSlot) return false;
  for (uint64_t i = 0; i < kWords; i++) std::memcpy(producer.payload(slot) + i * 8, &value, 8);
  const bool there = producer.try_publish(slot, kWords * 8, 0);
  producer.put_back(slot);
  producer.wake_subscribers();
  storm->put += there;
  return there;
}

// Values from one on, the quick way; how many went out.
uint64_t put_run(Publisher& producer, uint64_t first, size_t count) {
  uint64_t payload[kWords], put = 0;
  producer.publish_run(count, 1, put, [&](size_t i) {
    std::fill(std::begin(payload), std::end(payload), first + i);
    return Publisher::Small{payload, sizeof payload};
  });
  producer.wake_subscribers();
  storm->put += put;
  return put;
}

void put_for_a_while(uint64_t number) {
  Dice dice(number + 1);
  uint64_t next = number * kMost;
  for (uint32_t round = 0; round < storm->rounds && next < (number + 1) * kMost - 100; round++) {
    auto producer = keep_trying(storm->queue, [&] { return storm->queue.publisher("producer"); });
    for (uint64_t i = dice.roll(40); i > 0;) {
      const uint64_t run = dice.roll(2) == 0 ? put_run(*producer, next, std::min<uint64_t>(i, 5)) : 0;
      next += run;
      i -= run;
      if (run != 0) {
        storm->runs++;
      } else if (put_one(*producer, next)) {
        next++;
        i--;
      } else {
        producer->wait_for_space(200'000);
      }
    }
    if (dice.roll(3) == 0) {
      producer->close();
      continue;
    }
    if (dice.roll(2) == 0) producer->try_to_borrow(kWords * 8, 2);
    storm->deaths++;
    die(producer);
  }
  storm->producing--;
}

// What becomes of a message; its bytes are the same until the end.
void settle(Consumer& consumer, const Claimed& claimed, uint64_t value, uint64_t choice) {
  CHECK(read_payload(consumer.memory(), claimed.slot) == value);
  if (choice < 6) {
    const bool ours = consumer.accept(claimed);
    storm->accepted += ours;
    storm->lost += !ours;
    if (ours) storm->count_accepted(value);
  } else {
    storm->returned += choice == 6 ? consumer.release(claimed) : consumer.reject(claimed);
  }
  CHECK(read_payload(consumer.memory(), claimed.slot) == value);
  CHECK(consumer.let_go(claimed.slot));
  consumer.wake_producers();
}

void bury(Consumer& consumer, Publisher& writer) {
  Mover mover(consumer, kHome, writer, ClaimState::burying);
  mover.move(UINT64_MAX, [](const Taken&, uint64_t, const std::string& metadata) { return Description{true, metadata}; });
  storm->buried += mover.moved();
}

// Copies of what is there, the quick way, accepted at once.
void claim_run(Consumer& consumer) {
  std::vector<Claimed> claims;
  uint64_t values[3][kWords];
  const auto room = [&](uint64_t) { return reinterpret_cast<char*>(values[claims.size() - 1]); };
  consumer.look_ahead();
  consumer.claim_run(std::size(values), claims, room, [] {});
  consumer.settle();
  for (size_t i = 0; i < claims.size(); i++) {
    for (const uint64_t word : values[i]) CHECK(word == values[i][0]);
    CHECK(consumer.accept(claims[i]));
    storm->count_accepted(values[i][0]);
    storm->accepted++;
    consumer.let_go_of_copy();
  }
  if (!claims.empty()) storm->runs++;
  consumer.wake_producers();
}

bool all_done() { return storm->producing == 0 && view_queue(storm->queue.memory()).ready == 0; }

void consume_for_a_while(uint64_t number) {
  Dice dice(number + 101);
  std::vector<std::pair<Claimed, uint64_t>> held;
  while (!all_done()) {
    auto consumer = keep_trying(storm->queue, [&] { return storm->queue.consumer("consumer"); });
    auto writer = keep_trying(storm->letters, [&] { return storm->letters.publisher("mover"); });
    held.clear();
    for (uint64_t i = dice.roll(100); i > 0 && !all_done(); i--) {
      if (held.size() == 3 || (!held.empty() && dice.roll(3) == 0)) {
        settle(*consumer, held[0].first, held[0].second, dice.roll(8));
        held.erase(held.begin());
      }
      if (held.empty() && dice.roll(4) == 0) claim_run(*consumer);
      Claimed claimed{};
      if (claim(*consumer, claimed)) {
        held.emplace_back(claimed, read_payload(storm->queue.memory(), claimed.slot));
      } else if (held.empty()) {
        consumer->wait_for_message(100'000);
      }
      if (consumer->found_dying()) bury(*consumer, *writer);
    }
    if (dice.roll(3) == 0) {
      for (const auto& [claimed, value] : held) settle(*consumer, claimed, value, dice.roll(8));
      consumer->close();
      writer->close();
      continue;
    }
    storm->deaths += 2;
    die(consumer);
    die(writer);
  }
  storm->working--;
}

void read_letters() {
  const auto reader = storm->letters.consumer("reader");
  for (bool last = false; !last;) {
    last = storm->working == 0;
    Claimed claimed{};
    while (claim(*reader, claimed)) {
      storm->count_accepted(read_payload(storm->letters.memory(), claimed.slot));
      CHECK(accept(*reader, claimed));
    }
    storm->queue.recover();
    storm->letters.recover();
    std::this_thread::yield();
  }
}

void everybody_at_once() {
  std::vector<std::thread> threads;
  storm->producing = kProducers;
  storm->working = kConsumers;
  for (uint64_t i = 0; i < kProducers; i++) threads.emplace_back(put_for_a_while, i);
  for (uint64_t i = 0; i < kConsumers; i++) threads.emplace_back(consume_for_a_while, i);
  threads.emplace_back(read_letters);
  for (auto& thread : threads) thread.join();
}

// What the dead held is still there, and nothing else is.
void nothing_is_lost_or_left_behind() {
  storm->queue.recover();
  storm->letters.recover();
  const auto consumer = storm->queue.consumer("last");
  const auto writer = storm->letters.publisher("last");
  for (uint64_t value = 0; view_queue(storm->queue.memory()).ready + view_queue(storm->queue.memory()).dying > 0;) {
    Claimed claimed{};
    while (claim(*consumer, claimed)) {
      value = read_payload(storm->queue.memory(), claimed.slot);
      storm->count_accepted(value);
      CHECK(accept(*consumer, claimed));
      storm->accepted++;
    }
    bury(*consumer, *writer);
    read_letters();
  }
  uint64_t seen = 0;
  for (const auto& one : storm->seen) seen += one;
  CHECK(seen == storm->put && storm->accepted + storm->buried == storm->put);
  if (storm->queue.layout().settings.lease_ns == 0) CHECK(storm->lost == 0);
  for (HeapTopic* one : {&storm->queue, &storm->letters}) {
    const SlotCounts counts = count_slots(one->memory());
    CHECK(counts.leaked == 0 && counts.lent == 0 && counts.referenced == 0 && counts.kept == 0);
  }
}

template <uint64_t lease_ns>
void everything() {
  storm = std::make_unique<Storm>(lease_ns, all_rounds / 2);
  everybody_at_once();
  nothing_is_lost_or_left_behind();
  const auto number = [](const std::atomic<uint64_t>& value) { return static_cast<unsigned long long>(value); };
  const char* leased = lease_ns ? "leased_" : "";
  std::printf("%sput=%llu accepted=%llu buried=%llu returned=%llu lost=%llu deaths=%llu runs=%llu\n", leased, number(storm->put),
              number(storm->accepted), number(storm->buried), number(storm->returned), number(storm->lost),
              number(storm->deaths), number(storm->runs));
  CHECK(storm->runs > 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) all_rounds = static_cast<uint32_t>(std::atoi(arguments[1]));
  return run({{"with leases", everything<40'000>}, {"without", everything<0>}});
}
