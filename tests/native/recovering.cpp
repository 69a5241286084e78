// Participants and recovery: who is dead, what is given back, and what is left alone.
#include "check.hpp"
#include "heap_topic.hpp"

using namespace testing;

// Life and recovery bytes as arrays.
struct Believed {
  std::vector<char> lives = std::vector<char>(64, 1);
  mutable std::vector<char> locked = std::vector<char>(64, 0);
  bool alive(uint32_t index) const { return lives[index]; }
  bool try_recovery(uint32_t index) const { return !std::exchange(locked[index], 1); }
  void end_recovery(uint32_t index) const { locked[index] = 0; }
};

static EntryState state_of(const HeapTopic& topic, uint32_t index) {
  return entry_state(topic.memory().entry(index).word.load_ordered());
}

static void joining_and_leaving() {
  HeapTopic topic;
  const Descriptor probe = topic.description();
  for (uint64_t incarnation = 1; incarnation <= 5; incarnation++) {
    const auto publisher = topic.publisher("name");
    CHECK(publisher->membership().index == 0 && publisher->membership().incarnation == incarnation);
    CHECK(probe.held_elsewhere(byte::life(0)) && !probe.held_elsewhere(byte::recovery(0)));
    CHECK(entry_name(topic.memory().entry(0)) == "name" && topic.recover().empty());
    publisher->close();
    CHECK(state_of(topic, 0) == EntryState::free && !probe.held_elsewhere(byte::life(0)));
  }
  const auto first = topic.publisher();
  const auto second = topic.publisher();
  CHECK(first->membership().index == 0 && second->membership().index == 1);
  topic.memory().entry(0).word.store_ordered(entry_word(99, EntryState::active));
  THROWN(corrupt, first->borrow(8, 1));
  CHECK(publish(*second, 1) == 1);
}

// Who has an entry next goes on counting where the last one ended, and every death is counted once.
static void counts_outlive_their_owners() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  uint64_t received = 0, missed = 0, deaths = 0;
  for (int life = 1; life <= 6; life++) {
    auto subscriber = topic.subscriber();
    const Entry& entry = topic.memory().entry(subscriber->membership().index);
    for (int i = 0; i < 20; i++) publish(*publisher, 1);
    Taken taken{};
    while (take(*subscriber, taken)) subscriber->release(taken.slot, taken.sequence);
    CHECK(subscriber->received() + subscriber->missed() == 20 && subscriber->missed() > 0);
    received += subscriber->received(), missed += subscriber->missed();
    CHECK(entry.count.load_relaxed() == received && entry.count_before.load_relaxed() == received - subscriber->received());
    CHECK(entry.missed.load_relaxed() == missed && entry.missed_before.load_relaxed() == missed - subscriber->missed());
    if (life % 2) {
      subscriber->close();
    } else {
      die(subscriber);
      deaths++;
    }
    topic.recover(), topic.recover();
    CHECK(deaths_of(entry.deaths.load_relaxed()) == deaths);
    CHECK(entry.count.load_relaxed() == received && entry.missed.load_relaxed() == missed);
  }
}

// A recoverer that was killed between the count and the end of its work does not count for two.
static void a_death_is_counted_once() {
  Entry entry{};
  for (uint64_t incarnation : {1, 2, 5}) {
    count_death(entry, incarnation);
    const uint64_t once = deaths_of(entry.deaths.load_relaxed());
    count_death(entry, incarnation);
    CHECK(deaths_of(entry.deaths.load_relaxed()) == once);
  }
  CHECK(deaths_of(entry.deaths.load_relaxed()) == 3);
}

static void a_place_with_a_held_byte_is_passed_over() {
  HeapTopic topic;
  const Descriptor other = topic.description();
  CHECK(other.try_lock(byte::recovery(0)) && other.try_lock(byte::life(1)));
  const auto publisher = topic.publisher();
  CHECK(publisher->membership().index == 2);
  THROWN(full, topic.publisher());
  CHECK(!topic.description().held_elsewhere(byte::recovery(1)));
}

static void a_dead_publisher_gives_its_loans_back() {
  HeapTopic topic;
  auto dying = topic.publisher("dying");
  const auto living = topic.publisher("living");
  dying->borrow(8, 2);
  dying->borrow(8, 2);
  const uint32_t kept = living->borrow(8, 2);
  die(dying);
  CHECK(count_slots(topic.memory()).lent == 3 && state_of(topic, 0) == EntryState::active);
  const auto recovered = topic.recover();
  CHECK(recovered.size() == 1 && recovered[0].index == 0 && recovered[0].name == "dying" && recovered[0].loans == 2);
  CHECK(recovered[0].complete && recovered[0].pid == 7 && state_of(topic, 0) == EntryState::free);
  CHECK(topic.memory().slot(kept).state.load_ordered() == living->membership().owner());
  CHECK(topic.recover().empty() && count_slots(topic.memory()).leaked == 0);
}

static void a_dead_subscriber_gives_its_bits_back() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  auto dying = topic.subscriber(0, true, "dying");
  const auto living = topic.subscriber();
  publish(*publisher, 1);
  Taken mine{}, taken{};
  CHECK(take(*dying, taken) && take(*living, mine));
  topic.memory().header().samples.waiters.set(dying->bit());
  for (uint64_t i = 0; i < topic.layout().ring; i++) publish(*publisher, i);
  CHECK(publish(*publisher, 9) == 0);
  die(dying);
  CHECK(publish(*publisher, 9) == 0);
  const auto recovered = topic.recover();
  CHECK(recovered.size() == 1 && recovered[0].references == 1 && recovered[0].complete);
  CHECK(publish(*publisher, 9) != 0);
  CHECK(topic.memory().header().samples.waiters.words[0].load_ordered() == 0);
  CHECK(topic.memory().references(mine.slot, 0).load_ordered() == uint64_t{1} << living->bit());
  CHECK(living->release(mine.slot, mine.sequence) && count_slots(topic.memory()).referenced == 0);
}

static void only_the_dead_are_recovered() {
  HeapTopic topic;
  Believed believed;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  publisher->borrow(8, 1);
  CHECK(recover_all(topic.memory(), believed).empty());
  believed.lives[0] = 0;
  const auto recovered = recover_all(topic.memory(), believed);
  CHECK(recovered.size() == 1 && recovered[0].index == 0 && recovered[0].loans == 1);
  CHECK(state_of(topic, 3) == EntryState::active && believed.locked[0] == 0);
}

// A recoverer that is stopped with the recovery byte keeps only the bits and the place.
static void somebody_else_is_recovering() {
  HeapTopic topic;
  Believed believed;
  const auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber(0, true);
  publish(*publisher, 1);
  Taken taken{};
  CHECK(take(*subscriber, taken));
  believed.lives[3] = 0;
  believed.locked[3] = 1;
  auto recovered = recover_all(topic.memory(), believed);
  CHECK(recovered.size() == 1 && !recovered[0].complete && state_of(topic, 3) == EntryState::dead);
  CHECK(referenced(topic.memory(), taken.slot));
  for (uint64_t i = 0; i < 20; i++) CHECK(publish(*publisher, i) != 0);
  believed.locked[3] = 0;
  recovered = recover_all(topic.memory(), believed);
  CHECK(recovered.size() == 1 && recovered[0].complete && recovered[0].references == 1);
  CHECK(state_of(topic, 3) == EntryState::free && !referenced(topic.memory(), taken.slot));
}

// A recoverer that is late finds the next incarnation in the entry and leaves it alone.
static void the_next_incarnation_is_left_alone() {
  HeapTopic topic;
  auto former = topic.subscriber(0, false, "former");
  const auto publisher = topic.publisher();
  publish(*publisher, 1);
  die(former);
  const uint64_t dead = entry_word(1, EntryState::dead);
  topic.recover();
  const auto next = topic.subscriber(1, false, "next");
  Taken taken{};
  CHECK(next->membership().index == 3 && take(*next, taken));
  Believed believed;
  Recovered report{3, 1, "former", 8};
  finish_recovery(topic.memory(), believed, dead, report);
  CHECK(!report.complete && state_of(topic, 3) == EntryState::active && believed.locked[3] == 0);
  CHECK(next->release(taken.slot, taken.sequence));
  const uint32_t lent = publisher->borrow(8, 1);
  CHECK(return_loans(topic.memory(), owner_word(0, publisher->membership().incarnation + 1)) == 0);
  CHECK(topic.memory().slot(lent).state.load_ordered() == publisher->membership().owner());
}

static void an_impossible_state_is_damage() {
  const HeapTopic topic;
  topic.memory().entry(2).word.store_ordered(entry_word(1, static_cast<EntryState>(9)));
  THROWN(corrupt, topic.recover());
}

static void leaks_are_seen() {
  HeapTopic topic;
  const auto publisher = topic.publisher();
  topic.memory().slot(5).state.store_ordered(owner_word(1, 1));
  CHECK(count_slots(topic.memory()).leaked == 1);
  topic.memory().slot(5).state.store_ordered(0);
  topic.memory().references(5, 0).set_bits(2);
  CHECK(count_slots(topic.memory()).leaked == 1);
  topic.memory().references(5, 0).clear_bits(2);
  CHECK(count_slots(topic.memory()).leaked == 0 && count_slots(topic.memory()).free == topic.layout().slots);
}

int main() {
  return run({{"joining and leaving", joining_and_leaving},
              {"counts outlive their owners", counts_outlive_their_owners},
              {"a death is counted once", a_death_is_counted_once},
              {"a place with a held byte is passed over", a_place_with_a_held_byte_is_passed_over},
              {"a dead publisher gives its loans back", a_dead_publisher_gives_its_loans_back},
              {"a dead subscriber gives its bits back", a_dead_subscriber_gives_its_bits_back},
              {"only the dead are recovered", only_the_dead_are_recovered},
              {"somebody else is recovering", somebody_else_is_recovering},
              {"the next incarnation is left alone", the_next_incarnation_is_left_alone},
              {"an impossible state is damage", an_impossible_state_is_damage},
              {"leaks are seen", leaks_are_seen}});
}
