// Signals: who sleeps is woken, and nobody pays when nobody sleeps.
#include <thread>

#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

static void waking_nobody_changes_nothing() {
  const HeapTopic topic;
  Signal& signal = topic.memory().header().samples;
  wake_waiters(signal, kBitWords);
  CHECK(signal.value.load() == 0);
  signal.waiters.set(300);
  wake_waiters(signal, kBitWords - 1);
  CHECK(signal.value.load() == 0);
  wake_waiters(signal, kBitWords);
  CHECK(signal.value.load() == 1);
  wake_all(signal);
  CHECK(signal.value.load() == 2);
}

static void a_flag_lives_as_long_as_its_last_sleeper() {
  const HeapTopic topic;
  Sleepers sleepers;
  Signal& signal = topic.memory().header().samples;
  for (const uint32_t index : {0u, 63u, 64u, 256u}) {
    {
      const Sleeper sleeper(signal, index, sleepers);
      CHECK(signal.waiters.words[index / 64].load_ordered() == uint64_t{1} << index % 64);
      { const Sleeper another(signal, index, sleepers); }
      CHECK(signal.waiters.words[index / 64].load_ordered() == uint64_t{1} << index % 64);
      sleeper.sleep(sleeper.value() + 1, kSliceNanoseconds);  // another value: comes back at once
    }
    CHECK(signal.waiters.words[index / 64].load_ordered() == 0);
  }
}

static void deadlines() {
  CHECK(!Deadline::for_ever().over() && Deadline::for_ever().slice() == kSliceNanoseconds);
  CHECK(Deadline::in(0).over() && Deadline::in(0).slice() == 0);
  CHECK(!Deadline::in(1e30).over() && Deadline::in(50).slice() == kSliceNanoseconds);
}

// Two sides hand one word to and fro and sleep in between.
static void sleepers_hear_of_news() {
  constexpr uint64_t kTurns = 3000;
  const HeapTopic topic;
  Header& header = topic.memory().header();
  Word& turn = header.announcement.word;
  const auto side = [&](uint64_t parity, Signal& mine, Signal& theirs) {
    Sleepers sleepers;
    for (uint64_t i = parity; i < kTurns; i += 2) {
      while (turn.load_ordered() != i) {
        const Sleeper sleeper(mine, static_cast<uint32_t>(parity), sleepers);
        const uint32_t seen = sleeper.value();
        if (turn.load_ordered() != i) sleeper.sleep(seen, kSliceNanoseconds);
      }
      turn.store_ordered(i + 1);
      wake_waiters(theirs, 1);
    }
  };
  std::thread other([&] { side(1, header.samples, header.space); });
  side(0, header.space, header.samples);
  other.join();
  CHECK(turn.load_ordered() == kTurns);
}

int main() {
  return run({{"waking nobody changes nothing", waking_nobody_changes_nothing},
              {"a flag lives as long as its last sleeper", a_flag_lives_as_long_as_its_last_sleeper},
              {"deadlines", deadlines},
              {"sleepers hear of news", sleepers_hear_of_news}});
}
