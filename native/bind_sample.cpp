// Sample: a message as Python sees it. A plain C type, because it is made and dropped for every message.
//
// A view of a sample keeps the sample, and a sample keeps its slot: nothing can dangle. release() refuses while
// views are alive; leaving a with block, or the next step of an iteration, lets the slot go with the last view.
#include "bind.hpp"

namespace hawser::python {

Configuration configuration;

struct SampleObject {
  PyObject_HEAD
  PyObject* owner;         // the Subscriber, or the bytes of a copy
  SubscriberBox* box;      // null for a copy
  PyObject* publisher;     // name, once asked for
  PyObject* decoded;       // (key, headers), once asked for
  PyObject* metadata;      // bytes, of a copy
  PyObject* decode;        // of a copy
  const uint8_t* data;
  Py_ssize_t exports;
  Taken taken;
  bool released;
  bool leaving;  // the slot goes with the last view
};

namespace {

PyTypeObject* sample_type = nullptr;
constexpr int kKept = 256;
SampleObject* kept[kKept];  // unused objects, under the GIL
int kept_count = 0;

SampleObject* as_sample(PyObject* object) { return reinterpret_cast<SampleObject*>(object); }

// Clears the bit. False (with a Python error) when the bit was gone, which only damage can do.
bool give_back(SampleObject* sample) {
  if (sample->released) return true;
  sample->released = true;
  SubscriberBox* box = sample->box;
  if (!box || !box->region->made().here()) return true;
  if (box->last == sample) box->last = nullptr;
  const bool sound = box->core->release(sample->taken.slot, sample->taken.sequence);
  if (box->core->closing()) box->core->close();
  if (sound) return true;
  set_python_error(Error(Kind::corrupt, box->region->place().path + ": a reference to sample " +
                                            std::to_string(sample->taken.sequence) + " was lost; its bytes may have changed"));
  return false;
}

bool check_usable(SampleObject* sample) {
  // In a forked child the slot is kept by the parent alone and may change at any moment.
  const bool foreign = sample->box && !sample->box->region->made().here();
  if (!sample->released && !foreign) return true;
  if (foreign) {
    set_python_error(Error(Kind::usage, "this sample belongs to the parent process; after a fork connect again in the child"));
    return false;
  }
  set_python_error(Error(Kind::usage, "this sample was released; keep it longer, or copy it with bytes(sample)"));
  return false;
}

void sample_dealloc(PyObject* self) {
  SampleObject* sample = as_sample(self);
  if (!give_back(sample)) PyErr_WriteUnraisable(self);
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
  if (--sample->exports == 0 && sample->leaving && !give_back(sample)) PyErr_WriteUnraisable(self);
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
      const Memory& memory = sample->box->region->memory();
      std::string name;
      if (!read_name(memory.slot(sample->taken.slot), sample->taken.publisher, name))
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
  if (!sample->metadata && !check_usable(sample)) return nullptr;
  PyObject* bytes = sample->metadata;
  if (bytes) Py_INCREF(bytes);
  if (!bytes)
    bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(sample->data + sample->taken.payload),
                                      static_cast<Py_ssize_t>(sample->taken.metadata));
  if (!bytes) return nullptr;
  sample->decoded = PyObject_CallOneArg(configuration.decode_metadata, bytes);
  Py_DECREF(bytes);
  return sample->decoded;
}
PyObject* metadata_item(PyObject* self, Py_ssize_t index) {
  PyObject* decoded = metadata_of(as_sample(self));
  return decoded ? PySequence_GetItem(decoded, index) : nullptr;
}
PyObject* get_key(PyObject* self, void*) { return metadata_item(self, 0); }
PyObject* get_headers(PyObject* self, void*) { return metadata_item(self, 1); }

PyObject* call_bytes(PyObject* self, PyObject*) {
  SampleObject* sample = as_sample(self);
  if (!check_usable(sample)) return nullptr;
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(sample->taken.payload));
  if (!bytes) return nullptr;
  sample->exports++;  // nobody may release it meanwhile
  copy_large(PyBytes_AS_STRING(bytes), sample->data, sample->taken.payload);
  sample_releasebuffer(self, nullptr);
  return bytes;
}
PyObject* get_value(PyObject* self, void*) {
  SampleObject* sample = as_sample(self);
  if (!check_usable(sample)) return nullptr;
  PyObject* decode = sample->box ? sample->box->decode.ptr() : sample->decode;
  return decode && decode != Py_None ? PyObject_CallOneArg(decode, self) : call_bytes(self, nullptr);
}

// array() and arrow() need numpy and pyarrow, which only hawser.record knows.
PyObject* call_arrays(PyObject* self, const char* function, PyObject* arguments, PyObject* keywords) {
  PyObject* module = PyImport_ImportModule("hawser.record.arrays");
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
  if (!give_back(sample)) return nullptr;
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
PyObject* sample_repr(PyObject* self) {
  const SampleObject* sample = as_sample(self);
  return PyUnicode_FromFormat("<Sample offset=%llu, %llu bytes%s>", static_cast<unsigned long long>(sample->taken.sequence),
                              static_cast<unsigned long long>(sample->taken.payload),
                              sample->released ? ", released" : "");
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

PyGetSetDef properties[] = {
    {"data", get_data, nullptr, "The payload as a read-only memoryview.", nullptr},
    {"offset", get_offset, nullptr, "Position in the topic: dense, from 1.", nullptr},
    {"timestamp_ns", get_timestamp, nullptr, "When it was published, wall clock.", nullptr},
    {"publisher", get_publisher, nullptr, "Name of whoever published it.", nullptr},
    {"key", get_key, nullptr, "The key it was published with, or None.", nullptr},
    {"headers", get_headers, nullptr, "The headers it was published with.", nullptr},
    {"partition", get_partition, nullptr, "Always 0 on one host.", nullptr},
    {"lost_before", get_lost_before, nullptr, "How many samples this subscription missed just before it.", nullptr},
    {"value", get_value, nullptr, "The payload decoded by the topic's schema; bytes without one.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(sample_dealloc)},
                       {Py_tp_repr, reinterpret_cast<void*>(sample_repr)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_doc, const_cast<char*>("A message taken from a topic: a read-only buffer over its slot.")},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(sample_getbuffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(sample_releasebuffer)},
                       {Py_sq_length, reinterpret_cast<void*>(sample_length)},
                       {0, nullptr}};

PyType_Spec specification = {"hawser.memory._native.Sample", sizeof(SampleObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

}  // namespace

PyObject* add_sample_type(PyObject* module) {
  PyObject* type = PyType_FromSpec(&specification);
  if (!type || PyModule_AddObjectRef(module, "Sample", type) != 0) throw nb::python_error();
  sample_type = reinterpret_cast<PyTypeObject*>(type);
  return type;
}

SampleObject* new_sample() {
  SampleObject* sample = nullptr;
  if (kept_count > 0) {
    sample = kept[--kept_count];
    PyObject_Init(reinterpret_cast<PyObject*>(sample), sample_type);
  } else {
    sample = PyObject_New(SampleObject, sample_type);
    if (!sample) throw nb::python_error();
  }
  sample->owner = sample->publisher = sample->decoded = sample->metadata = sample->decode = nullptr;
  sample->box = nullptr;
  sample->exports = 0;
  sample->released = true;
  sample->leaving = false;
  return sample;
}

// Memory of an object nobody refers to any more.
void free_unused(SampleObject* sample) {
  Py_DECREF(sample_type);  // an instance of a heap type holds its type
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
  sample->taken = taken;
  sample->released = false;
  return reinterpret_cast<PyObject*>(sample);
}

PyObject* copied_sample(const Copied& copied, PyObject* decode) {
  SampleObject* sample = new_sample();
  Py_XINCREF(decode);
  sample->decode = decode;
  sample->released = false;
  sample->taken = {0, copied.sequence, copied.payload.size(), static_cast<uint32_t>(copied.metadata.size()),
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
  if (sample->exports == 0) give_back(sample);
}

}  // namespace hawser::python
