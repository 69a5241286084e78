// What the samples of this test say: who wrote them and which of its samples they are; and the ledger, which
// knows what must be in every one.
#pragma once

#include <algorithm>
#include <vector>

#include "joining.hpp"
#include "reading.hpp"
#include "tracee.hpp"

namespace crash {

enum Origin : uint64_t { kWriter = 1, kActor = 2, kNewcomer = 3, kDead = 4, kOrigins = 5 };
constexpr uint64_t kContentBytes = 64;

struct Content {
  uint64_t origin = 0;
  uint64_t number = 0;  // 1, 2, 3, ... of that origin
  bool operator==(const Content&) const = default;
};

inline void write_content(uint8_t* to, Content content) {
  uint64_t words[kContentBytes / 8] = {content.origin, content.number};
  for (size_t i = 2; i < std::size(words); i++) words[i] = hawser::mix(content.origin << 32 | content.number, i);
  std::memcpy(to, words, sizeof words);
}

inline Content read_content(const uint8_t* from) {
  uint64_t words[kContentBytes / 8];
  std::memcpy(words, from, sizeof words);
  const Content content{words[0], words[1]};
  uint8_t expected[kContentBytes];
  write_content(expected, content);
  require(content.origin >= kWriter && content.origin < kOrigins && std::memcmp(expected, from, kContentBytes) == 0,
          "bytes that nobody published");
  return content;
}

// Take and check without waiting; false when there is nothing.
inline bool take(hawser::Subscriber& subscriber, hawser::Taken& taken) {
  const bool there = subscriber.try_take(taken);
  subscriber.settle();
  return there;
}

// Every sample ever delivered, in order; filled by a reliable subscriber, which loses none.
class Ledger {
 public:
  void deliver(uint64_t sequence, Content content) {
    require(sequence == delivered_.size() + 1, "sample " + std::to_string(sequence) + " after " +
                                                   std::to_string(delivered_.size()) + ": not dense");
    require(content.number == last_[content.origin] + 1,
            "origin " + std::to_string(content.origin) + " delivered number " + std::to_string(content.number) + " after " +
                std::to_string(last_[content.origin]));
    last_[content.origin]++;
    delivered_.push_back(content);
  }
  // What a call to publish promised.
  void promise(uint64_t sequence, Content content) { promised_.push_back({sequence, content}); }
  void check_promises() {
    for (const auto& [sequence, content] : promised_) check(sequence, content);
    promised_.clear();
  }
  void check(uint64_t sequence, Content content) const {
    require(sequence >= 1 && sequence <= delivered_.size() && delivered_[sequence - 1] == content,
            "sample " + std::to_string(sequence) + " is not what was published there");
  }
  uint64_t newest() const { return delivered_.size(); }
  uint64_t count(Origin origin) const { return last_[origin]; }

 private:
  std::vector<Content> delivered_;
  std::vector<std::pair<uint64_t, Content>> promised_;
  uint64_t last_[kOrigins] = {};
};

}  // namespace crash
