// The file of a domain's trace: made, found, mapped (docs/formats/trace-ring.md).
//
// It appears complete or not at all, with all its pages: a writer can never run out of memory. It may be
// deleted and made anew at any time: a process that has it mapped continues to write to the one that it has until the switch
// of the region names another, and who cannot find the one that is named writes nothing.
#pragma once

#include <bit>
#include <memory>

#include "files.hpp"
#include "trace.hpp"

namespace hawser {

constexpr uint32_t kTraceFormatVersion = 1;
constexpr char kTraceMagic[8] = {'H', 'A', 'W', 'T', 'R', 'C', '\r', '\n'};
constexpr uint64_t kMinTraceRecords = 16, kMaxTraceRecords = uint64_t{1} << 24;

// What the file says about itself; written once, before anybody else can see it.
struct TraceLabel {
  char magic[8];
  uint32_t format_version;
  uint32_t reserved;
  uint64_t hash;  // of the whole label, with 0 in this place
  uint8_t uuid[16];
  char boot_id[40];
  uint64_t created_ns;
  uint64_t records;
  uint8_t unused[32];
};
static_assert(sizeof(TraceLabel) == 128);

struct TraceHeader {
  TraceLabel label;
  Line head;
};
static_assert(offsetof(TraceHeader, head) == 128 && sizeof(TraceHeader) <= kPage);

inline std::string trace_path(const std::string& path_in_domain) { return directory_of(path_in_domain) + "/.trace"; }

class TraceFile {
 public:
  // The ring at `path`, or a new one for at least `records` records.
  static std::shared_ptr<TraceFile> create(const std::string& path, uint64_t records, bool group) {
    if (records < 1 || records > kMaxTraceRecords)
      throw Error(Kind::usage, "a trace has room for 1 to " + std::to_string(kMaxTraceRecords) + " records, not " + std::to_string(records));
    watch_forks();
    for (int tries = 0; tries < kTries; tries++) {
      if (tries >= kTriesAtOnce) usleep(1000);
      const std::lock_guard no_fork(no_fork_mutex());
      if (auto found = find(path, true)) return found;
      if (auto made = make(path, std::max(std::bit_ceil(records), kMinTraceRecords), group)) return made;
    }
    throw Error(Kind::timeout, path + ": another process has been removing it for seconds and is probably stopped; continue or end it");
  }

  // Null: there is none, or one of an earlier boot.
  static std::shared_ptr<TraceFile> open(const std::string& path) { return find(path, false); }

  const TraceLabel& label() const { return label_; }
  const TraceRing& ring() const { return ring_; }
  bool current() const { return leads_to(path_, inode_); }

 private:
  TraceFile(std::string path, const Descriptor& file, const TraceLabel& label)
      : path_(std::move(path)),
        inode_(Inode::of(file)),
        label_(label),
        mapping_(file, 0, bytes_of(label.records), true),
        ring_(header().head.word, reinterpret_cast<Word*>(mapping_.address() + kPage), label.records, identity_of(label)) {}

  static uint64_t bytes_of(uint64_t records) { return kPage + records * kTraceRecordBytes; }
  static uint64_t identity_of(const TraceLabel& label) {
    uint64_t number;
    std::memcpy(&number, label.uuid, sizeof number);
    return number & ~kTraceLevelBits;
  }
  static uint64_t hash_of(TraceLabel label) {
    label.hash = 0;
    return hash_bytes(&label, sizeof label, kTraceFormatVersion);
  }
  TraceHeader& header() const { return *reinterpret_cast<TraceHeader*>(mapping_.address()); }

  static std::shared_ptr<TraceFile> find(const std::string& path, bool discard_old) {
    const Descriptor file = open_existing(path);
    if (!file.valid()) return nullptr;
    const TraceLabel label = read_label(path, file);
    if (strncmp(label.boot_id, boot_id().c_str(), sizeof label.boot_id) == 0)
      return std::shared_ptr<TraceFile>(new TraceFile(path, file, label));
    if (discard_old) discard(path, Inode::of(file));
    return nullptr;
  }

  // Null: another process was faster.
  static std::shared_ptr<TraceFile> make(const std::string& path, uint64_t records, bool group) {
    TraceLabel label{};
    std::memcpy(label.magic, kTraceMagic, sizeof kTraceMagic);
    label.format_version = kTraceFormatVersion;
    do fill_uuid(label.uuid);
    while (identity_of(label) == 0);  // a switch of 0 is off
    std::memcpy(label.boot_id, boot_id().c_str(), 36);
    label.created_ns = wall_clock_now();
    label.records = records;
    label.hash = hash_of(label);
    const Descriptor file = make_unnamed({path, group, bytes_of(records), bytes_of(records)});
    std::shared_ptr<TraceFile> made(new TraceFile(path, file, label));
    made->header().label = label;
    return give_name(file, path) ? made : nullptr;
  }

  static TraceLabel read_label(const std::string& path, const Descriptor& file) {
    const auto refuse = [&](const std::string& why) -> Error {
      return {Kind::corrupt, path + ": " + why + "; remove the file, and switch tracing on again"};
    };
    TraceLabel label;
    if (pread(file.number(), &label, sizeof label, 0) != sizeof label) throw refuse("too short for a trace");
    if (std::memcmp(label.magic, kTraceMagic, sizeof kTraceMagic) != 0) throw refuse("not a trace of Hawser");
    if (label.format_version != kTraceFormatVersion)
      throw Error(Kind::mismatch, path + ": format version " + std::to_string(label.format_version) + ", this Hawser reads " +
                                      std::to_string(kTraceFormatVersion) + "; use the Hawser that made it, or remove the file");
    struct stat info{};
    if (hash_of(label) != label.hash || !std::has_single_bit(label.records) || label.records > kMaxTraceRecords)
      throw refuse("its label is damaged");
    if (fstat(file.number(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes_of(label.records))
      throw refuse("its size does not fit its label");
    return label;
  }

  // The caller holds no_fork_mutex.
  static void discard(const std::string& path, const Inode& inode) {
    const NameLock lock(directory_of(path) + "/.lock", ".trace");
    if (lock.held()) unlink_same(path, inode);
  }

  static constexpr int kTriesAtOnce = 50, kTries = 5000;
  const std::string path_;
  const Inode inode_;
  const TraceLabel label_;
  const Mapping mapping_;
  const TraceRing ring_;
};

// Finds rings by the path of the domain's. What a process has mapped once it keeps, for all its regions.
class FileTracer : public Tracer {
 public:
  FileTracer(uint64_t region, std::string path) : Tracer(region), path_(std::move(path)) {}

 protected:
  const TraceRing* map(uint64_t identity) noexcept override {
    for (const Kept* kept = rings().load(std::memory_order_acquire); kept; kept = kept->next)
      if (kept->file->ring().identity() == identity) return &kept->file->ring();
    const int64_t now = coarse_now();
    if (now - failed_at_.load(std::memory_order_relaxed) < kSliceNanoseconds) return nullptr;  // traced ones are not to be slow
    try {
      const auto file = TraceFile::open(path_);
      if (file && file->ring().identity() == identity) return keep(file);
    } catch (...) {
    }
    failed_at_.store(now, std::memory_order_relaxed);
    return nullptr;
  }

 private:
  struct Kept {
    std::shared_ptr<TraceFile> file;
    Kept* next;
  };
  static std::atomic<Kept*>& rings() {
    static std::atomic<Kept*> first{nullptr};
    return first;
  }
  // Without a lock: a trace point may run under any, and a child may be forked in the middle of it.
  static const TraceRing* keep(const std::shared_ptr<TraceFile>& file) {
    Kept* kept = new Kept{file, rings().load(std::memory_order_acquire)};
    while (!rings().compare_exchange_weak(kept->next, kept, std::memory_order_acq_rel)) {
    }
    return &file->ring();
  }

  const std::string path_;
  std::atomic<int64_t> failed_at_{-kSliceNanoseconds};
};

}  // namespace hawser
