// The file of a topic or queue: made, found, removed, mapped.
//
// It appears complete or not at all: built without a name, its use byte already locked, then linked; who
// loses the race opens the winner's. Everybody who has it open holds the use byte shared. To remove it: under
// the name's lock, open -> closing, see that no other process has the use byte, closing -> closed, unlink. To
// attach: lock the use byte, then read the state: closing, set it back to open; closed, finish the removal and
// start again. Forced removal goes to closed at once, and those that still use the topic get Closed.
//
// To watch it: map it, hold no byte and change no state. A watcher goes unnoticed, so it keeps no topic alive,
// and it never waits.
#pragma once

#include <memory>

#include "publisher.hpp"
#include "recovery.hpp"
#include "trace_file.hpp"

namespace hawser {

class Region : public Host {
 public:
  struct Place {
    std::string path;
    std::string lock_path;  // the domain's lock file
    std::string name;
  };

  // Open what is at a place; with settings, create it when nothing (or only a leftover) is there.
  static std::shared_ptr<Region> attach(const Place& place, const Settings* settings, const std::string& schema,
                                        const std::string& dead_letter = "") {
    watch_forks();
    std::shared_ptr<Region> region;
    patiently(place, [&] {
      const std::lock_guard no_fork(no_fork_mutex());
      const Descriptor file = open_existing(place.path);
      if (!file.valid() && !settings)
        throw Error(Kind::not_found, "there is no '" + place.name + "' at " + place.path);
      region = file.valid() ? open_at(place, file, settings != nullptr) : create(place, *settings, schema, dead_letter);
      return region != nullptr;
    });
    return region;
  }

  // Null: there is no topic there, only one of an earlier boot, or one that is being removed.
  static std::shared_ptr<Region> watch(const Place& place) {
    watch_forks();
    const std::lock_guard no_fork(no_fork_mutex());
    const Descriptor file = open_existing(place.path);
    if (!file.valid()) return nullptr;
    const Label label = read_label(place.path, file);
    if (strncmp(label.boot_id, boot_id().c_str(), sizeof label.boot_id) != 0) return nullptr;
    std::shared_ptr<Region> region(new Region(place, label.settings, file, file));
    region->believe(label);
    region->let_go_ = true;
    return region->memory_.closed() ? nullptr : region;
  }

  ~Region() override {
    if (!made_.here()) use_.forget();
  }

  const Memory& memory() const { return memory_; }
  const Place& place() const { return place_; }
  const MadeHere& made() const { return made_; }
  const Label& label() const { return label_; }  // as it was when we attached
  // What others call this region in one word; never 0.
  uint64_t number() const { return number_of(label_); }
  // Whether a queue's dead letters stay where they are: nothing dies in it.
  bool keeps_letters() const { return place_.name == label_.dead_letter; }
  Descriptor open_again() const { return open_same(place_.path, inode_); }
  // To ask the kernel something. Closing it is no news to those who are told when files were written to.
  Descriptor open_to_look() const { return open_same(place_.path, inode_, O_RDONLY); }

  std::vector<Recovered> recover() {
    const std::lock_guard no_fork(no_fork_mutex());
    const Descriptor file = open_again();
    return recover_all(memory_, FileLiveness(file));
  }
  void recover_dead() override { recover(); }

  void reserve(uint64_t payload_offset, uint64_t bytes) override {
    if (!reserve_pages(open_again(), memory_.layout.payloads_at + payload_offset, std::max<uint64_t>(bytes, 1)))
      throw file_error("reserve " + std::to_string(bytes) + " bytes for a sample in", place_.path, errno);
  }

  // For publishers; subscribers never have payloads mapped for writing. The caller holds no_fork_mutex.
  void map_writable() {
    if (memory_.writable) return;
    writable_ = map_payloads(open_again(), true);
    memory_.writable = writable_.address();
  }

  // Without force only if no other process has it open; False otherwise.
  bool remove(bool force) {
    Removal result = Removal::busy;
    patiently(place_, [&] {
      const std::lock_guard no_fork(no_fork_mutex());
      result = remove_now(force);
      return result != Removal::busy;
    });
    return result == Removal::removed;
  }

  // Let go of the use byte; the last one out removes an ephemeral topic.
  void close() {
    if (let_go_ || !made_.here()) return;
    let_go_ = true;
    if (memory_.layout.settings.ephemeral && !memory_.closed()) remove_quietly();
    const std::lock_guard no_fork(no_fork_mutex());
    use_.drop();
  }

  uint64_t resident_bytes() const {
    struct stat info{};
    return fstat(open_to_look().number(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
  }

 private:
  Region(Place place, const Settings& settings, const Descriptor& file, const Descriptor& mapped)
      : place_(std::move(place)),
        inode_(Inode::of(file)),
        control_(mapped, 0, Layout(settings).payloads_at, true),
        memory_{Layout(settings), control_.address(), nullptr, nullptr, place_.path},
        readable_(map_payloads(mapped, false)) {
    memory_.readable = readable_.address();
  }

  Mapping map_payloads(const Descriptor& file, bool writable) const {
    const Layout& layout = memory_.layout;
    return Mapping(file, layout.payloads_at, layout.total - layout.payloads_at, writable);
  }

  // Tries until it is done. Nothing is held between two tries, so that only this name waits for a process that
  // is stopped while removing it, and not for ever.
  template <class Attempt>
  static void patiently(const Place& place, const Attempt& attempt) {
    for (int tries = 0; !attempt(); tries++) {
      if (tries == kTries)
        throw Error(Kind::timeout, "another process has been creating or removing '" + place.name +
                                       "' for seconds and is probably stopped; continue or end it");
      if (tries >= kTriesAtOnce) usleep(1000);
    }
  }

  // Maps go through a description without locks: children may keep them.
  static Descriptor another_description(const Descriptor& file) {
    const std::string path = "/proc/self/fd/" + std::to_string(file.number());
    Descriptor other(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!other.valid()) throw file_error("open", path, errno);
    return other;
  }

  // Null: another process was faster.
  static std::shared_ptr<Region> create(const Place& place, const Settings& settings, const std::string& schema,
                                        const std::string& dead_letter) {
    const Layout layout(settings);
    const Descriptor file = make_unnamed({place.path, settings.group != 0, layout.total, layout.payloads_at});
    std::shared_ptr<Region> region(new Region(place, settings, file, another_description(file)));
    region->initialise(settings, schema, dead_letter);
    file.try_lock(byte::use, false);
    region->use_ = Anchor(file);
    return give_name(file, place.path) ? region : nullptr;
  }

  void initialise(const Settings& settings, const std::string& schema, const std::string& dead_letter) {
    Label label{};
    std::memcpy(label.magic, kMagic, sizeof kMagic);
    label.format_version = kFormatVersion;
    label.kind = settings.kind;
    fill_uuid(label.uuid);
    std::memcpy(label.boot_id, boot_id().c_str(), 36);
    label.created_ns = static_cast<uint64_t>(clock_now(CLOCK_REALTIME));
    label.settings = settings;
    place_.name.copy(label.name, sizeof label.name - 1);
    schema.copy(label.schema, sizeof label.schema - 1);
    dead_letter.copy(label.dead_letter, sizeof label.dead_letter - 1);
    label.layout_hash = hash_of(label, memory_.layout);
    memory_.header().label = label;
    believe(label);
    for (uint32_t i = 0; i < memory_.layout.ring; i++) memory_.ring(i).store_relaxed(kEmptyRingWord);
  }

  static uint64_t number_of(const Label& label) {
    uint64_t number;
    std::memcpy(&number, label.uuid, sizeof number);
    return number ? number : 1;
  }

  void believe(const Label& label) {
    label_ = label;
    tracer_.emplace(number_of(label), trace_path(place_.path));
    memory_.tracer = &*tracer_;
    memory_.max_deliveries = keeps_letters() ? 0 : label.settings.max_deliveries;
  }

  // Of everything the label says, so that nothing in it can change unnoticed.
  static uint64_t hash_of(Label label, const Layout& layout) {
    label.layout_hash = layout.hash();
    return hash_bytes(&label, sizeof label);
  }

  // Null: it is closed or was a leftover, and is gone now. The caller tries again.
  static std::shared_ptr<Region> open_at(const Place& place, const Descriptor& file, bool may_recreate) {
    file.try_lock(byte::use, false);
    const Label label = read_label(place.path, file);
    if (strncmp(label.boot_id, boot_id().c_str(), sizeof label.boot_id) != 0) {  // of an earlier boot
      discard(place, Inode::of(file));
      return nullptr;
    }
    std::shared_ptr<Region> region(new Region(place, label.settings, file, another_description(file)));
    region->believe(label);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // our byte first, then the state
    region->state().exchange_if(static_cast<uint64_t>(RegionState::closing), static_cast<uint64_t>(RegionState::open));
    if (region->memory_.closed()) {
      discard(place, region->inode_);
      return nullptr;
    }
    region->use_ = Anchor(file);
    const bool leftover = label.settings.ephemeral && may_recreate && !file.held_elsewhere(byte::use);
    return leftover && region->remove_now(false) != Removal::in_use ? nullptr : region;
  }

  // What the file says about itself, checked before anything in it is believed.
  static Label read_label(const std::string& path, const Descriptor& file) {
    const auto refuse = [&](const std::string& why) -> Error {
      return {Kind::corrupt, path + ": " + why + "; nothing was changed: move the file away if it is not needed"};
    };
    Label label;
    if (pread(file.number(), &label, sizeof label, 0) != sizeof label) throw refuse("too short for a topic or queue");
    if (std::memcmp(label.magic, kMagic, sizeof kMagic) != 0) throw refuse("not a Hawser topic or queue");
    if (label.format_version != kFormatVersion)
      throw Error(Kind::mismatch, path + ": format version " + std::to_string(label.format_version) + ", this Hawser reads " +
                                      std::to_string(kFormatVersion) + "; use the Hawser that made it, or delete it there");
    if (label.kind != label.settings.kind) throw refuse("neither a topic nor a queue");
    try {
      const Layout layout(label.settings);
      struct stat info{};
      if (fstat(file.number(), &info) != 0 || static_cast<uint64_t>(info.st_size) != layout.total)
        throw refuse("its size does not fit its settings");
      if (hash_of(label, layout) != label.layout_hash) throw refuse("its label is damaged");
    } catch (const Error& error) {
      if (error.kind() == Kind::usage) throw refuse(std::string("its settings are damaged: ") + error.what());
      throw;
    }
    return label;
  }

  static void discard(const Place& place, const Inode& inode) {
    const NameLock lock(place.lock_path, place.name);
    if (lock.held()) unlink_same(place.path, inode);
  }

  // Whether another process, or another Region of this one, has the file open. A description does not see its
  // own locks, so ours moves to a new description through which we then look.
  bool others_alive() {
    const Descriptor file = open_again();
    file.try_lock(byte::use, false);
    use_ = Anchor(file);
    return file.held_elsewhere(byte::use);
  }

  bool close_if_unused() {
    const auto open = static_cast<uint64_t>(RegionState::open), closing = static_cast<uint64_t>(RegionState::closing),
               closed = static_cast<uint64_t>(RegionState::closed);
    state().exchange_if(open, closing);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the state first, then the look at the byte
    if (others_alive() && !planted(Canary::removed_while_open)) {
      state().exchange_if(closing, open);
      return false;
    }
    return state().exchange_if(closing, closed) || state().load_ordered() == closed;
  }

  enum class Removal { removed, in_use, busy };  // busy: another process is removing it
  Removal remove_now(bool force) {
    const NameLock lock(place_.lock_path, place_.name);
    if (!lock.held()) return Removal::busy;
    if (force) {
      state().store_ordered(static_cast<uint64_t>(RegionState::closed));
    } else if (!close_if_unused()) {
      return Removal::in_use;
    }
    unlink_same(place_.path, inode_);
    wake_everybody();
    return Removal::removed;
  }

  void remove_quietly() {
    try {
      remove(false);
    } catch (const Error&) {  // gone already, or being removed by a stopped process, which will finish
    }
  }

  Word& state() const { return memory_.header().state.word; }
  void wake_everybody() const {
    wake_all(memory_.header().samples);
    wake_all(memory_.header().space);
  }

  static constexpr int kTriesAtOnce = 50;
  static constexpr int kTries = 5000;
  const Place place_;
  const Inode inode_;
  const Mapping control_;
  Memory memory_;
  const Mapping readable_;
  Mapping writable_;
  Anchor use_;
  MadeHere made_;
  Label label_{};
  std::optional<FileTracer> tracer_;
  bool let_go_ = false;
};

}  // namespace hawser
