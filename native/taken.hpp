// A message in hand: where it is and what its slot says about it.
#pragma once

#include <cstdint>

namespace hawser {

struct Taken {
  uint32_t slot;
  uint64_t sequence;
  uint64_t payload;
  uint32_t metadata;
  uint64_t timestamp_ns;
  uint64_t publisher;
  uint64_t lost_before;
};

// A sample that is about to be copied, as its slot describes it, and where its parts go to: a null payload leaves
// the sample where it is, null metadata leaves that out.
struct Copyable {
  uint64_t sequence;
  uint64_t payload;
  uint32_t metadata;
  uint64_t timestamp_ns;
};
struct CopyPlaces {
  char* payload;
  char* metadata;
};

}  // namespace hawser
