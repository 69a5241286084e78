// The operations on a queue that are killed and stopped at every instruction.
#pragma once

#include "queue_actor.hpp"

namespace crash {

struct QueueOperation {
  const char* name;
  void (*prepare)(QueueActor&);
  void (*run)(QueueActor&);
  void (*meanwhile)(QueueWorld&) = nullptr;  // by the others, between the two
  QueueRules rules = {};
  bool with_dead = false;   // a producer, a consumer and a mover died before and nobody noticed
  bool moves_back = false;  // letters come back to the queue, behind newer messages
};

namespace queue_operations {

inline void as_producer(QueueActor& actor) {
  actor.attach();
  actor.join_producer();
}
inline void as_consumer(QueueActor& actor) {
  actor.attach();
  actor.join_consumer();
}
// It knows where the next message is.
inline void as_consumer_at_work(QueueActor& actor) {
  as_consumer(actor);
  actor.copy_one();
  actor.accept_copy();
}
inline void with_message(QueueActor& actor) {
  as_consumer(actor);
  actor.claim_one();
}
inline void with_copy(QueueActor& actor) {
  as_consumer(actor);
  actor.copy_one();
}
inline void with_two(QueueActor& actor) {
  with_message(actor);
  actor.claim_one();
}
inline void as_mover(QueueActor& actor) {
  as_consumer(actor);
  actor.join_letters();
}
// Two messages that must go to the dead letters: one was rejected, one delivered too often.
inline void with_dying(QueueActor& actor) {
  as_mover(actor);
  actor.claim_one();
  actor.claim_one();
  actor.reject_one();
  actor.release_one();
  actor.report.holding = 0;
}
inline void with_letters(QueueActor& actor) {
  with_dying(actor);
  actor.join_producer();
  actor.bury();
}
inline void sleep_for_message(QueueActor& actor) {
  hawser::Sleeper sleeper(actor.consumer->signal(), actor.consumer->bit(), actor.consumer->sleepers());
  sleeper.sleep(sleeper.value(), 200'000);
}

// The reader has one of those that wait and gives it back.
inline void give_one_back(QueueWorld& world) {
  Claimed claimed{};
  require(claim(world.reader(), claimed) && world.reader().release(claimed), "there is nothing to give back");
  require(world.reader().let_go(claimed.slot), "a bit of a living consumer was gone");
}
inline void have_two(QueueWorld& world) {
  for (int i = 0; i < 2; i++) {
    Claimed claimed{};
    require(claim(world.reader(), claimed), "there is nothing to claim");
    world.accept(world.region(), world.reader(), claimed);
  }
}
inline void put_a_lap(QueueWorld& world) { world.put_and_drain(11); }
inline void look_twice_and_claim(QueueActor& actor) {
  actor.consumer->look_around();
  actor.consumer->look_around();
  actor.claim_one();
}
// Somebody else looks twice, so that the lease of whatever it saw is over, and accepts it.
inline void take_over(QueueWorld& world) {
  for (int i = 0; i < 3; i++) world.reader().look_around();
  world.drain();
}

constexpr QueueRules kShortLease{.lease_ns = 1};
constexpr QueueRules kLongLease{.lease_ns = 3'600'000'000'000};
constexpr QueueRules kOneDelivery{.max_deliveries = 1};

inline const QueueOperation table[] = {
    {"put", as_producer, [](QueueActor& a) { a.put(); }},
    {"put_three", as_producer, [](QueueActor& a) { for (int i = 0; i < 3; i++) a.put(); }},
    {"put_run", as_producer, [](QueueActor& a) { a.put_many(4); }, [](QueueWorld& w) { w.drain(); }},
    {"put_lapped", as_producer, [](QueueActor& a) { a.put(); }, put_a_lap},
    {"claim", as_consumer, [](QueueActor& a) { a.claim_one(); }},
    {"claim_two", as_consumer, [](QueueActor& a) { a.claim_one(), a.claim_one(); }},
    {"claim_returned", as_consumer, [](QueueActor& a) { a.claim_one(), a.claim_one(); }, give_one_back},
    {"claim_past_others", as_consumer, [](QueueActor& a) { a.claim_one(); }, have_two},
    {"claim_lapped", as_consumer, [](QueueActor& a) { a.claim_one(); },
     [](QueueWorld& w) { put_a_lap(w), w.put(w.writer(), kWriter); }},
    {"claim_copy", as_consumer, [](QueueActor& a) { a.copy_one(), a.copy_one(); }},
    {"claim_run_ahead", as_consumer_at_work, [](QueueActor& a) { a.claim_run_ahead(3); }, nullptr, kOneDelivery},
    {"hand_out_and_accept", as_consumer_at_work,
     [](QueueActor& a) { a.claim_run_ahead(2), a.hand_out_all(); while (!a.claimed.empty()) a.accept_one(); }},
    {"hand_out_leased", as_consumer, [](QueueActor& a) { a.claim_one_ahead(), a.hand_out_all(); }, nullptr, kShortLease},
    {"release_ahead", as_consumer_at_work, [](QueueActor& a) { a.claim_run_ahead(2), a.release_one_ahead(), a.release_one_ahead(); }},
    {"copy_run", as_consumer_at_work, [](QueueActor& a) { a.copy_run(3); }},
    {"copy_run_and_accept", as_consumer_at_work, [](QueueActor& a) { a.copy_run(2); while (!a.copied.empty()) a.accept_copy(); }},
    {"claim_leased", as_consumer, [](QueueActor& a) { a.claim_one(); }, nullptr, kShortLease},
    {"claim_copy_leased", as_consumer, [](QueueActor& a) { a.copy_one(); }, nullptr, kShortLease},
    {"claim_nothing", as_consumer, [](QueueActor& a) { a.claim_one(); }, [](QueueWorld& w) { w.drain(); }},
    {"accept", with_two, [](QueueActor& a) { a.accept_one(), a.accept_one(); }},
    {"accept_lapped", with_message, [](QueueActor& a) { a.accept_one(); }, put_a_lap},
    {"accept_copy", with_copy, [](QueueActor& a) { a.accept_copy(); }},
    {"accept_late", with_message, [](QueueActor& a) { a.accept_one(); }, take_over, kShortLease},
    {"release_message", with_two, [](QueueActor& a) { a.release_one(), a.release_one(); }},
    {"release_message_lapped", with_message, [](QueueActor& a) { a.release_one(); }, put_a_lap},
    {"release_last", with_message, [](QueueActor& a) { a.release_one(); }, nullptr, kOneDelivery},
    {"release_late", with_message, [](QueueActor& a) { a.release_one(); }, take_over, kShortLease},
    {"reject", with_two, [](QueueActor& a) { a.reject_one(), a.reject_one(); }},
    {"reject_and_bury", [](QueueActor& a) { as_mover(a), a.claim_one(); }, [](QueueActor& a) { a.reject_one(), a.bury(); }},
    {"bury", with_dying, [](QueueActor& a) { a.bury(); }, nullptr, kOneDelivery},
    {"bury_after_death", as_mover, [](QueueActor& a) { a.region->recover(), a.letters->recover(), a.bury(); }, nullptr,
     kOneDelivery, true},
    {"retry", with_letters, [](QueueActor& a) { a.retry(); }, nullptr, kOneDelivery, false, true},
    {"take_over", as_consumer, look_twice_and_claim, [](QueueWorld& w) { w.keep_one(); }, kShortLease},
    {"keep_off", as_consumer, look_twice_and_claim, [](QueueWorld& w) { w.keep_one(); }, kLongLease},
    {"sleep_for_message", as_consumer, sleep_for_message, [](QueueWorld& w) { w.drain(); }},
    {"join_consumer", [](QueueActor& a) { a.attach(); }, [](QueueActor& a) { a.join_consumer(); }},
    {"leave_consumer", with_two, [](QueueActor& a) { a.consumer->close(); }},
    {"join_producer_of_queue", [](QueueActor& a) { a.attach(); }, [](QueueActor& a) { a.join_producer(); }},
    {"leave_producer", as_producer, [](QueueActor& a) { a.producer->close(); }},
    {"peek", [](QueueActor& a) { a.attach(); }, [](QueueActor& a) { hawser::peek(a.region->memory(), 9); }},
    {"recover_queue", [](QueueActor& a) { a.attach(); }, [](QueueActor& a) { a.region->recover(), a.letters->recover(); },
     nullptr, kOneDelivery, true},
    {"claim_after_death", [](QueueActor& a) { a.attach(); }, [](QueueActor& a) { a.join_consumer(), a.claim_one(); },
     nullptr, {}, true},
};

}  // namespace queue_operations

// Steps 1 to 4 of a move (letters.hpp), by somebody who dies then.
inline void leave_half_moved(QueueActor& actor) {
  actor.claim_one();
  const Claimed doomed = actor.claimed.back();
  actor.reject_one();
  const hawser::Memory &here = actor.region->memory(), &there = actor.letters->memory();
  Claimed claimed{};
  const hawser::Candidate found{doomed.sequence, doomed.slot, here.claim(doomed.slot).load_ordered()};
  require(actor.consumer->describe(found, claimed) && actor.consumer->claim_to_move(found, ClaimState::burying, claimed),
          "a rejected message cannot be moved");
  const uint32_t slot = actor.letter_producer->borrow(kContentBytes, 2);
  there.slot(slot).sequence.store_relaxed(0);
  std::memcpy(actor.letter_producer->payload(slot), here.readable + here.payload_at(claimed.slot), kContentBytes);
  there.origin(slot).sequence.store_relaxed(claimed.sequence);
  there.origin(slot).region.store_relaxed(actor.region->number());
  there.origin(slot).pin.store_ordered(hawser::mix(actor.region->number(), claimed.sequence) | 1);  // as Mover::pin_of
  require(actor.letter_producer->try_publish(slot, kContentBytes, 0) != 0, "the dead letters are full");
}

// A process that dies with a loan, with messages claimed in hand and by copy, asleep, and in the middle of a move:
// the letter has arrived, and is not done at home.
inline void leave_dead(QueueWorld& world) {
  Report& report = shared_report();
  std::memset(static_cast<void*>(&report), 0, sizeof report);
  const pid_t process = start_process();
  if (process == 0) {
    QueueActor actor(world.directory(), world.rules(), report);
    queue_operations::as_mover(actor);
    actor.join_producer();
    actor.producer->borrow(kContentBytes, 2);
    leave_half_moved(actor);
    actor.claim_one();
    actor.copy_one();
    actor.consumer->signal().waiters.set(actor.consumer->bit());
    report.finished = 1;
    for (;;) pause();
  }
  while (!report.finished) usleep(50);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

}  // namespace crash
