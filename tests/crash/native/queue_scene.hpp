// One run in a queue, and what must hold after somebody was killed in it anywhere: nothing of the dead is left,
// nothing of the living was touched, every message is done once, work goes on, and the whole capacity can be used.
#pragma once

#include "queue_operations.hpp"
#include "scene.hpp"

namespace crash {

// Each message is done once, by the survivors or by the actor; in their order unless some were moved back.
inline void check_fates(Fates& fates, const Report& report, const Region& region, bool in_order = true) {
  for (uint32_t i = 0; i < report.holding; i++) fates.see(region, report.read_sequences[i], report.read_contents[i]);
  fates.check(report.published, [&](Content content) {
    for (uint32_t i = 0; i < report.begun; i++)
      if (report.accepting[i] == content) return i < report.done ? 2 : 1;
    return 0;
  });
  if (in_order) fates.check_order(region);
}

class QueueAftermath {
 public:
  QueueAftermath(QueueWorld& world, const Report& report, bool moves_back)
      : world_(world), report_(report), moves_back_(moves_back) {}

  void check() {
    for (Region* region : {&world_.region(), &world_.letters()})
      for (const hawser::Recovered& one : region->recover()) require(one.complete, "recovery did not complete");
    check_nothing_left();
    world_.check_held();
    settle_everything();
    check_pins();
    work_on();
    if (world_.rules().claims_last()) use_everything();
    world_.accept_held();
    settle_everything();
    check_fates(world_.fates(), report_, world_.region(), !moves_back_);
    world_.close_survivors();
    for (Region* region : {&world_.letters(), &world_.region()})
      require(region->remove(false), "the file is still in use by the dead");
  }

 private:
  void check_nothing_left() {
    const hawser::Memory &memory = world_.memory(), &letters = world_.letter_memory();
    check_entries(memory, {world_.writer().membership().index, world_.reader().membership().index,
                           world_.holder().membership().index});
    check_entries(letters, {world_.letter_writer().membership().index, world_.letter_reader().membership().index});
    for (const hawser::Memory* each : {&memory, &letters}) {
      const hawser::SlotCounts counts = hawser::count_slots(*each);
      require(counts.leaked == 0, std::to_string(counts.leaked) + " slots leaked");
      require(counts.lent == 0, "slots are lent by the dead");
      require(counts.referenced == (each == &memory ? world_.in_hand() : 0), "slots are referred to by the dead, or not by the living");
      for (const hawser::OwnerView& owner : hawser::view_queue(*each).owners)
        require((owner.name == "holder" || owner.name == "reader") && owner.claimed == 1, "messages are claimed by the dead");
      const hawser::Header& header = each->header();
      for (uint32_t i = 0; i < hawser::kBitWords; i++)
        require(header.samples.waiters.words[i].load_ordered() == 0 && header.space.waiters.words[i].load_ordered() == 0,
                "the dead still wait");
    }
  }

  static void check_entries(const hawser::Memory& memory, const std::set<uint32_t>& survivors) {
    for (uint32_t i = 0; i < memory.layout.entries; i++) {
      const auto state = hawser::entry_state(memory.entry(i).word.load_ordered());
      const auto expected = survivors.count(i) ? hawser::EntryState::active : hawser::EntryState::free;
      require(state == expected, "entry " + std::to_string(i) + " is not in the state it should be in");
    }
  }

  // Every message that somebody can have is accepted, every letter too.
  void settle_everything() {
    if (moves_back_) move_all(world_.letters(), world_.letter_reader(), world_.writer(), ClaimState::reviving);
    world_.drain();
    const uint64_t ready = hawser::view_queue(world_.memory()).ready;
    require(ready == 0, "messages that came back are found by nobody");
    world_.make_room();
    world_.drain();
    const auto state = hawser::view_queue(world_.memory());
    require(state.ready + state.dying + state.moving == 0, "messages are left that nobody can have");
    const auto letters = hawser::view_queue(world_.letter_memory());
    require(letters.ready + letters.claimed + letters.moving == 0, "letters are left that nobody can have");
  }

  // The next move takes away what is pinned for nothing.
  void check_pins() {
    if (moves_back_) move_all(world_.letters(), world_.letter_reader(), world_.writer(), ClaimState::reviving);
    world_.bury();
    for (const hawser::Memory* each : {&world_.memory(), &world_.letter_memory()})
      require(hawser::view_queue(*each).pinned == 0, "a slot is pinned for a move that is over");
  }

  void work_on() {
    for (int i = 0; i < 500; i++) {
      require(world_.put(world_.writer(), kWriter), "putting is held up by nobody");
      if (i % 7 == 3) give_back(i % 2 == 0);
      if (i % 3 == 0) world_.drain();
    }
    settle_everything();
    world_.check_held();
  }

  void give_back(bool reject) {
    Claimed claimed{};
    Consumer& reader = world_.reader();
    if (!claim(reader, claimed)) return;
    world_.fates().see(world_.region(), claimed.sequence, content_of(world_.memory(), claimed));
    require(reject ? reader.reject(claimed) : reader.release(claimed), "a claim of the living was taken away");
    require(reader.let_go(claimed.slot), "a bit of a living consumer was gone");
  }

  // Every place taken, every consumer with as many messages as it may hold, every producer with all its loans, and
  // still room for as many messages as the queue is to hold, and not for one more.
  void use_everything() {
    const hawser::Settings& settings = world_.memory().layout.settings;
    std::vector<std::unique_ptr<Consumer>> consumers;
    std::vector<std::unique_ptr<Publisher>> producers;
    for (uint32_t i = 2; i < settings.max_subscribers; i++)
      consumers.push_back(hawser::join_as_consumer(world_.region(), "guest"));
    for (uint32_t i = 1; i < settings.max_publishers; i++)
      producers.push_back(hawser::join_as_publisher(world_.region(), "newcomer", false));
    fill();
    std::vector<std::pair<Consumer*, Claimed>> claimed;
    for (auto& consumer : consumers)
      for (uint32_t i = 0; i < settings.max_held; i++) {
        claimed.emplace_back(consumer.get(), Claimed{});
        require(claim(*consumer, claimed.back().second), "a new consumer gets nothing");
      }
    fill();
    lend_everything(producers);
    for (auto& [consumer, one] : claimed) world_.accept(world_.region(), *consumer, one);
    for (auto& consumer : consumers) consumer->close();
    for (auto& producer : producers) producer->close();
    settle_everything();
    check_nothing_left();
  }

  void fill() {
    const auto waiting = [&] { return hawser::view_queue(world_.memory()).ready; };
    while (waiting() < kQueueRing)
      require(world_.put_if_there_is_room(world_.writer(), kWriter), "a queue is full before it is");
    require(!world_.put_if_there_is_room(world_.writer(), kWriter), "a queue has more messages than it holds");
  }

  void lend_everything(std::vector<std::unique_ptr<Publisher>>& producers) {
    const uint32_t each = world_.memory().layout.settings.max_loans + 1;
    std::vector<std::pair<Publisher*, uint32_t>> lent;
    std::set<uint32_t> slots;
    for (auto& producer : producers)
      for (uint32_t i = 0; i < each; i++) {
        lent.emplace_back(producer.get(), producer->borrow(kContentBytes, each));
        require(slots.insert(lent.back().second).second, "one slot was lent twice");
        write_content(producer->payload(lent.back().second), {kNewcomer, 1'000'000 + i});
      }
    world_.check_held();
    for (auto& [producer, slot] : lent) producer->put_back(slot);
  }

  QueueWorld& world_;
  const Report& report_;
  const bool moves_back_;
};

class QueueScene : public Scene {
 public:
  QueueScene(const QueueOperation& operation, const std::string& directory)
      : operation_(operation), world_(directory, operation.rules) {
    if (operation_.with_dead) leave_dead(world_);
  }

  pid_t start() override {
    Report& report = shared_report();
    std::memset(static_cast<void*>(&report), 0, sizeof report);
    const pid_t process = start_process();
    if (process != 0) return process;
    Tracee::be_traced();
    QueueActor actor(world_.directory(), world_.rules(), report);
    act(actor, operation_.prepare, operation_.run);
  }

  void meanwhile() override {
    if (operation_.meanwhile) operation_.meanwhile(world_);
    changed(false);
  }
  bool changed(bool) override {
    const hawser::Memory &memory = world_.memory(), &letters = world_.letter_memory();
    const bool first = watch_.changed(memory.base, memory.layout.payloads_at);
    const bool second = letter_watch_.changed(letters.base, letters.layout.payloads_at);
    return trace_watch_.changed(world_.trace().bytes(), world_.trace().size()) || second || first;
  }
  void while_stopped() override {
    work(world_);
    lodgers_.emplace(world_);
  }
  void finished() override {
    lodgers_->leave();
    work(world_);
  }
  void after() override {
    world_.trace().check({&world_.region(), &world_.letters()}, shared_report().finished);
    QueueAftermath(world_, shared_report(), operation_.moves_back).check();
  }

 private:
  const QueueOperation& operation_;
  QueueWorld world_;
  std::optional<QueueLodgers> lodgers_;
  Watch watch_, letter_watch_, trace_watch_;
};

}  // namespace crash
