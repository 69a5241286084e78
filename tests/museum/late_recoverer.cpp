// A recoverer that has seen a dead entry is held up; meanwhile another one frees it and the next owner joins.
#include <functional>

#include "check.hpp"
#include "heap_topic.hpp"

namespace {

std::function<void()> meanwhile;
int steps_until_then = -1;

}  // namespace

void hawser::explore_point() {
  if (steps_until_then < 0 || steps_until_then-- != 0) return;
  meanwhile();
}

using namespace testing;

static void the_next_owner_is_not_reported_dead() {
  for (int steps = 0; steps < 40; steps++) {
    HeapTopic topic;
    topic.subscriber(0, false, "former");  // dies at once
    topic.memory().entry(3).word.store_ordered(entry_word(1, EntryState::dead));
    std::unique_ptr<Subscriber> next;
    meanwhile = [&] {
      topic.recover();
      next = topic.subscriber(0, false, "next");
    };
    steps_until_then = steps;
    for (const Recovered& recovered : topic.recover()) CHECK(recovered.name == "former");
    steps_until_then = -1;
    if (next) CHECK(entry_state(topic.memory().entry(next->membership().index).word.load_ordered()) == EntryState::active);
  }
}

int main() { return run({{"the next owner is not reported dead", the_next_owner_is_not_reported_dead}}); }
