#pragma once
// The processes of a benchmark: forked children that die with their parent, and memory that they
// share with it.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "base/check.hpp"

namespace kvhive::bench {

/// A child that runs one function. The destructor kills it if it has not ended by then.
class Forked {
 public:
  Forked() = default;
  template <class Body>
  explicit Forked(Body&& body) : pid_(fork()) {
    KV_CHECK(pid_ >= 0);
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::forward<Body>(body)();
    _exit(0);
  }
  Forked(Forked&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Forked& operator=(Forked&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Forked() {
    if (pid_ == 0) return;
    signal(SIGKILL);
    collect();
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { KV_CHECK(kill(pid_, number) == 0, number); }
  /// Waits until the child has ended. True = its exit status was 0.
  bool collect() {
    int status = 0;
    KV_CHECK(waitpid(std::exchange(pid_, 0), &status, 0) > 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = 0;
};

template <class T>
class Shared {
 public:
  Shared() {
    void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    KV_CHECK(memory != MAP_FAILED);
    value_ = new (memory) T{};
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(value_, sizeof(T)); }

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace kvhive::bench
