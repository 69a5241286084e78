// Messages as the columns of a batch, for subscribers and consumers.
#pragma once

#include "bind.hpp"

namespace hawser::python {

// Messages as the columns of a batch (hawser/record/batch_body.py), copied out of the ring once.
class Columns {
 public:
  Columns(int64_t count, int64_t nbytes)
      : count_(static_cast<size_t>(count)),
        room_(static_cast<uint64_t>(nbytes)),
        values_(nb::steal(PyBytes_FromStringAndSize(nullptr, nbytes))) {
    if (!values_.is_valid()) throw nb::python_error();
  }
  // What is there. False: nothing. What was copied before an error is not lost to it: the next call meets it.
  // `copy(room)` copies the next message to where `room(copyable)` says; false: there is none, or no room.
  template <class Box, class Copy>
  bool fill(Box& box, const Copy& copy) {
    try {
      while (timestamps_.size() < count_ && copy_one(copy)) box.core->prefetch();
    } catch (const Error&) {
      if (timestamps_.empty()) throw;
    }
    return is_full_ || !timestamps_.empty();
  }
  bool drained() const { return !timestamps_.empty() && timestamps_.size() < count_ && !is_full_; }
  nb::tuple finish() {
    PyObject* values = values_.release().ptr();
    if (_PyBytes_Resize(&values, offsets_.back()) != 0) throw nb::python_error();
    return nb::make_tuple(first_, bytes_of(timestamps_), bytes_of(offsets_), nb::steal(values), metadata());
  }

 private:
  template <class Copy>
  bool copy_one(const Copy& copy) {
    Copyable copied{};
    const bool there = copy([&](const Copyable& found) {
      copied = found;
      const uint64_t used = static_cast<uint64_t>(offsets_.back());
      is_full_ = used + metadata_ends_.back() + found.payload + found.metadata > room_ ||
                 (!timestamps_.empty() && found.sequence != first_ + timestamps_.size());
      if (is_full_) return CopyPlaces{};
      metadata_.resize(metadata_ends_.back() + found.metadata);
      return CopyPlaces{PyBytes_AS_STRING(values_.ptr()) + used, metadata_.data() + metadata_ends_.back()};
    });
    if (!there) return false;
    if (timestamps_.empty()) first_ = copied.sequence;
    timestamps_.push_back(copied.timestamp_ns);
    offsets_.push_back(offsets_.back() + static_cast<int32_t>(copied.payload));
    metadata_ends_.push_back(metadata_ends_.back() + copied.metadata);
    return true;
  }
  template <class Number>
  static nb::bytes bytes_of(const std::vector<Number>& numbers) {
    return nb::bytes(numbers.data(), numbers.size() * sizeof(Number));
  }
  nb::object metadata() const {
    if (metadata_ends_.back() == 0) return nb::none();
    nb::list each;
    for (size_t i = 0; i + 1 < metadata_ends_.size(); i++)
      each.append(nb::bytes(metadata_.data() + metadata_ends_[i], metadata_ends_[i + 1] - metadata_ends_[i]));
    return each;
  }

  size_t count_;
  uint64_t room_;
  nb::object values_;
  uint64_t first_ = 0;
  std::vector<uint64_t> timestamps_;
  std::vector<int32_t> offsets_{0};
  std::string metadata_;
  std::vector<size_t> metadata_ends_{0};
  bool is_full_ = false;  // the next one does not fit, or does not follow the last one
};

}  // namespace hawser::python
