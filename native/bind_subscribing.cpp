// Subscriber and Waiter: taking samples, and sleeping until there are some.
#include "bind.hpp"

#include <linux/futex.h>

#include <unordered_set>

namespace hawser::python {

namespace {

constexpr uint64_t kCopyFromRing = 4096;  // larger messages are worth a reference, and a copy without the GIL

// One sample into an object that is already there: a sample once taken is never lost to a failed allocation.
PyObject* take_now(nb::handle self, SubscriberBox& box) {
  SampleObject* sample = new_sample();
  Taken taken{};
  bool there = false;
  try {
    there = box.core->try_take(taken);
  } catch (...) {
    free_unused(sample);
    throw;
  }
  if (!there) {
    free_unused(sample);
    return nullptr;
  }
  return fill_sample(sample, self.ptr(), box, taken);
}

// Housekeeping of a sleeper: what keeps it from being done now is no error of the call that sleeps.
void recover_quietly(Region& region) {
  try {
    without_gil([&] {
      if (!region.memory().closed()) region.recover();
    });
  } catch (const Error&) {
  }
}

// Sleep until there may be a sample. False: the time is over. Now and then a sleeper recovers the dead.
bool wait_for_sample(SubscriberBox& box, const Deadline& deadline, int pauses, int& slices) {
  if (deadline.over()) return false;
  without_gil([&] { box.core->wait_for_sample(deadline.slice(), pauses); });
  if (!box.core->ready()) box.core->confirm_nothing();
  if (++slices % 10 == 0) recover_quietly(*box.region);
  return true;
}

// Whatever happens: publishers that wait for us learn how far we are.
struct SettleLater {
  Subscriber& core;
  ~SettleLater() { core.settle(); }
};

// What `attempt` gets, tried at once and whenever there may be a sample; null when the time is over.
template <class Attempt>
PyObject* wait_and_take(SubscriberBox& box, nb::handle timeout, int pauses, const Attempt& attempt) {
  box.region->made().require();
  const Deadline deadline = deadline_of(timeout);
  const SettleLater later{*box.core};
  PyObject* result = attempt();
  for (int slices = 0; !result && wait_for_sample(box, deadline, pauses, slices);) result = attempt();
  result ? box.core->prefetch() : box.core->confirm_nothing();
  return result;
}

nb::object take(nb::handle self, nb::handle timeout, int pauses = kPausesForOne) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  PyObject* sample = wait_and_take(box, timeout, pauses, [&] { return take_now(self, box); });
  return sample ? nb::steal(sample) : nb::none();
}

// The next message as its reader wants it, its slot let go of: small ones without a schema are copied
// straight out of the ring, others are taken, decoded and released. One that cannot be decoded is used up by
// the error, unless it comes after others of a batch.
PyObject* value_now(nb::handle self, SubscriberBox& box, bool first = true) {
  if (box.decode.is_none()) {
    nb::object bytes;
    const auto copy = box.core->try_copy([&](uint64_t size) -> char* {
      bytes.reset();
      if (size > kCopyFromRing) return nullptr;
      bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
      if (!bytes.is_valid()) throw nb::python_error();
      return PyBytes_AS_STRING(bytes.ptr());
    });
    if (copy == Subscriber::Copy::copied) return bytes.release().ptr();
    if (copy == Subscriber::Copy::nothing) return nullptr;
  }
  const nb::object sample = nb::steal(take_now(self, box));
  if (!sample.is_valid()) return nullptr;
  PyObject* value = PyObject_GetAttrString(sample.ptr(), "value");
  if (!value) {
    if (!first) box.core->put_back();
    throw nb::python_error();
  }
  return value;
}

// As value_now, behind others of a batch: null also when it fails, so that those are not lost. The next call
// meets the same message and the same error.
PyObject* another_value(nb::handle self, SubscriberBox& box) {
  try {
    return value_now(self, box, false);
  } catch (const Error&) {
    return nullptr;
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return nullptr;
  }
}

PyObject* call_take(PyObject* self, PyObject* const* given, Py_ssize_t places, PyObject* keywords) {
  return guarded([&] {
    const Arguments<1> arguments("take", {"timeout"}, 1, given, places, keywords);
    return take(self, arguments.values[0]).release().ptr();
  });
}

PyObject* call_take_value(PyObject* self, PyObject* const* given, Py_ssize_t places, PyObject* keywords) {
  return guarded([&] {
    const Arguments<1> arguments("take_value", {"timeout"}, 1, given, places, keywords);
    SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
    PyObject* value = wait_and_take(box, arguments.values[0], kPausesForOne, [&] { return value_now(self, box); });
    return value ? value : nb::none().release().ptr();
  });
}

// Whoever took all there was a moment ago and wants many again gives them time to gather: a reader at the
// publisher's heels slows both down.
void let_them_gather(SubscriberBox& box, nb::handle timeout) {
  if (std::exchange(box.drained, false) && !deadline_of(timeout).over()) without_gil([] { relax_for(kPausesForMany); });
}

nb::list take_values(nb::handle self, int64_t count, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  if (count < 1) throw Error(Kind::usage, "take_values takes a count of 1 or more");
  nb::list values;
  let_them_gather(box, timeout);
  const SettleLater later{*box.core};
  PyObject* value = wait_and_take(box, timeout, kPausesForMany, [&] { return value_now(self, box); });
  for (int64_t taken = 1; value; taken++) {
    values.append(nb::steal(value));
    box.core->prefetch();
    value = taken < count ? another_value(self, box) : nullptr;
    box.drained = taken < count;
  }
  return values;
}

// Messages as the columns of a batch (hawser/record/bare.py), copied out of the ring once.
class Columns {
 public:
  Columns(int64_t count, int64_t nbytes)
      : count_(static_cast<size_t>(count)),
        room_(static_cast<uint64_t>(nbytes)),
        values_(nb::steal(PyBytes_FromStringAndSize(nullptr, nbytes))) {
    if (!values_.is_valid()) throw nb::python_error();
  }
  // What is there. False: nothing. What was copied before an error is not lost to it: the next call meets it.
  bool fill(SubscriberBox& box) {
    try {
      while (timestamps_.size() < count_ && copy_one(*box.core)) box.core->prefetch();
    } catch (const Error&) {
      if (timestamps_.empty()) throw;
    }
    box.drained = !timestamps_.empty() && timestamps_.size() < count_ && !is_full_;
    return is_full_ || !timestamps_.empty();
  }
  nb::tuple finish() {
    PyObject* values = values_.release().ptr();
    if (_PyBytes_Resize(&values, offsets_.back()) != 0) throw nb::python_error();
    return nb::make_tuple(first_, bytes_of(timestamps_), bytes_of(offsets_), nb::steal(values), metadata());
  }

 private:
  bool copy_one(Subscriber& core) {
    Copyable copied{};
    const auto copy = core.try_copy_whole([&](const Copyable& found) {
      copied = found;
      const uint64_t used = static_cast<uint64_t>(offsets_.back());
      is_full_ = used + metadata_ends_.back() + found.payload + found.metadata > room_ ||
                 (!timestamps_.empty() && found.sequence != first_ + timestamps_.size());
      if (is_full_) return CopyPlaces{};
      metadata_.resize(metadata_ends_.back() + found.metadata);
      return CopyPlaces{PyBytes_AS_STRING(values_.ptr()) + used, metadata_.data() + metadata_ends_.back()};
    });
    if (copy != Subscriber::Copy::copied) return false;
    if (timestamps_.empty()) first_ = copied.sequence;
    timestamps_.push_back(copied.timestamp_ns);
    offsets_.push_back(offsets_.back() + static_cast<int32_t>(copied.payload));
    metadata_ends_.push_back(metadata_ends_.back() + copied.metadata);
    return true;
  }
  template <class Number>
  static nb::bytes bytes_of(const std::vector<Number>& numbers) {
    return nb::bytes(numbers.data(), numbers.size() * sizeof(Number));
  }
  nb::object metadata() const {
    if (metadata_ends_.back() == 0) return nb::none();
    nb::list each;
    for (size_t i = 0; i + 1 < metadata_ends_.size(); i++)
      each.append(nb::bytes(metadata_.data() + metadata_ends_[i], metadata_ends_[i + 1] - metadata_ends_[i]));
    return each;
  }

  size_t count_;
  uint64_t room_;
  nb::object values_;
  uint64_t first_ = 0;
  std::vector<uint64_t> timestamps_;
  std::vector<int32_t> offsets_{0};
  std::string metadata_;
  std::vector<size_t> metadata_ends_{0};
  bool is_full_ = false;  // the next one does not fit, or does not follow the last one
};

nb::object take_columns(nb::handle self, int64_t count, int64_t nbytes, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  if (count < 1 || nbytes < 1 || nbytes > INT32_MAX)
    throw Error(Kind::usage, "take_columns takes a count of 1 or more, and 1 byte to 2 GiB");
  let_them_gather(box, timeout);
  Columns columns(count, nbytes);
  PyObject* found = wait_and_take(box, timeout, kPausesForMany, [&] { return columns.fill(box) ? self.ptr() : nullptr; });
  return found ? nb::object(columns.finish()) : nb::none();
}

nb::object take_next(nb::handle self, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  box.region->made().require();
  if (box.last) let_go_of(std::exchange(box.last, nullptr));
  if (PyErr_Occurred()) throw nb::python_error();
  nb::object sample = take(self, timeout);
  if (!sample.is_none()) box.last = reinterpret_cast<SampleObject*>(sample.ptr());
  return sample;
}

nb::object take_many(nb::handle self, int64_t count, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  box.region->made().require();
  if (count < 1) throw Error(Kind::usage, "take_many takes a count of 1 or more");
  nb::list samples;
  let_them_gather(box, timeout);
  const nb::object first = take(self, timeout, kPausesForMany);
  if (first.is_none()) return samples;
  samples.append(first);
  const auto more = std::min<int64_t>(count - 1, box.core->free_places());
  try {
    for (int64_t i = 0; i < more; i++) {
      box.core->prefetch();
      PyObject* sample = take_now(self, box);
      box.drained = !sample;
      if (!sample) break;
      samples.append(nb::steal(sample));
    }
  } catch (const Error&) {  // what was taken so far is not lost to it; the next call meets the same error
  }
  box.core->settle();
  return samples;
}

// Waits on many signals at once; only signals readiness, takes nothing.
class Waiter {
 public:
  void wake() {
    signal_.value.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &signal_.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  nb::list wait(const nb::list& waiting, double timeout) {
    const uint32_t own = signal_.value.load(std::memory_order_seq_cst);
    std::deque<Sleeper> sleepers;
    for (nb::handle item : waiting) sleepers.emplace_back(signal_of(item), index_of(item), sleepers_of(item));
    std::vector<struct futex_waitv> words = collect(waiting, own);
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
  static Signal& signal_of(nb::handle item) {
    if (nb::isinstance<SubscriberBox>(item)) return nb::inst_ptr<SubscriberBox>(item)->core->signal();
    return nb::inst_ptr<PublisherBox>(item)->core->signal();
  }
  static uint32_t index_of(nb::handle item) {
    if (nb::isinstance<SubscriberBox>(item)) return nb::inst_ptr<SubscriberBox>(item)->core->bit();
    return nb::inst_ptr<PublisherBox>(item)->core->membership().index;
  }
  static Sleepers& sleepers_of(nb::handle item) {
    if (nb::isinstance<SubscriberBox>(item)) return nb::inst_ptr<SubscriberBox>(item)->core->sleepers();
    return nb::inst_ptr<PublisherBox>(item)->core->sleepers();
  }
  // One that is damaged is ready, too: its own call then says so.
  static bool is_ready(nb::handle item) {
    try {
      return nb::isinstance<SubscriberBox>(item) ? nb::inst_ptr<SubscriberBox>(item)->core->ready()
                                                 : nb::inst_ptr<PublisherBox>(item)->core->ready();
    } catch (const Error&) {
      return true;
    }
  }
  static nb::list ready_among(const nb::list& waiting) {
    nb::list ready;
    for (nb::handle item : waiting)
      if (is_ready(item)) ready.append(item);
    return ready;
  }
  // Whoever waits for space looks after every slice whether the one in its way is dead.
  static void recover_for(const nb::list& waiting) {
    for (nb::handle item : waiting)
      if (nb::isinstance<PublisherBox>(item)) recover_quietly(*nb::inst_ptr<PublisherBox>(item)->region);
  }
  static struct futex_waitv word_of(std::atomic<uint32_t>& value, uint32_t seen) {
    return {seen, reinterpret_cast<uint64_t>(&value), FUTEX_32, 0};
  }
  // Each signal once, our own first. What is beyond the kernel's limit is looked at after every slice.
  std::vector<struct futex_waitv> collect(const nb::list& waiting, uint32_t own) {
    std::vector<struct futex_waitv> words{word_of(signal_.value, own)};
    std::unordered_set<const Signal*> known;
    for (nb::handle item : waiting) {
      Signal& signal = signal_of(item);
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

void bind_subscribing(nb::module_& module) {
  static PyMethodDef methods[] = {
      {"take", c_method(call_take), METH_FASTCALL | METH_KEYWORDS, "take(timeout=None): the next sample, or None."},
      {"take_value", c_method(call_take_value), METH_FASTCALL | METH_KEYWORDS,
       "take_value(timeout=None): the next message decoded or as bytes, or None."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};
  nb::class_<SubscriberBox>(module, "Subscriber", nb::is_final(), nb::type_slots(slots))
      .def_prop_ro("name", [](const SubscriberBox& self) { return self.name; })
      .def_prop_ro("incarnation", [](const SubscriberBox& self) { return self.core->membership().incarnation; })
      .def_prop_ro("missed", [](const SubscriberBox& self) { return self.core->missed(); })
      .def_prop_ro("received", [](const SubscriberBox& self) { return self.core->received(); })
      .def_prop_ro("position", [](const SubscriberBox& self) { return self.core->cursor(); })
      .def_prop_ro("held", [](const SubscriberBox& self) { return self.core->held(); })
      .def_prop_ro("head", [](const SubscriberBox& self) { return self.core->head(); })
      .def("take_many", &take_many, nb::arg("count"), nb::arg("timeout").none() = nb::none())
      .def("take_values", &take_values, nb::arg("count"), nb::arg("timeout").none() = nb::none())
      .def("take_columns", &take_columns, nb::arg("count"), nb::arg("nbytes"), nb::arg("timeout").none() = nb::none())
      .def("take_next", &take_next, nb::arg("timeout").none() = nb::none())
      .def("commit", [](SubscriberBox& self) { self.region->made().require(); self.core->commit(); })
      .def("close", [](SubscriberBox& self) {
             if (self.region->made().here()) self.core->close(); });
  nb::class_<Waiter>(module, "Waiter", nb::is_final())
      .def(nb::init<>())
      .def("wait", &Waiter::wait, nb::arg("waiting"), nb::arg("timeout"))
      .def("wake", &Waiter::wake);
}

}  // namespace hawser::python
