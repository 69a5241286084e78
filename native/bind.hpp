// What the bind*.cpp files share: the Python side of the native module. Nothing else knows Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "inspection.hpp"
#include "joining.hpp"
#include "reading.hpp"

namespace hawser::python {

namespace nb = nanobind;

struct SampleObject;

// A publisher or subscriber as Python holds it: the region stays mapped as long as anything refers to it.
struct PublisherBox {
  std::shared_ptr<Region> region;
  std::unique_ptr<Publisher> core;
  std::string name;
  nb::object topic;  // the topic's name, for receipts
  std::timed_mutex publishing;  // one copy in at a time: threads share the publisher's one place beside its loans
  ~PublisherBox() {
    region->made().here() ? core->close() : core->abandon();
  }
};

struct SubscriberBox {
  std::shared_ptr<Region> region;
  std::unique_ptr<Subscriber> core;
  std::string name;
  nb::object decode;
  SampleObject* last = nullptr;  // what iteration returned last; it tells us when it goes
  ~SubscriberBox() {
    region->made().here() ? core->close() : core->abandon();
  }
};

// Set once by configure().
struct Configuration {
  PyTypeObject* receipt_type = nullptr;
  PyObject* decode_metadata = nullptr;
  PyObject* durability = nullptr;  // "process"
};
extern Configuration configuration;

nb::object error_class(Kind kind);
// Turn an Error into the Python exception of the same name, set but not thrown.
void set_python_error(const Error& error);

void bind_publishing(nb::module_& module);
void bind_subscribing(nb::module_& module);

// Sample
PyObject* add_sample_type(PyObject* module);
SampleObject* new_sample();
void free_unused(SampleObject* sample);
PyObject* fill_sample(SampleObject* sample, PyObject* owner, SubscriberBox& box, const Taken& taken);
PyObject* copied_sample(const Copied& copied);
void let_go_of(SampleObject* sample);  // as on leaving a with block

// Calls `function`, which may sleep, without the GIL; then lets pending signals raise.
template <class Function>
void without_gil(const Function& function) {
  {
    nb::gil_scoped_release released;
    function();
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

inline Deadline deadline_of(const nb::object& timeout) {
  if (timeout.is_none()) return Deadline::for_ever();
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (!(seconds >= 0)) throw Error(Kind::usage, "timeout is seconds, 0 or more, or None to wait for ever");
  return Deadline::in(seconds);
}

}  // namespace hawser::python
