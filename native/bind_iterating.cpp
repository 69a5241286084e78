// Loops over a consumer: over messages, and over values, which going on accepts.
#include "bind_claiming.hpp"

namespace hawser::python {

namespace {

constexpr uint32_t kStepsALook = 256;
constexpr int64_t kTurnNanoseconds = 20'000'000;

bool claim_ahead(ConsumerBox& box) {
  LastClaim last(box.ahead);
  if (!box.core->try_claim(last.claimed(), Consumer::Counted::when_handed_out)) return false;
  last.stay();
  return true;
}

// As many as come without ado, at most `most`; how many.
int64_t claim_run_ahead(ConsumerBox& box, int64_t most) {
  const size_t before = box.ahead.size();
  box.core->claim_run_ahead(static_cast<uint64_t>(most), box.ahead);
  return static_cast<int64_t>(box.ahead.size() - before);
}

// See that an iteration, which claims up to `most` at a time, has something ahead. False: there is nothing.
bool has_ahead(PyObject* consumer, ConsumerBox& box, int64_t most, const Deadline& deadline) {
  box.region->made().require();
  if (most < 1) throw Error(Kind::usage, "an iteration claims 1 or more at a time");
  if (!box.ahead.empty()) return true;
  // Another thread may be faster; then what it has ahead is for all.
  const auto attempt = [&] { return !box.ahead.empty() || claim_ahead(box) ? nb::borrow(consumer) : nb::object(); };
  if (!wait_and_claim(box, deadline, kPausesForOne, few_of(most), attempt).is_valid()) return false;
  claim_more(box, most + 1 - static_cast<int64_t>(box.ahead.size()), [&](int64_t left) {
    const int64_t run = claim_run_ahead(box, left);
    return run != 0 ? run : int64_t{claim_ahead(box)};
  });
  box.core->settle();
  return true;
}

// What comes next, if that is still ours; it is delivered from here on. False: there is nothing, as far as one need wait.
bool take_next(PyObject* consumer, ConsumerBox& box, int64_t most, const Deadline& deadline, Claimed& claimed) {
  while (has_ahead(consumer, box, most, deadline)) {
    while (!box.ahead.empty()) {
      claimed = box.ahead.take();
      box.core->tell_of_ahead(!box.ahead.empty());
      if (box.core->hand_out(claimed)) return true;
      box.core->let_go(claimed.slot);
    }
  }
  return false;
}

// The same as a message, which there is room for before it is claimed; null: there is nothing.
SampleObject* take_message(PyObject* consumer, ConsumerBox& box, int64_t most, const Deadline& deadline) {
  if (!has_ahead(consumer, box, most, deadline)) return nullptr;
  SampleObject* message = new_message();
  try {
    if (take_next(consumer, box, most, deadline, claim_of(message))) return fill_message(message, consumer, box), message;
  } catch (...) {
    free_unused(message);
    throw;
  }
  free_unused(message);
  return nullptr;
}

// The next message, as `iterate` gets it, for loops that are awaited.
nb::object claim_apart(nb::handle self, int64_t most, nb::handle timeout) {
  ConsumerBox& box = *nb::inst_ptr<ConsumerBox>(self);
  SampleObject* message = take_message(self.ptr(), box, most, deadline_of(timeout));
  return message ? nb::steal(reinterpret_cast<PyObject*>(message)) : nb::none();
}

// A loop over a consumer, which ends when that is closed here. Keeps `owner` alive after all others have released it.
struct Iteration {
  nb::object consumer;
  nb::object owner;
  int64_t most;
  uint32_t steps = 0;
  int64_t looked_at = coarse_now();
  SampleObject* last = nullptr;  // the message given out last; cleared when that goes

  Iteration(nb::object consumer, nb::object owner, int64_t most)
      : consumer(std::move(consumer)), owner(std::move(owner)), most(most) {}
  Iteration(const Iteration&) = delete;
  // What it was at stays with its holder.
  ~Iteration() {
    if (last) keep_place(last, nullptr);
  }

  // The caller of the iterator may be written in C: then no other thread would have a turn, and no signal would be seen, as long as
  // there are messages. More often than they ask for their turn (sys.getswitchinterval) others would not get it.
  void let_others_run() {
    if (++steps % kStepsALook != 0 || coarse_now() - looked_at < kTurnNanoseconds) return;
    looked_at = coarse_now();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    const GilReleased released;
  }
};

// What `next(consumer)` gives to a loop; null once the consumer was closed here.
template <class Next>
PyObject* step(Iteration& loop, const Next& next) {
  loop.let_others_run();
  try {
    return next(loop.consumer.ptr());
  } catch (const Error& error) {
    if (error.kind() != Kind::closed || !nb::inst_ptr<ConsumerBox>(loop.consumer)->core->closing()) throw;
    return nullptr;
  }
}

// The next message of a loop over messages. The one before is taken back, unless it is settled.
PyObject* next_of(PyObject* self) {
  return guarded([&] {
    Iteration& loop = *nb::inst_ptr<Iteration>(self);
    return step(loop, [&](PyObject* consumer) {
      ConsumerBox& box = *nb::inst_ptr<ConsumerBox>(consumer);
      box.region->made().require();
      if (SampleObject* last = loop.last) {
        keep_place(last, nullptr);
        take_back(reinterpret_cast<PyObject*>(last), box);
        tell_of_the_dying(box);
      }
      SampleObject* message = take_message(consumer, box, loop.most, Deadline::for_ever());
      // Another thread may have been given one by the same loop meanwhile; that stays with its holder.
      if (loop.last) keep_place(loop.last, nullptr);
      keep_place(message, &loop.last);
      return reinterpret_cast<PyObject*>(message);
    });
  });
}

// A loop over values. The one given out last is accepted when the next one is asked for, and given back if none is.
class ValueIteration : public Iteration {
 public:
  ValueIteration(nb::object consumer, nb::object owner, int64_t most)
      : Iteration(std::move(consumer), std::move(owner), most), box_(*nb::inst_ptr<ConsumerBox>(this->consumer)) {}
  ~ValueIteration() {
    if (in_hand_ && box_.region->made().here()) end(Verdict::release);
  }

  // What becomes of the one given out last, unless that was said before.
  void settle(Verdict verdict) {
    box_.region->made().require();
    if (!in_hand_) return;
    const uint64_t sequence = in_hand_->sequence;
    const bool ours = end(verdict);
    tell_of_the_dying(box_);
    if (!ours) throw claim_lost(box_, 1, sequence);
  }

  // Who begins anew with a loop has left it: what it was at was not done.
  void begin() {
    box_.region->made().require();
    if (!in_hand_) return;
    end(Verdict::release);
    tell_of_the_dying(box_);
  }

  // Accepts when the block has ended well. Otherwise the error of the block is what counts.
  void exit(nb::handle kind, nb::handle, nb::handle) {
    if (kind.is_none()) return settle(Verdict::accept);
    try {
      settle(Verdict::release);
    } catch (const Error&) {
    }
  }

  PyObject* next() {
    return (box_.decode.is_none() ? copy_next() : decode_next()).release().ptr();
  }

 private:
  // False: the claim was taken away.
  bool end(Verdict verdict) {
    Consumer& core = *box_.core;
    const bool ours = settle_claim(core, *in_hand_, verdict);
    in_hand_.reset();
    core.let_go_of_copy();
    core.wake_producers();
    if (core.closing()) core.close();
    return ours;
  }

  // Of a claim whose bytes are read no longer. What another thread of the same loop got meanwhile no one will
  // speak of.
  void give_out(const Claimed& claimed) {
    if (in_hand_) end(Verdict::release);
    in_hand_ = claimed;
  }

  nb::object copy_next() {
    Consumer& core = *box_.core;
    const Memory& memory = core.memory();
    Claimed claimed;
    if (!take_next(consumer.ptr(), box_, most, Deadline::for_ever(), claimed)) return {};
    nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(claimed.payload)));
    if (bytes.is_valid()) copy_large(PyBytes_AS_STRING(bytes.ptr()), memory.readable + memory.payload_at(claimed.slot), claimed.payload);
    const bool sound = core.let_go(claimed.slot);
    core.keep_copy();
    if (!bytes.is_valid() || !sound) [[unlikely]] refuse_copy(claimed, sound);
    give_out(claimed);
    return bytes;
  }

  [[noreturn, gnu::noinline, gnu::cold]] void refuse_copy(const Claimed& claimed, bool sound) {
    give_back_copy(*box_.core, claimed);
    if (sound) throw nb::python_error();  // there is no memory
    throw lost_reference(*box_.region, claimed.sequence);
  }

  nb::object decode_next() {
    const nb::object message =
        nb::steal(reinterpret_cast<PyObject*>(take_message(consumer.ptr(), box_, most, Deadline::for_ever())));
    if (!message.is_valid()) return {};
    Claimed claimed;
    nb::object value = value_and_claim(message, box_, claimed, false);
    give_out(claimed);
    return value;
  }

  ConsumerBox& box_;
  std::optional<Claimed> in_hand_;
};

PyObject* next_value_of(PyObject* self) {
  return guarded([&] {
    ValueIteration& loop = *nb::inst_ptr<ValueIteration>(self);
    loop.settle(Verdict::accept);
    return step(loop, [&](PyObject*) { return loop.next(); });
  });
}

PyObject* begin_values(PyObject* self) {
  return guarded([&] {
    nb::inst_ptr<ValueIteration>(self)->begin();
    return nb::borrow(self).release().ptr();
  });
}

// What refers to a consumer may belong to an object that the consumer calls: the collector must see it.
template <class Loop>
int traverse_iteration(PyObject* self, visitproc visit, void* arg) {  // Py_VISIT wants these names
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Iteration* loop = nb::inst_ptr<Loop>(self);
  Py_VISIT(loop->consumer.ptr());
  Py_VISIT(loop->owner.ptr());
  return 0;
}

template <class Loop>
nb::class_<Loop> bind_iteration(nb::module_& module, const char* name, getiterfunc begin, iternextfunc next) {
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_iteration<Loop>)},
                                {Py_tp_iter, reinterpret_cast<void*>(begin)},
                                {Py_tp_iternext, reinterpret_cast<void*>(next)},
                                {0, nullptr}};
  return nb::class_<Loop>(module, name, nb::is_final(), nb::type_slots(slots));
}

}  // namespace

void bind_iterating(nb::module_& module, nb::class_<ConsumerBox>& consumer) {
  bind_iteration<Iteration>(module, "Iteration", PyObject_SelfIter, next_of);
  bind_iteration<ValueIteration>(module, "ValueIteration", begin_values, next_value_of)
      .def("accept", [](ValueIteration& self) { self.settle(Verdict::accept); })
      .def("release", [](ValueIteration& self) { self.settle(Verdict::release); })
      .def("reject", [](ValueIteration& self) { self.settle(Verdict::reject); })
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", &ValueIteration::exit, nb::arg("kind").none(), nb::arg("error").none(), nb::arg("traceback").none());
  consumer
      .def("claim_apart", &claim_apart, nb::arg("most"), nb::arg("timeout").none() = nb::none())
      .def("iterate", [](nb::object self, int64_t most, nb::object owner) {
             return new Iteration(std::move(self), std::move(owner), most); }, nb::arg("most"), nb::arg("owner"))
      .def("iterate_values", [](nb::object self, int64_t most, nb::object owner) {
             return new ValueIteration(std::move(self), std::move(owner), most); }, nb::arg("most"), nb::arg("owner"));
}

}  // namespace hawser::python
