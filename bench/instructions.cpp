// Publishes, takes and releases in functions of their own, for callgrind to count; or for the clock, traced and not.
// Usage: instructions DIRECTORY [time]; the topic is made there.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include "joining.hpp"

namespace {

constexpr uint32_t kHeld = 64;
constexpr uint32_t kRounds = 64;  // kHeld * kRounds operations of each kind are counted
constexpr uint32_t kWarmRounds = 16;
constexpr uint64_t kBytes = 64;

hawser::Publisher* publisher;
hawser::Subscriber* subscriber;
std::array<hawser::Taken, kHeld> taken;

void publish_one() {
  static const std::array<uint8_t, kBytes> message{};
  const uint32_t slot = publisher->borrow(kBytes, 2);
  std::memcpy(publisher->payload(slot), message.data(), kBytes);
  publisher->try_publish(slot, kBytes, 0);
  publisher->put_back(slot);
  publisher->wake_subscribers();
}

}  // namespace

extern "C" {

__attribute__((noinline)) void measured_publish() {
  for (uint32_t i = 0; i < kHeld; i++) publish_one();
}

__attribute__((noinline)) void measured_take() {
  for (auto& one : taken) {
    if (!subscriber->try_take(one)) std::abort();
    subscriber->settle();
  }
}

__attribute__((noinline)) void measured_release() {
  for (const auto& one : taken) subscriber->release(one.slot, one.sequence);
}
}

// Nanoseconds of one of each: the best of many rounds, because others use the machine, too.
static std::array<double, 3> times() {
  std::array<double, 3> best{1e9, 1e9, 1e9};
  for (uint32_t round = 0; round < 32 * kRounds; round++) {
    const std::array<int64_t, 4> at{hawser::monotonic_now(), (measured_publish(), hawser::monotonic_now()),
                                    (measured_take(), hawser::monotonic_now()), (measured_release(), hawser::monotonic_now())};
    for (size_t i = 0; i < best.size(); i++) best[i] = std::min(best[i], static_cast<double>(at[i + 1] - at[i]) / kHeld);
  }
  return best;
}

static void print_times(hawser::Region& region, const std::string& directory) {
  const auto plain = times();
  const auto trace = hawser::TraceFile::create(directory + "/.trace", 65'536, false);
  hawser::switch_tracing(region.memory(), 0, trace->ring().identity() | 1);
  const auto traced = times();
  std::printf("{\"publish\": [%.1f, %.1f], \"take\": [%.1f, %.1f], \"release\": [%.1f, %.1f]}\n", plain[0], traced[0], plain[1],
              traced[1], plain[2], traced[2]);
}

int main(int count, char** arguments) {
  if (count != 2 && count != 3) return 2;
  const std::string directory = arguments[1];
  const hawser::Settings settings{
      .slot_size = kBytes, .history = 0, .depth = 256, .max_publishers = 2, .max_subscribers = 8,
      .max_held = kHeld, .max_loans = 2, .ephemeral = 0, .group = 0};
  const hawser::Region::Place place{directory + "/counted.topic", directory + "/.lock", "counted"};
  const auto region = hawser::Region::attach(place, &settings, "");
  const auto owned_publisher = hawser::join_as_publisher(*region, "publisher", false);
  hawser::SubscribeOptions options;
  options.reliable = true;
  const auto owned_subscriber = hawser::join_as_subscriber(*region, "subscriber", options);
  publisher = owned_publisher.get();
  subscriber = owned_subscriber.get();
  for (uint32_t i = 0; i < kWarmRounds * kHeld; i++) {  // slots are backed and signed by their first use
    publish_one();
    if (!subscriber->try_take(taken[0])) return 1;
    subscriber->settle();
    subscriber->release(taken[0].slot, taken[0].sequence);
  }
  for (uint32_t round = 0; round < kRounds && count == 2; round++) {
    measured_publish();
    measured_take();
    measured_release();
  }
  if (count == 3) print_times(*region, directory);
  subscriber->close();
  publisher->close();
  region->remove(true);
  return 0;
}
