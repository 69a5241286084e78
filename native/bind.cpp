// The native module: Region, Publisher, Loan, Subscriber, Waiter. Types are in hawser/memory/_native.pyi.
#include "bind.hpp"

#include <linux/futex.h>

#include <unordered_set>

namespace hawser::python {

namespace {

constexpr size_t kCopyWithoutGil = 64 << 10;

nb::object error_class(Kind kind) {
  static constexpr const char* names[] = {"UsageError", "NotFound", "Full", "Closed", "Timeout", "Corrupt",
                                          "PermissionDenied", "SettingsMismatch", "OffsetOutOfRange"};
  return nb::module_::import_("hawser.errors").attr(names[static_cast<int>(kind)]);
}

// A bytes-like object for as long as this lives.
class Input {
 public:
  explicit Input(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS) == 0) return;
    PyErr_Clear();
    throw Error(Kind::usage, std::string("data must be bytes-like and contiguous, not ") + Py_TYPE(object.ptr())->tp_name +
                                 "; encode it, or give the topic a schema");
  }
  ~Input() { PyBuffer_Release(&view_); }
  Input(const Input&) = delete;
  const void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

void copy_in(uint8_t* to, const void* from, size_t size) {
  if (size < kCopyWithoutGil) {
    std::memcpy(to, from, size);
    return;
  }
  nb::gil_scoped_release released;
  std::memcpy(to, from, size);
}

nb::object make_receipt(const PublisherBox& box, uint64_t first, uint64_t count) {
  PyObject* receipt = configuration.receipt_type->tp_alloc(configuration.receipt_type, 5);
  if (!receipt) throw nb::python_error();
  PyObject* items[] = {box.topic.ptr(), PyLong_FromLong(0), PyLong_FromUnsignedLongLong(first),
                       PyLong_FromUnsignedLongLong(count), configuration.durability};
  Py_INCREF(items[0]);
  Py_INCREF(items[4]);
  for (int i = 0; i < 5; i++) PyTuple_SET_ITEM(receipt, i, items[i]);
  return nb::steal(receipt);
}

// Metadata goes behind the payload; together they must fit the slot.
struct Metadata {
  const char* data = nullptr;
  uint32_t size = 0;
  explicit Metadata(const nb::object& bytes) {
    if (bytes.is_none()) return;
    if (!PyBytes_Check(bytes.ptr())) throw Error(Kind::usage, "metadata must be bytes");
    if (PyBytes_GET_SIZE(bytes.ptr()) > kMaxMetadata) throw Error(Kind::usage, "key and headers are larger than 16 MiB");
    data = PyBytes_AS_STRING(bytes.ptr());
    size = static_cast<uint32_t>(PyBytes_GET_SIZE(bytes.ptr()));
  }
};

uint64_t deliver(PublisherBox& box, uint32_t slot, uint64_t payload, const Metadata& metadata, const Deadline& deadline) {
  if (metadata.size) std::memcpy(box.core->payload(slot) + payload, metadata.data, metadata.size);
  return box.core->publish(slot, payload, metadata.size, deadline, [&](int64_t slice) {
    without_gil([&] { box.core->wait_for_space(slice); });
  });
}

uint32_t quota(const PublisherBox& box) { return box.region->memory().layout.settings.max_loans; }

uint64_t publish_one(PublisherBox& box, nb::handle data, const Metadata& metadata, const Deadline& deadline) {
  const Input input(data);
  const uint32_t slot = box.core->borrow(input.size() + metadata.size, quota(box) + 1);
  try {
    copy_in(box.core->payload(slot), input.data(), input.size());
    const uint64_t sequence = deliver(box, slot, input.size(), metadata, deadline);
    box.core->put_back(slot);
    return sequence;
  } catch (...) {
    box.core->put_back(slot);
    throw;
  }
}

void settle_after(PublisherBox& box) {
  if (box.core->closing()) box.core->close();
}

nb::object publish(PublisherBox& box, nb::handle data, const nb::object& metadata, const nb::object& timeout) {
  box.region->made().require();
  const uint64_t sequence = publish_one(box, data, Metadata(metadata), deadline_of(timeout));
  box.core->wake_subscribers();
  return make_receipt(box, sequence, 1);
}

// Wakes subscribers after every kWakeEvery samples, so that they work while we go on.
nb::object publish_many(PublisherBox& box, nb::handle items, const nb::object& timeout) {
  constexpr uint64_t kWakeEvery = 64;
  box.region->made().require();
  const Deadline deadline = deadline_of(timeout);
  const Metadata none{nb::none()};
  uint64_t first = 0, count = 0;
  try {
    for (nb::handle item : nb::iter(items)) {
      const uint64_t sequence = publish_one(box, item, none, deadline);
      if (count++ == 0) first = sequence;
      if (count % kWakeEvery == 0) box.core->wake_subscribers();
    }
  } catch (Error& error) {
    box.core->wake_subscribers();
    nb::object exception = error_class(error.kind())(error.what());
    exception.attr("published") = count;
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
    throw nb::python_error();
  }
  box.core->wake_subscribers();
  return make_receipt(box, first, count);
}

// A slot lent for writing. It goes back to the pool when nothing can write or read it any more.
struct Loan {
  nb::object publisher;
  PublisherBox* box;
  uint32_t slot;
  uint64_t bytes;
  Py_ssize_t exports = 0;
  enum { open, ending, ended } state = open;  // ending: waits for the last view

  ~Loan() { end(); }
  void end() {
    if (state != ended && exports == 0) {
      state = ended;
      if (!box->region->made().here()) return;
      box->core->put_back(slot);
      settle_after(*box);
    } else if (state == open) {
      state = ending;
    }
  }
  void require_open() const {
    box->region->made().require();
    if (state != open) throw Error(Kind::usage, "this loan was published or dropped already; take a new one");
  }
  nb::object publish(const nb::object& metadata, const nb::object& timeout, bool keep_views) {
    require_open();
    if (exports > 0 && !keep_views) {
      const Py_ssize_t views = exports;
      end();
      PyErr_Format(PyExc_BufferError, "%zd other views of this loan are alive: nothing was published; drop them before", views);
      throw nb::python_error();
    }
    const Metadata extra(metadata);
    if (bytes + extra.size > box->region->memory().layout.settings.slot_size)
      throw Error(Kind::usage, "the loan with its key and headers does not fit slot_size; create the topic with a larger slot_size");
    const uint64_t sequence = deliver(*box, slot, bytes, extra, deadline_of(timeout));
    end();
    box->core->wake_subscribers();
    return make_receipt(*box, sequence, 1);
  }
};

int loan_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  Loan* loan = nb::inst_ptr<Loan>(self);
  if (loan->state != Loan::open) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "this loan was published or dropped");
    return -1;
  }
  if (PyBuffer_FillInfo(view, self, loan->box->core->payload(loan->slot), static_cast<Py_ssize_t>(loan->bytes), 0, flags) != 0)
    return -1;
  loan->exports++;
  return 0;
}
void loan_releasebuffer(PyObject* self, Py_buffer*) {
  Loan* loan = nb::inst_ptr<Loan>(self);
  loan->exports--;
  if (loan->state == Loan::ending) loan->end();
}
PyType_Slot loan_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(loan_getbuffer)},
                            {Py_bf_releasebuffer, reinterpret_cast<void*>(loan_releasebuffer)},
                            {0, nullptr}};

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

// Sleep until there may be a sample. False: the time is over. Now and then a sleeper recovers the dead.
bool wait_for_sample(SubscriberBox& box, const Deadline& deadline, int& slices) {
  if (deadline.over()) return false;
  without_gil([&] { box.core->wait_for_sample(deadline.slice()); });
  if (++slices % 10 == 0 && !box.region->memory().closed()) without_gil([&] { box.region->recover(); });
  return true;
}

nb::object take(nb::handle self, const nb::object& timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  box.region->made().require();
  if (PyObject* sample = take_now(self, box)) {
    box.core->settle();
    return nb::steal(sample);
  }
  const Deadline deadline = deadline_of(timeout);
  for (int slices = 0; wait_for_sample(box, deadline, slices);)
    if (PyObject* sample = take_now(self, box)) {
      box.core->settle();
      return nb::steal(sample);
    }
  return nb::none();
}

nb::object take_next(nb::handle self, const nb::object& timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  box.region->made().require();
  if (box.last) let_go_of(std::exchange(box.last, nullptr));
  if (PyErr_Occurred()) throw nb::python_error();
  nb::object sample = take(self, timeout);
  if (!sample.is_none()) box.last = reinterpret_cast<SampleObject*>(sample.ptr());
  return sample;
}

nb::object take_many(nb::handle self, int64_t count, const nb::object& timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  box.region->made().require();
  if (count < 1) throw Error(Kind::usage, "take_many takes a count of 1 or more");
  nb::list samples;
  const nb::object first = take(self, timeout);
  if (first.is_none()) return samples;
  samples.append(first);
  const auto more = std::min<int64_t>(count - 1, box.core->free_places());
  for (int64_t i = 0; i < more; i++) {
    box.core->prefetch();
    PyObject* sample = take_now(self, box);
    if (!sample) break;
    samples.append(nb::steal(sample));
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
    for (nb::handle item : waiting) sleepers.emplace_back(signal_of(item), index_of(item));
    std::vector<struct futex_waitv> words = collect(waiting, own);
    nb::list ready = ready_among(waiting);
    if (nb::len(ready) == 0 && own == seen_ && timeout > 0) {
      const auto slice = static_cast<int64_t>(std::min(timeout * 1e9, double{kSliceNanoseconds}));
      without_gil([&] { sleep(words, slice); });
      ready = ready_among(waiting);
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
  static nb::list ready_among(const nb::list& waiting) {
    nb::list ready;
    for (nb::handle item : waiting) {
      const bool is_ready = nb::isinstance<SubscriberBox>(item) ? nb::inst_ptr<SubscriberBox>(item)->core->ready()
                                                                : nb::inst_ptr<PublisherBox>(item)->core->ready();
      if (is_ready) ready.append(item);
    }
    return ready;
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
    if (result < 0 && errno == ENOSYS) usleep(1000);  // before Linux 5.16
  }

  Signal signal_{};
  uint32_t seen_ = 0;
};

Settings settings_from(const nb::dict& given) {
  const auto number = [&](const char* name) { return nb::cast<uint64_t>(given[name]); };
  const auto small = [&](const char* name) {
    const uint64_t value = number(name);
    if (value > UINT32_MAX) throw Error(Kind::usage, std::string(name) + " is " + std::to_string(value) + ", far too large");
    return static_cast<uint32_t>(value);
  };
  return {number("slot_size"), small("history"), small("depth"), small("max_publishers"), small("max_subscribers"),
          small("max_held"), small("max_loans"), small("ephemeral"), small("group")};
}

nb::dict settings_of(const Region& region) {
  const Settings& settings = region.memory().layout.settings;
  nb::dict result;
  result["slot_size"] = settings.slot_size;
  result["history"] = settings.history;
  result["depth"] = settings.depth;
  result["max_publishers"] = settings.max_publishers;
  result["max_subscribers"] = settings.max_subscribers;
  result["max_held"] = settings.max_held;
  result["max_loans"] = settings.max_loans;
  result["ephemeral"] = settings.ephemeral;
  result["group"] = settings.group;
  result["schema"] = nb::str(region.memory().header().label.schema);
  return result;
}

std::shared_ptr<Region> attach(const std::string& path, const std::string& lock_path, const std::string& name,
                               const nb::object& settings) {
  const Region::Place place{path, lock_path, name};
  if (settings.is_none()) {
    nb::gil_scoped_release released;
    return Region::attach(place, nullptr, "");
  }
  const nb::dict given = nb::cast<nb::dict>(settings);
  const Settings wanted = settings_from(given);
  const auto schema = nb::cast<std::string>(given["schema"]);
  if (name.size() >= kTextBytes || schema.size() >= kTextBytes)
    throw Error(Kind::usage, "a topic's name and schema have at most " + std::to_string(kTextBytes - 1) + " bytes");
  nb::gil_scoped_release released;
  return Region::attach(place, &wanted, schema);
}

nb::object make_publisher(const std::shared_ptr<Region>& region, const std::string& name, bool exclusive) {
  region->made().require();
  std::unique_ptr<Publisher> core;
  {
    nb::gil_scoped_release released;
    core = join_as_publisher(*region, name, exclusive);
  }
  return nb::cast(new PublisherBox{region, std::move(core), name, nb::str(region->place().name.c_str())},
                  nb::rv_policy::take_ownership);
}

nb::object make_subscriber(const std::shared_ptr<Region>& region, const std::string& name, uint64_t history,
                           uint64_t start, int reliable, const std::string& record, bool commit, uint64_t max_lag,
                           uint32_t max_held, nb::object decode) {
  region->made().require();
  if (reliable == 2 && record.empty()) throw Error(Kind::usage, "a durable subscription needs a name to be kept under");
  const SubscribeOptions options{history, start, reliable != 0, reliable == 2, record, commit, max_lag, max_held};
  std::unique_ptr<Subscriber> core;
  {
    nb::gil_scoped_release released;
    core = join_as_subscriber(*region, name, options);
  }
  return nb::cast(new SubscriberBox{region, std::move(core), name, std::move(decode)}, nb::rv_policy::take_ownership);
}

nb::list participants(const Region& region) {
  region.made().require();
  nb::list result;
  for (const ParticipantView& view : view_participants(region)) {
    nb::dict one;
    one["index"] = view.index;
    one["kind"] = view.publisher ? "publisher" : "subscriber";
    one["name"] = nb::steal(PyUnicode_DecodeUTF8(view.name.data(), static_cast<Py_ssize_t>(view.name.size()), "replace"));
    one["pid"] = view.pid;
    one["uid"] = view.uid;
    one["incarnation"] = view.incarnation;
    one["state"] = view.state == EntryState::active ? "active" : "dead";
    one["alive"] = view.alive;
    one["started_ns"] = view.started_ns;
    one["joined_ns"] = view.joined_ns;
    one["reliable"] = view.reliable ? "reliable" : "";
    one["cursor"] = view.cursor;
    one["count"] = view.count;
    one["missed"] = view.missed;
    one["held"] = view.held;
    result.append(one);
  }
  return result;
}

nb::list records(const Region& region) {
  region.made().require();
  nb::list result;
  for (const RecordView& view : view_records(region)) {
    nb::dict one;
    one["name"] = nb::steal(PyUnicode_DecodeUTF8(view.name.data(), static_cast<Py_ssize_t>(view.name.size()), "replace"));
    one["mark"] = view.mark;
    one["durable"] = view.durable;
    one["max_lag"] = view.max_lag;
    one["held"] = view.held;
    result.append(one);
  }
  return result;
}

nb::list recover(Region& region) {
  region.made().require();
  std::vector<Recovered> done;
  {
    nb::gil_scoped_release released;
    done = region.recover();
  }
  nb::list result;
  for (const Recovered& recovered : done) {
    nb::dict one;
    one["kind"] = region.memory().is_publisher(recovered.index) ? "publisher" : "subscriber";
    one["name"] = nb::steal(PyUnicode_DecodeUTF8(recovered.name.data(), static_cast<Py_ssize_t>(recovered.name.size()), "replace"));
    one["pid"] = recovered.pid;
    one["incarnation"] = recovered.incarnation;
    one["slots"] = recovered.loans;
    one["references"] = recovered.references;
    one["complete"] = recovered.complete;
    result.append(one);
  }
  return result;
}

nb::dict state(const Region& region) {
  region.made().require();
  const Memory& memory = region.memory();
  const uint64_t head = next_place(memory).head;
  const SlotCounts counts = count_slots(memory);
  nb::dict result;
  result["head"] = head;
  result["oldest"] = oldest_after(head, memory.layout.ring);
  result["ring"] = memory.layout.ring;
  result["slots"] = memory.layout.slots;
  result["slots_lent"] = counts.lent;
  result["slots_referenced"] = counts.referenced;
  result["slots_carried"] = counts.carried;
  result["slots_free"] = counts.free;
  result["slots_leaked"] = counts.leaked;
  result["file_bytes"] = memory.layout.total;
  result["resident_bytes"] = memory.closed() ? 0 : region.resident_bytes();
  result["created_ns"] = memory.header().label.created_ns;
  result["announcement"] = memory.header().announcement.word.load_ordered();
  result["closed"] = static_cast<int>(memory.closed());
  return result;
}

nb::tuple read_result(const ReadSamples& read) {
  nb::list samples;
  for (const Copied& copied : read.samples) samples.append(nb::steal(copied_sample(copied)));
  return nb::make_tuple(samples, read.last, read.missed);
}

std::string uuid_text(const Region& region) {
  const uint8_t* bytes = region.memory().header().label.uuid;
  char text[37];
  snprintf(text, sizeof text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", bytes[0], bytes[1],
           bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8], bytes[9], bytes[10], bytes[11],
           bytes[12], bytes[13], bytes[14], bytes[15]);
  return text;
}

void bind_region(nb::module_& module) {
  nb::class_<Region>(module, "Region", nb::is_final())
      .def_static("attach", &attach, nb::arg("path"), nb::arg("lock_path"), nb::arg("name"), nb::arg("settings").none())
      .def_prop_ro("created", &Region::created)
      .def_prop_ro("path", [](const Region& self) { return self.place().path; })
      .def_prop_ro("name", [](const Region& self) { return self.place().name; })
      .def_prop_ro("uuid", &uuid_text)
      .def_prop_ro("schema", [](const Region& self) { return nb::str(self.memory().header().label.schema); })
      .def("settings", &settings_of)
      .def("publisher", &make_publisher, nb::arg("name"), nb::kw_only(), nb::arg("exclusive") = false)
      .def("subscriber", &make_subscriber, nb::arg("name"), nb::kw_only(), nb::arg("history") = 0, nb::arg("start") = 0,
           nb::arg("reliable") = 0, nb::arg("record") = "", nb::arg("commit") = false, nb::arg("max_lag") = 0,
           nb::arg("max_held") = 0, nb::arg("decode") = nb::none())
      .def("participants", &participants)
      .def("records", &records)
      .def("forget", [](Region& self, const std::string& record) { return forget_record(self, record); }, nb::arg("record"))
      .def("recover", &recover)
      .def("state", &state)
      .def("read_oldest", [](const Region& self, uint64_t count, uint64_t after) {
             return read_result(read_oldest(self.memory(), count, after)); }, nb::arg("count"), nb::arg("after"))
      .def("read_newest", [](const Region& self, uint64_t count, uint64_t after) {
             return read_result(read_newest(self.memory(), count, after)); }, nb::arg("count"), nb::arg("after"))
      .def("offset_at", [](const Region& self, uint64_t timestamp_ns) { return offset_at(self.memory(), timestamp_ns); },
           nb::arg("timestamp_ns"))
      .def("others_alive", [](Region& self) { self.made().require(); return self.others_alive(); })
      .def("remove", [](Region& self, bool force) {
             self.made().require();
             nb::gil_scoped_release released;
             return self.remove(force); }, nb::arg("force"))
      .def("close", [](Region& self) {
             nb::gil_scoped_release released;
             self.close(); });
}

void bind_publisher(nb::module_& module) {
  nb::class_<PublisherBox>(module, "Publisher", nb::is_final())
      .def_prop_ro("name", [](const PublisherBox& self) { return self.name; })
      .def_prop_ro("incarnation", [](const PublisherBox& self) { return self.core->membership().incarnation; })
      .def("publish", &publish, nb::arg("data"), nb::arg("metadata") = nb::none(), nb::arg("timeout") = nb::none())
      .def("publish_many", &publish_many, nb::arg("items"), nb::arg("timeout") = nb::none())
      .def("loan", [](nb::handle self, int64_t bytes) {
             PublisherBox& box = *nb::inst_ptr<PublisherBox>(self);
             box.region->made().require();
             if (bytes < 0) throw Error(Kind::usage, "a loan has 0 bytes or more");
             const uint32_t slot = box.core->borrow(static_cast<uint64_t>(bytes), quota(box));
             return new Loan{nb::borrow(self), &box, slot, static_cast<uint64_t>(bytes)}; }, nb::arg("nbytes"),
           nb::rv_policy::take_ownership)
      .def("close", [](PublisherBox& self) {
             if (self.region->made().here()) self.core->close(); });
  nb::class_<Loan>(module, "Loan", nb::is_final(), nb::type_slots(loan_slots))
      .def_ro("nbytes", &Loan::bytes)
      .def("publish", [](Loan& self, const nb::object& metadata, const nb::object& timeout) {
             return self.publish(metadata, timeout, false); }, nb::arg("metadata") = nb::none(), nb::arg("timeout") = nb::none())
      .def("publish_keeping_views", [](Loan& self, const nb::object& metadata, const nb::object& timeout) {
             return self.publish(metadata, timeout, true); }, nb::arg("metadata") = nb::none(), nb::arg("timeout") = nb::none())
      .def("drop", &Loan::end);
}

void bind_subscriber(nb::module_& module) {
  nb::class_<SubscriberBox>(module, "Subscriber", nb::is_final())
      .def_prop_ro("name", [](const SubscriberBox& self) { return self.name; })
      .def_prop_ro("incarnation", [](const SubscriberBox& self) { return self.core->membership().incarnation; })
      .def_prop_ro("missed", [](const SubscriberBox& self) { return self.core->missed(); })
      .def_prop_ro("received", [](const SubscriberBox& self) { return self.core->received(); })
      .def_prop_ro("position", [](const SubscriberBox& self) { return self.core->cursor(); })
      .def_prop_ro("held", [](const SubscriberBox& self) { return self.core->held(); })
      .def("take", &take, nb::arg("timeout") = nb::none())
      .def("take_many", &take_many, nb::arg("count"), nb::arg("timeout") = nb::none())
      .def("take_next", &take_next, nb::arg("timeout") = nb::none())
      .def("commit", [](SubscriberBox& self) { self.region->made().require(); self.core->commit(); })
      .def("close", [](SubscriberBox& self) {
             if (self.region->made().here()) self.core->close(); });
}

}  // namespace

void set_python_error(const Error& error) {
  try {
    const nb::object type = error_class(error.kind());
    PyErr_SetObject(type.ptr(), nb::str(error.what()).ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

}  // namespace hawser::python

NB_MODULE(_native, module) {
  using namespace hawser;
  using namespace hawser::python;
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
  module.attr("FORMAT_VERSION") = kFormatVersion;
  module.def("boot_id", &boot_id);
  module.def("configure", [](nb::type_object receipt_type, nb::object decode_metadata) {
        configuration.receipt_type = reinterpret_cast<PyTypeObject*>(receipt_type.release().ptr());
        configuration.decode_metadata = decode_metadata.release().ptr();
        configuration.durability = PyUnicode_InternFromString("process");
      }, nb::arg("receipt_type"), nb::arg("decode_metadata"));
  add_sample_type(module.ptr());
  bind_region(module);
  bind_publisher(module);
  bind_subscriber(module);
  nb::class_<Waiter>(module, "Waiter", nb::is_final())
      .def(nb::init<>())
      .def("wait", &Waiter::wait, nb::arg("waiting"), nb::arg("timeout"))
      .def("wake", &Waiter::wake);
}
