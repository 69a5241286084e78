// Claiming, as single calls, batches and loops have it in common: waiting for messages, and going on behind the first.
#pragma once

#include "bind.hpp"

namespace hawser::python {

// Look for what came back without a word: from who is stopped, and from the dead if any participant holds messages. Every
// consumer does so now and then, however busy it is: others may be dead with messages for ever.
inline void look_for_returns(ConsumerBox& box) {
  box.looked_at = coarse_now();
  box.core->look_around();
  if (box.core->others_hold()) recover_quietly(*box.region);
}
constexpr uint32_t kCallsALook = 16;  // that find a message; a look at the clock is not for nothing
inline bool look_is_due(const ConsumerBox& box) { return coarse_now() - box.looked_at >= kSliceNanoseconds; }

// Sleep until there may be a message. False: the time is over.
inline bool wait_for_message(ConsumerBox& box, const Deadline& deadline, int pauses) {
  if (deadline.over()) return false;
  without_gil([&] { box.core->wait_for_message(deadline.slice(), pauses); });
  if (box.core->ready()) return true;
  box.core->confirm_nothing();
  look_for_returns(box);
  return true;
}

// Whatever happens: producers that wait for us learn how far we are.
struct SettleLater {
  Consumer& core;
  ~SettleLater() { core.settle(); }
};

// With fewer messages ahead a consumer keeps its distance.
constexpr uint64_t kFewForOne = 8, kFewForMany = 64;
inline uint64_t few_of(int64_t count) { return std::min(static_cast<uint64_t>(count), kFewForMany); }

// What `attempt` gets, tried at once and whenever there may be a message; not valid when the time is over.
template <class Attempt>
nb::object wait_and_claim(ConsumerBox& box, const Deadline& deadline, int pauses, uint64_t few, const Attempt& attempt) {
  box.region->made().require();
  const SettleLater later{*box.core};
  if (++box.calls % kCallsALook == 0 && look_is_due(box)) look_for_returns(box);
  if (box.core->caught_up() && !deadline.over()) box.core->keep_distance(few);
  for (;;) {
    nb::object result = attempt();  // dropped, and so given back, if what follows is interrupted
    tell_of_the_dying(box);
    if (result.is_valid()) {
      box.core->prefetch();
      return result;
    }
    if (look_is_due(box)) {
      look_for_returns(box);
    } else if (!wait_for_message(box, deadline, pauses)) {
      break;
    }
  }
  box.core->confirm_nothing();
  return {};
}

// Whether a batch that has `size` messages takes another one: it ends with what was there when it had its first.
inline bool goes_on(ConsumerBox& box, size_t size) {
  if (size == 1) box.core->look_ahead();
  return size == 0 || !box.core->caught_up();
}

// Calls `more(most)`, which says how many it got, until there are `count`, the first of which is there, or it gets
// nothing. What was claimed is not lost to an error of one that comes later: the next call meets it.
template <class More>
void claim_more(ConsumerBox& box, int64_t count, const More& more) {
  const auto end = std::min<int64_t>(count, 1 + int64_t{box.core->free_places()});
  try {
    for (int64_t i = 1, got = 1; got != 0 && i < end && goes_on(box, static_cast<size_t>(i)); i += got) {
      box.core->prefetch();
      got = more(end - i);
    }
  } catch (const Error&) {
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
  }
}

// A claim whose message is no longer read goes back.
inline void give_back_copy(Consumer& core, const Claimed& claimed) {
  core.release(claimed);
  core.let_go_of_copy();
  if (core.closing()) core.close();
}

// The value of a message, and its claim, which is the caller's from then on; the bytes go with the last view. A message
// whose value cannot be made goes back at once, since the error may refer to it for long; if `uncounted`, as if it had
// not been claimed.
inline nb::object value_and_claim(const nb::object& message, ConsumerBox& box, Claimed& claimed, bool uncounted) {
  auto* sample = reinterpret_cast<SampleObject*>(message.ptr());
  nb::object value = nb::steal(PyObject_GetAttrString(message.ptr(), "value"));
  if (!value.is_valid()) {
    nb::python_error error;
    if (uncounted) {
      box.core->release_uncounted(take_claim(sample));
      let_go_of(sample);
      if (PyErr_Occurred()) throw nb::python_error();
    } else {
      settle_message(message.ptr(), box, Verdict::release);
    }
    tell_of_the_dying(box);
    throw error;
  }
  claimed = take_claim(sample);
  box.core->keep_copy();
  let_go_of(sample);
  if (!PyErr_Occurred()) [[likely]] return value;
  nb::python_error error;  // its bytes may have changed
  give_back_copy(*box.core, claimed);
  throw error;
}

}  // namespace hawser::python
