// What the bind*.cpp files share: the Python side of the native module. Nothing else knows Python.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <thread>

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
  std::thread::id publishing;  // whose turn it is
  nb::object receipt;          // the last one, if its caller has dropped it
  ~PublisherBox() {
    region->made().here() ? core->close() : core->abandon();
  }
};

struct SubscriberBox {
  std::shared_ptr<Region> region;
  std::unique_ptr<Subscriber> core;
  std::string name;
  nb::object decode;
  bool drained = false;  // the last batch took all there was
  SampleObject* last = nullptr;  // what iteration returned last; it tells us when it goes
  ~SubscriberBox() {
    region->made().here() ? core->close() : core->abandon();
  }
};

// Set once by configure().
struct Configuration {
  PyTypeObject* receipt_type = nullptr;
  PyObject* as_payload = nullptr;
  PyObject* encode_metadata = nullptr;
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
PyObject* copied_sample(const Copied& copied, PyObject* decode);
void let_go_of(SampleObject* sample);  // as on leaving a with block

// The GIL is given up for as long as this lives. Python 3.11 to 3.13 end a daemon thread that wants it back
// while the interpreter goes away by unwinding its stack, which C++ cannot survive; such a thread stays here.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  GilReleased(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Copies of large payloads are made without the GIL; the caller keeps both ends alive.
constexpr size_t kCopyWithoutGil = 64 << 10;
inline void copy_large(void* to, const void* from, size_t size) {
  if (size < kCopyWithoutGil) {
    std::memcpy(to, from, size);
    return;
  }
  const GilReleased released;
  std::memcpy(to, from, size);
}

// The calls made for every message are plain C methods. `body` returns a new reference or throws.
template <class Body>
PyObject* guarded(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// Arguments of such a method: `positional` of them may be given by place, all by name.
template <size_t count>
struct Arguments {
  PyObject* values[count] = {};

  Arguments(const char* function, const char* const (&names)[count], Py_ssize_t positional, PyObject* const* given,
            Py_ssize_t places, PyObject* keywords) {
    if (places > positional) {
      PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments by place, not %zd", function, positional, places);
      throw nb::python_error();
    }
    for (Py_ssize_t i = 0; i < places; i++) values[i] = given[i];
    const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < named; i++) place(function, names, PyTuple_GET_ITEM(keywords, i), given[places + i]);
  }
  nb::object get(size_t index) const { return values[index] ? nb::borrow(values[index]) : nb::none(); }

 private:
  void place(const char* function, const char* const (&names)[count], PyObject* name, PyObject* value) {
    for (size_t i = 0; i < count; i++)
      if (!values[i] && PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
        values[i] = value;
        return;
      }
    PyErr_Format(PyExc_TypeError, "%s() has no argument %R, or was given it twice", function, name);
    throw nb::python_error();
  }
};

template <class Function>
PyCFunction c_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// Calls `function`, which may sleep, without the GIL; then lets pending signals raise.
template <class Function>
void without_gil(const Function& function) {
  {
    const GilReleased released;
    function();
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

inline Deadline deadline_of(nb::handle timeout) {
  if (!timeout.is_valid() || timeout.is_none()) return Deadline::for_ever();
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) throw nb::python_error();
  if (!(seconds >= 0)) throw Error(Kind::usage, "timeout is seconds, 0 or more, or None to wait for ever");
  return Deadline::in(seconds);
}

}  // namespace hawser::python
