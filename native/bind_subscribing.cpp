// Subscriber: taking samples, and sleeping until there are some.
#include "bind_columns.hpp"

namespace hawser::python {

namespace {

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

// The error of a message that an earlier call has used up, and could not raise because it had others to return.
void raise_kept_error(SubscriberBox& box) {
  if (box.errors.empty()) [[likely]] return;
  const nb::object error = box.errors.front();
  box.errors.erase(box.errors.begin());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

// What `attempt` gets, tried at once and whenever there may be a sample; null when the time is over.
template <class Attempt>
PyObject* wait_and_take(SubscriberBox& box, nb::handle timeout, int pauses, const Attempt& attempt) {
  box.region->made().require();
  const Deadline deadline = deadline_of(timeout);
  raise_kept_error(box);
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

// Whether an error that ends a batch is left to the next call, so that what came before it is returned.
bool is_for_later(const nb::python_error& error) {
  return error.matches(PyExc_Exception) && !error.matches(PyExc_MemoryError);
}

// The next message decoded, its slot let go of. While Python decodes it other threads may take, commit and close. One
// that cannot be decoded is used up by the error, unless it comes after others of a batch: then it is put back, and the
// next call meets the same message and the same error; where it is too late for that, the next call raises the error.
PyObject* decode_next(nb::handle self, SubscriberBox& box, bool first) {
  const nb::object object = nb::steal(take_now(self, box));
  if (!object.is_valid()) return nullptr;
  auto* sample = reinterpret_cast<SampleObject*>(object.ptr());
  try {
    nb::object value = nb::steal(PyObject_GetAttrString(object.ptr(), "value"));
    if (!value.is_valid()) throw nb::python_error();
    let_go_of(sample);
    if (PyErr_Occurred()) throw nb::python_error();  // the bytes may have changed while they were decoded
    return value.release().ptr();
  } catch (nb::python_error& error) {
    if (first || !put_back(sample)) {
      let_go_of(sample);  // the error may refer to it for long
      if (PyErr_Occurred()) PyErr_Clear();
      if (!first && is_for_later(error)) box.errors.push_back(nb::borrow(error.value()));
    }
    throw;
  }
}

// The next message as its reader wants it: small ones without a schema are copied straight out of the ring, others are
// taken, decoded and released.
PyObject* value_now(nb::handle self, SubscriberBox& box, bool first = true) {
  if (box.decode.is_none()) {
    BytesRoom room;
    const auto copy = box.core->try_copy([&](uint64_t size) { return room.make(size); });
    if (copy == Subscriber::Copy::copied) return room.bytes.release().ptr();
    if (copy == Subscriber::Copy::nothing) return nullptr;
  }
  return decode_next(self, box, first);
}

// More values behind those of a batch. Ends also when one fails, so that the others are not lost: the next call tells.
void take_more(nb::handle self, SubscriberBox& box, nb::list& values, size_t count) {
  try {
    for (PyObject* value = nullptr; values.size() < count; values.append(nb::steal(value))) {
      BytesRoom room;
      const auto make = [&](uint64_t size) { return room.make(size); };
      if (box.decode.is_none()) box.core->copy_run(count - values.size(), make, [&] { values.append(room.bytes); });
      value = values.size() < count ? value_now(self, box, false) : nullptr;
      if (!value) return;
    }
  } catch (const Error&) {
  } catch (const nb::python_error& error) {
    if (!is_for_later(error)) throw;
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

int64_t count_of(nb::handle wanted) {
  const nb::object whole = nb::steal(PyBool_Check(wanted.ptr()) ? nullptr : PyNumber_Index(wanted.ptr()));
  int overflow = 0;
  const int64_t count = whole.is_valid() ? PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow) : 0;
  if (count >= 1) [[likely]] return count;
  PyErr_Clear();
  throw Error(Kind::usage, std::string("count=") + nb::repr(wanted).c_str() + " is not a whole number from 1 to 2**63 - 1");
}

nb::list take_values(nb::handle self, nb::handle wanted, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  const int64_t count = count_of(wanted);
  nb::list values;
  let_them_gather(box.drained, timeout);
  const SettleLater later{*box.core};
  PyObject* value = wait_and_take(box, timeout, kPausesForMany, [&] { return value_now(self, box); });
  if (!value) return values;
  values.append(nb::steal(value));
  take_more(self, box, values, static_cast<size_t>(count));
  box.drained = values.size() < static_cast<size_t>(count);
  return values;
}

nb::object take_columns(nb::handle self, int64_t count, int64_t nbytes, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  if (count < 1 || nbytes < 1 || nbytes > INT32_MAX)
    throw Error(Kind::usage, "take_columns takes a count of 1 or more, and 1 byte to 2 GiB");
  let_them_gather(box.drained, timeout);
  Columns columns(count, nbytes);
  const auto copy = [&](const auto& room) { return box.core->try_copy_whole(room) == Subscriber::Copy::copied; };
  PyObject* found = wait_and_take(box, timeout, kPausesForMany, [&] { return columns.fill(box, copy) ? self.ptr() : nullptr; });
  box.drained = columns.drained();
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

nb::object take_many(nb::handle self, nb::handle wanted, nb::handle timeout) {
  SubscriberBox& box = *nb::inst_ptr<SubscriberBox>(self);
  box.region->made().require();
  const int64_t count = count_of(wanted);
  nb::list samples;
  let_them_gather(box.drained, timeout);
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

// Commits what was returned. An error that was kept instead is raised first: its message was used up, too.
void commit(SubscriberBox& box) {
  box.region->made().require();
  raise_kept_error(box);
  box.core->commit();
}

// An error refers to the frames it went through, and those may refer to the subscription: the collector must see it.
int traverse_subscriber(PyObject* self, visitproc visit, void* arg) {  // Py_VISIT wants these names
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const SubscriberBox* box = nb::inst_ptr<SubscriberBox>(self);
  Py_VISIT(box->decode.ptr());
  for (const nb::object& error : box->errors) Py_VISIT(error.ptr());
  return 0;
}
int clear_subscriber(PyObject* self) {
  SubscriberBox* box = nb::inst_ptr<SubscriberBox>(self);
  box->decode = nb::none();
  const std::vector<nb::object> dropped = std::move(box->errors);
  return 0;
}

}  // namespace

void bind_subscribing(nb::module_& module) {
  static PyMethodDef methods[] = {
      {"take", c_method(call_take), METH_FASTCALL | METH_KEYWORDS, "take(timeout=None): the next sample, or None."},
      {"take_value", c_method(call_take_value), METH_FASTCALL | METH_KEYWORDS,
       "take_value(timeout=None): the next message decoded or as bytes, or None."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_methods, methods},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse_subscriber)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_subscriber)},
                                {0, nullptr}};
  nb::class_<SubscriberBox>(module, "Subscriber", nb::is_final(), nb::type_slots(slots))
      .def_prop_ro("name", [](const SubscriberBox& self) { return self.name; })
      .def_prop_ro("incarnation", [](const SubscriberBox& self) { return self.core->membership().incarnation; })
      .def_prop_ro("missed", [](const SubscriberBox& self) { return self.core->missed(); })
      .def_prop_ro("received", [](const SubscriberBox& self) { return self.core->received(); })
      .def_prop_ro("position", [](const SubscriberBox& self) { return self.core->cursor(); })
      .def_prop_ro("held", [](const SubscriberBox& self) { return self.core->held(); })
      .def_prop_ro("head", [](const SubscriberBox& self) { return self.core->head(); })
      .def("take_many", &take_many, nb::arg("count").none(), nb::arg("timeout").none() = nb::none())
      .def("take_values", &take_values, nb::arg("count").none(), nb::arg("timeout").none() = nb::none())
      .def("take_columns", &take_columns, nb::arg("count"), nb::arg("nbytes"), nb::arg("timeout").none() = nb::none())
      .def("take_next", &take_next, nb::arg("timeout").none() = nb::none())
      .def("commit", &commit)
      .def("close", [](SubscriberBox& self) {
             if (self.region->made().here()) self.core->close(); });
}

}  // namespace hawser::python
