// TraceRing: the ring of a domain's trace and a reader of it, and the switch of a region.
#include "bind.hpp"

namespace hawser::python {

namespace {

struct TraceRingBox {
  std::shared_ptr<TraceFile> file;
  TraceReader reader{file->ring()};
};

nb::object boxed(std::shared_ptr<TraceFile> file) {
  return nb::cast(new TraceRingBox{std::move(file)}, nb::rv_policy::take_ownership);
}

nb::object create(const std::string& path, uint64_t records, bool group) {
  std::shared_ptr<TraceFile> file;
  {
    const GilReleased released;
    file = TraceFile::create(path, records, group);
  }
  return boxed(std::move(file));
}

nb::object open(const std::string& path) {
  std::shared_ptr<TraceFile> file = TraceFile::open(path);
  return file ? boxed(std::move(file)) : nb::none();
}

nb::tuple read(TraceRingBox& box, uint64_t position, uint64_t maximum) {
  std::vector<TraceWords> found;
  const uint64_t first = box.reader.read(position, maximum, monotonic_now(), found);
  return nb::make_tuple(first, nb::bytes(reinterpret_cast<const char*>(found.data()), found.size() * kTraceRecordBytes));
}

}  // namespace

nb::tuple tracing_of(const Region& region) {
  const Tracing& tracing = region.memory().header().tracing;
  const uint64_t traced = tracing.ring.load(std::memory_order_relaxed);
  return nb::make_tuple(traced & ~kTraceLevelBits, traced & kTraceLevelBits, tracing.unwritten.load_relaxed());
}

bool trace_region(const Region& region, nb::handle ring, uint64_t level, nb::handle only_from) {
  region.made().require();
  if (region.memory().closed()) region.memory().deleted();
  if (!ring.is_none() && !nb::isinstance<TraceRingBox>(ring)) throw Error(Kind::usage, "a region is traced to a TraceRing, or None");
  if (level < 1 || level > static_cast<uint64_t>(TraceLevel::looked_at))
    throw Error(Kind::usage, "the level of a trace is 1 (what happens), 2 (payloads, too) or 3 (what happens, while "
                             "a process follows), not " + std::to_string(level));
  const uint64_t wanted = ring.is_none() ? 0 : nb::inst_ptr<TraceRingBox>(ring)->file->ring().identity() | level;
  for (;;) {
    const uint64_t seen = is_traced(region.memory());
    if (!only_from.is_none() && (seen & kTraceLevelBits) != nb::cast<uint64_t>(only_from)) return false;
    if (seen == wanted || switch_tracing(region.memory(), seen, wanted)) return true;
  }
}

void bind_tracing(nb::module_& module) {
  nb::class_<TraceRingBox>(module, "TraceRing", nb::is_final())
      .def_static("create", &create, nb::arg("path"), nb::arg("records"), nb::arg("group"))
      .def_static("open", &open, nb::arg("path"))
      .def_prop_ro("uuid", [](const TraceRingBox& self) {
             return nb::bytes(reinterpret_cast<const char*>(self.file->label().uuid), sizeof self.file->label().uuid); })
      .def_prop_ro("identity", [](const TraceRingBox& self) { return self.file->ring().identity(); })
      .def_prop_ro("records", [](const TraceRingBox& self) { return self.file->ring().records(); })
      .def_prop_ro("head", [](const TraceRingBox& self) { return self.file->ring().head(); })
      .def_prop_ro("created_ns", [](const TraceRingBox& self) { return self.file->label().created_ns; })
      .def_prop_ro("current", [](const TraceRingBox& self) { return self.file->current(); })
      .def("read", &read, nb::arg("position"), nb::arg("maximum"));
}

}  // namespace hawser::python
