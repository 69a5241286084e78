// Files of a domain: opened without following links, owned by this user or shared with one of its groups.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include <vector>

#include "fork.hpp"
#include "locks.hpp"
#include "waiting.hpp"

namespace hawser {

inline std::string boot_id() {
  const Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[40] = {};
  if (!file.valid() || read(file.number(), text, 36) != 36)
    throw Error(Kind::usage, "cannot read /proc/sys/kernel/random/boot_id; /proc must be mounted");
  return text;
}

// When this process started, in nanoseconds since boot.
inline uint64_t process_start_ns() {
  const Descriptor file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  char text[1024] = {};
  if (!file.valid() || read(file.number(), text, sizeof text - 1) <= 0) return 0;
  const char* at = strrchr(text, ')');  // the command's name may contain anything but ends here
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at, nullptr, 10) * (1'000'000'000ull / static_cast<uint64_t>(sysconf(_SC_CLK_TCK))) : 0;
}

inline bool in_group(gid_t group) {
  if (group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  for (int i = 0; i < count; i++)
    if (groups[static_cast<size_t>(i)] == group) return true;
  return false;
}

// A new description of an existing file; not valid when there is none.
inline Descriptor open_existing(const std::string& path, int access = O_RDWR) {
  Descriptor file(open(path.c_str(), access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));  // does not wait for a pipe
  if (!file.valid()) {
    if (errno == ENOENT) return file;
    throw file_error("open", path, errno);
  }
  struct stat info{};
  if (fstat(file.number(), &info) != 0) throw file_error("look at", path, errno);
  if (!S_ISREG(info.st_mode)) throw Error(Kind::corrupt, path + " is not a regular file; remove it");
  const bool shared = (info.st_mode & S_IWGRP) && in_group(info.st_gid);
  if (info.st_uid != geteuid() && !shared)
    throw Error(Kind::permission, path + " belongs to user " + std::to_string(info.st_uid) +
                                      "; use that user, or create it with mode=\"group\" in a shared group");
  return file;
}

// A description of the same inode, or Closed.
inline Descriptor open_same(const std::string& path, const Inode& inode, int access = O_RDWR) {
  Descriptor file = open_existing(path, access);
  if (!file.valid() || Inode::of(file) != inode) throw Error(Kind::closed, path + ": it was deleted; open it again");
  return file;
}

inline std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

inline void fill_uuid(uint8_t (&uuid)[16]) {
  if (getrandom(uuid, sizeof uuid, 0) != sizeof uuid) throw Error(Kind::usage, "cannot get random bytes from the kernel");
}

inline bool reserve_pages(const Descriptor& file, uint64_t at, uint64_t bytes) {
  int result = 0;
  do {
    result = fallocate(file.number(), 0, static_cast<off_t>(at), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// The directory's group is the one that shares the domain; it may not be our first.
inline void give_to_group(const Descriptor& file, const std::string& directory) {
  struct stat info{};
  if (stat(directory.c_str(), &info) != 0 || fchown(file.number(), static_cast<uid_t>(-1), info.st_gid) != 0)
    throw file_error("give a file to the group of", directory, errno);
}

// A file that appears complete or not at all: made without a name, and named when it is.
struct NewFile {
  std::string path;
  bool group;
  uint64_t bytes;
  uint64_t reserved;  // of them, from the beginning
};
inline Descriptor make_unnamed(const NewFile& wanted) {
  const std::string directory = directory_of(wanted.path);
  const mode_t mode = wanted.group ? 0660 : 0600;
  Descriptor file(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, mode));
  if (!file.valid()) throw file_error("create a file in", directory, errno);
  if (wanted.group) give_to_group(file, directory);
  if (fchmod(file.number(), mode) != 0 || ftruncate(file.number(), static_cast<off_t>(wanted.bytes)) != 0 ||
      !reserve_pages(file, 0, wanted.reserved))
    throw file_error("reserve " + std::to_string(wanted.reserved) + " bytes for", wanted.path, errno);
  return file;
}
// False: another process was faster.
inline bool give_name(const Descriptor& file, const std::string& path) {
  const std::string unnamed = "/proc/self/fd/" + std::to_string(file.number());
  if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
  if (errno == EEXIST) return false;
  throw file_error("name the file", path, errno);
}

inline bool leads_to(const std::string& path, const Inode& inode) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && Inode{info.st_dev, info.st_ino} == inode;
}
inline void unlink_same(const std::string& path, const Inode& inode) {
  if (leads_to(path, inode)) unlink(path.c_str());
}

// Serialises removals of one name. The caller holds no_fork_mutex, and lets go of it before it tries again.
class NameLock {
 public:
  NameLock(const std::string& lock_path, const std::string& name)
      : file_(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    if (!file_.valid()) throw file_error("open", lock_path, errno);
    held_ = file_.try_lock(static_cast<off_t>(hash_bytes(name.data(), name.size()) >> 2));
  }
  bool held() const { return held_; }  // false: another process is removing it

 private:
  Descriptor file_;
  bool held_;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(const Descriptor& file, uint64_t offset, uint64_t size, bool writable) : size_(size) {
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    address_ = mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, file.number(), static_cast<off_t>(offset));
    if (address_ == MAP_FAILED) {
      address_ = nullptr;
      throw Error(Kind::full, std::string("cannot map the file: ") + std::strerror(errno));
    }
  }
  Mapping(Mapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), size_(other.size_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping() {
    if (address_) munmap(address_, size_);
  }
  uint8_t* address() const { return static_cast<uint8_t*>(address_); }

 private:
  void* address_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace hawser
