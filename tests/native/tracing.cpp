// The trace ring: whole records or none, each position read or lost, whoever is killed, stopped or overtaken; and
// what the trace points of topics and queues write.
//
// Usage: tracing [rounds]
#include <map>
#include <thread>

#include "check.hpp"
#include "heap_topic.hpp"
#include "trace_file.hpp"

using namespace testing;

namespace {

constexpr int64_t kSecond = kTraceHoleNanoseconds;
uint64_t rounds = 60;

class HeapRing {
 public:
  explicit HeapRing(uint64_t records) : words_(records * kTraceWords), ring_(head_, words_.data(), records, 4) {}
  const TraceRing& ring() const { return ring_; }
  Word& word(uint64_t position, uint32_t number) {
    return words_[(position & (ring_.records() - 1)) * kTraceWords + number];
  }

 private:
  Word head_{};
  std::vector<Word> words_;
  const TraceRing ring_;
};

class HeapTracer : public Tracer {
 public:
  HeapTracer(const HeapRing& ring, uint64_t region) : Tracer(region), ring_(ring.ring()) {}
  const TraceRing* map(uint64_t identity) noexcept override {
    return can_map && identity == ring_.identity() ? &ring_ : nullptr;
  }
  bool can_map = true;

 private:
  const TraceRing& ring_;
};

// Words that belong together: all but the first follow from it.
TraceWords content(uint64_t seed) { return {0, seed, mix(seed, 1), mix(seed, 2), mix(seed, 3), mix(seed, 4), mix(seed, 5), 0}; }
bool is_true(const TraceWords& words) {
  const TraceWords expected = content(words[1]);
  return std::equal(words.begin() + 1, words.begin() + 7, expected.begin() + 1);
}

void write_next(const HeapRing& ring, uint64_t seed) { ring.ring().write(ring.ring().take_position(), content(seed)); }

std::vector<TraceWords> all_of(TraceReader& reader, uint64_t& position, int64_t now = 0) {
  std::vector<TraceWords> found;
  position = reader.read(position, UINT64_MAX, now, found);
  position += found.size();
  return found;
}

void every_record_is_read_once() {
  HeapRing ring(16);
  TraceReader reader(ring.ring());
  uint64_t position = 0;
  CHECK(all_of(reader, position).empty() && position == 0);
  for (uint64_t lap = 0; lap < 5; lap++) {
    for (uint64_t i = 0; i < 16; i++) write_next(ring, lap * 16 + i);
    std::vector<TraceWords> found;
    CHECK(reader.read(position, 7, 0, found) == position && found.size() == 7);
    for (const TraceWords& words : all_of(reader, position += 7)) found.push_back(words);
    CHECK(found.size() == 16 && position == ring.ring().head());
    for (uint64_t i = 0; i < 16; i++) CHECK(found[i][0] == lap * 16 + i + 1 && found[i][1] == lap * 16 + i && is_true(found[i]));
  }
  THROWN(corrupt, all_of(reader, ++position));
}

void a_lapped_reader_knows_what_it_lost() {
  HeapRing ring(16);
  TraceReader reader(ring.ring());
  for (uint64_t i = 0; i < 100; i++) write_next(ring, i);
  std::vector<TraceWords> found;
  CHECK(reader.read(3, UINT64_MAX, 0, found) == 84 && found.size() == 16 && found[0][1] == 84);
}

// A writer that is stopped after each of its words, and comes back when others have used its place.
void nothing_false_comes_of_an_overtaken_writer() {
  for (uint32_t written = 0; written <= kTraceWords; written++) {
    HeapRing ring(16);
    const uint64_t slow = ring.ring().take_position();
    TraceWords late = content(1000);
    late[0] = slow + 1;
    late[7] = trace_check(late);
    for (uint32_t i = 0; i < written; i++) ring.word(slow, i).store_relaxed(late[i]);
    for (uint64_t i = 1; i < 20; i++) write_next(ring, i);
    for (uint32_t i = written; i < kTraceWords; i++) ring.word(slow, i).store_relaxed(late[i]);
    TraceReader reader(ring.ring());
    uint64_t position = 4, count = 0, lost = 0;
    for (const int64_t now : {int64_t{0}, int64_t{1}, 1 + kSecond})
      for (uint64_t before = position; const TraceWords& words : all_of(reader, position, now)) {
        CHECK(is_true(words) && words[0] == words[1] + 1);
        lost += words[0] - 1 - before;
        before = words[0];
        count++;
      }
    CHECK(position == 20 && count + lost == 16 && lost == (written < kTraceWords));
  }
}

void a_hole_is_lost_after_a_second() {
  HeapRing ring(64);
  for (uint64_t i = 0; i < 40; i++) {
    if (i == 5 || i == 6 || i == 20) ring.ring().take_position();
    write_next(ring, i);
  }
  TraceReader reader(ring.ring());
  uint64_t position = 0;
  CHECK(all_of(reader, position, 100).size() == 5 && position == 5);
  CHECK(all_of(reader, position, 100).empty() && all_of(reader, position, 99 + kSecond).empty() && position == 5);
  std::vector<TraceWords> found;
  CHECK(reader.read(position, UINT64_MAX, 100 + kSecond, found) == 6 && found[0][1] == 5);
  ring.ring().take_position();  // a newer hole is not as old
  write_next(ring, 40);
  uint64_t count = 0;
  for (position = 6; position < 43; count++) {
    const size_t size = all_of(reader, position, 100 + kSecond).size();
    if (size == 0) break;
  }
  CHECK(position == 43 && all_of(reader, position, 100 + kSecond).empty());
  CHECK(all_of(reader, position, 100 + 2 * kSecond).size() == 1 && position == 45);
}

// Several writers, some of which stop in the middle of a record for a while, and one reader.
void writers_overtake_each_other() {
  HeapRing ring(64);
  std::atomic<uint32_t> working{4};
  const auto work = [&](uint64_t number) {
    for (uint64_t i = 0; i < rounds * 100; i++) {
      const uint64_t position = ring.ring().take_position();
      TraceWords words = content(number << 32 | i);
      if (number == 0 && i % 16 == 0) {
        words[0] = position + 1;
        words[7] = trace_check(words);
        const uint64_t until = position + 64 + i / 16 % 3 * 64;
        for (uint32_t j = 0; j < kTraceWords; j++) {
          ring.word(position, j).store_relaxed(words[j]);
          if (j == i / 16 % kTraceWords) while (ring.ring().head() < until && working > 1) std::this_thread::yield();
        }
      } else {
        ring.ring().write(position, words);
      }
      if (i % 4 == 0) std::this_thread::yield();  // to the reader
    }
    working--;
  };
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 4; number++) threads.emplace_back(work, number);
  TraceReader reader(ring.ring());
  uint64_t position = 0, count = 0;
  int64_t now = 0;
  std::map<uint64_t, uint64_t> last;
  for (bool more = true; more; now += kSecond / 4) {
    more = working != 0 || position < ring.ring().head();
    std::vector<TraceWords> found;
    const uint64_t first = reader.read(position, UINT64_MAX, now, found);
    CHECK(first >= position);
    position = first;
    if (found.empty()) std::this_thread::yield();
    for (const TraceWords& words : found) {
      CHECK(words[0] == ++position && is_true(words));
      uint64_t& before = last[words[1] >> 32];
      CHECK(before < (words[1] & UINT32_MAX) + 1);
      before = (words[1] & UINT32_MAX) + 1;
      count++;
    }
  }
  for (auto& thread : threads) thread.join();
  CHECK(position == rounds * 400 && count > 0);
  std::printf("records=%llu read=%llu\n", static_cast<unsigned long long>(position), static_cast<unsigned long long>(count));
}

struct Traced : HeapTopic {
  explicit Traced(const Settings& settings = small_settings()) : HeapTopic(settings) {
    trace_to(&tracer);
    header().tracing.ring = ring.ring().identity() | 1;
  }
  Header& header() const { return memory().header(); }
  // Kinds and sequences since the last call.
  std::vector<std::pair<TraceKind, uint64_t>> told() {
    std::vector<std::pair<TraceKind, uint64_t>> result;
    for (const TraceWords& words : all_of(reader, position)) {
      CHECK(words[2] == 77 && words[5] >> 32 == static_cast<uint64_t>(getpid()));
      result.emplace_back(static_cast<TraceKind>(words[5] & 0xff), words[3]);
    }
    return result;
  }
  HeapRing ring{256};
  HeapTracer tracer{ring, 77};
  TraceReader reader{ring.ring()};
  uint64_t position = 0;
};
using Told = std::vector<std::pair<TraceKind, uint64_t>>;
using Is = TraceKind;

void what_a_topic_tells() {
  Traced topic;
  auto publisher = topic.publisher();
  const auto subscriber = topic.subscriber();
  CHECK((topic.told() == Told{{Is::subscribe, 0}, {Is::subscribe, 0}}));
  for (uint64_t i = 1; i <= 2; i++) publish(*publisher, i);
  Taken taken{};
  CHECK(take(*subscriber, taken) && subscriber->release(taken.slot, taken.sequence));
  char byte[8];
  CHECK(subscriber->try_copy([&](uint64_t) { return byte; }) == Subscriber::Copy::copied);
  CHECK((topic.told() == Told{{Is::publish, 1}, {Is::publish, 2}, {Is::take, 1}, {Is::release, 1}, {Is::take, 2}}));
  for (uint64_t i = 3; i <= 9; i++) publish(*publisher, i);
  topic.told();
  CHECK(subscriber->try_take(taken) && taken.lost_before == 3 && subscriber->put_back(taken));
  CHECK((topic.told() == Told{{Is::missed, 5}, {Is::take, 6}, {Is::returned, 6}}));
  subscriber->release(taken.slot, taken.sequence);
  die(publisher);
  topic.recover();
  topic.recover();
  subscriber->close();
  CHECK((topic.told() == Told{{Is::release, 6}, {Is::recover, 0}, {Is::unsubscribe, 5}}));
  topic.header().tracing.ring = 0;
  publish(*topic.publisher(), 10);
  CHECK(topic.told().empty() && topic.header().tracing.unwritten.load_relaxed() == 0);
  topic.header().tracing.ring = 8 | 1;  // another ring, which cannot be found
  const auto another = topic.publisher();
  publish(*another, 11);
  CHECK(topic.told().empty() && topic.header().tracing.unwritten.load_relaxed() == 2);
}

// A ring that can be mapped when the thing has happened, and not before: it is counted, because a position that is taken
// then would not be missed.
void what_has_no_position_is_counted() {
  Traced topic;
  topic.tracer.can_map = false;
  {
    Witness witness(topic.memory());
    topic.tracer.can_map = true;
    witness.tell([] { return TraceEvent{Is::publish, 1}; });
  }
  CHECK(topic.told().empty() && topic.ring.ring().head() == 0 && topic.header().tracing.unwritten.load_relaxed() == 1);
}

void switches_are_told() {
  Traced topic;
  const uint64_t ring = topic.ring.ring().identity();
  const auto levels = [&] {
    std::vector<uint64_t> result;
    for (const TraceWords& words : all_of(topic.reader, topic.position)) {
      CHECK((words[5] & 0xff) == static_cast<uint64_t>(Is::switched) || (words[5] & 0xff) == static_cast<uint64_t>(Is::nothing));
      if ((words[5] & 0xff) == static_cast<uint64_t>(Is::switched)) result.push_back(words[6]);
    }
    return result;
  };
  CHECK(switch_tracing(topic.memory(), ring | 1, ring | 2) && (levels() == std::vector<uint64_t>{2}));
  CHECK(!switch_tracing(topic.memory(), ring | 1, 0) && levels().empty() && is_traced(topic.memory()) == (ring | 2));
  CHECK(switch_tracing(topic.memory(), ring | 2, 0) && (levels() == std::vector<uint64_t>{0}));
  CHECK(switch_tracing(topic.memory(), 0, ring | 3) && (levels() == std::vector<uint64_t>{3}));
  CHECK(switch_tracing(topic.memory(), ring | 3, 64 | 1) && (levels() == std::vector<uint64_t>{1}));  // to a ring that is not there
}

void what_a_queue_tells() {
  Traced queue(small_queue(4, 2));
  const auto producer = queue.publisher();
  auto consumer = queue.consumer();
  queue.told();
  for (uint64_t i = 1; i <= 3; i++) publish(*producer, i);
  Claimed claimed{};
  CHECK(claim(*consumer, claimed) && accept(*consumer, claimed));
  CHECK(claim(*consumer, claimed) && release(*consumer, claimed));
  CHECK(claim(*consumer, claimed) && claimed.sequence == 2);
  CHECK((queue.told() == Told{{Is::put, 1}, {Is::put, 2}, {Is::put, 3}, {Is::claim, 1}, {Is::accept, 1},
                              {Is::claim, 2}, {Is::returned, 2}, {Is::claim, 2}}));
  die(consumer);  // with its second delivery, which is the last one
  queue.recover();
  CHECK((queue.told() == Told{{Is::rejected, 2}, {Is::recover, 0}}));
  Traced letters(small_queue());
  const auto mover = queue.consumer(), reader = letters.consumer();
  const auto writer = letters.publisher();
  queue.told(), letters.told();
  Mover burying(*mover, 5, *writer, ClaimState::burying);
  burying.move(UINT64_MAX, [](const Taken&, uint64_t, const std::string&) { return Description{true, ""}; });
  CHECK(burying.moved() == 1 && (queue.told() == Told{{Is::moved, 2}}) && (letters.told() == Told{{Is::put, 1}}));
}

SubscribeOptions keeping(const std::string& record, bool tracer) {
  SubscribeOptions options;
  options.record = record;
  options.commits = !record.empty();
  options.tracer = tracer;
  return options;
}

// The place and the record that are kept for a tracer: nobody is refused for it, and it goes on where it was.
void the_tracers_place() {
  char directory[] = "/dev/shm/hawser-test-tracing-XXXXXX";
  CHECK(mkdtemp(directory) != nullptr);
  const std::string place(directory);
  const Settings settings = small_settings();
  const auto region = Region::attach({place + "/t.topic", place + "/.lock", "t"}, &settings, "");
  const auto publisher = join_as_publisher(*region, "publisher", false);
  std::vector<std::unique_ptr<Subscriber>> all;
  for (uint32_t i = 0; i < settings.max_subscribers; i++)
    all.push_back(join_as_subscriber(*region, "subscriber", keeping("kept-" + std::to_string(i), false)));
  const SubscribeOptions options = keeping("traced", true);
  auto tracer = join_as_subscriber(*region, "tracer", options);
  CHECK(tracer->bit() == settings.max_subscribers);
  CHECK(THROWN(full, join_as_subscriber(*region, "another", keeping("", true))).find("traces its payloads") != std::string::npos);
  THROWN(full, join_as_subscriber(*region, "another", {}));
  for (uint64_t i = 1; i <= 3; i++) publish(*publisher, i);
  Taken taken{};
  CHECK(take(*tracer, taken) && tracer->release(taken.slot, taken.sequence));
  tracer->commit();
  tracer->close();
  tracer = join_as_subscriber(*region, "tracer", options);
  CHECK(tracer->cursor() == 1 && take(*tracer, taken) && taken.sequence == 2 && taken.lost_before == 0);
  CHECK(tracer->release(taken.slot, taken.sequence));
  die(tracer);
  CHECK(region->recover().size() == 1 && forget_record(*region, "traced"));
  CHECK(region->remove(true) && unlink((place + "/.lock").c_str()) == 0 && rmdir(directory) == 0);
}

// A file of the ring: made once, found again, refused when it is damaged.
void the_file() {
  char directory[] = "/dev/shm/hawser-test-tracing-XXXXXX";
  CHECK(mkdtemp(directory) != nullptr);
  const std::string path = std::string(directory) + "/.trace";
  CHECK(TraceFile::open(path) == nullptr);
  const auto made = TraceFile::create(path, 100, false), found = TraceFile::create(path, 5000, false);
  CHECK(made->ring().records() == 128 && found->ring().identity() == made->ring().identity() && found->ring().records() == 128);
  made->ring().write(made->ring().take_position(), content(1));
  TraceWords words;
  CHECK(found->ring().head() == 1 && found->ring().read(0, words) && is_true(words));
  THROWN(usage, TraceFile::create(path, 0, false));
  THROWN(usage, TraceFile::create(path, kMaxTraceRecords + 1, false));
  FileTracer tracer(1, path), other(2, path);
  CHECK(tracer.ring(made->ring().identity()) == other.ring(made->ring().identity()));
  CHECK(tracer.ring(made->ring().identity() ^ 4) == nullptr);
  CHECK(unlink(path.c_str()) == 0 && !made->current());
  const auto anew = TraceFile::create(path, 16, false);
  CHECK(anew->current() && anew->ring().identity() != made->ring().identity() && anew->ring().head() == 0);
  CHECK(other.ring(made->ring().identity()) != nullptr);  // who has it mapped goes on with it
  CHECK(truncate(path.c_str(), kPage) == 0);
  CHECK(THROWN(corrupt, TraceFile::open(path)).find("size") != std::string::npos);
  THROWN(corrupt, TraceFile::create(path, 16, false));
  CHECK(unlink(path.c_str()) == 0 && rmdir(directory) == 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) rounds = static_cast<uint64_t>(std::atoi(arguments[1]));
  return run({{"every record is read once", every_record_is_read_once},
              {"a lapped reader knows what it lost", a_lapped_reader_knows_what_it_lost},
              {"nothing false comes of an overtaken writer", nothing_false_comes_of_an_overtaken_writer},
              {"a hole is lost after a second", a_hole_is_lost_after_a_second},
              {"writers overtake each other", writers_overtake_each_other},
              {"what a topic tells", what_a_topic_tells},
              {"what a queue tells", what_a_queue_tells},
              {"what has no position is counted", what_has_no_position_is_counted},
              {"switches are told", switches_are_told},
              {"the tracer's place", the_tracers_place},
              {"the file", the_file}});
}
