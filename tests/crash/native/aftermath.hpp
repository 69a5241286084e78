// What must hold after somebody was killed anywhere: nothing of the dead is left, nothing of the living was
// touched, everything published is delivered once, work goes on, and the whole capacity can be used.
#pragma once

#include "actor.hpp"

namespace crash {

class Aftermath {
 public:
  // `forgets`: the operation was to forget the position, so that it may be gone. `dead`: how many participants
  // died before the actor.
  Aftermath(World& world, const Report& report, bool forgets, uint32_t dead)
      : world_(world), report_(report), forgets_(forgets), dead_(dead) {}

  void check() {
    const uint64_t published = newest_in_ring(memory());
    const hawser::RegionTotals before = hawser::view_totals(region());
    dead_ += entries_of_the_actor();
    for (const hawser::Recovered& one : region().recover()) require(one.complete, "recovery did not complete");
    check_nothing_left();
    check_totals(before);
    world_.check_held();
    world_.drain();
    require(world_.ledger().newest() == published, "what the ring had is not what was delivered");
    require(world_.ledger().count(kActor) >= report_.published, "a sample is lost though publish returned");
    check_position();
    world_.ensure_writer();
    work_on();
    use_everything();
    check_totals(before);
    close_everything();
  }

 private:
  Region& region() { return world_.region(); }
  const hawser::Memory& memory() { return world_.memory(); }

  bool survivor(uint32_t index) {
    return (world_.writer() && index == world_.writer()->membership().index) ||
           index == world_.holder().membership().index || index == world_.faithful().membership().index;
  }

  void check_nothing_left() {
    const hawser::SlotCounts counts = hawser::count_slots(memory());
    require(counts.leaked == 0, std::to_string(counts.leaked) + " slots leaked");
    require(counts.lent == (world_.loan() ? 1 : 0), "slots are lent by the dead, or not by the living");
    require(counts.referenced == world_.holder().held() + world_.faithful().held(), "slots are referred to by the dead");
    const hawser::Header& header = memory().header();
    for (uint32_t i = 0; i < memory().layout.entries; i++) {
      const auto state = hawser::entry_state(memory().entry(i).word.load_ordered());
      const auto expected = survivor(i) ? hawser::EntryState::active : hawser::EntryState::free;
      require(state == expected, "entry " + std::to_string(i) + " is not in the state it should be in");
    }
    for (uint32_t i = 0; i < hawser::kBitWords; i++)
      require(header.samples.waiters.words[i].load_ordered() == 0 && header.space.waiters.words[i].load_ordered() == 0,
              "the dead still wait");
  }

  uint32_t entries_of_the_actor() {
    uint32_t found = 0;
    for (uint32_t i = 0; i < memory().layout.entries; i++) {
      const hawser::Entry& entry = memory().entry(i);
      found += hawser::entry_state(entry.word.load_ordered()) != hawser::EntryState::free &&
               entry.pid.load_relaxed() == report_.process;
    }
    return found;
  }

  // What was counted stays counted, whoever has the entries now, and every death was counted once.
  void check_totals(const hawser::RegionTotals& before) {
    const hawser::RegionTotals now = hawser::view_totals(region());
    require(now.publishers.count >= before.publishers.count && now.subscribers.count >= before.subscribers.count &&
                now.subscribers.missed >= before.subscribers.missed,
            "a total went back");
    const uint64_t deaths = now.publishers.deaths + now.subscribers.deaths;
    require(deaths == dead_, std::to_string(dead_) + " died, " + std::to_string(deaths) + " deaths were counted");
    require(now.publishers.dead + now.subscribers.dead == 0, "the dead are still there");
  }

  // A later run goes on where the dead one was, and then the position can be forgotten.
  void check_position() {
    const auto records = hawser::view_records(region());
    require(records.size() <= 1, "one position became several");
    require(!records.empty() || report_.mark_low == 0 || forgets_, "a kept position is lost");
    if (records.empty()) return;
    require(records[0].name == kRecord && !records[0].held, "a position is held by nobody");
    const uint64_t mark = records[0].mark;
    if (report_.mark_high)
      require(mark >= report_.mark_low && mark <= report_.mark_high, "a kept position moved to " + std::to_string(mark));
    const auto later = hawser::join_as_subscriber(region(), "later", {.record = kRecord});
    world_.take_and_check(*later, 1000);
    require(later->cursor() == world_.ledger().newest(), "a later run does not reach the end");
    require(later->received() + later->missed() == later->cursor() - mark, "a later run does not account for all");
    later->close();
    require(hawser::forget_record(region(), kRecord), "the position cannot be forgotten");
  }

  void work_on() {
    for (int i = 0; i < 1000; i++) {
      require(world_.publish(*world_.writer(), kWriter), "publishing is held up by nobody");
      if (i % 3 == 0) world_.drain();
      if (i % 40 == 39) world_.drain(), world_.take_and_check(world_.holder(), 5);
    }
    world_.publish_loan();
    world_.drain();
    world_.take_and_check(world_.holder(), 1000);
    require(world_.holder().cursor() == world_.ledger().newest(), "a subscriber does not reach the end");
    world_.check_holder();
    world_.check_held();
  }

  // Every place taken, every subscriber holding all it may of what the ring no longer has, every publisher
  // lending all it may.
  void use_everything() {
    const hawser::Settings& settings = memory().layout.settings;
    std::vector<std::unique_ptr<Subscriber>> subscribers;
    std::vector<std::unique_ptr<Publisher>> publishers;
    std::vector<Taken> taken;
    const uint64_t received = received_by_others();
    for (uint32_t i = 2; i < settings.max_subscribers; i++) {
      subscribers.push_back(hawser::join_as_subscriber(region(), "guest", {}));
      for (uint32_t held = 0; held < settings.max_held; held++) {
        world_.publish_and_drain(1);
        taken.emplace_back();
        require(take(*subscribers.back(), taken.back()), "a new subscriber gets nothing");
      }
    }
    for (uint32_t i = 1; i < settings.max_publishers; i++)
      publishers.push_back(hawser::join_as_publisher(region(), "newcomer", false));
    require(received_by_others() == received + taken.size(), "the count of those who had a place before is gone");
    world_.publish_and_drain(static_cast<int>(memory().layout.ring));
    lend_everything(publishers);
    for (size_t i = 0; i < taken.size(); i++) {
      world_.ledger().check(taken[i].sequence, read_content(world_.payload(taken[i])));
      subscribers[i / settings.max_held]->release(taken[i].slot, taken[i].sequence);
    }
    for (auto& subscriber : subscribers) subscriber->close();
    for (auto& publisher : publishers) publisher->close();
    check_nothing_left();
    const uint64_t bits = memory().header().reliable.words[0].load_ordered();
    require(bits == uint64_t{1} << world_.faithful().bit(), "the dead are still reliable");
  }

  // By whoever was or is there, without our survivors.
  uint64_t received_by_others() {
    const uint64_t survivors = world_.holder().received() + world_.faithful().received();
    return hawser::view_totals(region()).subscribers.count - survivors;
  }

  void lend_everything(std::vector<std::unique_ptr<Publisher>>& publishers) {
    const uint32_t each = memory().layout.settings.max_loans + 1;
    std::vector<Publisher*> all{world_.writer()};
    for (auto& publisher : publishers) all.push_back(publisher.get());
    std::vector<std::pair<Publisher*, uint32_t>> lent;
    std::set<uint32_t> slots;
    for (Publisher* publisher : all)
      for (uint32_t i = 0; i < each; i++) {
        const uint32_t slot = publisher->borrow(kContentBytes, each);
        require(slots.insert(slot).second, "one slot was lent twice");
        write_content(publisher->payload(slot), {kNewcomer, 1'000'000 + slot});
        lent.emplace_back(publisher, slot);
      }
    world_.check_held();
    for (auto& [publisher, slot] : lent) publisher->put_back(slot);
  }

  // All positions can be used, and nobody keeps the file open.
  void close_everything() {
    world_.close_survivors();
    std::vector<std::unique_ptr<Subscriber>> holders;
    for (uint32_t i = 0; i < memory().layout.settings.max_subscribers; i++)
      holders.push_back(hawser::join_as_subscriber(region(), "holder", {.record = "position-" + std::to_string(i)}));
    for (auto& holder : holders) holder->close();
    require(region().remove(false), "the file is still in use by the dead");
  }

  World& world_;
  const Report& report_;
  const bool forgets_;
  uint32_t dead_;
};

}  // namespace crash
