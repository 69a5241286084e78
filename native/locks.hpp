// Byte locks that say who is alive.
//
// Open-file-description locks, on the topic's own file. A lock lives exactly as long as its description, and
// an Anchor (one page mapped through it, not inherited by forked children) keeps a description for as long as
// the address space: through closed descriptors, until exec, unmapping or any death. A description never
// conflicts with itself, so no process probes through its own.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "layout.hpp"

namespace hawser {

namespace byte {
constexpr off_t use = 1;        // shared: everybody who has the file open
constexpr off_t publishing = 2;  // shared: publishers; exclusive: an exclusive publisher
constexpr off_t consuming = 3;   // shared: consumers; exclusive: the one that a queue is reserved for
inline off_t life(uint32_t index) { return (off_t{1} << 32) + index; }
inline off_t recovery(uint32_t index) { return (off_t{2} << 32) + index; }
inline off_t record(const std::string& name) {
  return (off_t{1} << 62) + static_cast<off_t>(hash_bytes(name.data(), name.size()) >> 3);
}
}  // namespace byte

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }
  bool valid() const { return number_ >= 0; }

  // False: another process holds it. Anything else that goes wrong is an error, never an answer.
  bool try_lock(off_t at, bool exclusive = true) const {
    if (control(F_OFD_SETLK, exclusive ? F_WRLCK : F_RDLCK, at) == 0) return true;
    if (errno == EAGAIN || errno == EACCES) return false;
    throw file_error("lock a byte of", "the topic's file", errno);
  }
  void unlock(off_t at) const { control(F_OFD_SETLK, F_UNLCK, at); }
  // Whether another description holds this byte in any way.
  bool held_elsewhere(off_t at) const {
    struct flock lock = request(F_WRLCK, at);
    if (fcntl(number_, F_OFD_GETLK, &lock) != 0) throw file_error("ask who holds a byte of", "the topic's file", errno);
    return lock.l_type != F_UNLCK;
  }

 private:
  static struct flock request(short type, off_t at) {
    struct flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = at;
    lock.l_len = 1;
    return lock;
  }
  int control(int command, short type, off_t at) const {
    struct flock lock = request(type, at);
    return fcntl(number_, command, &lock);
  }
  int number_;
};

// Keeps the locks of a description until it is dropped or the process is gone.
class Anchor {
 public:
  Anchor() = default;
  explicit Anchor(const Descriptor& descriptor)
      : page_(mmap(nullptr, kPage, PROT_READ, MAP_SHARED, descriptor.number(), 0)) {
    if (page_ == MAP_FAILED) throw Error(Kind::full, std::string("cannot map a page: ") + std::strerror(errno));
    madvise(page_, kPage, MADV_DONTFORK);
  }
  Anchor(Anchor&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  Anchor& operator=(Anchor&& other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }
  ~Anchor() { drop(); }
  void drop() {
    if (page_) munmap(page_, kPage);
    page_ = nullptr;
  }
  void forget() { page_ = nullptr; }  // in a forked child, where the page is not mapped

 private:
  void* page_ = nullptr;
};

// Which file a path led to. Paths are looked up again when a new description is needed, so that no
// descriptor stays open for others to close; a path that leads elsewhere means the topic was removed.
struct Inode {
  dev_t device = 0;
  ino_t number = 0;
  static Inode of(const Descriptor& descriptor) {
    struct stat info{};
    if (fstat(descriptor.number(), &info) != 0) throw file_error("look at", "an open file", errno);
    return {info.st_dev, info.st_ino};
  }
  bool operator==(const Inode&) const = default;
};

}  // namespace hawser
