// A queue with survivors: a producer, a consumer that has held one message for more than a lap and still reads another
// that it has accepted, and a consumer that gets everything else; and the queue of its dead letters. What they do
// here is what everybody else must be able to do while, and after, somebody is stopped or killed.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "letters.hpp"
#include "queue_view.hpp"
#include "traced.hpp"

namespace crash {

using hawser::Claimed;
using hawser::ClaimState;
using hawser::Consumer;
using hawser::Publisher;
using hawser::Region;

constexpr uint32_t kQueueRing = 8;
constexpr const char* kQueueName = "queue";
constexpr const char* kLettersName = "queue.dead";

// How a world differs from others.
struct QueueRules {
  uint32_t max_deliveries = 0;
  uint64_t lease_ns = 0;
  // Whether a claim lasts as long as its owner lives.
  bool claims_last() const { return lease_ns == 0 || lease_ns > 1'000'000'000; }
};

inline hawser::Settings queue_settings(const QueueRules& rules) {
  return {.slot_size = kContentBytes, .history = 0, .depth = kQueueRing, .max_publishers = 4, .max_subscribers = 6,
          .max_held = 2, .max_loans = 1, .ephemeral = 0, .group = 0, .kind = hawser::kKindQueue,
          .max_deliveries = rules.max_deliveries, .lease_ns = rules.lease_ns};
}

inline std::shared_ptr<Region> attach_queue(const std::string& directory, const char* name, const hawser::Settings* settings) {
  const Region::Place place{directory + "/" + name + ".topic", directory + "/.lock", name};
  return Region::attach(place, settings, "", kLettersName);
}

// 0 when there is no place, or no slot.
inline uint64_t put_copy(Publisher& producer, Content content) {
  const uint32_t slot = producer.try_to_borrow(kContentBytes, producer.memory().layout.settings.max_loans + 1);
  if (slot == hawser::kNoSlot) return 0;
  write_content(producer.payload(slot), content);
  const uint64_t sequence = producer.try_publish(slot, kContentBytes, 0);
  producer.put_back(slot);
  producer.wake_subscribers();
  return sequence;
}

inline bool claim(Consumer& consumer, Claimed& claimed) {
  const bool there = consumer.try_claim(claimed);
  consumer.settle();
  return there;
}

inline Content content_of(const hawser::Memory& memory, const hawser::Taken& taken) {
  return read_content(memory.readable + memory.payload_at(taken.slot));
}

// Move all that is dying to the dead letters, or all letters back: how many.
inline uint64_t move_all(Region& home, Consumer& consumer, Publisher& there, ClaimState moving) {
  hawser::Mover mover(consumer, home.number(), there, moving);
  mover.move(UINT64_MAX, [](auto&...) { return hawser::Description{true, ""}; });
  return mover.moved();
}

// What became of every message, by its content: in the end each is accepted once.
class Fates {
 public:
  void promise(Content content) { known_.insert(key(content)); }

  // Somebody was given message `sequence` of a region.
  void see(const Region& region, uint64_t sequence, Content content) {
    known_.insert(key(content));
    const auto place = contents_[&region].try_emplace(sequence, content).first;
    require(place->second == content, "message " + std::to_string(sequence) + " is not what it was before");
  }
  void accept(Content content) {
    require(++accepted_[key(content)] == 1, describe(content) + " was accepted twice");
  }

  // `given_up(content)` is what the actor did with a message: 0 nothing, 1 perhaps accepted it, 2 surely.
  template <class GivenUp>
  void check(uint64_t put_by_actor, const GivenUp& given_up) const {
    for (const auto& [origin, number] : known_) {
      const Content content{origin, number};
      require(origin != kActor || number <= put_by_actor + 1, describe(content) + " was never put");
      const auto found = accepted_.find(key(content));
      const uint32_t accepted = found == accepted_.end() ? 0 : found->second;
      const int by_actor = given_up(content);
      require(accepted + (by_actor == 2) <= 1, describe(content) + " was accepted by the actor, too");
      require(accepted == 1 || by_actor != 0, describe(content) + " is lost");
    }
    for (uint64_t number = 1; number <= put_by_actor; number++)
      require(known_.count({kActor, number}) == 1, "what the actor put is lost");
  }

  // In the order of the queue each origin counts up.
  void check_order(const Region& region) {
    uint64_t last[kOrigins] = {};
    for (const auto& [sequence, content] : contents_[&region]) {
      require(content.number > last[content.origin], describe(content) + " is out of order");
      last[content.origin] = content.number;
    }
  }

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  static Key key(Content content) { return {content.origin, content.number}; }
  static std::string describe(Content content) {
    return "message " + std::to_string(content.number) + " of origin " + std::to_string(content.origin);
  }

  std::set<Key> known_;
  std::map<Key, uint32_t> accepted_;
  std::map<const Region*, std::map<uint64_t, Content>> contents_;
};

class QueueWorld {
 public:
  QueueWorld(const std::string& directory, const QueueRules& rules) : directory_(directory), rules_(rules), trace_(directory) {
    const hawser::Settings settings = queue_settings(rules), of_letters = queue_settings({});
    region_ = attach_queue(directory, kQueueName, &settings);
    letters_ = attach_queue(directory, kLettersName, &of_letters);
    trace_.follow(*region_);
    trace_.follow(*letters_);
    require(memory().head().load_ordered() == 0, "a file was left by an earlier run");
    writer_ = hawser::join_as_publisher(*region_, "writer", false);
    reader_ = hawser::join_as_consumer(*region_, "reader");
    letter_writer_ = hawser::join_as_publisher(*letters_, "undertaker", false);
    letter_reader_ = hawser::join_as_consumer(*letters_, "undertaker");
    put_and_drain(13);
    holder_ = hawser::join_as_consumer(*region_, "holder");
    require(put(*writer_, kWriter) && put(*writer_, kWriter), "an empty queue is full");
    require(claim(*holder_, held_[0]) && claim(*holder_, held_[1]), "what was put is not there");
    for (int i = 0; i < 2; i++) held_contents_[i] = content_of(memory(), held_[i]);
    require(holder_->accept(held_[0]), "a claim of the living was taken away");
    fates_.accept(held_contents_[0]);
    put_and_drain(13);
    for (int i = 0; i < kWaiting; i++) require(put(*writer_, kWriter), "an empty queue is full");
  }

  Region& region() { return *region_; }
  Region& letters() { return *letters_; }
  const std::string& directory() const { return directory_; }
  const QueueRules& rules() const { return rules_; }
  const hawser::Memory& memory() const { return region_->memory(); }
  const hawser::Memory& letter_memory() const { return letters_->memory(); }
  Fates& fates() { return fates_; }
  Trace& trace() { return trace_; }
  Publisher& writer() { return *writer_; }
  Consumer& reader() { return *reader_; }
  Consumer& holder() { return *holder_; }
  Publisher& letter_writer() { return *letter_writer_; }
  Consumer& letter_reader() { return *letter_reader_; }

  // The reader accepts everything there is, the oldest first.
  void drain() {
    uint64_t last = 0;
    for (Claimed claimed{}; claim(*reader_, claimed); last = claimed.sequence) {
      require(claimed.sequence > last || !rules_.claims_last(), "an older message came after a newer one");
      accept(*region_, *reader_, claimed);
    }
  }
  void drain_letters() {
    for (Claimed claimed{}; claim(*letter_reader_, claimed);) accept(*letters_, *letter_reader_, claimed);
  }

  void accept(Region& region, Consumer& consumer, const Claimed& claimed) {
    const Content content = content_of(region.memory(), claimed);
    fates_.see(region, claimed.sequence, content);
    const bool accepted = consumer.accept(claimed);
    require(accepted || !rules_.claims_last(), "a claim of the living was taken away");
    if (accepted) fates_.accept(content);
    require(consumer.let_go(claimed.slot), "a bit of a living consumer was gone");
    consumer.wake_producers();
  }

  // False when there is no room, whoever makes some.
  bool put(Publisher& producer, Origin origin) {
    const Content content{origin, numbers_[origin] + 1};
    uint64_t sequence = put_copy(producer, content);
    if (sequence == 0) make_room(), sequence = put_copy(producer, content);
    if (sequence == 0) region_->recover(), make_room(), sequence = put_copy(producer, content);
    if (sequence != 0) keep_promise(content);
    return sequence != 0;
  }
  // The same without anybody who makes room.
  bool put_if_there_is_room(Publisher& producer, Origin origin) {
    const Content content{origin, numbers_[origin] + 1};
    if (!put_copy(producer, content)) return false;
    keep_promise(content);
    return true;
  }

  void put_and_drain(int messages) {
    for (int i = 0; i < messages; i++) {
      require(put(*writer_, kWriter), "putting is held up by nobody");
      if (i % 3 == 2) drain();
    }
    drain();
  }

  // Whatever waits goes.
  void make_room() {
    drain();
    bury();
  }
  void bury() {
    reader_->look_around();
    while (move_all(*region_, *reader_, *letter_writer_, ClaimState::burying) > 0) drain_letters();
    drain_letters();
  }

  // Slots with a bit: what is read beyond its claim, and with a lease whatever is claimed.
  uint32_t in_hand() const { return rules_.lease_ns == 0 ? 1 : kept_ ? 3 : 2; }
  void check_held() {
    for (int i = 0; i < 2; i++)
      require(content_of(memory(), held_[i]) == held_contents_[i], "bytes of a message in hand changed");
    const bool claimed = memory().claim(held_[1].slot).load_ordered() == held_[1].claim;
    require(claimed || !rules_.claims_last(), "a claim of the living was taken away");
  }

  // The reader keeps a message in hand that it does nothing about.
  void keep_one() {
    kept_.emplace();
    require(claim(*reader_, *kept_), "there is nothing to claim");
  }

  // What was held all the time is done with.
  void accept_held() {
    if (kept_) accept(*region_, *reader_, *kept_);
    kept_.reset();
    accept(*region_, *holder_, held_[1]);
    require(holder_->let_go(held_[0].slot), "the bit of a message in hand was gone");
  }

  void close_survivors() {
    for (Publisher* each : {writer_.get(), letter_writer_.get()}) each->close();
    for (Consumer* each : {holder_.get(), reader_.get(), letter_reader_.get()}) each->close();
  }

  static constexpr int kWaiting = 3;  // messages that nobody had when the actor comes

 private:
  void keep_promise(Content content) {
    numbers_[content.origin]++;
    fates_.promise(content);
  }

  const std::string directory_;
  const QueueRules rules_;
  Trace trace_;
  std::shared_ptr<Region> region_, letters_;
  std::unique_ptr<Publisher> writer_, letter_writer_;
  std::unique_ptr<Consumer> reader_, holder_, letter_reader_;
  Fates fates_;
  Claimed held_[2];
  std::optional<Claimed> kept_;
  Content held_contents_[2];
  uint64_t numbers_[kOrigins] = {};
};

// What everybody else does while one process stands still: a fixed number of operations, none of which waits.
inline void work(QueueWorld& world) {
  Region& region = world.region();
  const auto put = [&](Publisher& producer, Origin origin) {
    require(world.put(producer, origin), "putting is held up by nobody");
  };
  for (int i = 0; i < 20; i++) put(world.writer(), kWriter);
  const auto newcomer = hawser::join_as_publisher(region, "newcomer", false);
  for (int i = 0; i < 20; i++) put(*newcomer, kNewcomer);
  newcomer->close();
  const auto guest = hawser::join_as_consumer(region, "guest");
  Claimed claimed{};
  if (claim(*guest, claimed)) world.accept(region, *guest, claimed);
  if (claim(*guest, claimed)) {
    world.fates().see(region, claimed.sequence, content_of(world.memory(), claimed));
    require(guest->release(claimed) || !world.rules().claims_last(), "a claim of the living was taken away");
    require(guest->let_go(claimed.slot), "a bit of a living consumer was gone");
  }
  guest->close();
  world.make_room();
  for (Region* each : {&region, &world.letters()}) {
    each->recover();
    hawser::view_queue(each->memory());
    hawser::peek(each->memory(), 3);
  }
  const auto other = Region::attach(region.place(), nullptr, "");
  require(other->memory().header().state.word.load_ordered() == 0, "the queue is not open");
  other->close();
  world.check_held();
}

// Those who came while the actor stood still and stay when it goes on: what they claimed and lent stays theirs.
class QueueLodgers {
 public:
  explicit QueueLodgers(QueueWorld& world) : world_(world) {
    consumer_ = hawser::join_as_consumer(world.region(), "lodger");
    require(world.put(world.writer(), kWriter) && claim(*consumer_, claimed_), "a new consumer gets nothing");
    content_ = content_of(world.memory(), claimed_);
    world.fates().see(world.region(), claimed_.sequence, content_);
    producer_ = hawser::join_as_publisher(world.region(), "lodger", false);
    loan_ = producer_->borrow(kContentBytes, 1);
    write_content(producer_->payload(loan_), kWritten);
  }

  void leave() {
    require(content_of(world_.memory(), claimed_) == content_, "bytes of a newcomer's message changed");
    world_.accept(world_.region(), *consumer_, claimed_);
    consumer_->close();
    require(read_content(producer_->payload(loan_)) == kWritten, "the loan of a newcomer was touched");
    producer_->put_back(loan_);
    producer_->close();
  }

 private:
  static constexpr Content kWritten{kNewcomer, 2'000'000};
  QueueWorld& world_;
  std::unique_ptr<Consumer> consumer_;
  std::unique_ptr<Publisher> producer_;
  Claimed claimed_{};
  Content content_;
  uint32_t loan_ = 0;
};

}  // namespace crash
