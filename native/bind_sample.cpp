// Sample: a message as Python sees it. A plain C type, because it is made and dropped for every message.
//
// A view of a sample keeps the sample, and a sample keeps its slot: nothing can dangle. release() refuses while
// views are alive; leaving a with block, or the next step of an iteration, lets the slot go with the last view.
//
// Message is a sample of a queue. It is settled once, by accept, release or reject; then its slot goes with
// the last view. One that is dropped before is released.
#include "bind.hpp"

namespace hawser::python {

Configuration configuration;

struct SampleObject {
  PyObject_HEAD
  PyObject* owner;         // the Subscriber or Consumer, or the bytes of a copy
  SubscriberBox* box;      // null for a copy and for a message
  ConsumerBox* consumer;   // of a message
  PyObject* publisher;     // name, once asked for
  PyObject* decoded;       // (key, headers), once asked for
  PyObject* metadata;      // bytes, of a copy and of what was let go of
  PyObject* decode;        // of a copy
  const uint8_t* data;
  Py_ssize_t exports;
  SampleObject** place;    // where its loop has a message that it gave out last; cleared when this goes
  Claimed taken;
  bool released;
  bool leaving;  // the slot goes with the last view
  bool settled;  // accepted, released or rejected
  bool lost;     // its claim was taken away
  Verdict verdict;
};

namespace {

PyTypeObject* sample_type = nullptr;
PyTypeObject* message_type = nullptr;
constexpr int kKept = 256;
SampleObject* kept[kKept];  // unused objects, under the GIL
int kept_count = 0;

SampleObject* as_sample(PyObject* object) { return reinterpret_cast<SampleObject*>(object); }

// Null for a copy.
Region* region_of(const SampleObject* sample) {
  return sample->box ? sample->box->region.get() : sample->consumer ? sample->consumer->region.get() : nullptr;
}

void settle(SampleObject* message, ConsumerBox& box) {
  if (message->settled) return;
  message->settled = true;
  message->lost = !settle_claim(*box.core, message->taken, message->verdict);
}

// A message without readers is released before its claim ends, so its slot needs no bit.
bool let_go_of_slot(SampleObject* sample) {
  const Claimed& taken = sample->taken;
  if (ConsumerBox* box = sample->consumer) {
    const bool sound = box->core->let_go(taken.slot);
    settle(sample, *box);
    box->core->wake_producers();
    if (box->core->closing()) box->core->close();
    return sound;
  }
  SubscriberBox* box = sample->box;
  if (box->last == sample) box->last = nullptr;
  const bool sound = box->core->release(taken.slot, taken.sequence);
  if (box->core->closing()) box->core->close();
  return sound;
}

// Key and headers stay readable after the slot is gone, for programs that still refer to the sample.
void keep_metadata(SampleObject* sample) {
  if (sample->taken.metadata == 0 || sample->decoded || sample->metadata) return;
  if (Py_REFCNT(sample) == 0) return;  // it is being deallocated
  const nb::error_scope on_its_way;
  sample->metadata = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(sample->data + sample->taken.payload),
                                               static_cast<Py_ssize_t>(sample->taken.metadata));
  if (!sample->metadata) PyErr_Clear();
}

// Clears the bit. False when it was gone, which only damage can do: the caller says so.
[[nodiscard]] bool give_back(SampleObject* sample) {
  if (sample->released) return true;
  sample->released = true;
  const Region* region = region_of(sample);
  if (!region || !region->made().here()) return true;
  keep_metadata(sample);
  const bool sound = let_go_of_slot(sample);
  if (!sound) Py_CLEAR(sample->metadata);  // its bytes may have changed
  return sound;
}

[[gnu::noinline, gnu::cold]] void raise_lost_reference(const SampleObject* sample) {
  set_python_error(lost_reference(*region_of(sample), sample->taken.sequence));
}

// Where no error can be raised. An exception on its way stays; the hook gets the type, because a sample that is being
// deallocated cannot be referred to.
[[gnu::noinline, gnu::cold]] void report_lost_reference(SampleObject* sample) {
  const nb::error_scope on_its_way;
  raise_lost_reference(sample);
  PyErr_WriteUnraisable(reinterpret_cast<PyObject*>(Py_TYPE(sample)));
}

// In a forked child the slot is kept by the parent alone and may change at any moment.
bool is_foreign(const SampleObject* sample) {
  const Region* region = region_of(sample);
  return region && !region->made().here();
}

[[gnu::noinline, gnu::cold]] void refuse_use(const SampleObject* sample) {
  const std::string noun = sample->consumer ? "message" : "sample";
  const std::string why =
      is_foreign(sample) ? " belongs to the parent process; after a fork connect again in the child"
                         : (sample->consumer ? " was accepted, released or rejected" : " was released") +
                               ("; keep it longer, or copy it with bytes(" + noun + ")");
  set_python_error(Error(Kind::usage, "this " + noun + why));
}

// False, with a Python error, if its bytes must not be read.
bool check_usable(const SampleObject* sample) {
  if (!sample->released && !is_foreign(sample)) [[likely]] return true;
  refuse_use(sample);
  return false;
}

void sample_dealloc(PyObject* self) {
  SampleObject* sample = as_sample(self);
  keep_place(sample, nullptr);
  if (!give_back(sample)) report_lost_reference(sample);
  Py_CLEAR(sample->owner);
  Py_CLEAR(sample->publisher);
  Py_CLEAR(sample->decoded);
  Py_CLEAR(sample->metadata);
  Py_CLEAR(sample->decode);
  free_unused(sample);
}

int sample_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  SampleObject* sample = as_sample(self);
  if (sample->released || !check_usable(sample)) {
    view->obj = nullptr;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_BufferError, "this sample was released");
    return -1;
  }
  void* data = const_cast<uint8_t*>(sample->data);
  if (PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(sample->taken.payload), 1, flags) != 0) return -1;
  sample->exports++;
  return 0;
}

void sample_releasebuffer(PyObject* self, Py_buffer*) {
  SampleObject* sample = as_sample(self);
  if (--sample->exports == 0 && sample->leaving && !give_back(sample)) report_lost_reference(sample);
}

PyObject* get_data(PyObject* self, void*) {
  return check_usable(as_sample(self)) ? PyMemoryView_FromObject(self) : nullptr;
}
PyObject* get_offset(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(as_sample(self)->taken.sequence); }
PyObject* get_timestamp(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_sample(self)->taken.timestamp_ns);
}
PyObject* get_partition(PyObject*, void*) { return PyLong_FromLong(0); }
PyObject* get_lost_before(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_sample(self)->taken.lost_before);
}

PyObject* get_publisher(PyObject* self, void*) {
  SampleObject* sample = as_sample(self);
  if (!sample->publisher) {
    if (!check_usable(sample)) return nullptr;
    sample->publisher = guarded([&] {
      const Memory& memory = region_of(sample)->memory();
      std::string name;
      if (!read_name(memory, sample->taken.slot, sample->taken.publisher, name))
        memory.corrupt("the publisher's name of sample " + std::to_string(sample->taken.sequence) + " is damaged");
      return PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace");
    });
  }
  Py_XINCREF(sample->publisher);
  return sample->publisher;
}

// (key, headers), decoded once.
PyObject* metadata_of(SampleObject* sample) {
  if (sample->decoded) return sample->decoded;
  const bool has_none = sample->taken.metadata == 0 && !is_foreign(sample);
  if (!sample->metadata && !has_none && !check_usable(sample)) return nullptr;
  PyObject* bytes = sample->metadata;
  if (bytes) Py_INCREF(bytes);
  if (!bytes)
    bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(sample->data + sample->taken.payload),
                                      static_cast<Py_ssize_t>(sample->taken.metadata));
  if (!bytes) return nullptr;
  PyObject* decoded = PyObject_CallOneArg(configuration.decode_metadata, bytes);
  Py_DECREF(bytes);
  if (decoded && sample->decoded) Py_SETREF(decoded, nullptr);  // another thread was faster
  if (decoded) sample->decoded = decoded;
  return PyErr_Occurred() ? nullptr : sample->decoded;
}
PyObject* metadata_item(PyObject* self, Py_ssize_t index) {
  PyObject* decoded = metadata_of(as_sample(self));
  return decoded ? PySequence_GetItem(decoded, index) : nullptr;
}
PyObject* get_key(PyObject* self, void*) { return metadata_item(self, 0); }
PyObject* get_headers(PyObject* self, void*) { return metadata_item(self, 1); }

// Of a sample that is usable.
PyObject* copy_of(PyObject* self) {
  SampleObject* sample = as_sample(self);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(sample->taken.payload));
  if (!bytes) return nullptr;
  sample->exports++;  // no thread may release it meanwhile
  copy_large(PyBytes_AS_STRING(bytes), sample->data, sample->taken.payload);
  sample_releasebuffer(self, nullptr);
  return bytes;
}
PyObject* call_bytes(PyObject* self, PyObject*) { return check_usable(as_sample(self)) ? copy_of(self) : nullptr; }
PyObject* get_value(PyObject* self, void*) {
  SampleObject* sample = as_sample(self);
  if (!check_usable(sample)) return nullptr;
  PyObject* decode = sample->box ? sample->box->decode.ptr() : sample->consumer ? sample->consumer->decode.ptr() : sample->decode;
  return decode && decode != Py_None ? PyObject_CallOneArg(decode, self) : copy_of(self);
}

// array() and arrow() need numpy and pyarrow, which only hawser.record knows.
PyObject* call_arrays(PyObject* self, const char* function, PyObject* arguments, PyObject* keywords) {
  PyObject* module = PyImport_ImportModule("hawser.record.payload");
  PyObject* callable = module ? PyObject_GetAttrString(module, function) : nullptr;
  PyObject* all = callable ? PyTuple_New(1 + PyTuple_GET_SIZE(arguments)) : nullptr;
  PyObject* result = nullptr;
  if (all) {
    Py_INCREF(self);
    PyTuple_SET_ITEM(all, 0, self);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
      Py_INCREF(PyTuple_GET_ITEM(arguments, i));
      PyTuple_SET_ITEM(all, i + 1, PyTuple_GET_ITEM(arguments, i));
    }
    result = PyObject_Call(callable, all, keywords);
  }
  Py_XDECREF(all);
  Py_XDECREF(callable);
  Py_XDECREF(module);
  return result;
}
PyObject* call_array(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return call_arrays(self, "as_array", arguments, keywords);
}
PyObject* call_arrow(PyObject* self, PyObject*) {
  PyObject* nothing = PyTuple_New(0);
  PyObject* result = nothing ? call_arrays(self, "as_arrow", nothing, nullptr) : nullptr;
  Py_XDECREF(nothing);
  return result;
}

PyObject* call_release(PyObject* self, PyObject*) {
  SampleObject* sample = as_sample(self);
  if (sample->exports > 0) {
    PyErr_Format(PyExc_BufferError, "sample %llu has %zd live views; drop them first, or leave its with block",
                 static_cast<unsigned long long>(sample->taken.sequence), sample->exports);
    return nullptr;
  }
  if (!give_back(sample)) return raise_lost_reference(sample), nullptr;
  Py_RETURN_NONE;
}
PyObject* call_enter(PyObject* self, PyObject*) {
  Py_INCREF(self);
  return self;
}
PyObject* call_exit(PyObject* self, PyObject*) {
  let_go_of(as_sample(self));
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}
Py_ssize_t sample_length(PyObject* self) { return static_cast<Py_ssize_t>(as_sample(self)->taken.payload); }
// An empty one is a message, too; None is what is false.
int sample_is_there(PyObject*) { return 1; }
PyObject* sample_repr(PyObject* self) {
  const SampleObject* sample = as_sample(self);
  const char* state = sample->consumer ? (sample->settled ? ", settled" : "") : sample->released ? ", released" : "";
  return PyUnicode_FromFormat("<%s offset=%llu, %llu bytes%s>", sample->consumer ? "Message" : "Sample",
                              static_cast<unsigned long long>(sample->taken.sequence),
                              static_cast<unsigned long long>(sample->taken.payload), state);
}

// Its bytes are not what it is equal to: `sample == b"stop"` would be false without a word.
PyObject* sample_compare(PyObject*, PyObject* other, int operation) {
  if ((operation == Py_EQ || operation == Py_NE) &&
      (PyBytes_Check(other) || PyByteArray_Check(other) || PyMemoryView_Check(other) || PyUnicode_Check(other))) {
    PyErr_Format(PyExc_TypeError, "a message cannot be compared with %s; compare bytes(it), or its value",
                 Py_TYPE(other)->tp_name);
    return nullptr;
  }
  Py_RETURN_NOTIMPLEMENTED;
}

PyObject* get_delivery_count(PyObject* self, void*) {
  const SampleObject* message = as_sample(self);
  const uint32_t uncounted = message->consumer->core->options().reserved ? 1 : 0;
  return PyLong_FromUnsignedLong(claim_deliveries(message->taken.claim) + uncounted);
}
PyObject* get_redelivered(PyObject* self, void*) { return PyBool_FromLong(as_sample(self)->taken.redelivered); }

void check_claimed_by(PyObject* object, const ConsumerBox& box) {
  if (Py_TYPE(object) != message_type || as_sample(object)->consumer != &box)
    throw Error(Kind::usage, "only messages that this consumer has claimed can be settled by it");
}

Error settled_otherwise(const SampleObject* message) {
  const char* said = message->verdict == Verdict::accept   ? "accepted"
                     : message->verdict == Verdict::reject ? "rejected"
                                                           : "released";
  return {Kind::usage, "message " + std::to_string(message->taken.sequence) + " was " + said +
                           " already; a message can be settled only once"};
}

PyObject* settle_and_return(PyObject* self, Verdict verdict) {
  return guarded([&] {
    SampleObject* message = as_sample(self);
    ConsumerBox& box = *message->consumer;
    if (message->settled && !message->lost && message->verdict != verdict) throw settled_otherwise(message);
    if (!settle_message(self, box, verdict)) throw claim_lost(box, 1, message->taken.sequence);
    box.core->wake_producers();
    tell_of_the_dying(box);
    return nb::none().release().ptr();
  });
}
PyObject* call_accept(PyObject* self, PyObject*) { return settle_and_return(self, Verdict::accept); }
PyObject* call_give_back(PyObject* self, PyObject*) { return settle_and_return(self, Verdict::release); }
PyObject* call_reject(PyObject* self, PyObject*) { return settle_and_return(self, Verdict::reject); }
// Accepts when the block has ended well. Otherwise the error of the block is what counts. What was said in the block
// stays.
PyObject* call_exit_message(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (as_sample(self)->settled && !as_sample(self)->lost) Py_RETURN_NONE;
  if (count == 0 || given[0] == Py_None) return call_accept(self, nullptr);
  PyObject* released = call_give_back(self, nullptr);
  if (released) return released;
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"array", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_array)), METH_VARARGS | METH_KEYWORDS,
     "array(dtype='u1', shape=None): the payload as a read-only numpy array, without copying."},
    {"arrow", call_arrow, METH_NOARGS, "The payload as an Arrow record batch or table, without copying."},
    {"release", call_release, METH_NOARGS, "Let go of the slot now; BufferError while views of it are alive."},
    {"__bytes__", call_bytes, METH_NOARGS, "A copy of the payload."},
    {"__enter__", call_enter, METH_NOARGS, nullptr},
    {"__exit__", call_exit, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef message_methods[] = {
    {"array", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_array)), METH_VARARGS | METH_KEYWORDS,
     "array(dtype='u1', shape=None): the payload as a read-only numpy array, without copying."},
    {"arrow", call_arrow, METH_NOARGS, "The payload as an Arrow record batch or table, without copying."},
    {"accept", call_accept, METH_NOARGS, "It is done. Fenced if the claim was taken away."},
    {"release", call_give_back, METH_NOARGS, "Give it back, to be delivered again. Fenced if the claim was taken away."},
    {"reject", call_reject, METH_NOARGS, "Let it go to the dead letters. Fenced if the claim was taken away."},
    {"__bytes__", call_bytes, METH_NOARGS, "A copy of the payload."},
    {"__enter__", call_enter, METH_NOARGS, nullptr},
    {"__exit__", c_method(call_exit_message), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef message_properties[] = {
    {"data", get_data, nullptr, "The payload as a read-only memoryview.", nullptr},
    {"offset", get_offset, nullptr, "Position in the queue: dense, from 1.", nullptr},
    {"timestamp_ns", get_timestamp, nullptr, "When it was put, wall clock.", nullptr},
    {"publisher", get_publisher, nullptr, "Name of the producer.", nullptr},
    {"key", get_key, nullptr, "The key it was put with, or None.", nullptr},
    {"headers", get_headers, nullptr, "The headers it was put with.", nullptr},
    {"partition", get_partition, nullptr, "Always 0 on one host.", nullptr},
    {"lost_before", get_lost_before, nullptr, "Always 0: a queue loses nothing.", nullptr},
    {"value", get_value, nullptr, "The payload decoded by the queue's schema; bytes without one.", nullptr},
    {"delivery_count", get_delivery_count, nullptr, "How often it was delivered, this time included.", nullptr},
    {"redelivered", get_redelivered, nullptr, "Whether it was delivered before.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyGetSetDef properties[] = {
    {"data", get_data, nullptr, "The payload as a read-only memoryview.", nullptr},
    {"offset", get_offset, nullptr, "Position in the topic: dense, from 1.", nullptr},
    {"timestamp_ns", get_timestamp, nullptr, "When it was published, wall clock.", nullptr},
    {"publisher", get_publisher, nullptr, "Name of the publisher.", nullptr},
    {"key", get_key, nullptr, "The key it was published with, or None.", nullptr},
    {"headers", get_headers, nullptr, "The headers it was published with.", nullptr},
    {"partition", get_partition, nullptr, "Always 0 on one host.", nullptr},
    {"lost_before", get_lost_before, nullptr, "How many samples this subscription missed just before it.", nullptr},
    {"value", get_value, nullptr, "The payload decoded by the topic's schema; bytes without one.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(sample_dealloc)},
                       {Py_tp_repr, reinterpret_cast<void*>(sample_repr)},
                       {Py_tp_richcompare, reinterpret_cast<void*>(sample_compare)},
                       {Py_tp_hash, reinterpret_cast<void*>(PyBaseObject_Type.tp_hash)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_doc, const_cast<char*>("A message taken from a topic: a read-only buffer over its slot.")},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(sample_getbuffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(sample_releasebuffer)},
                       {Py_sq_length, reinterpret_cast<void*>(sample_length)},
                       {Py_nb_bool, reinterpret_cast<void*>(sample_is_there)},
                       {0, nullptr}};

PyType_Slot message_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(sample_dealloc)},
                               {Py_tp_repr, reinterpret_cast<void*>(sample_repr)},
                               {Py_tp_richcompare, reinterpret_cast<void*>(sample_compare)},
                               {Py_tp_hash, reinterpret_cast<void*>(PyBaseObject_Type.tp_hash)},
                               {Py_tp_methods, message_methods},
                               {Py_tp_getset, message_properties},
                               {Py_tp_doc, const_cast<char*>("A message claimed from a queue: a read-only buffer over its slot.")},
                               {Py_bf_getbuffer, reinterpret_cast<void*>(sample_getbuffer)},
                               {Py_bf_releasebuffer, reinterpret_cast<void*>(sample_releasebuffer)},
                               {Py_sq_length, reinterpret_cast<void*>(sample_length)},
                               {Py_nb_bool, reinterpret_cast<void*>(sample_is_there)},
                               {0, nullptr}};

PyTypeObject* add_type(PyObject* module, const char* name, PyType_Slot* of) {
  const std::string full = std::string("hawser.memory._native.") + name;
  PyType_Spec specification = {full.c_str(), sizeof(SampleObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, of};
  PyObject* type = PyType_FromSpec(&specification);
  if (!type || PyModule_AddObjectRef(module, name, type) != 0) throw nb::python_error();
  return reinterpret_cast<PyTypeObject*>(type);
}

SampleObject* new_object(PyTypeObject* type) {
  SampleObject* sample = nullptr;
  if (kept_count > 0) {
    sample = kept[--kept_count];
    PyObject_Init(reinterpret_cast<PyObject*>(sample), type);
  } else {
    sample = PyObject_New(SampleObject, type);
    if (!sample) throw nb::python_error();
  }
  sample->owner = sample->publisher = sample->decoded = sample->metadata = sample->decode = nullptr;
  sample->box = nullptr;
  sample->consumer = nullptr;
  sample->place = nullptr;
  sample->exports = 0;
  sample->released = sample->settled = true;
  sample->leaving = sample->lost = false;
  return sample;
}

}  // namespace

void add_sample_types(PyObject* module) {
  sample_type = add_type(module, "Sample", slots);
  message_type = add_type(module, "Message", message_slots);
}

SampleObject* new_sample() { return new_object(sample_type); }
SampleObject* new_message() { return new_object(message_type); }

// The memory of an object without references.
void free_unused(SampleObject* sample) {
  Py_DECREF(Py_TYPE(sample));  // an instance of a heap type holds its type
  if (kept_count < kKept) {
    kept[kept_count++] = sample;
  } else {
    PyObject_Free(sample);
  }
}

PyObject* fill_sample(SampleObject* sample, PyObject* owner, SubscriberBox& box, const Taken& taken) {
  const Memory& memory = box.region->memory();
  Py_INCREF(owner);
  sample->owner = owner;
  sample->box = &box;
  sample->data = memory.readable + memory.payload_at(taken.slot);
  static_cast<Taken&>(sample->taken) = taken;
  sample->released = false;
  return reinterpret_cast<PyObject*>(sample);
}

Claimed& claim_of(SampleObject* message) { return message->taken; }

PyObject* fill_message(SampleObject* message, PyObject* owner, ConsumerBox& box) {
  const Memory& memory = box.region->memory();
  Py_INCREF(owner);
  message->owner = owner;
  message->consumer = &box;
  message->data = memory.readable + memory.payload_at(message->taken.slot);
  message->released = message->settled = false;
  message->verdict = Verdict::release;  // if it is dropped without a word
  return reinterpret_cast<PyObject*>(message);
}

PyObject* copied_sample(const Copied& copied, PyObject* decode) {
  SampleObject* sample = new_sample();
  Py_XINCREF(decode);
  sample->decode = decode;
  sample->released = false;
  static_cast<Taken&>(sample->taken) = {0, copied.sequence, copied.payload.size(), static_cast<uint32_t>(copied.metadata.size()),
                                        copied.timestamp_ns, copied.publisher, 0};
  sample->owner = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(copied.payload.size()));
  if (sample->owner) copy_large(PyBytes_AS_STRING(sample->owner), copied.payload.data(), copied.payload.size());
  sample->metadata = PyBytes_FromStringAndSize(copied.metadata.data(), static_cast<Py_ssize_t>(copied.metadata.size()));
  sample->publisher = PyUnicode_DecodeUTF8(copied.name.data(), static_cast<Py_ssize_t>(copied.name.size()), "replace");
  if (!sample->owner || !sample->metadata || !sample->publisher) {
    Py_DECREF(sample);
    throw nb::python_error();
  }
  sample->data = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(sample->owner));
  return reinterpret_cast<PyObject*>(sample);
}

void let_go_of(SampleObject* sample) {
  sample->leaving = true;
  if (sample->exports == 0 && !give_back(sample)) raise_lost_reference(sample);
}

// With a view alive it is not let go of, so that it cannot be taken again: two samples would share one bit.
bool put_back(SampleObject* sample) {
  if (sample->released || sample->exports != 0 || !sample->box->core->put_back(sample->taken)) return false;
  let_go_of(sample);
  if (PyErr_Occurred()) PyErr_Clear();  // the next take refers to it anew
  return true;
}

bool settle_claim(Consumer& core, const Claimed& claimed, Verdict verdict) {
  return verdict == Verdict::accept    ? core.accept(claimed)
         : verdict == Verdict::release ? core.release(claimed)
                                       : core.reject(claimed);
}

bool settle_message(PyObject* object, ConsumerBox& box, Verdict verdict) {
  check_claimed_by(object, box);
  SampleObject* message = as_sample(object);
  box.region->made().require();
  if (message->settled) return !message->lost;
  message->verdict = verdict;
  if (message->exports != 0) settle(message, box);
  let_go_of(message);
  if (PyErr_Occurred()) throw nb::python_error();
  return !message->lost;
}

void take_back(PyObject* object, ConsumerBox& box) {
  check_claimed_by(object, box);
  SampleObject* message = as_sample(object);
  if (message->settled) return;
  settle_message(object, box, Verdict::release);
  message->lost = true;
}

void keep_place(SampleObject* message, SampleObject** place) {
  if (message->place) *message->place = nullptr;
  message->place = place;
  if (place) *place = message;
}

Claimed take_claim(SampleObject* message) {
  message->settled = true;
  return message->taken;
}

Error lost_reference(const Region& region, uint64_t sequence) {
  return {Kind::corrupt, region.place().path + ": a reference to message " + std::to_string(sequence) +
                             " was lost; its bytes may have changed"};
}

Error claim_lost(const ConsumerBox& box, uint64_t count, uint64_t sequence) {
  const std::string what = count == 1 ? "message " + std::to_string(sequence) : std::to_string(count) + " messages";
  return {Kind::fenced, box.region->place().path + ": the claim of " + what +
                            " was taken away, because its lease was over, its loop went on to the next message or "
                            "its consumer was closed; nothing was changed, and it is delivered again"};
}

}  // namespace hawser::python
