// The process that is killed or stopped: it prepares, does one operation between two marks, tells what came of
// it, and keeps an eye on the bytes it holds until it is ended.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>

#include "world.hpp"

namespace crash {

// Shared with the process that watches.
struct Report {
  std::atomic<uint32_t> finished;   // the operation returned
  std::atomic<uint32_t> asked;      // how often the actor was asked to look at what it holds
  std::atomic<uint32_t> answered;
  std::atomic<uint64_t> process;    // the actor's
  std::atomic<uint64_t> published;  // numbers of the actor that a call to publish returned for
  uint64_t mark_low, mark_high;     // where its kept position may be; 0, 0: anywhere
  uint64_t device, inode;           // of the file it has open, when the operation was about files
  uint32_t closed;                  // whether that file is closed
  std::atomic<uint32_t> begun, done;  // of a queue: accepts that were called, and those that returned
  Content accepting[4];               // what they were about
  std::atomic<uint32_t> holding;      // of a queue: what the actor has read
  uint64_t read_sequences[4];
  Content read_contents[4];
  int32_t error;                    // kind of the error, or -1
  char text[400];
};

inline Report& shared_report() {
  static Report* report = static_cast<Report*>(
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *report;
}

// A child of the process that watches; it never outlives that one, however it ends.
inline pid_t start_process() {
  const pid_t process = fork();
  if (process == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return process;
}

class Actor {
 public:
  Actor(Region::Place given, Report& told) : place(std::move(given)), report(told) {}

  const Region::Place place;
  Report& report;
  std::shared_ptr<Region> region;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<Subscriber> subscriber;
  std::vector<Taken> taken;
  std::optional<uint32_t> loan;
  Content loan_content{kActor, 1};
  bool reliable = false;

  void attach() { region = Region::attach(place, nullptr, ""); }
  void join_publisher(bool exclusive = false) { publisher = hawser::join_as_publisher(*region, "actor", exclusive); }
  void join_subscriber(const SubscribeOptions& options) {
    subscriber = hawser::join_as_subscriber(*region, "actor", options);
    reliable = options.reliable;
  }
  void publish() {
    const uint64_t number = report.published + 1;
    require(publish_copy(*publisher, {kActor, number}) != 0, "publishing is held up by nobody");
    report.published = number;
  }
  void publish_many(size_t count) {
    publish_run(*publisher, report.published, count, [&] { publish(); });
  }
  void borrow() {
    loan = publisher->borrow(kContentBytes, small_settings().max_loans);
    write_content(publisher->payload(*loan), loan_content);
  }
  void publish_loan() {
    require(publisher->try_publish(*loan, kContentBytes, 0) != 0, "publishing is held up by nobody");
    report.published++;
    publisher->wake_subscribers();
  }
  void take_one() {
    Taken sample{};
    const uint64_t before = subscriber->cursor();
    require(take(*subscriber, sample), "there is nothing to take");
    require(sample.sequence == before + 1 + sample.lost_before, "samples were skipped and not counted");
    taken.push_back(sample);
  }
  void copy_one() {
    uint8_t bytes[kContentBytes];
    const auto copied = subscriber->try_copy([&](uint64_t) { return reinterpret_cast<char*>(bytes); });
    subscriber->settle();
    require(copied == Subscriber::Copy::copied, "there is nothing to copy");
    read_content(bytes);
  }
  void release_one() {
    require(subscriber->release(taken.back().slot, taken.back().sequence), "the bit was gone");
    taken.pop_back();
  }

  // Remembers what it holds now, and finds the same at every later look.
  void look() {
    contents_.resize(taken.size());
    for (size_t i = 0; i < taken.size(); i++) {
      const Content content = read_content(region->memory().readable + region->memory().payload_at(taken[i].slot));
      require(contents_[i] == Content{} || contents_[i] == content, "bytes that the actor holds changed");
      contents_[i] = content;
    }
    if (loan) require(read_content(publisher->payload(*loan)) == loan_content, "bytes that the actor lent changed");
    require_same_members();
    if (reliable && subscriber && !subscriber->closing()) take_everything();
  }

 private:
  // Publishers have been waiting for us since we joined, so nothing is missing.
  void take_everything() {
    Taken sample{};
    while (subscriber->free_places() > 0 && take(*subscriber, sample)) {
      require(sample.lost_before == 0, "a reliable subscriber lost samples");
      read_content(region->memory().readable + region->memory().payload_at(sample.slot));
      subscriber->release(sample.slot, sample.sequence);
    }
    if (report.mark_high) report.mark_high = subscriber->cursor();
  }

  void require_same_members() const {
    if (publisher && !publisher->closing()) hawser::require_membership(region->memory(), publisher->membership());
    if (subscriber && !subscriber->closing()) hawser::require_membership(region->memory(), subscriber->membership());
  }
  std::vector<Content> contents_;
};

inline void tell(Report& report, int32_t error, const char* text) {
  report.error = error;
  strncpy(report.text, text, sizeof report.text - 1);
}

constexpr size_t kHeapBytes = 100'000;

// The life of the child process. Never returns: it ends by being killed.
template <class Who, class Prepare, class Run>
[[noreturn]] void act(Who& actor, const Prepare& prepare, const Run& run) {
  Report& report = actor.report;
  report.error = -1;
  report.process = static_cast<uint64_t>(getpid());
  const auto guarded = [&](const auto& part) {
    try {
      part();
    } catch (const hawser::Error& error) {
      tell(report, static_cast<int32_t>(error.kind()), error.what());
    } catch (const std::exception& error) {
      tell(report, 1000, error.what());
    }
  };
  guarded([&] { prepare(actor); });
  std::free(std::malloc(kHeapBytes));  // the heap grows now, not in the middle of some runs
  if (report.error >= 0) _exit(9);
  operation_begins();
  guarded([&] { run(actor); });
  operation_ends();
  report.finished = 1;
  for (;;) {
    while (report.answered == report.asked) usleep(50);
    if (report.error < 0) guarded([&] { actor.look(); });
    report.answered = report.asked.load();
  }
}

}  // namespace crash
