// Publisher and Loan: copying in, lending out, receipts.
#include "bind.hpp"

namespace hawser::python {

namespace {

// The bytes of a message for as long as this lives. What is not bytes is made so by hawser.record.
class Input {
 public:
  explicit Input(nb::handle object) {
    if (PyBytes_CheckExact(object.ptr())) {
      data_ = PyBytes_AS_STRING(object.ptr());
      size_ = static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()));
      return;
    }
    const nb::object payload = nb::steal(PyObject_CallOneArg(configuration.as_payload, object.ptr()));
    if (!payload.is_valid() || PyObject_GetBuffer(payload.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    data_ = view_.buf;
    size_ = static_cast<size_t>(view_.len);
  }
  ~Input() {
    if (view_.obj) PyBuffer_Release(&view_);
  }
  Input(const Input&) = delete;
  const void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const void* data_;
  size_t size_;
  Py_buffer view_{};
};

// From Python 3.14 on a tuple keeps its hash; -1 says that it is not known. To make receipts by the constructor of
// tuples, which does this, too, costs a publish whose receipt is kept 40 % more.
void forget_hash([[maybe_unused]] PyObject* tuple) {
#if PY_VERSION_HEX >= 0x030e0000
  reinterpret_cast<PyTupleObject*>(tuple)->ob_hash = -1;
#endif
}

PyObject* make_receipt(PublisherBox& box, uint64_t first, uint64_t count) {
  PyObject* receipt = configuration.receipt_type->tp_alloc(configuration.receipt_type, 5);
  if (!receipt) throw nb::python_error();
  PyObject* items[] = {box.topic.ptr(), PyLong_FromLong(0), PyLong_FromUnsignedLongLong(first),
                       PyLong_FromUnsignedLongLong(count), configuration.durability};
  forget_hash(receipt);
  Py_INCREF(items[0]);
  Py_INCREF(items[4]);
  for (int i = 0; i < 5; i++) PyTuple_SET_ITEM(receipt, i, items[i]);
  return receipt;
}

// The receipt of one message. Most callers drop it at once: one without another reference is used again.
PyObject* receipt_of(PublisherBox& box, uint64_t sequence) {
  constexpr Py_ssize_t kFirstOffset = 2;
  PyObject* last = box.receipt.ptr();
  if (!last || Py_REFCNT(last) != 1) {
    box.receipt = nb::steal(make_receipt(box, sequence, 1));
    return nb::object(box.receipt).release().ptr();
  }
  PyObject* offset = PyLong_FromUnsignedLongLong(sequence);
  if (!offset) throw nb::python_error();
  PyObject* before = PyTuple_GET_ITEM(last, kFirstOffset);
  PyTuple_SET_ITEM(last, kFirstOffset, offset);
  forget_hash(last);
  Py_DECREF(before);
  return nb::object(box.receipt).release().ptr();
}

// Metadata goes behind the payload; together they must fit the slot.
struct Metadata {
  const char* data = nullptr;
  uint32_t size = 0;
  Metadata() = default;
  explicit Metadata(nb::handle bytes) {
    if (!bytes.is_valid() || bytes.is_none()) return;
    if (!PyBytes_Check(bytes.ptr())) throw Error(Kind::usage, "metadata must be bytes");
    if (PyBytes_GET_SIZE(bytes.ptr()) > kMaxMetadata) throw Error(Kind::usage, "key and headers are larger than 16 MiB");
    data = PyBytes_AS_STRING(bytes.ptr());
    size = static_cast<uint32_t>(PyBytes_GET_SIZE(bytes.ptr()));
  }
};

uint64_t deliver(PublisherBox& box, uint32_t slot, uint64_t payload, const Metadata& metadata, const Deadline& deadline,
                 uint64_t timestamp) {
  if (metadata.size) std::memcpy(box.core->payload(slot) + payload, metadata.data, metadata.size);
  return box.core->publish(slot, payload, metadata.size, deadline, [&](int64_t slice) {
    box.core->wake_subscribers();  // they may be asleep beside what a batch has published so far
    without_gil([&] { box.core->wait_for_space(slice); });
  }, timestamp);
}

// A lent slot goes back to the pool, and with the last one a publisher that was closed meanwhile leaves.
void give_back(PublisherBox& box, uint32_t slot) {
  box.core->put_back(slot);
  if (box.core->closing()) box.core->close();
}
struct ReturnLater {
  PublisherBox& box;
  uint32_t slot;
  ~ReturnLater() { give_back(box, slot); }
};

uint32_t quota(const PublisherBox& box) { return box.region->memory().layout.settings.max_loans; }

// A queue may have no slot just now.
uint32_t borrow_patiently(PublisherBox& box, uint64_t bytes, const Deadline& deadline) {
  for (;;) {
    const uint32_t slot = box.core->try_to_borrow(bytes, quota(box) + 1);
    if (slot != kNoSlot) [[likely]] return slot;
    if (deadline.over()) box.core->refuse_slots();
    box.core->wake_subscribers();
    without_gil([&] { box.core->wait_for_space(deadline.slice()); });
  }
}

// What may go out the quick way: bytes, and nothing beside them.
Publisher::Small small(PyObject* item) {
  if (!PyBytes_CheckExact(item)) return {};
  return {PyBytes_AS_STRING(item), static_cast<size_t>(PyBytes_GET_SIZE(item))};
}

// In the caller's turn.
uint64_t publish_one(PublisherBox& box, nb::handle data, const Metadata& metadata, const Deadline& deadline,
                     uint64_t timestamp) {
  const Input input(data);
  const uint32_t slot = borrow_patiently(box, input.size() + metadata.size, deadline);
  const ReturnLater later{box, slot};
  copy_large(box.core->payload(slot), input.data(), input.size());
  return deliver(box, slot, input.size(), metadata, deadline, timestamp);
}

nb::object encode_metadata(PyObject* key, PyObject* headers) {
  if (!key && !headers) return nb::none();
  PyObject* values[] = {key ? key : Py_None, headers ? headers : Py_None};
  nb::object bytes = nb::steal(PyObject_Vectorcall(configuration.encode_metadata, values, 2, nullptr));
  if (!bytes.is_valid()) throw nb::python_error();
  return bytes;
}

PyObject* publish(PyObject* self, PyObject* const* given, Py_ssize_t places, PyObject* keywords) {
  return guarded([&] {
    PublisherBox& box = *nb::inst_ptr<PublisherBox>(self);
    const char* const verb = box.region->memory().layout.queue ? "put" : "publish";
    const Arguments<4> arguments(verb, {"data", "key", "headers", "timeout"}, 1, given, places, keywords);
    if (!arguments.values[0]) throw Error(Kind::usage, std::string(verb) + "() needs the data of the message");
    box.region->made().require();
    const nb::object metadata = encode_metadata(arguments.values[1], arguments.values[2]);
    const Deadline deadline = deadline_of(arguments.values[3]);
    const Turn turn(box, deadline);
    const uint64_t now = box.stopwatch.now();
    uint64_t published = 0;
    if (metadata.is_none()) box.core->publish_run(1, now, published, [&](size_t) { return small(arguments.values[0]); });
    const uint64_t sequence =
        published ? box.core->last() : publish_one(box, arguments.values[0], Metadata(metadata), deadline, now);
    box.core->wake_subscribers();
    box.core->stand_aside();
    return receipt_of(box, sequence);
  });
}

// Several messages in one go. What is a list or a tuple is there already: its samples share a turn, a time stamp
// and a wake-up, 64 at a time. An iterator may take its time, so each of its messages goes out by itself.
class Batch {
 public:
  Batch(PublisherBox& box, const Deadline& deadline, nb::handle keys) : box_(box), deadline_(deadline) {
    if (!keys.is_none()) keys_ = nb::iter(keys);
  }
  uint64_t first() const { return first_; }
  uint64_t count() const { return count_; }

  void publish(nb::handle items) {
    if (PyList_CheckExact(items.ptr()) || PyTuple_CheckExact(items.ptr())) return publish_ready(items.ptr());
    for (nb::handle item : nb::iter(items)) {
      const Turn turn(box_, deadline_);
      publish_next(item, box_.stopwatch.now());
      box_.core->wake_subscribers();
    }
  }

 private:
  void publish_ready(PyObject* items) {
    const Turn turn(box_, deadline_);
    uint64_t now = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items);) {  // a list may change while we wait
      if (i % kTogether == 0) now = box_.stopwatch.now();
      const Py_ssize_t run = keys_.is_valid() ? 0 : publish_run(items, i, now);
      if (run == 0 && i != 0) box_.core->give_way();
      if (run == 0) publish_next(nb::borrow(PySequence_Fast_GET_ITEM(items, i)), now);
      i += std::max<Py_ssize_t>(run, 1);
      if (i % kTogether == 0) box_.core->wake_subscribers();
    }
  }
  // What of the items from one on, up to where a time stamp ends, can go out quickly; how many.
  Py_ssize_t publish_run(PyObject* items, Py_ssize_t from, uint64_t now) {
    const Py_ssize_t most = std::min(kTogether - from % kTogether, PySequence_Fast_GET_SIZE(items) - from);
    const uint64_t before = count_;
    box_.core->publish_run(static_cast<size_t>(most), now, count_, [&](size_t i) {
      return small(PySequence_Fast_GET_ITEM(items, from + static_cast<Py_ssize_t>(i)));
    });
    if (before == 0 && count_ != 0) first_ = box_.core->last() - count_ + 1;
    return static_cast<Py_ssize_t>(count_ - before);
  }
  void publish_next(nb::handle item, uint64_t now) {
    const nb::object metadata = keys_.is_valid() ? next_key() : nb::none();
    const uint64_t sequence = publish_one(box_, item, Metadata(metadata), deadline_, now);
    if (count_++ == 0) first_ = sequence;
  }

  nb::object next_key() {
    const nb::object key = nb::steal(PyIter_Next(keys_.ptr()));
    if (key.is_valid()) return encode_metadata(key.ptr(), nullptr);
    if (PyErr_Occurred()) throw nb::python_error();
    throw Error(Kind::usage, "there are fewer keys than messages; give one for each, None for none");
  }

  static constexpr Py_ssize_t kTogether = 64;
  PublisherBox& box_;
  const Deadline& deadline_;
  nb::object keys_;
  uint64_t first_ = 0;
  uint64_t count_ = 0;
};

nb::object publish_many(PublisherBox& box, nb::handle items, const nb::object& timeout, nb::handle keys) {
  box.region->made().require();
  const Deadline deadline = deadline_of(timeout);
  Batch batch(box, deadline, keys);
  try {
    batch.publish(items);
  } catch (const Error& error) {
    box.core->wake_subscribers();
    nb::object exception = error_class(error.kind())(text_of(error.what()));
    exception.attr("published") = batch.count();
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
    throw nb::python_error();
  } catch (nb::python_error& error) {  // of the iterable, or a signal's
    box.core->wake_subscribers();
    error.value().attr("published") = batch.count();
    throw;
  }
  box.core->wake_subscribers();
  return nb::steal(make_receipt(box, batch.first(), batch.count()));
}

// A slot lent for writing. It goes back to the pool when nothing can write or read it any more.
class Loan {
 public:
  Loan(nb::object publisher, uint32_t slot, uint64_t bytes, nb::object metadata, nb::object timeout)
      : publisher_(std::move(publisher)),
        box_(nb::inst_ptr<PublisherBox>(publisher_)),
        slot_(slot),
        bytes_(bytes),
        metadata_(std::move(metadata)),
        timeout_(std::move(timeout)) {}
  ~Loan() { drop(); }

  uint64_t bytes() const { return bytes_; }
  nb::object receipt() const { return sequence_ ? nb::steal(make_receipt(*box_, sequence_, 1)) : nb::none(); }

  nb::object enter(nb::handle self) {
    require_open();
    if (view_.is_valid()) throw Error(Kind::usage, "this loan has its block already; take a new one");
    view_ = nb::steal(PyMemoryView_FromObject(self.ptr()));
    if (!view_.is_valid()) throw nb::python_error();
    return view_;
  }
  void exit(nb::handle kind) {
    if (!kind.is_none() || state_ == ending || state_ == ended) return drop();
    try {
      seal();
      publish(timeout_, false);
    } catch (...) {
      drop();
      throw;
    }
  }

  // Take away the block's own view. BufferError if another one would stay.
  void seal() {
    end_block();
    if (exports_ > 0) refuse_views();
  }

  void publish(nb::handle timeout, bool keep_views) {
    require_open();
    if (exports_ > 0 && !keep_views) {
      drop();
      refuse_views();
    }
    const Deadline deadline = deadline_of(timeout);
    state_ = publishing;  // while it waits, other threads and signal handlers keep their hands off
    try {
      sequence_ = deliver(*box_, slot_, bytes_, Metadata(metadata_), deadline, box_->stopwatch.now());
    } catch (...) {
      state_ = open;
      throw;
    }
    state_ = open;
    drop();
    box_->core->wake_subscribers();
  }

  // The slot is given up now, or with the last view.
  void drop() {
    if (state_ == ended || state_ == publishing) return;
    end_block();
    state_ = exports_ == 0 ? ended : ending;
    if (state_ == ended && box_->region->made().here()) give_back(*box_, slot_);
  }

  static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    Loan* loan = nb::inst_ptr<Loan>(self);
    if (loan->state_ != open) {
      view->obj = nullptr;
      PyErr_SetString(PyExc_BufferError, "this loan was published or dropped");
      return -1;
    }
    void* payload = loan->box_->core->payload(loan->slot_);
    if (PyBuffer_FillInfo(view, self, payload, static_cast<Py_ssize_t>(loan->bytes_), 0, flags) != 0) return -1;
    loan->exports_++;
    return 0;
  }
  static void release_buffer(PyObject* self, Py_buffer*) {
    Loan* loan = nb::inst_ptr<Loan>(self);
    loan->exports_--;
    if (loan->state_ == ending) loan->drop();
  }
  // The view of a block that never ended refers back to its loan: the collector must see both.
  static int traverse(PyObject* self, visitproc visit, void* arg) {  // Py_VISIT wants these names
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    Loan* loan = nb::inst_ptr<Loan>(self);
    Py_VISIT(loan->view_.ptr());
    Py_VISIT(loan->publisher_.ptr());
    return 0;
  }
  static int clear(PyObject* self) {
    nb::inst_ptr<Loan>(self)->view_.reset();
    return 0;
  }

 private:
  // Release the block's own view; one that is in use by others stays and is counted.
  void end_block() {
    if (!view_.is_valid()) return;
    const nb::object view = std::move(view_);
    static PyObject* release = PyUnicode_InternFromString("release");
    PyObject* released = PyObject_CallMethodNoArgs(view.ptr(), release);
    if (!released) PyErr_Clear();
    Py_XDECREF(released);
  }
  void require_open() const {
    box_->region->made().require();
    if (state_ != open)
      throw Error(Kind::usage, state_ == publishing ? "this loan is being published"
                                                    : "this loan is over; take a new one for each message");
  }
  [[noreturn]] static void refuse_views() {
    PyErr_SetString(PyExc_BufferError, "something still uses the buffer of this loan (an array made from it?), so nothing "
                                       "was published; let go of it before the block ends");
    throw nb::python_error();
  }

  nb::object publisher_;
  PublisherBox* box_;
  uint32_t slot_;
  uint64_t bytes_;
  nb::object metadata_, timeout_, view_;
  uint64_t sequence_ = 0;  // once published
  Py_ssize_t exports_ = 0;
  enum { open, publishing, ending, ended } state_ = open;  // ending: waits for the last view
};

PyObject* enter_loan(PyObject* self, PyObject*) {
  return guarded([&] { return nb::inst_ptr<Loan>(self)->enter(self).release().ptr(); });
}
PyObject* exit_loan(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] {
    nb::inst_ptr<Loan>(self)->exit(count > 0 ? given[0] : Py_None);
    return nb::none().release().ptr();
  });
}
PyMethodDef loan_methods[] = {{"__enter__", enter_loan, METH_NOARGS, nullptr},
                              {"__exit__", c_method(exit_loan), METH_FASTCALL, nullptr},
                              {nullptr, nullptr, 0, nullptr}};

PyType_Slot loan_slots[] = {{Py_tp_methods, loan_methods},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(Loan::get_buffer)},
                            {Py_bf_releasebuffer, reinterpret_cast<void*>(Loan::release_buffer)},
                            {Py_tp_traverse, reinterpret_cast<void*>(Loan::traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(Loan::clear)},
                            {0, nullptr}};

uint64_t loan_size(nb::handle bytes) {
  const Py_ssize_t size = PyBool_Check(bytes.ptr()) ? -1 : PyNumber_AsSsize_t(bytes.ptr(), nullptr);
  if (size >= 0) return static_cast<uint64_t>(size);
  PyErr_Clear();
  throw Error(Kind::usage, std::string("a loan of ") + nb::repr(bytes).c_str() + " bytes makes no sense; give a whole number from 0 on");
}

PyObject* make_loan(PyObject* self, PyObject* const* given, Py_ssize_t places, PyObject* keywords) {
  return guarded([&] {
    PublisherBox& box = *nb::inst_ptr<PublisherBox>(self);
    const Arguments<4> arguments("loan", {"nbytes", "key", "headers", "timeout"}, 1, given, places, keywords);
    box.region->made().require();
    const uint64_t bytes = loan_size(arguments.get(0));
    deadline_of(arguments.values[3]);  // a wrong one is refused now, not when there is something to lose
    nb::object metadata = encode_metadata(arguments.values[1], arguments.values[2]);
    const uint32_t slot = box.core->borrow(bytes + Metadata(metadata).size, quota(box));
    auto* loan = new Loan(nb::borrow(self), slot, bytes, std::move(metadata), arguments.get(3));
    return nb::cast(loan, nb::rv_policy::take_ownership).release().ptr();
  });
}

}  // namespace

void bind_publishing(nb::module_& module) {
  static PyMethodDef methods[] = {
      {"publish", c_method(publish), METH_FASTCALL | METH_KEYWORDS,
       "publish(data, *, key=None, headers=None, timeout=None): copy a message in and deliver it to every subscriber."},
      {"loan", c_method(make_loan), METH_FASTCALL | METH_KEYWORDS,
       "loan(nbytes, *, key=None, headers=None, timeout=None): a slot to write into without a copy."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};
  nb::class_<PublisherBox>(module, "Publisher", nb::is_final(), nb::type_slots(slots))
      .def_prop_ro("name", [](const PublisherBox& self) { return self.name; })
      .def_prop_ro("incarnation", [](const PublisherBox& self) { return self.core->membership().incarnation; })
      .def_prop_ro("kind", [](const PublisherBox& self) { return self.region->memory().layout.queue ? "producer" : "publisher"; })
      .def("publish_many", &publish_many, nb::arg("items").none(), nb::arg("timeout") = nb::none(),
           nb::arg("keys") = nb::none())
      .def("close", [](PublisherBox& self) {
        if (self.region->made().here()) self.core->close();
      });
  nb::class_<Loan>(module, "Loan", nb::is_final(), nb::type_slots(loan_slots),
                   "A slot to write into: `with topic.loan(n) as buffer` gives a writable memoryview of n bytes.\n\n"
                   "Leaving the block publishes it; an exception drops it, as death does. Other views of the buffer\n"
                   "still alive at the end raise BufferError, and nothing is published.")
      .def_prop_ro("nbytes", &Loan::bytes)
      .def_prop_ro("receipt", &Loan::receipt)
      .def("_seal", &Loan::seal)
      .def("publish", [](Loan& self, nb::handle timeout) { self.publish(timeout, false); return self.receipt(); },
           nb::arg("timeout").none() = nb::none())
      .def("_publish_keeping_views", [](Loan& self, nb::handle timeout) { self.publish(timeout, true); return self.receipt(); },
           nb::arg("timeout").none() = nb::none())
      .def("drop", &Loan::drop);
}

}  // namespace hawser::python
