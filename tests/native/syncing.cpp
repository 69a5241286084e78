// Syncs: each is heard of once, with what became of it, whoever begins how many and whenever they are closed.
#include <fcntl.h>
#include <poll.h>

#include <set>

#include "check.hpp"
#include "syncs.hpp"

using namespace hawser;
using namespace testing;

static std::vector<Synced> wait_for(Syncs& syncs, size_t count) {
  std::vector<Synced> heard;
  while (heard.size() < count) {
    pollfd waiting{syncs.descriptor(), POLLIN, 0};
    CHECK(poll(&waiting, 1, 60'000) == 1);
    for (const Synced& each : syncs.ended()) heard.push_back(each);
  }
  return heard;
}

static void each_is_heard_of_once() {
  constexpr uint64_t kRounds = 50, kAtOnce = 20;
  char path[] = "/tmp/hawser-syncing-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0 && unlink(path) == 0);
  Syncs syncs(4);
  std::set<uint64_t> heard;
  for (uint64_t round = 0; round < kRounds; round++) {
    std::vector<Sync> wanted;
    for (uint64_t i = 0; i < kAtOnce; i++) wanted.push_back({round * kAtOnce + i, {file, file}});
    syncs.begin(std::move(wanted));
    for (const Synced& each : wait_for(syncs, kAtOnce)) {
      CHECK(each.error == 0 && each.nanoseconds >= 0);
      CHECK(heard.insert(each.number).second);
    }
  }
  CHECK(heard.size() == kRounds * kAtOnce && *heard.rbegin() == kRounds * kAtOnce - 1);
  CHECK(syncs.ended().empty());
  close(file);
}

static void the_first_error_is_told() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  Syncs syncs(1);
  syncs.begin({{1, {ends[0], -1}}, {2, {-1, ends[0]}}, {3, {}}});
  for (const Synced& each : wait_for(syncs, 3))
    CHECK(each.error == (each.number == 1 ? EINVAL : each.number == 2 ? EBADF : 0));
  close(ends[0]);
  close(ends[1]);
}

static void threads_outlive_whoever_made_them() {
  for (int i = 0; i < 100; i++) {
    Syncs syncs(3);
    syncs.begin({{1, {-1}}, {2, {-1}}, {3, {-1}}, {4, {-1}}});
  }
}

static void closed_it_takes_nothing() {
  Syncs syncs(1);
  syncs.close();
  syncs.close();
  std::vector<Sync> wanted{{1, {}}};
  THROWN(closed, syncs.begin(wanted));
}

int main() {
  return run({{"each is heard of once", each_is_heard_of_once},
              {"the first error is told", the_first_error_is_told},
              {"threads outlive whoever made them", threads_outlive_whoever_made_them},
              {"closed it takes nothing", closed_it_takes_nothing}});
}
