#pragma once
// The child that makes what engines share on a GPU: it knows the driver, the keeper does not. Where
// descriptors keep the memory it ends with that; where they do not it stays, and the memory goes
// with it.

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
  /// \param stop  a descriptor; when it can be read nobody wants the memory any more
  /// \return  nothing if so
  Expected<std::optional<Made>> make(const ResolvedOptions& options, std::size_t arena_bytes,
                                     int stop);

  /// Whether it is there because the memory needs it.
  bool is_running() const { return child_.is_running(); }
  pid_t pid() const { return child_.pid; }
  const UniqueFd& pidfd() const { return child_.pidfd; }
  /// It ends if its context is lost.
  void check_context();
  /// After its pidfd has fired: what is to be said of that.
  std::string collect();
  /// The memory is given back, where it was its.
  void end();

 private:
  Child child_;
  UniqueFd line_;  ///< to its standard input: it leaves when this is closed
};

}  // namespace kvhive
