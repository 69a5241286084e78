// What can go wrong, named as in hawser/errors.py. bind.cpp turns an Error into the Python class of that name.
#pragma once

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

namespace hawser {

enum class Kind { usage, not_found, full, closed, timeout, corrupt, permission, mismatch, out_of_range, unavailable, fenced };

class Error : public std::exception {
 public:
  Error(Kind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  Kind kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Kind kind_;
  std::string message_;
};

// A failed system call on a file, as the error a person can act on.
inline Error file_error(const std::string& doing, const std::string& path, int number) {
  const std::string text = "cannot " + doing + " " + path + ": " + std::strerror(number);
  switch (number) {
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
      return {Kind::full, text + "; free memory on that tmpfs, enlarge it, or use smaller settings"};
    case EACCES:
    case EPERM:
      return {Kind::permission, text + "; check the owner and mode of the file and its directory"};
    case ELOOP:
      return {Kind::permission, text + "; it is a symbolic link, which is never followed: remove it"};
    case ENOENT:
      return {Kind::not_found, text};
    case EMFILE:
    case ENFILE:
      return {Kind::full, text + "; raise the limit of open files"};
    case EOPNOTSUPP:
    case EISDIR:
    case ENOTDIR:
      return {Kind::usage, text + "; the domain must be a directory on a tmpfs or a local file system"};
    default:
      return {Kind::unavailable, text + "; try again"};
  }
}

}  // namespace hawser
