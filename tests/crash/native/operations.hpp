// The operations that are killed and stopped at every instruction.
#pragma once

#include "actor.hpp"

namespace crash {

struct Operation {
  const char* name;
  void (*prepare)(Actor&);
  void (*run)(Actor&);
  void (*meanwhile)(World&) = nullptr;  // by the others, between the two
  bool with_writer = true;              // else the topic has no publisher while the actor acts
  bool with_dead = false;               // a publisher and a subscriber died before and nobody noticed
  bool reliable = false;                // publishers wait for the actor
};

namespace operations {

inline void as_publisher(Actor& actor) {
  actor.attach();
  actor.join_publisher();
}
inline void as_publisher_at_work(Actor& actor) {
  as_publisher(actor);
  actor.publish();
}
// Every sample in the ring is its own.
inline void as_only_publisher(Actor& actor) {
  as_publisher(actor);
  for (uint32_t i = 0; i < actor.region->memory().layout.ring; i++) actor.publish();
}
inline void with_loan(Actor& actor) {
  as_publisher(actor);
  actor.borrow();
}
inline void with_published_loan(Actor& actor) {
  with_loan(actor);
  actor.publish_loan();
}
inline void as_subscriber(Actor& actor) {
  actor.attach();
  actor.join_subscriber({.history = 3});
}
inline void as_reliable(Actor& actor) {
  actor.attach();
  actor.join_subscriber({.history = 3, .reliable = true});
}
inline void with_sample(Actor& actor) {
  as_subscriber(actor);
  actor.take_one();
}
inline void with_position(Actor& actor, bool durable, bool commits) {
  actor.attach();
  actor.join_subscriber({.history = 3, .reliable = durable, .durable = durable, .record = kRecord, .commits = commits});
  actor.take_one();
  actor.report.mark_low = actor.taken[0].sequence - 1;
  actor.report.mark_high = actor.taken[0].sequence;
}
// The position stays behind; nobody holds it.
inline void leave_position(Actor& actor, bool durable) {
  with_position(actor, durable, false);
  actor.release_one();
  actor.subscriber->close();
  actor.subscriber.reset();
  actor.report.mark_low = actor.report.mark_high;
  actor.region->recover();
}
inline void publish_a_lap(World& world) { world.publish_and_drain(11); }
// As in a topic that was never written to: every slot's pages are still to be reserved.
inline void forget_backing(World& world) {
  for (uint32_t i = 0; i < world.memory().layout.slots; i++) world.memory().slot(i).backed.store_relaxed(0);
}
inline void drop_loan(Actor& actor) {
  const uint32_t slot = *actor.loan;
  actor.loan.reset();
  actor.publisher->put_back(slot);
}
inline void sleep_for_space(Actor& actor) {
  Publisher& publisher = *actor.publisher;
  hawser::Sleeper sleeper(publisher.signal(), publisher.membership().index, publisher.sleepers());
  sleeper.sleep(sleeper.value(), 200'000);
}
inline void take_all(Actor& actor) {
  while (actor.subscriber->ready()) {
    actor.take_one();
    actor.release_one();
  }
}

inline const Operation table[] = {
    {"publish", as_publisher, [](Actor& a) { a.publish(); }},
    {"publish_again", as_publisher_at_work, [](Actor& a) { a.publish(); }},
    {"publish_backing", as_publisher, [](Actor& a) { a.publish(); }, forget_backing},
    {"publish_three", as_publisher_at_work, [](Actor& a) { for (int i = 0; i < 3; i++) a.publish(); }},
    {"publish_run", as_only_publisher, [](Actor& a) { a.publish_many(4); }, [](World& w) { w.drain(); }},
    {"loan", as_publisher, [](Actor& a) { a.borrow(); }},
    {"publish_loan", as_publisher, [](Actor& a) { a.borrow(), a.publish_loan(); }},
    {"drop_loan", with_loan, drop_loan},
    {"drop_published_loan", with_published_loan, drop_loan},
    {"take", as_subscriber, [](Actor& a) { a.take_one(); }},
    {"take_copy", as_subscriber, [](Actor& a) { a.copy_one(); }},
    {"take_copy_lapped", as_subscriber, [](Actor& a) { a.copy_one(), a.copy_one(); }, publish_a_lap},
    {"take_lapped", as_subscriber, [](Actor& a) { a.take_one(), a.release_one(), a.take_one(); }, publish_a_lap},
    {"take_reliable", as_reliable, [](Actor& a) { a.take_one(), a.release_one(); }, nullptr, true, false, true},
    {"release", with_sample, [](Actor& a) { a.release_one(); }},
    {"release_lapped", with_sample, [](Actor& a) { a.release_one(); }, publish_a_lap},
    {"release_position", [](Actor& a) { with_position(a, false, false); }, [](Actor& a) { a.release_one(); }},
    {"release_durable", [](Actor& a) { with_position(a, true, false); }, [](Actor& a) { a.release_one(); }, nullptr,
     true, false, true},
    {"commit", [](Actor& a) { with_position(a, false, true); }, [](Actor& a) { a.subscriber->commit(); }},
    {"sleep_for_sample", [](Actor& a) { as_subscriber(a), take_all(a); },
     [](Actor& a) { a.subscriber->wait_for_sample(200'000); }},
    {"sleep_for_space", as_publisher, sleep_for_space},
    {"subscribe", [](Actor& a) { a.attach(); }, [](Actor& a) { a.join_subscriber({.history = 2}); }},
    {"subscribe_reliable", [](Actor& a) { a.attach(); },
     [](Actor& a) { a.join_subscriber({.history = 2, .reliable = true}); }, nullptr, true, false, true},
    {"resume_first", [](Actor& a) { a.attach(); },
     [](Actor& a) { a.join_subscriber({.history = 2, .record = kRecord}); }},
    {"resume_again", [](Actor& a) { leave_position(a, false); },
     [](Actor& a) { a.join_subscriber({.history = 2, .record = kRecord}); }},
    {"durable_first", [](Actor& a) { a.attach(); },
     [](Actor& a) { a.join_subscriber({.history = 2, .reliable = true, .durable = true, .record = kRecord}); },
     nullptr, true, false, true},
    {"durable_again", [](Actor& a) { leave_position(a, true); },
     [](Actor& a) { a.join_subscriber({.history = 2, .reliable = true, .durable = true, .record = kRecord}); },
     nullptr, true, false, true},
    {"unsubscribe", as_subscriber, [](Actor& a) { a.subscriber->close(); }},
    {"unsubscribe_reliable", as_reliable, [](Actor& a) { a.subscriber->close(); }, nullptr, true, false, true},
    {"join_publisher", [](Actor& a) { a.attach(); }, [](Actor& a) { a.join_publisher(); }},
    {"join_exclusive", [](Actor& a) { a.attach(); }, [](Actor& a) { a.join_publisher(true); }, nullptr, false},
    {"leave_publisher", as_publisher_at_work, [](Actor& a) { a.publisher->close(); }},
    {"forget_position", [](Actor& a) { leave_position(a, true); },
     [](Actor& a) { hawser::forget_record(*a.region, kRecord); }, nullptr, true, false, true},
    {"read_newest", [](Actor& a) { a.attach(); },
     [](Actor& a) { hawser::read_newest(a.region->memory(), 3, 0); }},
    {"recover", [](Actor& a) { a.attach(); }, [](Actor& a) { a.region->recover(); }, nullptr, true, true},
    {"join_after_death", [](Actor& a) { a.attach(); }, [](Actor& a) { a.join_publisher(); }, nullptr, true, true},
    {"subscribe_after_death", [](Actor& a) { a.attach(); }, [](Actor& a) { a.join_subscriber({.history = 2}); },
     nullptr, true, true},
};

}  // namespace operations

constexpr uint32_t kDeadParticipants = 2;

// A process that dies with loans, bits, reliable and asleep: a publisher and a subscriber.
inline void leave_dead(World& world) {
  Report& report = shared_report();
  report.finished = 0;
  const pid_t process = start_process();
  if (process == 0) {
    const auto region = Region::attach(world.place(), nullptr, "");
    const auto publisher = hawser::join_as_publisher(*region, "actor", false);
    const uint32_t published = publisher->borrow(kContentBytes, 2);
    write_content(publisher->payload(published), {kDead, 1});
    publisher->try_publish(published, kContentBytes, 0);
    publisher->borrow(kContentBytes, 2);
    const auto subscriber = hawser::join_as_subscriber(*region, "actor", {.history = 3, .reliable = true});
    Taken taken{};
    while (subscriber->free_places() > 0) take(*subscriber, taken);
    subscriber->signal().waiters.set(subscriber->bit());
    publisher->signal().waiters.set(publisher->membership().index);
    report.finished = 1;
    for (;;) pause();
  }
  while (!report.finished) usleep(50);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  world.drain();
}

}  // namespace crash
