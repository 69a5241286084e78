// The native module, and Region in it. Types are in hawser/memory/_native.pyi.
#include "bind.hpp"

namespace hawser::python {

namespace {

bool is_queue(const nb::dict& given) {
  if (!given.contains("kind")) return false;
  const auto kind = nb::cast<std::string>(given["kind"]);
  if (kind != "topic" && kind != "queue") throw Error(Kind::usage, "kind is \"topic\" or \"queue\", not \"" + kind + "\"");
  return kind == "queue";
}

Settings settings_from(const nb::dict& given) {
  const auto number = [&](const char* name) { return nb::cast<uint64_t>(given[name]); };
  const auto small = [&](const char* name) {
    const uint64_t value = number(name);
    if (value > UINT32_MAX) throw Error(Kind::usage, std::string(name) + " is " + std::to_string(value) + ", far too large");
    return static_cast<uint32_t>(value);
  };
  Settings settings{number("slot_size"), small("history"),  small("depth"),     small("max_publishers"), small("max_subscribers"),
                    small("max_held"),   small("max_loans"), small("ephemeral"), small("group")};
  if (!is_queue(given)) return settings;
  settings.kind = kKindQueue;
  settings.max_deliveries = small("max_deliveries");
  settings.lease_ns = number("lease_ns");
  return settings;
}

nb::dict settings_of(const Region& region) {
  const Settings& settings = region.memory().layout.settings;
  nb::dict result;
  result["kind"] = region.memory().noun();
  result["slot_size"] = settings.slot_size;
  result["history"] = settings.history;
  result["depth"] = settings.depth;
  result["max_publishers"] = settings.max_publishers;
  result["max_subscribers"] = settings.max_subscribers;
  result["max_held"] = settings.max_held;
  result["max_loans"] = settings.max_loans;
  result["ephemeral"] = settings.ephemeral;
  result["group"] = settings.group;
  result["schema"] = nb::str(region.label().schema);
  if (settings.kind != kKindQueue) return result;
  result["max_deliveries"] = settings.max_deliveries;
  result["lease_ns"] = settings.lease_ns;
  result["dead_letter"] = nb::str(region.label().dead_letter);
  return result;
}

std::shared_ptr<Region> attach(const std::string& path, const std::string& lock_path, const std::string& name,
                               const nb::object& settings) {
  const Region::Place place{path, lock_path, name};
  if (settings.is_none()) {
    const GilReleased released;
    return Region::attach(place, nullptr, "");
  }
  const nb::dict given = nb::cast<nb::dict>(settings);
  const Settings wanted = settings_from(given);
  const auto schema = nb::cast<std::string>(given["schema"]);
  const std::string dead_letter = is_queue(given) ? nb::cast<std::string>(given["dead_letter"]) : "";
  if (std::max({name.size(), schema.size(), dead_letter.size()}) >= kTextBytes)
    throw Error(Kind::usage, "names and schemas have at most " + std::to_string(kTextBytes - 1) + " bytes");
  const GilReleased released;
  return Region::attach(place, &wanted, schema, dead_letter);
}

std::shared_ptr<Region> watch(const std::string& path, const std::string& lock_path, const std::string& name) {
  const GilReleased released;
  return Region::watch({path, lock_path, name});
}

nb::object make_publisher(const std::shared_ptr<Region>& region, const std::string& name, bool exclusive) {
  region->made().require();
  std::unique_ptr<Publisher> core;
  {
    const GilReleased released;
    core = join_as_publisher(*region, name, exclusive);
  }
  return nb::cast(new PublisherBox{region, std::move(core), name, nb::str(region->place().name.c_str()), {}, {}},
                  nb::rv_policy::take_ownership);
}

nb::object make_subscriber(const std::shared_ptr<Region>& region, const std::string& name, uint64_t history,
                           uint64_t start, int reliable, const std::string& record, bool commit, uint64_t max_lag,
                           uint32_t max_held, nb::object decode, bool tracer) {
  region->made().require();
  if (reliable == 2 && record.empty()) throw Error(Kind::usage, "a durable subscription needs a name to be kept under");
  const SubscribeOptions options{history, start, reliable != 0, reliable == 2, record, commit, max_lag, max_held, tracer};
  std::unique_ptr<Subscriber> core;
  {
    const GilReleased released;
    core = join_as_subscriber(*region, name, options);
  }
  return nb::cast(new SubscriberBox{region, std::move(core), name, std::move(decode)}, nb::rv_policy::take_ownership);
}

const char* kind_of(const Region& region, bool publisher) {
  if (region.memory().layout.queue) return publisher ? "producer" : "consumer";
  return publisher ? "publisher" : "subscriber";
}

nb::list participants(const Region& region) {
  region.made().require();
  nb::list result;
  for (const ParticipantView& view : view_participants(region)) {
    nb::dict one;
    one["index"] = view.index;
    one["kind"] = kind_of(region, view.publisher);
    one["name"] = text_of(view.name);
    one["pid"] = view.pid;
    one["uid"] = view.uid;
    one["incarnation"] = view.incarnation;
    one["state"] = view.state == EntryState::active ? "active" : "dead";
    one["alive"] = view.alive;
    one["started_ns"] = view.started_ns;
    one["joined_ns"] = view.joined_ns;
    one["reliable"] = view.durable ? "durable" : view.reliable ? "reliable" : "";
    one["cursor"] = view.cursor;
    one["count"] = view.count;
    one["missed"] = view.missed;
    one["held"] = view.held;
    result.append(one);
  }
  return result;
}

nb::list records(const Region& region) {
  region.made().require();
  nb::list result;
  for (const RecordView& view : view_records(region)) {
    nb::dict one;
    one["name"] = text_of(view.name);
    one["mark"] = view.mark;
    one["durable"] = view.durable;
    one["max_lag"] = view.max_lag;
    one["held"] = view.held;
    result.append(one);
  }
  return result;
}

nb::list recover(Region& region) {
  region.made().require();
  std::vector<Recovered> done;
  {
    const GilReleased released;
    done = region.recover();
  }
  nb::list result;
  for (const Recovered& recovered : done) {
    nb::dict one;
    one["kind"] = kind_of(region, region.memory().is_publisher(recovered.index));
    one["name"] = text_of(recovered.name);
    one["pid"] = recovered.pid;
    one["incarnation"] = recovered.incarnation;
    one["slots"] = recovered.loans;
    one["claims"] = recovered.claims;
    one["references"] = recovered.references;
    one["complete"] = recovered.complete;
    result.append(one);
  }
  return result;
}

nb::dict state(const Region& region) {
  region.made().require();
  const Memory& memory = region.memory();
  const uint64_t head = next_place(memory).head;
  const SlotCounts counts = count_slots(memory);
  nb::dict result;
  result["head"] = head;
  result["oldest"] = oldest_after(head, memory.layout.ring);
  result["ring"] = memory.layout.ring;
  result["slots"] = memory.layout.slots;
  result["slots_lent"] = counts.lent;
  result["slots_referenced"] = counts.referenced;
  result["slots_carried"] = counts.carried;
  result["slots_free"] = counts.free;
  result["slots_leaked"] = counts.leaked;
  result["file_bytes"] = memory.layout.total;
  result["resident_bytes"] = memory.closed() ? 0 : region.resident_bytes();
  result["created_ns"] = region.label().created_ns;
  result["recoveries"] = memory.header().announcement.word.load_ordered();
  return result;
}

nb::tuple glance(const Region& region) {
  region.made().require();
  const Glance seen = glance_at(region);
  return nb::make_tuple(seen.dead, seen.used);
}

nb::dict totals_of(const Totals& totals) {
  nb::dict result;
  result["alive"] = totals.alive;
  result["dead"] = totals.dead;
  result["count"] = totals.count;
  result["missed"] = totals.missed;
  result["deaths"] = totals.deaths;
  return result;
}

nb::tuple totals(const Region& region) {
  region.made().require();
  const RegionTotals found = view_totals(region);
  return nb::make_tuple(totals_of(found.publishers), totals_of(found.subscribers));
}

using Read = ReadSamples (*)(const Memory&, uint64_t, uint64_t);

nb::tuple read(const Region& region, Read function, uint64_t count, uint64_t after, nb::handle decode) {
  region.made().require();
  ReadSamples found;
  {
    const GilReleased released;
    found = function(region.memory(), count, after);
  }
  nb::list samples;
  for (const Copied& copied : found.samples) samples.append(nb::steal(copied_sample(copied, decode.ptr())));
  return nb::make_tuple(samples, found.last, found.missed);
}

std::string uuid_text(const Region& region) {
  const uint8_t* bytes = region.label().uuid;
  char text[37];
  snprintf(text, sizeof text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", bytes[0], bytes[1],
           bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8], bytes[9], bytes[10], bytes[11],
           bytes[12], bytes[13], bytes[14], bytes[15]);
  return text;
}

void bind_region(nb::module_& module) {
  nb::class_<Region>(module, "Region", nb::is_final())
      .def_static("attach", &attach, nb::arg("path"), nb::arg("lock_path"), nb::arg("name"), nb::arg("settings").none())
      .def_static("watch", &watch, nb::arg("path"), nb::arg("lock_path"), nb::arg("name"))
      .def_prop_ro("closed", [](const Region& self) { return self.memory().closed(); })
      .def_prop_ro("path", [](const Region& self) { return self.place().path; })
      .def_prop_ro("name", [](const Region& self) { return self.place().name; })
      .def_prop_ro("uuid", &uuid_text)
      .def_prop_ro("kind", [](const Region& self) { return self.memory().noun(); })
      .def("settings", &settings_of)
      .def("publisher", &make_publisher, nb::arg("name"), nb::kw_only(), nb::arg("exclusive") = false)
      .def("subscriber", &make_subscriber, nb::arg("name"), nb::kw_only(), nb::arg("history") = 0, nb::arg("start") = 0,
           nb::arg("reliable") = 0, nb::arg("record") = "", nb::arg("commit") = false, nb::arg("max_lag") = 0,
           nb::arg("max_held") = 0, nb::arg("decode") = nb::none(), nb::arg("tracer") = false)
      .def_prop_ro("tracing", &tracing_of)
      .def("trace", &trace_region, nb::arg("ring").none(), nb::arg("level") = 1, nb::kw_only(),
           nb::arg("only_from").none() = nb::none())
      .def("consumer", &make_consumer, nb::arg("name"), nb::kw_only(), nb::arg("max_held") = 0,
           nb::arg("decode") = nb::none(), nb::arg("dying") = nb::none(), nb::arg("reserve") = false)
      .def("queue_state", &queue_state)
      .def("pinning", &pinning)
      .def("unpin", &unpin, nb::arg("number"))
      .def("peek", &peek_messages, nb::arg("count"), nb::arg("decode").none() = nb::none())
      .def("participants", &participants)
      .def("participant_name", [](const Region& self, uint64_t owner) {
             self.made().require();
             return text_of(participant_name(self.memory(), owner)); }, nb::arg("owner"))
      .def("records", &records)
      .def("forget", [](Region& self, const std::string& record) {
             self.made().require();
             return forget_record(self, record); }, nb::arg("record"))
      .def("recover", &recover)
      .def("state", &state)
      .def("glance", &glance)
      .def("totals", &totals)
      .def("read_oldest", [](const Region& self, uint64_t count, uint64_t after, nb::handle decode) {
             return read(self, read_oldest, count, after, decode); },
           nb::arg("count"), nb::arg("after"), nb::arg("decode").none() = nb::none())
      .def("read_newest", [](const Region& self, uint64_t count, uint64_t after, nb::handle decode) {
             return read(self, read_newest, count, after, decode); },
           nb::arg("count"), nb::arg("after"), nb::arg("decode").none() = nb::none())
      .def("offset_at", [](const Region& self, uint64_t timestamp_ns) {
             self.made().require();
             return offset_at(self.memory(), timestamp_ns); },
           nb::arg("timestamp_ns"))
      .def("remove", [](Region& self, bool force) {
             self.made().require();
             const GilReleased released;
             return self.remove(force); }, nb::arg("force"))
      .def("close", [](Region& self) {
             const GilReleased released;
             self.close(); });
}

}  // namespace

nb::object error_class(Kind kind) {
  static constexpr const char* names[] = {"UsageError", "NotFound", "Full", "Closed", "Timeout", "Corrupt",
                                          "PermissionDenied", "SettingsMismatch", "OffsetOutOfRange", "Unavailable", "Fenced"};
  return nb::module_::import_("hawser.errors").attr(names[static_cast<int>(kind)]);
}

void set_python_error(const Error& error) {
  try {
    const nb::object type = error_class(error.kind());
    PyErr_SetObject(type.ptr(), text_of(error.what()).ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

}  // namespace hawser::python

NB_MODULE(_native, module) {
  using namespace hawser;
  using namespace hawser::python;
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
  module.attr("FORMAT_VERSION") = kFormatVersion;
  module.def("boot_id", &boot_id);
  module.def("configure", [](nb::type_object receipt_type, nb::object as_payload, nb::object encode_metadata,
                             nb::object decode_metadata) {
        configuration.receipt_type = reinterpret_cast<PyTypeObject*>(receipt_type.release().ptr());
        configuration.as_payload = as_payload.release().ptr();
        configuration.encode_metadata = encode_metadata.release().ptr();
        configuration.decode_metadata = decode_metadata.release().ptr();
        configuration.durability = PyUnicode_InternFromString("process");
      }, nb::arg("receipt_type"), nb::arg("as_payload"), nb::arg("encode_metadata"), nb::arg("decode_metadata"));
  add_sample_types(module.ptr());
  bind_region(module);
  bind_publishing(module);
  bind_subscribing(module);
  bind_consuming(module);
  bind_waiting(module);
  bind_tracing(module);
  bind_syncing(module);
}
