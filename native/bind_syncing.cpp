// Syncs: files that are synced while Python goes on.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "syncs.hpp"

namespace hawser::python {

namespace {

void begin(Syncs& syncs, std::vector<std::pair<uint64_t, std::vector<int>>> wanted) {
  std::vector<Sync> given;
  for (auto& [number, descriptors] : wanted) given.push_back({number, std::move(descriptors)});
  syncs.begin(std::move(given));
}

nb::list ended(Syncs& syncs) {
  nb::list result;
  for (const Synced& each : syncs.ended())
    result.append(nb::make_tuple(each.number, each.error, static_cast<double>(each.nanoseconds) / 1e9));
  return result;
}

}  // namespace

void bind_syncing(nb::module_& module) {
  nb::class_<Syncs>(module, "Syncs", nb::is_final())
      .def(nb::init<uint32_t>(), nb::arg("threads"))
      .def("fileno", &Syncs::descriptor)
      .def("begin", &begin, nb::arg("wanted"))
      .def("ended", &ended)
      .def("close", &Syncs::close);
}

}  // namespace hawser::python
