// A queue that one consumer has for itself, as a recorder does: the reserved consumer is killed and stopped at every
// instruction. While it lives nobody else gets a message. After its death only its name may go on, until it is
// forgotten: it finds every message that was not accepted, the oldest first, and none of them counts as delivered.
#pragma once

#include "queue_scene.hpp"

namespace crash {

struct ReservedOperation {
  const char* name;
  void (*prepare)(QueueActor&);
  void (*run)(QueueActor&);
  bool alone = false;   // from its preparation to its end the queue is the actor's
  bool before = false;  // the name had the queue before, and left
  bool died = false;    // the name had the queue and some messages before, and died
};

namespace reserved {

inline void reserve(QueueActor& actor) { actor.join_consumer(true); }
inline void as_attached(QueueActor& actor) { actor.attach(); }
inline void as_reserved(QueueActor& actor) {
  actor.attach();
  reserve(actor);
}
inline void with_two(QueueActor& actor) {
  as_reserved(actor);
  actor.claim_one();
  actor.claim_one();
}
inline void claim_two(QueueActor& actor) {
  actor.claim_one();
  actor.copy_one();
}

inline const ReservedOperation table[] = {
    {"reserve", as_attached, reserve},
    {"reserve_again", as_attached, reserve, false, true},
    {"reserve_after_death", as_attached, reserve, false, false, true},
    {"reserved_claim", as_reserved, claim_two, true},
    {"reserved_claim_after_death", as_reserved, claim_two, true, false, true},
    {"reserved_accept", with_two, [](QueueActor& a) { a.accept_one(), a.accept_one(); }, true},
    {"reserved_release", with_two, [](QueueActor& a) { a.release_one(), a.unclaim_one(); }, true},
    {"reserved_leave", with_two, [](QueueActor& a) { a.consumer->close(); }},
    {"forget_reservation", as_attached, [](QueueActor& a) { hawser::forget_record(*a.region, "actor"); }, false, true},
};

}  // namespace reserved

// The queue, its producer, and everybody who would like to consume.
class ReservedWorld {
 public:
  explicit ReservedWorld(const std::string& directory) : directory_(directory) {
    const hawser::Settings settings = queue_settings(kRules), of_letters = queue_settings({});
    region_ = attach_queue(directory, kQueueName, &settings);
    letters_ = attach_queue(directory, kLettersName, &of_letters);
    require(memory().head().load_ordered() == 0, "a file was left by an earlier run");
    writer_ = hawser::join_as_publisher(*region_, "writer", false);
    const auto first = hawser::join_as_consumer(*region_, "first");
    for (int i = 0; i < 13; i++) put(), drain(*first, true);
    first->close();
    for (int i = 0; i < 5; i++) require(put(), "an empty queue is full");
  }

  static constexpr QueueRules kRules{.max_deliveries = 1};  // whose deliveries counted would die of the first

  const std::string& directory() const { return directory_; }
  Region& region() { return *region_; }
  const hawser::Memory& memory() const { return region_->memory(); }
  Fates& fates() { return fates_; }

  bool put() {
    const Content content{kWriter, number_ + 1};
    if (put_copy(*writer_, content) == 0) return false;
    number_++;
    fates_.promise(content);
    return true;
  }
  // Null: the queue is somebody else's.
  std::unique_ptr<Consumer> join(const char* name, bool reserve) {
    try {
      return hawser::join_as_consumer(*region_, name, 0, reserve);
    } catch (const hawser::Error& error) {
      require(error.kind() == hawser::Kind::usage, std::string("who would consume is told: ") + error.what());
      return nullptr;
    }
  }
  void drain(Consumer& consumer, bool counted) {
    uint64_t last = 0;
    for (Claimed claimed{}; claim(consumer, claimed); last = claimed.sequence) {
      require(claimed.sequence > last, "an older message came after a newer one");
      require(hawser::claim_deliveries(claimed.claim) == (counted ? 1 : 0), "a delivery to the reserved consumer was counted");
      const Content content = content_of(memory(), claimed);
      fates_.see(*region_, claimed.sequence, content);
      require(consumer.accept(claimed), "a claim of the living was taken away");
      fates_.accept(content);
      require(consumer.let_go(claimed.slot), "a bit of a living consumer was gone");
    }
  }
  void end() {
    writer_->close();
    for (Region* region : {letters_.get(), region_.get()}) require(region->remove(false), "the file is still in use by the dead");
  }

 private:
  const std::string directory_;
  std::shared_ptr<Region> region_, letters_;
  std::unique_ptr<Publisher> writer_;
  Fates fates_;
  uint64_t number_ = 0;
};

class ReservedScene : public Scene {
 public:
  ReservedScene(const ReservedOperation& operation, const std::string& directory) : operation_(operation), world_(directory) {
    if (operation_.before) world_.join("actor", true)->close();
    if (operation_.died) leave_dead();
  }

  pid_t start() override {
    return start_actor([&](QueueActor& actor) {
      Tracee::be_traced();
      act(actor, operation_.prepare, operation_.run);
    });
  }
  void meanwhile() override { changed(false); }
  bool changed(bool) override { return watch_.changed(world_.memory().base, world_.memory().layout.payloads_at); }
  void while_stopped() override { work(); }
  void finished() override { work(); }

  void after() override {
    for (const hawser::Recovered& one : world_.region().recover()) require(one.complete, "recovery did not complete");
    check_nothing_left();
    if (hawser::find_record(world_.memory(), "actor") != hawser::kNoRecord)
      require(!world_.join("guest", false), "a queue that was reserved by the dead is anybody's");
    go_on_by_name();
    require(hawser::forget_record(world_.region(), "actor"), "a reservation is not kept");
    go_on_as_anybody();
    check_fates(world_.fates(), shared_report(), world_.region());
    world_.end();
  }

 private:
  template <class Life>
  pid_t start_actor(const Life& live) {
    Report& report = shared_report();
    std::memset(static_cast<void*>(&report), 0, sizeof report);
    const pid_t process = start_process();
    if (process != 0) return process;
    QueueActor actor(world_.directory(), ReservedWorld::kRules, report);
    live(actor);
    for (;;) pause();
  }

  void leave_dead() {
    const pid_t process = start_actor([](QueueActor& actor) {
      reserved::as_reserved(actor);
      reserved::claim_two(actor);
      actor.report.finished = 1;
    });
    while (!shared_report().finished) usleep(50);
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }

  // What everybody else does while the actor stands still, or has done its operation and lives.
  void work() {
    while (world_.put()) continue;
    for (const char* name : {"guest", "actor"}) {
      const bool reserve = name == std::string("actor");
      const auto consumer = world_.join(name, reserve);
      require(!consumer || !operation_.alone, "a queue has a second consumer while the first has it for itself");
      if (!consumer) continue;
      world_.drain(*consumer, !reserve);
      consumer->close();
    }
    world_.region().recover();
    hawser::view_queue(world_.memory());
    hawser::peek(world_.memory(), 3);
  }

  void check_nothing_left() {
    const hawser::SlotCounts counts = hawser::count_slots(world_.memory());
    require(counts.leaked == 0 && counts.lent == 0 && counts.referenced == 0, "slots are left to the dead");
    require(hawser::view_queue(world_.memory()).owners.empty(), "messages are claimed by the dead");
    for (const hawser::Word& word : world_.memory().header().samples.waiters.words)
      require(word.load_ordered() == 0, "the dead still wait");
  }

  // The next of the same name gets everything, with all places that consumers have.
  void go_on_by_name() {
    const auto next = world_.join("actor", true);
    require(next != nullptr, "a queue is closed to the name that it is reserved for");
    require(!world_.join("guest", false), "a queue has a second consumer while the first has it for itself");
    world_.drain(*next, false);
    for (uint32_t i = 0; i < kQueueRing; i++) require(world_.put(), "a queue is full before it is");
    require(!world_.put(), "a queue has more messages than it holds");
    world_.drain(*next, false);
    next->close();
  }
  void go_on_as_anybody() {
    const auto guest = world_.join("guest", false);
    require(guest != nullptr, "a queue stays reserved after its reservation is forgotten");
    require(world_.put(), "an empty queue is full");
    world_.drain(*guest, true);
    guest->close();
  }

  const ReservedOperation& operation_;
  ReservedWorld world_;
  Watch watch_;
};

}  // namespace crash
