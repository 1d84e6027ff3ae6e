#pragma once
// A queue that emulated kernels and copies are started on. None (null) = they run at once, in the
// call.

#include <functional>

struct CUstream_st {
  virtual ~CUstream_st() = default;
  /// Runs `work` later, after all that was enqueued before.
  virtual void enqueue(std::function<void()> work) = 0;
};

namespace simt {

inline void run_on(CUstream_st* stream, std::function<void()> work) {
  if (stream != nullptr) return stream->enqueue(std::move(work));
  work();
}

}  // namespace simt
