// Threads as participants that join, work, and leave or die with samples and loans in hand, while others
// recover them. read_oldest and read_newest are left out here: they copy bytes that may be overwritten
// meanwhile and look at the ring afterwards, which a race detector cannot know.
//
// Usage: stress [rounds]
#include <thread>

#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

namespace {

constexpr uint32_t kPublishers = 3, kSubscribers = 3;
constexpr uint64_t kWords = 4;  // of a payload, all equal

struct Storm {
  HeapTopic topic{{.slot_size = kWords * 8, .history = 2, .depth = 2, .max_publishers = kPublishers + 1,
                   .max_subscribers = kSubscribers + 1, .max_held = 2, .max_loans = 2, .ephemeral = 0, .group = 0}};
  uint32_t rounds = 0;
  std::atomic<uint64_t> published{0}, received{0}, missed{0}, deaths{0}, recovered{0};
  std::atomic<uint32_t> working{0};
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(mix(seed, 1)) {}
  uint64_t roll(uint64_t sides) { return (state_ = mix(state_, sides)) % sides; }

 private:
  uint64_t state_;
};

void write_payload(Publisher& publisher, uint32_t slot, uint64_t value) {
  for (uint64_t i = 0; i < kWords; i++) std::memcpy(publisher.payload(slot) + i * 8, &value, 8);
}

uint64_t read_payload(const Memory& memory, uint32_t slot) {
  const uint64_t value = value_in(memory, slot);
  for (uint64_t i = 1; i < kWords; i++)
    CHECK(std::memcmp(memory.readable + memory.payload_at(slot) + i * 8, &value, 8) == 0);
  return value;
}

// A place may be held up for a moment by somebody who is recovering it.
template <class Join>
auto keep_trying(Storm& storm, const Join& join) {
  for (;;) {
    try {
      return join();
    } catch (const Error& error) {
      CHECK(error.kind() == Kind::full);
      storm.recovered += storm.topic.recover().size();
    }
  }
}

void publish_for_a_while(Storm& storm, uint64_t number) {
  Dice dice(number);
  uint64_t value = number << 32;
  for (uint32_t round = 0; round < storm.rounds; round++) {
    auto publisher = keep_trying(storm, [&] { return storm.topic.publisher(std::string(1 + dice.roll(40), 'p')); });
    for (uint64_t i = dice.roll(60); i > 0; i--) {
      const uint32_t slot = publisher->borrow(kWords * 8, 2);
      write_payload(*publisher, slot, ++value);
      const uint64_t sequence = dice.roll(8) == 0 ? 0 : publisher->try_publish(slot, kWords * 8, 0);
      if (sequence) storm.published++;
      publisher->put_back(slot);
      publisher->wake_subscribers();
    }
    if (dice.roll(3) == 0) {
      publisher->close();
      continue;
    }
    if (dice.roll(2) == 0) write_payload(*publisher, publisher->borrow(kWords * 8, 2), ++value);
    storm.deaths++;
    die(publisher);
  }
  storm.working--;
}

void take_for_a_while(Storm& storm, uint64_t number) {
  Dice dice(number);
  std::vector<std::pair<Taken, uint64_t>> held;
  for (uint32_t round = 0; round < storm.rounds; round++) {
    const bool reliable = dice.roll(3) == 0;
    auto subscriber = keep_trying(storm, [&] { return storm.topic.subscriber(dice.roll(3), reliable); });
    const uint64_t start = subscriber->cursor();
    held.clear();
    for (uint64_t i = dice.roll(200); i > 0; i--) {
      if (held.size() == 2 || (!held.empty() && dice.roll(3) == 0)) {
        CHECK(read_payload(storm.topic.memory(), held[0].first.slot) == held[0].second);
        CHECK(subscriber->release(held[0].first.slot, held[0].first.sequence));
        held.erase(held.begin());
      }
      Taken taken{};
      if (take(*subscriber, taken)) held.emplace_back(taken, read_payload(storm.topic.memory(), taken.slot));
      CHECK(subscriber->received() + subscriber->missed() == subscriber->cursor() - start);
    }
    if (reliable) CHECK(subscriber->missed() == 0);
    storm.received += subscriber->received();
    storm.missed += subscriber->missed();
    if (dice.roll(3) == 0) {
      for (const auto& [taken, value] : held) CHECK(subscriber->release(taken.slot, taken.sequence));
      subscriber->close();
      continue;
    }
    storm.deaths++;
    die(subscriber);
  }
  storm.working--;
}

void recover_for_a_while(Storm& storm) {
  while (storm.working != 0) {
    storm.recovered += storm.topic.recover().size();
    std::this_thread::yield();
  }
}

Storm storm;

void everybody_at_once() {
  std::vector<std::thread> threads;
  storm.working = kPublishers + kSubscribers;
  for (uint64_t i = 0; i < kPublishers; i++) threads.emplace_back([i] { publish_for_a_while(storm, i + 1); });
  for (uint64_t i = 0; i < kSubscribers; i++) threads.emplace_back([i] { take_for_a_while(storm, i + 101); });
  threads.emplace_back([] { recover_for_a_while(storm); });
  for (auto& thread : threads) thread.join();
}

void nothing_is_left_behind() {
  storm.recovered += storm.topic.recover().size();
  CHECK(storm.recovered >= storm.deaths);  // two may report one death
  const SlotCounts counts = count_slots(storm.topic.memory());
  CHECK(counts.leaked == 0 && counts.lent == 0 && counts.referenced == 0);
  CHECK(next_place(storm.topic.memory()).head == storm.published);
  CHECK(counts.carried == std::min<uint64_t>(storm.published, storm.topic.layout().ring));
}

}  // namespace

int main(int count, char** arguments) {
  storm.rounds = count > 1 ? static_cast<uint32_t>(std::atoi(arguments[1])) : 100;
  const int status = run({{"everybody at once", everybody_at_once}, {"nothing is left behind", nothing_is_left_behind}});
  std::printf("published=%llu received=%llu missed=%llu deaths=%llu\n", static_cast<unsigned long long>(storm.published),
              static_cast<unsigned long long>(storm.received), static_cast<unsigned long long>(storm.missed),
              static_cast<unsigned long long>(storm.deaths));
  return status;
}
