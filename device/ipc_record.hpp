#pragma once
// A stand-in for device memory where the driver cannot share it by descriptor: its legacy IPC
// handle in a sealed memfd, which can be passed on like a descriptor of the memory. It does not
// keep the memory: the handle can be opened only while the process that made the memory lives.

#include <array>
#include <cstddef>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

using IpcHandle = std::array<std::byte, 64>;  ///< cudaIpcMemHandle_t

/// \param gpu  DeviceFacts::uuid of the GPU that the memory is on, fewer than 64 characters
[[nodiscard]] Expected<UniqueFd> write_ipc_record(const IpcHandle& handle, std::size_t bytes,
                                                  const std::string& gpu);

/// Whether a descriptor is such a record, and not the memory itself.
bool is_ipc_record(int fd);

/// The handle of `bytes` of memory of this GPU; anything else is an error that names both sides.
[[nodiscard]] Expected<IpcHandle> read_ipc_record(int fd, std::size_t bytes,
                                                  const std::string& gpu);

}  // namespace kvhive
