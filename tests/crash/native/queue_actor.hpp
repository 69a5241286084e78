// The process that is killed or stopped in a queue. It tells what it put, what it was given, and which accepts it
// called and which returned.
#pragma once

#include "actor.hpp"
#include "queue_world.hpp"

namespace crash {

class QueueActor {
 public:
  QueueActor(std::string given, QueueRules rules, Report& told) : directory(std::move(given)), rules_(rules), report(told) {}

  const std::string directory;
  const QueueRules rules_;
  Report& report;
  std::shared_ptr<Region> region, letters;
  std::unique_ptr<Publisher> producer, letter_producer;
  std::unique_ptr<Consumer> consumer, letter_consumer;
  std::vector<Claimed> claimed;
  std::vector<Claimed> copied;  // without a bit

  void attach() {
    region = attach_queue(directory, kQueueName, nullptr);
    letters = attach_queue(directory, kLettersName, nullptr);
  }
  void join_producer() { producer = hawser::join_as_publisher(*region, "actor", false); }
  void join_consumer(bool reserve = false) { consumer = hawser::join_as_consumer(*region, "actor", 0, reserve); }
  void join_letters() {
    letter_producer = hawser::join_as_publisher(*letters, "actor", false);
    letter_consumer = hawser::join_as_consumer(*letters, "actor");
  }

  // Others may have filled the queue meanwhile.
  void put() {
    const uint64_t number = report.published + 1;
    if (put_copy(*producer, {kActor, number})) report.published = number;
  }

  void put_many(size_t count) {
    publish_run(*producer, report.published, count, [&] { put(); });
  }

  // Others may have had everything meanwhile.
  void claim_one() {
    Claimed found{};
    if (!claim(*consumer, found)) return;
    claimed.push_back(found);
    tell_read(found.sequence, content_of(region->memory(), found));
  }
  void copy_one() {
    uint8_t bytes[kContentBytes];
    Claimed found{};
    const auto room = [&](const hawser::Copyable&) { return hawser::CopyPlaces{reinterpret_cast<char*>(bytes), nullptr}; };
    const auto came = consumer->try_claim_copy(room, found);
    consumer->settle();
    if (came != Consumer::Copy::copied) return;
    copied.push_back(found);
    tell_read(found.sequence, read_content(bytes));
  }

  void claim_run_ahead(size_t count) {
    claimed.reserve(claimed.size() + count);
    consumer->look_ahead();
    consumer->claim_run_ahead(count, claimed);
    consumer->settle();
  }
  void claim_one_ahead() {
    Claimed found{};
    const bool there = consumer->try_claim(found, Consumer::Counted::when_handed_out);
    consumer->settle();
    if (there) claimed.push_back(found);
  }
  // With a lease others may have taken them away.
  void hand_out_all() {
    std::erase_if(claimed, [&](Claimed& one) {
      if (consumer->hand_out(one)) return tell_read(one.sequence, content_of(region->memory(), one)), false;
      return consumer->let_go(one.slot), true;
    });
  }
  void copy_run(size_t count) {
    std::vector<std::array<uint8_t, kContentBytes>> bytes(count);
    copied.reserve(count);
    const auto room = [&](uint64_t) { return reinterpret_cast<char*>(bytes[copied.size() - 1].data()); };
    consumer->look_ahead();
    consumer->claim_run(count, copied, room, [&] { tell_read(copied.back().sequence, read_content(bytes[copied.size() - 1].data())); });
    consumer->settle();
  }

  void accept_one() { settle_one([&](const Claimed& one) { return accept(one); }); }
  void release_one() { settle_one([&](const Claimed& one) { return consumer->release(one); }); }
  void release_one_ahead() { settle_one([&](const Claimed& one) { return consumer->release_ahead(one); }); }
  void unclaim_one() { settle_one([&](const Claimed& one) { return consumer->release_uncounted(one); }); }
  void reject_one() { settle_one([&](const Claimed& one) { return consumer->reject(one); }); }
  void accept_copy() {
    require_settled(accept(copied.front()));
    copied.erase(copied.begin());
    consumer->let_go_of_copy();
    consumer->wake_producers();
  }
  void bury() { move_all(*region, *consumer, *letter_producer, ClaimState::burying); }
  void retry() { move_all(*letters, *letter_consumer, *producer, ClaimState::reviving); }

  // What it holds is what it was, and still its own.
  void look() {
    contents_.resize(claimed.size());
    for (size_t i = 0; i < claimed.size(); i++) {
      const Content content = content_of(region->memory(), claimed[i]);
      require(contents_[i] == Content{} || contents_[i] == content, "bytes that the actor holds changed");
      contents_[i] = content;
      if (!consumer->closing()) require_own(claimed[i]);
    }
    for (const Claimed& one : copied) require_own(one);
    for (Publisher* each : {producer.get(), letter_producer.get()})
      if (each && !each->closing()) hawser::require_membership(each->memory(), each->membership());
    for (Consumer* each : {consumer.get(), letter_consumer.get()})
      if (each && !each->closing()) hawser::require_membership(each->memory(), each->membership());
  }

 private:
  void tell_read(uint64_t sequence, Content content) {
    report.read_sequences[report.holding] = sequence;
    report.read_contents[report.holding] = content;
    report.holding++;
  }
  void require_own(const Claimed& one) const {
    const bool own = region->memory().claim(one.slot).load_ordered() == one.claim;
    require(own || !rules_.claims_last(), "a claim of the actor was taken away");
  }
  void require_settled(bool settled) const {
    require(settled || !rules_.claims_last(), "a claim of the actor was taken away");
  }

  bool accept(const Claimed& one) {
    report.accepting[report.begun] = report.read_contents[report.begun];
    report.begun++;
    const bool accepted = consumer->accept(one);
    if (!accepted) report.accepting[report.begun - 1] = {};  // nothing has happened to it
    report.done++;
    return accepted;
  }
  template <class Settle>
  void settle_one(const Settle& settle) {
    if (claimed.empty()) return;
    const Claimed one = claimed.front();
    claimed.erase(claimed.begin());
    if (!contents_.empty()) contents_.erase(contents_.begin());
    const Content before = content_of(region->memory(), one);
    require_settled(settle(one));
    require(content_of(region->memory(), one) == before, "bytes changed that the actor reads beyond its claim");
    require(consumer->let_go(one.slot), "a bit of the actor was gone");
    consumer->wake_producers();
  }
  std::vector<Content> contents_;
};

}  // namespace crash
