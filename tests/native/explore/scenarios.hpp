// What is explored: small enough to be exhausted, large enough for every race of the design.
#pragma once

namespace exploring {

struct Scenario {
  const char* name;
  Settings settings;
  Limits limits;
  void (*set_up)();
};

constexpr Settings sized(uint32_t ring, uint32_t publishers, uint32_t subscribers, uint32_t held = 1) {
  // One publisher more than take part: the end of each schedule is checked by one that joins then.
  return {.slot_size = kPayloadBytes, .history = ring > 1 ? 1u : 0u, .depth = ring > 1 ? ring - 1 : 1,
          .max_publishers = publishers + 1, .max_subscribers = subscribers, .max_held = held, .max_loans = 1,
          .ephemeral = 0, .group = 0};
}

inline void two_publishers() {
  as(0, "publisher", join_publisher);
  as(1, "rival", join_publisher);
  as(2, "subscriber", [] { join_subscriber(0, false); });
  will<publish_some<1>>(0, "publisher");
  will<publish_some<1>>(1, "rival");
  will<take_and_release<2>>(2, "subscriber");
}

inline void one_laps_the_other() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, false); });
  will<publish_some<4>>(0, "publisher");
  will<take_and_release<3>>(1, "subscriber");
}

inline void held_while_lapped() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, false); });
  will<publish_some<4>>(0, "publisher");
  will<take_and_hold<2>>(1, "subscriber");
}

inline void copied_while_lapped() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, false); });
  will<publish_some<3>>(0, "publisher");
  will<copy_some<2>>(1, "subscriber");
}

// A sample is there already: one publisher evicts it while the other looks at its slot and a subscriber takes it.
inline void borrow_against_take() {
  as(0, "publisher", join_publisher);
  as(1, "rival", join_publisher);
  as(2, "subscriber", [] { join_subscriber(0, false); });
  as(1, "rival", [] { publish_once(); });
  will<publish_some<1>>(0, "publisher");
  will<publish_some<1>>(1, "rival");
  will<take_and_hold<1>>(2, "subscriber");
}

inline void killed_publisher() {
  as(0, "publisher", join_publisher);
  as(1, "rival", join_publisher);
  as(2, "subscriber", [] { join_subscriber(0, false); });
  will<publish_some<1>>(0, "publisher");
  will<publish_some<1>>(1, "rival");
  will<take_and_hold<1>>(2, "subscriber");
}

inline void killed_and_recovered() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, false); });
  as(0, "publisher", [] { publish_once(); });
  will<publish_some<1>>(0, "publisher");
  will<take_and_release<2>>(1, "subscriber");
  will<recover_once>(2, "recoverer");
}

inline void join_reliably() {
  join_subscriber(1, true);
  take_once();
  release_once();
  take_once();
}
inline void reliable_join() {
  as(0, "publisher", join_publisher);
  as(0, "publisher", [] { publish_once(); });
  will<publish_some<3>>(0, "publisher");
  will<join_reliably>(1, "joiner");
}

inline void reliable_join_of_two() {
  as(0, "publisher", join_publisher);
  as(1, "rival", join_publisher);
  as(0, "publisher", [] { publish_once(); });
  as(1, "rival", [] { publish_once(); });
  will<publish_some<2>>(0, "publisher");
  will<publish_some<1>>(1, "rival");
  will<join_reliably>(2, "joiner");
}

// Runs of messages. Whoever has gone round the ring has slots that it evicted, so that its run begins at once.
inline void runs_of_two() {
  as(0, "publisher", join_publisher);
  as(1, "rival", join_publisher);
  as(2, "subscriber", [] { join_subscriber(0, false); });
  as(0, "publisher", [] { publish_once(), world->watch(), publish_once(); });
  will<publish_in_runs<2>>(0, "publisher");
  will<publish_some<1>>(1, "rival");
  will<take_and_hold<1>>(2, "subscriber");
}
inline void run_copied_while_lapped() {
  as(0, "publisher", join_publisher);
  as(0, "publisher", [] { publish_once(), world->watch(), publish_once(); });
  as(1, "subscriber", [] { join_subscriber(1, false); });
  as(0, "publisher", [] { publish_once(); });
  will<publish_in_runs<3>>(0, "publisher");
  will<copy_in_runs<2>>(1, "subscriber");
}
inline void run_held_up() {
  as(0, "publisher", join_publisher);
  as(0, "publisher", [] { for (int i = 0; i < 3; i++) publish_once(), world->watch(); });
  will<publish_in_runs<3>>(0, "publisher");
  will<join_reliably>(1, "joiner");
}
inline void run_killed() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, false); });
  as(0, "publisher", [] { publish_once(), world->watch(), publish_once(); });
  will<publish_in_runs<2>>(0, "publisher");
  will<take_and_release<1>>(1, "subscriber");
  will<recover_once>(2, "recoverer");
}

inline void join_and_hold() {
  join_subscriber(1, false);
  take_once();
}
// A subscriber died with a sample; two recover it while a third takes its place and the same sample.
inline void rejoin() {
  as(0, "publisher", join_publisher);
  as(1, "former", [] { join_subscriber(0, false); });
  as(0, "publisher", [] { publish_once(); });
  as(1, "former", [] { take_once(); });
  is_dead(1);
  will<recover_once>(2, "recoverer");
  will<join_and_hold>(3, "joiner");
}

inline void join_and_publish() {
  join_publisher();
  publish_once();
}
// A publisher died with a loan; another recovers it while it comes back and publishes.
inline void publisher_comes_back() {
  as(0, "former", [] {
    join_publisher();
    me().publisher->borrow(kPayloadBytes, 1);
  });
  as(1, "subscriber", [] { join_subscriber(0, false); });
  is_dead(0);
  will<recover_once>(2, "recoverer");
  will<join_and_publish>(3, "joiner");
}

inline void wait_and_take() {
  while (!take_once()) me().subscriber->wait_for_sample(kSliceNanoseconds);
}
inline void sleeping_subscriber() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, false); });
  will<publish_some<1>>(0, "publisher");
  will<wait_and_take>(1, "subscriber");
}

inline void wait_and_publish() {
  while (!publish_once()) me().publisher->wait_for_space(kSliceNanoseconds);
}
inline void sleeping_publisher() {
  as(0, "publisher", join_publisher);
  as(1, "subscriber", [] { join_subscriber(0, true); });
  as(0, "publisher", [] { publish_once(); });
  will<wait_and_publish>(0, "publisher");
  will<take_and_release<2>>(1, "subscriber");
}

constexpr Settings queue_sized(uint32_t ring, uint32_t producers, uint32_t consumers, uint64_t lease_ns = 0, uint32_t held = 1) {
  Settings settings = sized(1, producers, consumers + 1, held);  // one more consumer for the end, too
  settings.depth = ring;
  settings.kind = kKindQueue;
  settings.lease_ns = lease_ns;
  return settings;
}

inline void two_consumers() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "rival", join_and_look);
  as(0, "producer", [] { publish_once(); });
  will<publish_some<1>>(0, "producer");
  will<claim_and_accept<1>>(1, "consumer");
  will<claim_and_accept<1>>(2, "rival");
}

inline void put_against_claim() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(0, "producer", [] { publish_once(); });
  will<publish_some<3>>(0, "producer");
  will<claim_and_accept<2>>(1, "consumer");
}

// A message comes back while others look for it and the producer wants its place.
inline void released_and_claimed() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "rival", join_and_look);
  as(0, "producer", [] { publish_once(); });
  as(1, "consumer", [] { claim_once(); });
  will<publish_some<2>>(0, "producer");
  will<release_claim>(1, "consumer");
  will<claim_and_accept<2>>(2, "rival");
}

inline void killed_consumer() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "rival", join_and_look);
  as(0, "producer", [] { publish_once(); });
  will<claim_release_and_accept>(1, "consumer");
  will<claim_and_accept<1>>(2, "rival");
  will<recover_once>(3, "recoverer");
}

// A consumer died with a message; two recover it, one of which takes its place and the same message.
inline void join_and_claim() {
  join_consumer();
  claim_once();
}
inline void consumer_comes_back() {
  as(0, "producer", join_publisher);
  as(1, "former", join_and_look);
  as(0, "producer", [] { publish_once(); });
  as(1, "former", [] { claim_once(); });
  is_dead(1);
  will<recover_once>(2, "recoverer");
  will<join_and_claim>(3, "joiner");
}

// One is slow, the other one takes its message over, and the producer fills the queue again. The clock of a process
// goes to and fro between two seconds: its first look is in the first, the next one in the second.
inline void look_and_accept() {
  for (int i = 0; i < 2; i++) me().consumer->look_around();
  if (claim_once()) accept_once();
}
inline void claimed_too_long() {
  as(0, "producer", join_publisher);
  as(1, "slow", join_and_look);
  as(2, "other", join_consumer);
  as(0, "producer", [] { publish_once(); });
  will<publish_some<2>>(0, "producer");
  will<claim_and_accept<1>>(1, "slow");
  will<look_and_accept>(2, "other");
}

// A rejected message is moved, here to the end of its own queue, by two who may be killed.
inline void buried_by_two() {
  as(0, "mover", join_publisher);
  as(0, "mover", join_and_look);
  as(1, "rival", join_publisher);
  as(1, "rival", join_and_look);
  as(0, "mover", [] { publish_once(); });
  as(0, "mover", [] { claim_once(); });
  as(0, "mover", reject_claim);
  will<bury_once>(0, "mover");
  will<bury_once>(1, "rival");
}
// The first one died half-way; whoever comes next finds out how far it came.
inline void recover_and_bury() {
  world->region().recover();
  bury_once();
}
inline void buried_after_a_death() {
  buried_by_two();
  will<recover_and_bury>(1, "rival");
}

// Runs of a queue: who puts and who claims many at a time, beside somebody who claims or gives back one.
inline void go_round_once() {
  for (int i = 0; i < 3; i++) {
    as(0, "producer", [] { publish_once(); });
    as(1, "consumer", [] { claim_and_accept<1>(); });
  }
}
inline void put_run_against_claim_run() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  go_round_once();
  will<publish_in_runs<3>>(0, "producer");
  will<claim_run_and_accept<2>>(1, "consumer");
}
inline void two_claim_runs() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "rival", join_and_look);
  as(0, "producer", [] { publish_once(), world->watch(), publish_once(); });
  will<claim_run_and_accept<2>>(1, "consumer");
  will<claim_run_and_accept<2>>(2, "rival");
}
inline void claim_run_and_return() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "rival", join_and_look);
  as(0, "producer", [] { publish_once(), world->watch(), publish_once(); });
  as(2, "rival", [] { claim_once(); });
  will<claim_run_and_accept<2>>(1, "consumer");
  will<release_claim>(2, "rival");
}
inline void claim_run_killed() {
  two_claim_runs();
  will<recover_once>(3, "recoverer");
}

inline void wait_and_accept() {
  while (!claim_once()) me().consumer->wait_for_message(kSliceNanoseconds);
  accept_once();
}
inline void sleeping_consumer() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  will<publish_some<1>>(0, "producer");
  will<wait_and_accept>(1, "consumer");
}
// Each of two messages wakes one.
inline void two_sleeping_consumers() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "rival", join_and_look);
  will<publish_some<2>>(0, "producer");
  will<wait_and_accept>(1, "consumer");
  will<wait_and_accept>(2, "rival");
}
inline void sleeping_for_a_return() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(2, "holder", join_and_look);
  as(0, "producer", [] { publish_once(); });
  as(2, "holder", [] { claim_once(); });
  will<wait_and_accept>(1, "consumer");
  will<release_claim>(2, "holder");
}
inline void sleeping_producer() {
  as(0, "producer", join_publisher);
  as(1, "consumer", join_and_look);
  as(0, "producer", [] { publish_once(); });
  will<wait_and_publish>(0, "producer");
  will<claim_and_accept<1>>(1, "consumer");
}

inline const Scenario scenarios[] = {
    {"two_publishers", sized(1, 2, 1), {}, two_publishers},
    {"lapped_on_ring_1", sized(1, 1, 1), {}, one_laps_the_other},
    {"lapped_on_ring_2", sized(2, 1, 1), {}, one_laps_the_other},
    {"held_while_lapped", sized(1, 1, 1, 2), {}, held_while_lapped},
    {"copied_while_lapped", sized(1, 1, 1), {}, copied_while_lapped},
    {"borrow_against_take", sized(1, 2, 1), {}, borrow_against_take},
    {"killed_publisher", sized(1, 2, 1), {1}, killed_publisher},
    {"killed_and_recovered", sized(1, 1, 1), {1}, killed_and_recovered},
    {"reliable_join", sized(2, 1, 1), {1}, reliable_join},
    {"reliable_join_of_two", sized(2, 2, 1), {0, 2}, reliable_join_of_two},
    {"runs_of_two", sized(1, 2, 1), {0, 2}, runs_of_two},
    {"run_copied_while_lapped", sized(2, 1, 1), {}, run_copied_while_lapped},
    {"run_held_up", sized(2, 1, 1), {1}, run_held_up},
    {"run_killed", sized(1, 1, 1), {1}, run_killed},
    {"rejoin", sized(1, 1, 2), {1}, rejoin},
    {"publisher_comes_back", sized(1, 2, 1), {1}, publisher_comes_back},
    {"sleeping_subscriber", sized(1, 1, 1), {}, sleeping_subscriber},
    {"sleeping_publisher", sized(1, 1, 1), {}, sleeping_publisher},
    {"two_consumers", queue_sized(2, 1, 2), {}, two_consumers},
    {"put_against_claim", queue_sized(1, 1, 1), {}, put_against_claim},
    {"released_and_claimed", queue_sized(1, 1, 2), {0, 2}, released_and_claimed},
    {"killed_consumer", queue_sized(1, 1, 2), {1, 1}, killed_consumer},
    {"consumer_comes_back", queue_sized(1, 1, 2), {1, 2}, consumer_comes_back},
    {"claimed_too_long", queue_sized(1, 1, 2, 1), {0, 2}, claimed_too_long},
    {"buried_by_two", queue_sized(2, 2, 2), {0}, buried_by_two},
    {"buried_after_a_death", queue_sized(2, 2, 2), {1}, buried_after_a_death},
    {"put_run_against_claim_run", queue_sized(2, 1, 1, 0, 2), {}, put_run_against_claim_run},
    {"two_claim_runs", queue_sized(2, 1, 2, 0, 2), {}, two_claim_runs},
    {"claim_run_and_return", queue_sized(2, 1, 2, 0, 2), {}, claim_run_and_return},
    {"claim_run_killed", queue_sized(2, 1, 2, 0, 2), {1, 1}, claim_run_killed},
    {"sleeping_consumer", queue_sized(1, 1, 1), {}, sleeping_consumer},
    {"sleeping_consumers", queue_sized(2, 1, 2), {0, 2}, two_sleeping_consumers},
    {"sleeping_for_a_return", queue_sized(1, 1, 2), {}, sleeping_for_a_return},
    {"sleeping_producer", queue_sized(1, 1, 1), {}, sleeping_producer},
};

}  // namespace exploring
