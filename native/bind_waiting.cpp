// Waiter: sleeping for many subscribers, publishers and consumers at once, for the event loops of a process.
#include "bind.hpp"

#include <linux/futex.h>

#include <unordered_set>

namespace hawser::python {

namespace {

// What a participant sleeps on, and as which one.
struct Place {
  Signal& signal;
  uint32_t index;
  Sleepers& sleepers;
};

// Calls `function` with the participant behind a Python object.
template <class Function>
auto with_core(nb::handle item, const Function& function) {
  if (nb::isinstance<SubscriberBox>(item)) return function(*nb::inst_ptr<SubscriberBox>(item)->core);
  if (nb::isinstance<ConsumerBox>(item)) return function(*nb::inst_ptr<ConsumerBox>(item)->core);
  if (nb::isinstance<PublisherBox>(item)) return function(*nb::inst_ptr<PublisherBox>(item)->core);
  throw Error(Kind::usage, "only subscribers, consumers and publishers can be waited for");
}

uint32_t index_of(const Subscriber& core) { return core.bit(); }
uint32_t index_of(const Consumer& core) { return core.bit(); }
uint32_t index_of(const Publisher& core) { return core.membership().index; }

Place place_of(nb::handle item) {
  return with_core(item, [](auto& core) { return Place{core.signal(), index_of(core), core.sleepers()}; });
}

// One that is damaged is ready, too: its own call then says so.
bool is_ready(nb::handle item) {
  return with_core(item, [](auto& core) {
    try {
      return core.ready();
    } catch (const Error&) {
      return true;
    }
  });
}

nb::list ready_among(const nb::list& waiting) {
  nb::list ready;
  for (nb::handle item : waiting)
    if (is_ready(item)) ready.append(item);
  return ready;
}

// A waiter for space checks after every slice whether the participant in its way is dead.
void recover_for(const nb::list& waiting) {
  for (nb::handle item : waiting)
    if (nb::isinstance<PublisherBox>(item)) recover_quietly(*nb::inst_ptr<PublisherBox>(item)->region);
}

// A waiter for messages checks now and then whether some came back without a wake-up.
void look_around_for(const nb::list& waiting) {
  for (nb::handle item : waiting)
    if (nb::isinstance<ConsumerBox>(item)) look_around_quietly(*nb::inst_ptr<ConsumerBox>(item));
}

struct futex_waitv word_of(std::atomic<uint32_t>& value, uint32_t seen) {
  return {seen, reinterpret_cast<uint64_t>(&value), FUTEX_32, 0};
}

// Only signals readiness, takes nothing.
class Waiter {
 public:
  void wake() {
    signal_.value.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &signal_.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  nb::list wait(const nb::list& waiting, double timeout) {
    const uint32_t own = signal_.value.load(std::memory_order_seq_cst);
    look_around_for(waiting);
    std::vector<struct futex_waitv> words = collect(waiting, own);  // the values, before the flags
    std::deque<Sleeper> sleepers;
    for (nb::handle item : waiting) {
      const Place place = place_of(item);
      sleepers.emplace_back(place.signal, place.index, place.sleepers);
    }
    nb::list ready = ready_among(waiting);
    if (nb::len(ready) == 0 && own == seen_ && timeout > 0) {
      const auto slice = static_cast<int64_t>(std::min(timeout * 1e9, double{kSliceNanoseconds}));
      without_gil([&] { sleep(words, slice); });
      ready = ready_among(waiting);
      if (nb::len(ready) == 0) recover_for(waiting);
    }
    seen_ = signal_.value.load(std::memory_order_seq_cst);
    return ready;
  }

 private:
  // Each signal once, our own first. What is beyond the kernel's limit is looked at after every slice.
  std::vector<struct futex_waitv> collect(const nb::list& waiting, uint32_t own) {
    std::vector<struct futex_waitv> words{word_of(signal_.value, own)};
    std::unordered_set<const Signal*> known;
    for (nb::handle item : waiting) {
      Signal& signal = place_of(item).signal;
      if (words.size() < FUTEX_WAITV_MAX && known.insert(&signal).second)
        words.push_back(word_of(signal.value, signal.value.load(std::memory_order_seq_cst)));
    }
    return words;
  }
  static void sleep(std::vector<struct futex_waitv>& words, int64_t nanoseconds) {
    const int64_t until = monotonic_now() + nanoseconds;
    const timespec limit{until / 1'000'000'000, until % 1'000'000'000};
    const long result = syscall(SYS_futex_waitv, words.data(), words.size(), 0, &limit, CLOCK_MONOTONIC);
    // Before Linux 5.16, or where a sandbox does not let us.
    if (result < 0 && errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT) usleep(1000);
  }

  Signal signal_{};
  uint32_t seen_ = 0;
};

}  // namespace

void recover_quietly(Region& region) {
  try {
    without_gil([&] {
      if (!region.memory().closed()) region.recover();
    });
  } catch (const Error&) {
  }
}

void let_them_gather(bool& drained, nb::handle timeout) {
  if (std::exchange(drained, false) && !deadline_of(timeout).over()) without_gil([] { relax_for(kPausesForMany); });
}

void bind_waiting(nb::module_& module) {
  nb::class_<Waiter>(module, "Waiter", nb::is_final())
      .def(nb::init<>())
      .def("wait", &Waiter::wait, nb::arg("waiting"), nb::arg("timeout"))
      .def("wake", &Waiter::wake);
}

}  // namespace hawser::python
