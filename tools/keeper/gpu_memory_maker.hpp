#pragma once
// The child that allocates the memory which engines share on a GPU. The child uses the GPU's
// driver; the keeper does not. With CUDA's VMM the memory lives as long as its descriptors, and the
// child ends at once. With legacy CUDA IPC the memory is freed when the child ends, so the child
// keeps running.

#include <cstddef>
#include <optional>
#include <vector>

#include "config/resolved_options.hpp"
#include "tools/keeper/children/child.hpp"

namespace kvhive {

class GpuMemoryMaker {
 public:
  struct Made {
    UniqueFd arena;
    std::vector<UniqueFd> weights;  ///< by ModelId
  };
  /// \param stop  a descriptor; when it becomes readable, make() gives up
  /// \return  the descriptors of the memory; nothing if `stop` became readable
  [[nodiscard]] Expected<std::optional<Made>> make(const ResolvedOptions& options,
                                                   std::size_t arena_bytes, int stop);

  /// Whether the child is running because the memory needs it.
  bool is_running() const { return child_.is_running(); }
  pid_t pid() const { return child_.pid; }
  const UniqueFd& pidfd() const { return child_.pidfd; }
  /// For a successor: the child of a killed keeper.
  struct Running {
    pid_t pid = 0;
    int pidfd = -1, line = -1;
  };
  Running running() const { return {child_.pid, child_.pidfd.get(), line_.get()}; }
  void resume(const Running& running);
  /// Makes the child check its GPU context. The child ends if the context is lost.
  void check_context();
  /// Has the child collected, whose pidfd has fired.
  /// \return  a line for the operator: how the child ended, and what to do
  std::string collect();
  /// Ends the child. With legacy CUDA IPC this also frees the GPU memory it made.
  void end();

 private:
  Child child_;
  UniqueFd line_;  ///< connected to the child's standard input; the child ends when it is closed
};

}  // namespace kvhive
