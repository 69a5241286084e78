// Operations on a topic's file: created, opened, removed. Killed anywhere they leave a complete file or none,
// which can be opened or created at once; stopped anywhere they delay at most that one name.
#pragma once

#include "scene.hpp"

namespace crash {

struct NameOperation {
  const char* name;
  bool ephemeral;
  void (*set_up)(const Region::Place&, const hawser::Settings&, std::shared_ptr<Region>& mine);
  void (*prepare)(Actor&);
  void (*run)(Actor&);
  bool attaches = false;  // at the end the actor has the topic open
  bool forces = false;    // those who have it open lose it
};

namespace naming {

inline void nothing(const Region::Place&, const hawser::Settings&, std::shared_ptr<Region>&) {}
inline void open_by_others(const Region::Place& place, const hawser::Settings& settings, std::shared_ptr<Region>& mine) {
  mine = Region::attach(place, &settings, "");
}
inline void left_over(const Region::Place& place, const hawser::Settings& settings, std::shared_ptr<Region>&) {
  Region::attach(place, &settings, "");
}
inline void closed_and_left_over(const Region::Place& place, const hawser::Settings& settings, std::shared_ptr<Region>&) {
  const auto region = Region::attach(place, &settings, "");
  region->memory().header().state.word.store_ordered(static_cast<uint64_t>(hawser::RegionState::closed));
}

inline void open_permanent(Actor& actor) {
  const hawser::Settings settings = small_settings(false);
  actor.region = Region::attach(actor.place, &settings, "");
}
inline void open_ephemeral(Actor& actor) {
  const hawser::Settings settings = small_settings(true);
  actor.region = Region::attach(actor.place, &settings, "");
}

inline const NameOperation table[] = {
    {"create", false, nothing, [](Actor&) {}, open_permanent, true},
    {"attach", false, open_by_others, [](Actor&) {}, [](Actor& a) { a.attach(); }, true},
    {"attach_closed", false, closed_and_left_over, [](Actor&) {}, open_permanent, true},
    {"recreate_ephemeral", true, left_over, [](Actor&) {}, open_ephemeral, true},
    {"close_ephemeral", true, nothing, open_ephemeral, [](Actor& a) { a.region->close(); }},
    {"close_ephemeral_shared", true, open_by_others, open_ephemeral, [](Actor& a) { a.region->close(); }},
    {"remove_unused", false, nothing, open_permanent, [](Actor& a) { a.region->remove(false); }},
    {"remove_forced", false, open_by_others, open_permanent, [](Actor& a) { a.region->remove(true); }, false, true},
};

// Files in the directory, without the lock file.
inline std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> names;
  DIR* opened = opendir(directory.c_str());
  while (const dirent* entry = readdir(opened))
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  closedir(opened);
  return names;
}

inline std::optional<hawser::Inode> inode_at(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return std::nullopt;
  return hawser::Inode{info.st_dev, info.st_ino};
}

// A topic works: somebody publishes and somebody takes.
inline void use(Region& region) {
  const auto publisher = hawser::join_as_publisher(region, "publisher", false);
  const auto subscriber = hawser::join_as_subscriber(region, "subscriber", {});
  Taken taken{};
  for (uint64_t i = 1; i <= 100; i++) {
    require(publish_copy(*publisher, {kNewcomer, i}) != 0, "publishing is held up by nobody");
    require(take(*subscriber, taken), "what was published is not delivered");
    const Content content = read_content(region.memory().readable + region.memory().payload_at(taken.slot));
    require(content == Content{kNewcomer, i}, "something else was delivered");
    subscriber->release(taken.slot, taken.sequence);
  }
  publisher->close();
  subscriber->close();
}

}  // namespace naming

class NameScene : public Scene {
 public:
  NameScene(const NameOperation& operation, const std::string& directory)
      : operation_(operation), directory_(directory), place_(place_in(directory)), settings_(small_settings(operation.ephemeral)) {
    operation_.set_up(place_, settings_, mine_);
  }

  pid_t start() override {
    Report& report = shared_report();
    std::memset(static_cast<void*>(&report), 0, sizeof report);
    const pid_t process = start_process();
    if (process != 0) return process;
    Tracee::be_traced();
    Actor actor(place_, report);
    act(actor, operation_.prepare, [this](Actor& a) { operation_.run(a), tell_file(a); });
  }

  void meanwhile() override { changed(true); }

  bool changed(bool system_call) override {
    if (system_call) look_again();
    return base_ && watch_.changed(base_, size_);
  }

  void while_stopped() override {
    const hawser::Settings permanent = small_settings();
    const auto other = Region::attach(place_in(directory_, "other"), &permanent, "");
    naming::use(*other);
    require(other->remove(true), "another name cannot be removed");
    if (mine_) go_on(*mine_);
    if (!must_wait()) late_ = Region::attach(place_, &settings_, "");
    if (late_) go_on(*late_);
  }

  void finished() override {
    const Report& report = shared_report();
    const auto at_path = naming::inode_at(place_.path);
    if (late_ && late_->memory().closed()) {
      require(operation_.forces, "a topic that somebody had open was removed");
    } else if (late_) {
      require(at_path && *at_path == inode_of(*late_), "an open topic lost its name");
      go_on(*late_);
    }
    if (!operation_.attaches) return;
    require(!report.closed && at_path && at_path->number == report.inode, "the actor has another file open than the others");
  }

  void after() override {
    const auto files = naming::files_in(directory_);
    require(files.size() <= 1 && (files.empty() || files[0] == place_.name + ".topic"), "a second file was left");
    for (const auto* region : {&mine_, &late_}) {
      if (!*region) continue;
      require(!(*region)->memory().closed() || operation_.forces, "a topic that somebody had open was removed");
      go_on(**region);
    }
    open_or_find_nothing();
    const auto fresh = Region::attach(place_, &settings_, "");
    naming::use(*fresh);
    mine_.reset();
    late_.reset();
    require(fresh->remove(false), "the file is still in use by the dead");
    require(naming::files_in(directory_).empty(), "a file was left");
  }

 private:
  static void tell_file(Actor& actor) {
    const auto inode = naming::inode_at(actor.place.path);
    actor.report.inode = inode && same_file(*actor.region, *inode) ? inode->number : 0;
    actor.report.closed = actor.region->memory().closed();
  }
  static bool same_file(const Region& region, const hawser::Inode& inode) {
    try {
      return hawser::Inode::of(region.open_again()) == inode;
    } catch (const hawser::Error&) {
      return false;
    }
  }
  static hawser::Inode inode_of(const Region& region) { return hawser::Inode::of(region.open_again()); }

  // An old user goes on, or hears that the topic is closed.
  static void go_on(Region& region) {
    try {
      naming::use(region);
    } catch (const hawser::Error& error) {
      require(error.kind() == hawser::Kind::closed && region.memory().closed(), error.what());
    }
  }

  void open_or_find_nothing() const {
    try {
      Region::attach(place_, nullptr, "");
    } catch (const hawser::Error& error) {
      require(error.kind() == hawser::Kind::not_found, error.what());
    }
  }

  // The one delay that is allowed: a closed topic whose remover stands still before it took the name away.
  bool must_wait() {
    look_again();
    const auto* header = reinterpret_cast<const hawser::Header*>(base_);
    const bool closed = header && header->state.word.load_ordered() == static_cast<uint64_t>(hawser::RegionState::closed);
    const hawser::Descriptor lock(open(place_.lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const auto byte = static_cast<off_t>(hawser::hash_bytes(place_.name.data(), place_.name.size()) >> 2);
    return closed && lock.held_elsewhere(byte);
  }

  // The file that has the name now.
  void look_again() {
    const auto inode = naming::inode_at(place_.path);
    if (inode == seen_) return;
    seen_ = inode;
    base_ = nullptr;
    if (!inode) return;
    const hawser::Descriptor file(open(place_.path.c_str(), O_RDWR | O_CLOEXEC));
    size_ = hawser::Layout(settings_).payloads_at;
    mapped_ = hawser::Mapping(file, 0, size_, true);
    base_ = mapped_.address();
  }

  const NameOperation& operation_;
  const std::string directory_;
  const Region::Place place_;
  const hawser::Settings settings_;
  std::shared_ptr<Region> mine_, late_;
  std::optional<hawser::Inode> seen_;
  hawser::Mapping mapped_;
  const uint8_t* base_ = nullptr;
  size_t size_ = 0;
  Watch watch_;
};

}  // namespace crash
