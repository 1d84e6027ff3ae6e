#pragma once
// A queue on which emulated kernels and copies are started. Null: they run at once, inside the
// call.

#include <functional>

struct CUstream_st {
  virtual ~CUstream_st() = default;
  /// Runs `work` later, after everything that was enqueued before it.
  virtual void enqueue(std::function<void()> work) = 0;
};

namespace simt {

inline void run_on(CUstream_st* stream, std::function<void()> work) {
  if (stream != nullptr) return stream->enqueue(std::move(work));
  work();
}

}  // namespace simt
