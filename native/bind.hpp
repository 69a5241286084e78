// What the bind*.cpp files share: the Python side of the native module. Nothing else knows Python.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <thread>
#include <vector>

#include "joining.hpp"
#include "letters.hpp"
#include "queue_view.hpp"
#include "stopwatch.hpp"

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
  Stopwatch stopwatch{};
  ~PublisherBox() {
    region->made().here() ? core->close() : core->abandon();
  }
};

struct SubscriberBox {
  std::shared_ptr<Region> region;
  std::unique_ptr<Subscriber> core;
  std::string name;
  nb::object decode;
  std::vector<nb::object> errors{};  // of messages that are used up; each is raised by the next call
  bool drained = false;  // the last batch took all there was
  SampleObject* last = nullptr;  // what iteration returned last; it tells us when it goes
  ~SubscriberBox() {
    region->made().here() ? core->close() : core->abandon();
  }
};

// Claims that were made for an iteration and not returned yet, in the order of their return.
class Ahead {
 public:
  bool empty() const { return next_ == claims_.size(); }
  size_t size() const { return claims_.size() - next_; }
  const Claimed& front() const { return claims_[next_]; }
  void pop_front() {
    if (++next_ == claims_.size()) claims_.clear(), next_ = 0;
  }
  Claimed take() {
    const Claimed claimed = front();
    pop_front();
    return claimed;
  }
  void emplace_back() { claims_.emplace_back(); }
  Claimed& back() { return claims_.back(); }
  void pop_back() { claims_.pop_back(); }

 private:
  std::vector<Claimed> claims_;
  size_t next_ = 0;
};

struct ConsumerBox {
  std::shared_ptr<Region> region;
  std::unique_ptr<Consumer> core;
  std::string name;
  nb::object decode;
  nb::object dying;      // called when messages wait to go to the dead letters, or None
  int64_t looked_at = coarse_now();  // when it last looked for what came back without a word
  uint32_t calls = 0;
  Ahead ahead{};
  void give_back_ahead() {
    for (; !ahead.empty(); ahead.pop_front()) {
      core->let_go(ahead.front().slot);
      core->release_ahead(ahead.front());
    }
    core->tell_of_ahead(false);
  }
  void close() {
    give_back_ahead();
    core->close();
  }
  ~ConsumerBox() {
    region->made().here() ? close() : core->abandon();
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

// Text from a file that may be damaged, made readable.
inline nb::object text_of(const std::string& bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

nb::object error_class(Kind kind);
// Turn an Error into the Python exception of the same name, set but not thrown.
void set_python_error(const Error& error);

void bind_publishing(nb::module_& module);
void bind_subscribing(nb::module_& module);
void bind_consuming(nb::module_& module);
void bind_iterating(nb::module_& module, nb::class_<ConsumerBox>& consumer);
void bind_waiting(nb::module_& module);
void bind_tracing(nb::module_& module);
void bind_syncing(nb::module_& module);

// Of a Region that is a queue's.
nb::object make_consumer(const std::shared_ptr<Region>& region, const std::string& name, uint32_t max_held,
                         nb::object decode, nb::object dying, bool reserve);
nb::dict queue_state(const Region& region);
nb::set pinning(const Region& region);
uint32_t unpin(const Region& region, uint64_t number);
nb::list peek_messages(const Region& region, uint64_t count, nb::handle decode);
// Of a Region.
nb::tuple tracing_of(const Region& region);
bool trace_region(const Region& region, nb::handle ring, uint64_t level, nb::handle only_from);

// Housekeeping of a sleeper: what keeps it from being done now is no error of the call that sleeps.
void recover_quietly(Region& region);
void look_around_quietly(ConsumerBox& box);
// A reader that took everything a moment ago and wants many again lets messages gather: a reader at the
// publisher's heels slows both down.
void let_them_gather(bool& drained, nb::handle timeout);

constexpr uint64_t kCopyFromRing = 4096;  // larger messages are worth a reference, and a copy without the GIL

// Sample, and Message, which is a sample of a queue
void add_sample_types(PyObject* module);
SampleObject* new_sample();
SampleObject* new_message();
void free_unused(SampleObject* sample);
PyObject* fill_sample(SampleObject* sample, PyObject* owner, SubscriberBox& box, const Taken& taken);
Claimed& claim_of(SampleObject* message);  // to claim into, before it is filled
PyObject* fill_message(SampleObject* message, PyObject* owner, ConsumerBox& box);
PyObject* copied_sample(const Copied& copied, PyObject* decode);
void let_go_of(SampleObject* sample);  // as on leaving a with block
bool put_back(SampleObject* sample);   // to be taken again; false: it is too late for that

// How a message is settled.
enum class Verdict { accept, release, reject };
bool settle_claim(Consumer& core, const Claimed& claimed, Verdict verdict);  // false: the claim was taken away
// Of one consumer's message, if it is still held; false: the claim was taken away. UsageError if it is not its own.
bool settle_message(PyObject* message, ConsumerBox& box, Verdict verdict);
// Give a message back, if it is still held; to settle it later is Fenced.
void take_back(PyObject* message, ConsumerBox& box);
// `place` refers to the message until that goes, or to nothing from then on.
void keep_place(SampleObject* message, SampleObject** place);
// Another consumer has the claim, or it is settled with others: only the bytes are left to release.
Claimed take_claim(SampleObject* message);
Error claim_lost(const ConsumerBox& box, uint64_t count, uint64_t sequence);
Error lost_reference(const Region& region, uint64_t sequence);
void tell_of_the_dying(ConsumerBox& box);

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

// Bytes that a payload is copied into, if it is not too large to be copied out of the ring.
struct BytesRoom {
  nb::object bytes;
  char* make(uint64_t size) {
    bytes.reset();
    if (size > kCopyFromRing) return nullptr;
    bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!bytes.is_valid()) throw nb::python_error();
    return PyBytes_AS_STRING(bytes.ptr());
  }
};

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
      PyErr_Format(PyExc_TypeError, "%s() takes %zd argument%s by place, not %zd; name the others", function, positional,
                   positional == 1 ? "" : "s", places);
      throw nb::python_error();
    }
    for (Py_ssize_t i = 0; i < places; i++) values[i] = given[i];
    const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < named; i++) place(function, names, PyTuple_GET_ITEM(keywords, i), given[places + i]);
  }
  nb::object get(size_t index) const { return values[index] ? nb::borrow(values[index]) : nb::none(); }

 private:
  void place(const char* function, const char* const (&names)[count], PyObject* name, PyObject* value) {
    std::string known;
    for (size_t i = 0; i < count; i++) {
      if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
        if (!values[i]) {
          values[i] = value;
          return;
        }
        PyErr_Format(PyExc_TypeError, "%s() was given %U twice, by place and by name", function, name);
        throw nb::python_error();
      }
      known.append(i == 0 ? "" : ", ").append(names[i]);
    }
    PyErr_Format(PyExc_TypeError, "%s() has no argument %R; it has %s", function, name, known.c_str());
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

// A thread's turn to publish: beside its loans a publisher has one place, which threads share. Only who copies a
// large message or waits for space gives up the GIL in the middle; the others look again until it is done.
class Turn {
 public:
  Turn(PublisherBox& box, const Deadline& deadline) : box_(box) {
    while (box_.publishing != std::thread::id()) wait(deadline);
    box_.publishing = std::this_thread::get_id();
  }
  ~Turn() { box_.publishing = {}; }
  Turn(const Turn&) = delete;

 private:
  void wait(const Deadline& deadline) const {
    if (box_.publishing == std::this_thread::get_id())
      throw Error(Kind::usage, "a signal handler publishes through a publisher that is in the middle of a publish; "
                               "give the handler a publisher of its own");
    if (deadline.over()) throw Error(Kind::full, "another thread is publishing through the same publisher; wait longer");
    without_gil([] { usleep(kLookAgainMicroseconds); });
  }

  static constexpr useconds_t kLookAgainMicroseconds = 50;
  PublisherBox& box_;
};

inline Deadline deadline_of(nb::handle timeout) {
  if (!timeout.is_valid() || timeout.is_none()) return Deadline::for_ever();
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0) PyErr_Clear();  // it is no number
  if (!(seconds >= 0)) throw Error(Kind::usage, "timeout is seconds, 0 or more, or None to wait for ever");
  return Deadline::in(seconds);
}

}  // namespace hawser::python
