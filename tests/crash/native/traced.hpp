// The trace of a scene: read when somebody was killed or stopped anywhere in it, it must tell what happened, in an order
// in which it can have happened, and every event that it does not tell must be a position that it knows to be lost.
#pragma once

#include <map>
#include <set>

#include "content.hpp"
#include "joining.hpp"

namespace crash {

inline bool traced = false;  // chosen when the program starts

class Trace {
 public:
  explicit Trace(const std::string& directory) {
    if (!traced) return;
    const std::string path = directory + "/.trace";
    unlink(path.c_str());
    file_ = hawser::TraceFile::create(path, kRecords, false);
    bytes_.emplace(hawser::open_existing(path), 0, hawser::kPage + kRecords * hawser::kTraceRecordBytes, false);
  }

  void follow(const hawser::Region& region) const {
    if (file_) region.memory().header().tracing.ring = file_->ring().identity() | 1;
  }
  size_t size() const { return file_ ? hawser::kPage + kRecords * hawser::kTraceRecordBytes : 0; }
  const uint8_t* bytes() const { return file_ ? bytes_->address() : nullptr; }

  // `finished`: nobody was killed in the middle of anything, so that nothing is lost.
  void check(const std::vector<const hawser::Region*>& regions, bool finished) {
    if (!file_) return;
    read();
    require(lost_ <= (finished ? 0 : 1), std::to_string(lost_) + " positions of the trace are lost");
    uint64_t untold = 0;
    for (const hawser::Region* region : regions) untold += check_region(*region);
    require(untold <= lost_, std::to_string(untold) + " events are missing in the trace, which has lost " + std::to_string(lost_));
    require(regions[0]->memory().header().tracing.unwritten.load_ordered() == 0, "records were not written");
  }

 private:
  using Kind = hawser::TraceKind;

  // Of a sample: published, and taken by somebody before that was told.
  struct Message {
    bool is_put = false, is_claimed = false, is_done = false;
  };

  void read() {
    hawser::TraceReader reader(file_->ring());
    const uint64_t head = file_->ring().head();
    require(head <= kRecords, "the trace is too long for its ring");
    records_.clear();
    lost_ = 0;
    int64_t now = 0;
    for (uint64_t position = 0; position < head; now += hawser::kTraceHoleNanoseconds) {
      std::vector<hawser::TraceWords> found;
      const uint64_t first = reader.read(position, UINT64_MAX, now, found);
      lost_ += first - position;
      position = first + found.size();
      records_.insert(records_.end(), found.begin(), found.end());
    }
  }

  // How many events are not told, each of which has a lost position.
  uint64_t check_region(const hawser::Region& region) const {
    std::map<uint64_t, Message> messages;
    std::map<uint64_t, uint64_t> cursors;
    std::set<uint64_t> recovered;
    uint64_t untold = 0;
    for (const hawser::TraceWords& words : records_) {
      const auto kind = static_cast<Kind>(words[5] & 0xff);
      require(kind >= Kind::publish && kind <= Kind::nothing && words[1] != 0, "the trace has a record that nobody wrote");
      if (words[2] != region.number() || kind == Kind::nothing) continue;
      if (kind == Kind::recover) require(recovered.insert(words[6]).second, "one death was recovered twice");
      if (kind == Kind::subscribe) cursors[words[4]] = words[3];
      Message& message = messages[words[3]];
      untold += region.memory().layout.queue ? follow_message(kind, message) : follow_sample(words, kind, message, cursors[words[4]]);
    }
    messages.erase(0);
    const uint64_t head = hawser::next_place(region.memory()).head;
    for (uint64_t sequence = 1; sequence <= head; sequence++) {
      const Message& message = messages[sequence];
      untold += !message.is_put || (region.memory().layout.queue && !is_as_told(region.memory(), sequence, message));
    }
    require(messages.size() == head, "the trace tells of messages that do not exist");
    return untold;
  }

  // Whether that is what the queue says of it: a message that no slot has any more is done.
  static bool is_as_told(const hawser::Memory& memory, uint64_t sequence, const Message& message) {
    for (uint32_t i = 0; i < memory.layout.slots; i++) {
      const uint64_t claim = memory.claim(i).load_ordered();
      if (memory.slot(i).sequence.load_ordered() != sequence || hawser::claim_tag(claim) != sequence) continue;
      return message.is_done == (hawser::claim_state(claim) == hawser::ClaimState::done) &&
             message.is_claimed == (hawser::claim_state(claim) == hawser::ClaimState::claimed);
    }
    return message.is_done;
  }

  // Whether something that must have come before was not told.
  static bool follow_message(Kind kind, Message& message) {
    const Message before = message;
    switch (kind) {
      case Kind::put:
        require(!before.is_put && !before.is_claimed && !before.is_done, "one message was put twice, or after it was claimed");
        message.is_put = true;
        return false;
      case Kind::claim:
        require(!before.is_done, "a message was claimed that was done");
        message.is_claimed = true;
        return before.is_claimed;
      case Kind::accept:
      case Kind::moved:
        require(!before.is_done, "one message was done twice");
        message.is_done = true;
        message.is_claimed = false;
        return kind == Kind::accept && !before.is_claimed;
      case Kind::returned:
      case Kind::rejected:
        message.is_claimed = false;
        return !before.is_claimed;
      default:
        return false;
    }
  }

  static bool follow_sample(const hawser::TraceWords& words, Kind kind, Message& message, uint64_t& cursor) {
    switch (kind) {
      case Kind::publish:
        require(!message.is_put && !message.is_claimed, "one sample was published twice, or after it was taken");
        message.is_put = true;
        return false;
      case Kind::take:
        require(words[3] == cursor + 1, "a sample was taken out of turn");
        cursor = words[3];
        message.is_claimed |= !message.is_put;
        return false;
      case Kind::missed:
        require(words[3] - words[6] == cursor, "samples were missed out of turn");
        cursor = words[3];
        return false;
      default:
        return false;
    }
  }

  static constexpr uint64_t kRecords = 4096;
  std::shared_ptr<hawser::TraceFile> file_;
  std::optional<hawser::Mapping> bytes_;
  std::vector<hawser::TraceWords> records_;
  uint64_t lost_ = 0;
};

}  // namespace crash
