#pragma once
// A value that forked children share with their parent, for example progress counters.

#include <sys/mman.h>

#include <new>

#include "base/check.hpp"

namespace kvhive::testing {

template <class T>
class SharedValue {
 public:
  SharedValue() {
    void* memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KV_CHECK(memory != MAP_FAILED);
    value_ = new (memory) T{};
  }
  SharedValue(const SharedValue&) = delete;
  SharedValue& operator=(const SharedValue&) = delete;
  ~SharedValue() { munmap(value_, sizeof(T)); }

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace kvhive::testing
