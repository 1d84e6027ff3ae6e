#pragma once
// The child that makes the memory which engines share on a GPU: the child knows the driver, the
// keeper does not. With VMM the memory lives in its descriptors and the child ends; with legacy
// CUDA IPC the memory is freed when the child ends, so it stays.

#include <cstddef>
#include <optional>

#include "config/resolved_options.hpp"
#include "tools/keeper/child.hpp"

namespace kvhive {

class GpuMemoryMaker {
 public:
  struct Made {
    UniqueFd arena, weights;
  };
  /// \param stop  a descriptor; when it can be read, the work is given up
  /// \return  nothing if `stop` could be read
  [[nodiscard]] Expected<std::optional<Made>> make(const ResolvedOptions& options,
                                                   std::size_t arena_bytes, int stop);

  /// Whether the child is running because the memory needs it.
  bool is_running() const { return child_.is_running(); }
  pid_t pid() const { return child_.pid; }
  const UniqueFd& pidfd() const { return child_.pidfd; }
  /// Has the child check its GPU context; it ends if the context is lost.
  void check_context();
  /// Collects the child after its pidfd has fired.
  /// \return  what the operator is told
  std::string collect();
  /// Ends the child. With legacy CUDA IPC this also frees the GPU memory it made.
  void end();

 private:
  Child child_;
  UniqueFd line_;  ///< to the child's standard input: it ends when this is closed
};

}  // namespace kvhive
