// A topic with survivors: a publisher with a loan it is writing, a subscriber that holds a sample the ring has
// long given up, and a reliable subscriber that must get everything. What they do here is what everybody else
// must be able to do while, and after, somebody is stopped or killed.
#pragma once

#include <dirent.h>

#include <optional>
#include <set>

#include "inspection.hpp"
#include "traced.hpp"

namespace crash {

using hawser::Publisher;
using hawser::Region;
using hawser::Subscriber;
using hawser::SubscribeOptions;
using hawser::Taken;

constexpr const char* kRecord = "actor-position";

inline hawser::Settings small_settings(bool ephemeral = false) {
  return {.slot_size = kContentBytes, .history = 4, .depth = 4, .max_publishers = 4, .max_subscribers = 6,
          .max_held = 2, .max_loans = 1, .ephemeral = ephemeral, .group = 0};
}

inline Region::Place place_in(const std::string& directory, const std::string& name = "topic") {
  return {directory + "/" + name + ".topic", directory + "/.lock", name};
}

inline uint64_t newest_in_ring(const hawser::Memory& memory) {
  uint64_t newest = 0;
  for (uint32_t i = 0; i < memory.layout.ring; i++)
    newest = std::max(newest, hawser::ring_tag(memory.ring(i).load_ordered()));
  return newest;
}

// 0 when a reliable subscriber is in the way.
inline uint64_t publish_copy(Publisher& publisher, Content content) {
  const uint32_t slot = publisher.borrow(kContentBytes, small_settings().max_loans + 1);
  write_content(publisher.payload(slot), content);
  const uint64_t sequence = publisher.try_publish(slot, kContentBytes, 0);
  publisher.put_back(slot);
  publisher.wake_subscribers();
  return sequence;
}

// So many samples of the actor, the quick way as far as it goes, and one the `long_way` wherever it does not.
template <class LongWay>
void publish_run(Publisher& publisher, std::atomic<uint64_t>& published, size_t count, const LongWay& long_way) {
  for (uint64_t done = 0; done < count;) {
    uint8_t bytes[kContentBytes];
    const uint64_t before = done, number = published + 1;
    publisher.publish_run(count - done, 1, done, [&](size_t i) {
      published = number + i - 1;  // those before it are out
      write_content(bytes, {kActor, number + i});
      return Publisher::Small{bytes, sizeof bytes};
    });
    published = number - 1 + done - before;
    if (done > before) continue;
    long_way();
    done++;
  }
  publisher.wake_subscribers();
}

class World {
 public:
  World(const std::string& directory, bool with_writer) : place_(place_in(directory)), trace_(directory) {
    const hawser::Settings settings = small_settings();
    region_ = Region::attach(place_, &settings, "");
    trace_.follow(*region_);
    require(memory().head().load_ordered() == 0, "a file was left by an earlier run");
    writer_ = hawser::join_as_publisher(*region_, "writer", false);
    faithful_ = hawser::join_as_subscriber(*region_, "faithful", {.reliable = true});
    publish_and_drain(kSamplesBefore);
    holder_ = hawser::join_as_subscriber(*region_, "holder", {.history = 4});
    holder_start_ = holder_->cursor();
    require(take(*holder_, held_), "no history");
    held_content_ = read_content(payload(held_));
    publish_and_drain(kSamplesBefore);
    if (with_writer) {
      begin_loan();
    } else {
      writer_->close();
      writer_.reset();
    }
  }

  Region& region() { return *region_; }
  const Region::Place& place() const { return place_; }
  const hawser::Memory& memory() const { return region_->memory(); }
  Ledger& ledger() { return ledger_; }
  Trace& trace() { return trace_; }
  Publisher* writer() { return writer_.get(); }
  Subscriber& holder() { return *holder_; }
  Subscriber& faithful() { return *faithful_; }
  const Taken& held() const { return held_; }
  const std::optional<uint32_t>& loan() const { return loan_; }
  const uint8_t* payload(const Taken& taken) const { return memory().readable + memory().payload_at(taken.slot); }

  // The reliable subscriber takes everything, and the ledger is written.
  void drain() {
    Taken taken{};
    while (take(*faithful_, taken)) {
      require(taken.lost_before == 0 && taken.payload == kContentBytes, "a reliable subscriber lost samples");
      ledger_.deliver(taken.sequence, read_content(payload(taken)));
      require(faithful_->release(taken.slot, taken.sequence), "a bit of the reliable subscriber was gone");
    }
    ledger_.check_promises();
  }

  // False when a reliable subscriber, other than ours, is in the way.
  bool publish(Publisher& publisher, Origin origin) {
    const Content content{origin, numbers_[origin] + 1};
    uint64_t sequence = publish_copy(publisher, content);
    if (sequence == 0) drain(), sequence = publish_copy(publisher, content);
    if (sequence == 0) region_->recover(), sequence = publish_copy(publisher, content);
    if (sequence == 0) return false;
    numbers_[origin]++;
    ledger_.promise(sequence, content);
    return true;
  }

  void publish_and_drain(int samples) {
    for (int i = 0; i < samples; i++) require(publish(*writer_, kWriter), "publishing is held up by nobody");
    drain();
  }

  // Somebody who is neither killed nor stopped takes what it can get; the ledger knows what it must be.
  void take_and_check(Subscriber& subscriber, int at_most) {
    Taken taken{};
    for (int i = 0; i < at_most; i++) {
      const uint64_t before = subscriber.cursor();
      if (!take(subscriber, taken)) return;
      require(taken.sequence == before + 1 + taken.lost_before, "samples were skipped and not counted");
      ledger_.check(taken.sequence, read_content(payload(taken)));
      require(subscriber.release(taken.slot, taken.sequence), "a bit of a living subscriber was gone");
    }
  }

  void check_held() const {
    require(read_content(payload(held_)) == held_content_, "bytes of a held sample changed");
    if (loan_) require(read_content(writer_->payload(*loan_)) == loan_content(), "bytes of a loan changed");
    const uint64_t state = loan_ ? memory().slot(*loan_).state.load_ordered() : 0;
    require(!loan_ || state == writer_->membership().owner(), "a loan of the living was taken back");
  }

  void check_holder() const {
    require(holder_->received() + holder_->missed() == holder_->cursor() - holder_start_,
            "received + missed is not what was published");
  }

  // The loan that was open all the time goes out.
  void publish_loan() {
    if (!loan_) return;
    write_content(writer_->payload(*loan_), {kWriter, numbers_[kWriter] + 1});
    drain();
    const uint64_t sequence = writer_->try_publish(*loan_, kContentBytes, 0);
    require(sequence != 0, "publishing is held up by nobody");
    ledger_.promise(sequence, {kWriter, ++numbers_[kWriter]});
    writer_->put_back(*loan_);
    loan_.reset();
    drain();
  }

  void ensure_writer() {
    if (!writer_) writer_ = hawser::join_as_publisher(*region_, "writer", false);
  }
  void close_survivors() {
    require(holder_->release(held_.slot, held_.sequence), "the bit of a held sample was gone");
    holder_->close();
    faithful_->close();
    writer_->close();
  }

 private:
  static constexpr int kSamplesBefore = 13;
  Content loan_content() const { return {kWriter, 1'000'000}; }
  void begin_loan() {
    loan_ = writer_->borrow(kContentBytes, small_settings().max_loans);
    write_content(writer_->payload(*loan_), loan_content());
  }

  const Region::Place place_;
  Trace trace_;
  std::shared_ptr<Region> region_;
  std::unique_ptr<Publisher> writer_;
  std::unique_ptr<Subscriber> faithful_, holder_;
  Ledger ledger_;
  Taken held_{};
  Content held_content_;
  uint64_t holder_start_ = 0;
  std::optional<uint32_t> loan_;
  uint64_t numbers_[kOrigins] = {};
};

// Those who came while the actor stood still and stay when it goes on. They may have got the places and slots
// it was about to take, or was taking from the dead: what they hold must stay theirs.
class Lodgers {
 public:
  explicit Lodgers(World& world) : world_(world) {
    subscriber_ = hawser::join_as_subscriber(world.region(), "lodger", {.history = 2});
    require(take(*subscriber_, taken_), "a new subscriber gets no history");
    if (!world.writer()) return;
    publisher_ = hawser::join_as_publisher(world.region(), "lodger", false);
    loan_ = publisher_->borrow(kContentBytes, small_settings().max_loans);
    write_content(publisher_->payload(loan_), kWritten);
  }

  void leave() {
    world_.ledger().check(taken_.sequence, read_content(world_.payload(taken_)));
    require(subscriber_->release(taken_.slot, taken_.sequence), "the bit of a newcomer was gone");
    subscriber_->close();
    if (!publisher_) return;
    require(world_.memory().slot(loan_).state.load_ordered() == publisher_->membership().owner() &&
                read_content(publisher_->payload(loan_)) == kWritten,
            "the loan of a newcomer was touched");
    publisher_->put_back(loan_);
    publisher_->close();
  }

 private:
  static constexpr Content kWritten{kNewcomer, 2'000'000};
  World& world_;
  std::unique_ptr<Subscriber> subscriber_;
  std::unique_ptr<Publisher> publisher_;
  Taken taken_{};
  uint32_t loan_ = 0;
};

// Every slot that is free is lent and written to: bytes that somebody relies on without holding them are lost.
inline void write_every_free_slot(const hawser::Memory& memory, Publisher& publisher) {
  std::vector<uint32_t> lent;
  for (uint32_t left = hawser::count_slots(memory).free; left > 0; left--) {
    lent.push_back(publisher.borrow(kContentBytes, memory.layout.slots));
    write_content(publisher.payload(lent.back()), {kNewcomer, 1'000'000});
  }
  for (const uint32_t slot : lent) publisher.put_back(slot);
}

// What everybody else does while one process stands still: a fixed number of operations, none of which waits.
// `held_back`: the one that stands still is reliable, so that publishers may find no space.
inline void work(World& world, bool held_back) {
  const auto publish = [&](Publisher& publisher, Origin origin) {
    const bool published = world.publish(publisher, origin);
    require(published || held_back, "publishing waits for somebody who is not reliable");
  };
  Region& region = world.region();
  for (int i = 0; i < 50 && world.writer(); i++) publish(*world.writer(), kWriter);
  try {
    const auto newcomer = hawser::join_as_publisher(region, "newcomer", false);
    write_every_free_slot(world.memory(), *newcomer);
    for (int i = 0; i < 50; i++) publish(*newcomer, kNewcomer);
    newcomer->close();
  } catch (const hawser::Error& error) {
    require(error.kind() == hawser::Kind::usage && !world.writer(), error.what());  // an exclusive one is there
  }
  world.drain();
  world.take_and_check(world.holder(), 3);
  const auto guest = hawser::join_as_subscriber(region, "guest", {.history = 2});
  world.take_and_check(*guest, 2);
  guest->close();
  region.recover();
  hawser::read_newest(world.memory(), 2, 0);
  const auto other = Region::attach(world.place(), nullptr, "");
  require(other->memory().header().state.word.load_ordered() == 0, "the topic is not open");
  other->close();
  world.check_held();
  world.check_holder();
}

}  // namespace crash
