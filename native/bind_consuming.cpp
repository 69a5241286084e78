// Consumer: claiming messages of a queue, one by one, many at once, or as copies that are settled together.
#include "bind_claiming.hpp"
#include "bind_columns.hpp"

namespace hawser::python {

namespace {

// One message into an object that is already there: what is claimed is never lost to a failed allocation. Not valid
// if there is none.
nb::object claim_now(nb::handle self, ConsumerBox& box) {
  SampleObject* message = new_message();
  bool there = false;
  try {
    there = box.core->try_claim(claim_of(message));
  } catch (...) {
    free_unused(message);
    throw;
  }
  if (there) return nb::steal(fill_message(message, self.ptr(), box));
  free_unused(message);
  return {};
}

PyObject* call_claim(PyObject* self, PyObject* const* given, Py_ssize_t places, PyObject* keywords) {
  return guarded([&] {
    const Arguments<1> arguments("get", {"timeout"}, 1, given, places, keywords);
    ConsumerBox& box = *nb::inst_ptr<ConsumerBox>(self);
    nb::object message = wait_and_claim(box, deadline_of(arguments.values[0]), kPausesForOne, kFewForOne, [&] { return claim_now(self, box); });
    return message.is_valid() ? message.release().ptr() : nb::none().release().ptr();
  });
}

nb::object claim_many(nb::handle self, int64_t count, nb::handle timeout, nb::object into) {
  ConsumerBox& box = *nb::inst_ptr<ConsumerBox>(self);
  if (count < 1) throw Error(Kind::usage, "claim_many takes a count of 1 or more");
  if (into.is_none()) into = nb::list();
  const auto append = [&](const nb::object& message) {
    if (message.is_valid() && PyList_Append(into.ptr(), message.ptr()) != 0) throw nb::python_error();
    return message.is_valid();
  };
  if (!append(wait_and_claim(box, deadline_of(timeout), kPausesForMany, few_of(count), [&] { return claim_now(self, box); }))) return into;
  claim_more(box, count, [&](int64_t) { return append(claim_now(self, box)) ? 1 : 0; });
  box.core->settle();
  return into;
}

void settle_many(ConsumerBox& box, nb::handle messages, Verdict verdict) {
  box.region->made().require();
  uint64_t lost = 0, sequence = 0;
  for (nb::handle message : nb::iter(messages)) {
    if (settle_message(message.ptr(), box, verdict)) continue;
    lost++;
    sequence = nb::cast<uint64_t>(message.attr("offset"));
  }
  box.core->wake_producers();
  tell_of_the_dying(box);
  if (lost) throw claim_lost(box, lost, sequence);
}

// Up to `most` values that go to a list together: one by one they would make it grow again and again.
class Gathered {
 public:
  explicit Gathered(int64_t most) : values_(nb::steal(PyList_New(static_cast<Py_ssize_t>(most)))) {
    if (!values_.is_valid()) throw nb::python_error();
  }
  void add(nb::object value) { PyList_SET_ITEM(values_.ptr(), count_++, value.release().ptr()); }
  void append_to(nb::list& values) {
    const auto most = PyList_GET_SIZE(values_.ptr()), end = PyList_GET_SIZE(values.ptr());
    if (PyList_SetSlice(values_.ptr(), count_, most, nullptr) != 0 || PyList_SetSlice(values.ptr(), end, end, values_.ptr()) != 0)
      throw nb::python_error();
  }

 private:
  nb::object values_;
  Py_ssize_t count_ = 0;
};

// Claims of messages whose slots were let go of, settled together.
class Claims {
 public:
  // Of at most `count` messages; there may be fewer.
  Claims(nb::object consumer, int64_t count) : consumer_(std::move(consumer)), box_(*nb::inst_ptr<ConsumerBox>(consumer_)) {
    claims_.reserve(static_cast<size_t>(std::min(count, kUsualBatch)));
  }
  ~Claims() {
    if (box_.region->made().here()) settle_now(Verdict::release);
  }
  Claims(const Claims&) = delete;

  const nb::object& consumer() const { return consumer_; }
  size_t size() const { return claims_.size(); }
  nb::list offsets() const { return numbers([](const Claimed& claimed) { return claimed.sequence; }); }
  nb::list delivery_counts() const {
    const uint32_t uncounted = box_.core->options().reserved ? 1 : 0;
    return numbers([&](const Claimed& claimed) { return uint64_t{claim_deliveries(claimed.claim)} + uncounted; });
  }

  // The next message, appended to `values`. False: there is none.
  bool claim_one(nb::list& values) {
    if (box_.decode.is_none()) {
      BytesRoom room;
      const auto copy = claim_copy([&](const Copyable& found) { return CopyPlaces{room.make(found.payload), nullptr}; });
      if (copy == Consumer::Copy::nothing) return false;
      if (copy == Consumer::Copy::copied) return values.append(room.bytes), true;
    }
    return claim_decoded(values);
  }

  // As many of the next messages as come without ado, at most `most`; how many.
  int64_t claim_run(int64_t most, nb::list& values) {
    most = std::min<int64_t>(most, static_cast<int64_t>(box_.core->known_ahead()));
    if (!box_.decode.is_none() || most == 0) return 0;
    const size_t before = claims_.size();
    BytesRoom room;
    Gathered gathered(most);
    const auto make = [&](uint64_t size) { return room.make(size); };
    try {
      box_.core->claim_run(static_cast<uint64_t>(most), claims_, make, [&] { gathered.add(std::move(room.bytes)); });
    } catch (...) {
      gathered.append_to(values);
      throw;
    }
    gathered.append_to(values);
    return static_cast<int64_t>(claims_.size() - before);
  }

  // The next message, to where `room` says. False: there is none, or no room.
  template <class Room>
  bool copy_one(const Room& room) {
    return claim_copy(room) == Consumer::Copy::copied;
  }

  // What becomes of all of them, unless it was said before.
  void settle(Verdict verdict) {
    box_.region->made().require();
    settle_now(verdict);
    tell_of_the_dying(box_);
    if (lost_) throw claim_lost(box_, lost_, lost_sequence_);
  }

 private:
  void settle_now(Verdict verdict) {
    if (verdict_) return;
    verdict_ = verdict;
    for (const Claimed& claimed : claims_) {
      if (!settle_claim(*box_.core, claimed, verdict)) {
        lost_++;
        lost_sequence_ = claimed.sequence;
      }
      box_.core->let_go_of_copy();
    }
    box_.core->wake_producers(static_cast<uint32_t>(claims_.size()));
    if (box_.core->closing()) box_.core->close();
  }
  template <class Room>
  Consumer::Copy claim_copy(const Room& room) {
    LastClaim last(claims_);
    const auto copy = box_.core->try_claim_copy(room, last.claimed());
    if (copy == Consumer::Copy::copied) last.stay();
    return copy;
  }
  // By a message that has the slot while its value is made. One that cannot be decoded is given back; if others came
  // before it, as if it had not been claimed.
  bool claim_decoded(nb::list& values) {
    const nb::object message = claim_now(consumer_, box_);
    if (!message.is_valid()) return false;
    const bool is_first = claims_.empty();
    LastClaim last(claims_);
    const nb::object value = value_and_claim(message, box_, last.claimed(), !is_first);
    if (PyList_Append(values.ptr(), value.ptr()) != 0) {
      nb::python_error error;
      give_back_copy(*box_.core, last.claimed());
      throw error;
    }
    last.stay();
    return true;
  }
  template <class Number>
  nb::list numbers(const Number& number) const {
    nb::list result;
    for (const Claimed& claimed : claims_) result.append(number(claimed));
    return result;
  }

  static constexpr int64_t kUsualBatch = 256;
  nb::object consumer_;
  ConsumerBox& box_;
  std::vector<Claimed> claims_;
  std::optional<Verdict> verdict_;
  uint64_t lost_ = 0, lost_sequence_ = 0;  // claims that were taken away, and the last one of them
};

nb::object claim_values(nb::object self, int64_t count, nb::list into, nb::handle timeout) {
  ConsumerBox& box = *nb::inst_ptr<ConsumerBox>(self);
  if (count < 1) throw Error(Kind::usage, "claim_values takes a count of 1 or more");
  auto* claims = new Claims(self, count);
  nb::object result = nb::cast(claims, nb::rv_policy::take_ownership);
  const auto attempt = [&] { return claims->claim_one(into) ? self : nb::object(); };
  if (!wait_and_claim(box, deadline_of(timeout), kPausesForMany, few_of(count), attempt).is_valid()) return result;
  claim_more(box, count, [&](int64_t most) {
    const int64_t run = claims->claim_run(most, into);
    if (run != 0) return run;
    return claims->claim_one(into) ? int64_t{1} : int64_t{0};
  });
  box.core->settle();
  return result;
}

// As Subscriber.take_columns, with the claims behind them.
nb::object claim_columns(nb::object self, int64_t count, int64_t nbytes, nb::handle timeout) {
  ConsumerBox& box = *nb::inst_ptr<ConsumerBox>(self);
  if (count < 1 || nbytes < 1 || nbytes > INT32_MAX)
    throw Error(Kind::usage, "claim_columns takes a count of 1 or more, and 1 byte to 2 GiB");
  Columns columns(std::min<int64_t>(count, std::max<int64_t>(box.core->free_places(), 1)), nbytes);
  auto* claims = new Claims(self, count);
  const nb::object held = nb::cast(claims, nb::rv_policy::take_ownership);
  const auto copy = [&](const auto& room) { return goes_on(box, claims->size()) && claims->copy_one(room); };
  const auto attempt = [&] { return columns.fill(box, copy) ? self : nb::object(); };
  if (!wait_and_claim(box, deadline_of(timeout), kPausesForMany, few_of(count), attempt).is_valid()) return nb::none();
  box.core->settle();
  return columns.finish() + nb::make_tuple(held);
}

// Moves messages through `publisher`; how many. `describe(metadata, offset, deliveries)` gives the metadata over there,
// or None to leave the message.
uint64_t move(ConsumerBox& box, nb::handle publisher, uint64_t count, nb::handle describe, ClaimState moving) {
  box.region->made().require();
  if (!nb::isinstance<PublisherBox>(publisher)) throw Error(Kind::usage, "dead letters go through the publisher of a queue");
  PublisherBox& target = *nb::inst_ptr<PublisherBox>(publisher);
  if (!target.region->memory().layout.queue) throw Error(Kind::usage, "dead letters go to a queue, not to a topic");
  const Turn turn(target, Deadline::for_ever());
  Mover mover(*box.core, box.region->number(), *target.core, moving);
  mover.move(count, [&](const Taken& taken, uint64_t claim, const std::string& metadata) {
    const nb::object made = describe(nb::bytes(metadata.data(), metadata.size()), taken.sequence, claim_deliveries(claim));
    if (made.is_none()) return Description{false, ""};
    if (!PyBytes_Check(made.ptr()) || PyBytes_GET_SIZE(made.ptr()) > kMaxMetadata)
      throw Error(Kind::usage, "the description of a letter is bytes, at most 16 MiB, or None");
    return Description{true, std::string(PyBytes_AS_STRING(made.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(made.ptr())))};
  });
  if (mover.full() && mover.moved() == 0)
    throw Error(Kind::full, target.region->place().path + ": full, so that no message can be moved to it; empty it first");
  if (mover.too_large())
    throw Error(Kind::usage, target.region->place().path + ": " + std::to_string(mover.too_large()) +
                                 " messages do not fit its slot_size and stay where they are; make it with a larger one");
  return mover.moved();
}

uint64_t bury(ConsumerBox& box, nb::handle publisher, nb::handle describe) {
  return move(box, publisher, UINT64_MAX, describe, ClaimState::burying);
}
uint64_t retry(ConsumerBox& box, nb::handle publisher, nb::handle describe, uint64_t count) {
  return move(box, publisher, count, describe, ClaimState::reviving);
}

template <Verdict verdict>
void settle_all(ConsumerBox& box, nb::handle messages) {
  settle_many(box, messages, verdict);
}

int traverse_claims(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Claims>(self)->consumer().ptr());
  return 0;
}

void bind_claims(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_claims)}, {0, nullptr}};
  nb::class_<Claims>(module, "Claims", nb::is_final(), nb::type_slots(slots))
      .def_prop_ro("offsets", &Claims::offsets)
      .def_prop_ro("delivery_counts", &Claims::delivery_counts)
      .def("__len__", &Claims::size)
      .def("accept", [](Claims& self) { self.settle(Verdict::accept); })
      .def("release", [](Claims& self) { self.settle(Verdict::release); })
      .def("reject", [](Claims& self) { self.settle(Verdict::reject); });
}

}  // namespace

void tell_of_the_dying(ConsumerBox& box) {
  if (!box.core->found_dying() || box.dying.is_none()) return;
  const nb::object told = nb::steal(PyObject_CallOneArg(box.dying.ptr(), nb::find(box).ptr()));
  if (told.is_valid()) return;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
  PyErr_WriteUnraisable(box.dying.ptr());
}

void look_around_quietly(ConsumerBox& box) {
  try {
    if (box.core->closing() || box.region->memory().closed() || !look_is_due(box)) return;
    look_for_returns(box);
    tell_of_the_dying(box);
  } catch (const Error&) {
  }
}

nb::object make_consumer(const std::shared_ptr<Region>& region, const std::string& name, uint32_t max_held,
                         nb::object decode, nb::object dying, bool reserve) {
  region->made().require();
  std::unique_ptr<Consumer> core;
  {
    const GilReleased released;
    core = join_as_consumer(*region, name, max_held, reserve);
  }
  return nb::cast(new ConsumerBox{region, std::move(core), name, std::move(decode), std::move(dying)},
                  nb::rv_policy::take_ownership);
}

nb::dict queue_state(const Region& region) {
  region.made().require();
  if (!region.memory().layout.queue) throw Error(Kind::usage, region.place().path + " is a topic, not a queue");
  const QueueView view = view_queue(region.memory());
  nb::list owners;
  for (const OwnerView& owner : view.owners)
    owners.append(nb::make_tuple(text_of(owner.name), owner.pid, owner.incarnation, owner.claimed));
  nb::dict result;
  result["ready"] = view.ready;
  result["claimed"] = view.claimed;
  result["dying"] = view.dying;
  result["moving"] = view.moving;
  result["oldest_ns"] = view.oldest_ns;
  result["slots_pinned"] = view.pinned;
  result["owners"] = owners;
  return result;
}

nb::set pinning(const Region& region) {
  region.made().require();
  nb::set result;
  if (!region.memory().layout.queue) return result;
  for (const uint64_t number : pinning_regions(region.memory())) result.add(nb::int_(number));
  return result;
}

uint32_t unpin(const Region& region, uint64_t number) {
  region.made().require();
  return region.memory().layout.queue ? take_pins_of(region.memory(), number) : 0;
}

nb::list peek_messages(const Region& region, uint64_t count, nb::handle decode) {
  region.made().require();
  if (!region.memory().layout.queue) throw Error(Kind::usage, region.place().path + " is a topic, not a queue");
  std::vector<Copied> copies;
  {
    const GilReleased released;
    copies = peek(region.memory(), count);
  }
  nb::list result;
  for (const Copied& copied : copies) result.append(nb::steal(copied_sample(copied, decode.ptr())));
  return result;
}

// What a consumer calls may refer to the owner of the consumer: the collector must see it.
int traverse_consumer(PyObject* self, visitproc visit, void* arg) {  // Py_VISIT wants these names
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const ConsumerBox* box = nb::inst_ptr<ConsumerBox>(self);
  Py_VISIT(box->dying.ptr());
  Py_VISIT(box->decode.ptr());
  return 0;
}
int clear_consumer(PyObject* self) {
  ConsumerBox* box = nb::inst_ptr<ConsumerBox>(self);
  box->dying = nb::none();
  box->decode = nb::none();
  return 0;
}

void bind_consuming(nb::module_& module) {
  static PyMethodDef methods[] = {
      {"claim", c_method(call_claim), METH_FASTCALL | METH_KEYWORDS, "claim(timeout=None): the oldest message, or None."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_methods, methods},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse_consumer)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_consumer)},
                                {0, nullptr}};
  nb::class_<ConsumerBox> consumer(module, "Consumer", nb::is_final(), nb::type_slots(slots));
  consumer
      .def_prop_ro("name", [](const ConsumerBox& self) { return self.name; })
      .def_prop_ro("incarnation", [](const ConsumerBox& self) { return self.core->membership().incarnation; })
      .def_prop_ro("held", [](const ConsumerBox& self) { return self.core->held(); })
      .def_prop_ro("closing", [](const ConsumerBox& self) { return self.core->closing(); })
      .def("claim_many", &claim_many, nb::arg("count"), nb::arg("timeout").none() = nb::none(), nb::arg("into").none() = nb::none())
      .def("claim_values", &claim_values, nb::arg("count"), nb::arg("into"), nb::arg("timeout").none() = nb::none())
      .def("claim_columns", &claim_columns, nb::arg("count"), nb::arg("nbytes"), nb::arg("timeout").none() = nb::none())
      .def("accept_many", &settle_all<Verdict::accept>, nb::arg("messages"))
      .def("release_many", &settle_all<Verdict::release>, nb::arg("messages"))
      .def("reject_many", &settle_all<Verdict::reject>, nb::arg("messages"))
      .def("take_back", [](ConsumerBox& self, nb::handle message) {
             take_back(message.ptr(), self);
             tell_of_the_dying(self); }, nb::arg("message"))
      .def("bury", &bury, nb::arg("publisher"), nb::arg("describe"))
      .def("retry", &retry, nb::arg("publisher"), nb::arg("describe"), nb::arg("count") = UINT64_MAX)
      .def("give_back_ahead", [](ConsumerBox& self) {
             if (self.region->made().here()) self.give_back_ahead(); })
      .def("close", [](ConsumerBox& self) {
             if (self.region->made().here()) self.close(); });
  bind_claims(module);
  bind_iterating(module, consumer);
}

}  // namespace hawser::python
