#pragma once
// How the keeper makes a channel's memory and writes its header. The keeper uses pwrite and maps
// nothing. Engine and client check the header before they read anything else in the channel.

#include <unistd.h>

#include <atomic>
#include <string>

#include "base/memory_object.hpp"
#include "ipc/channel_layout.hpp"

namespace kvhive {

/// Writes the header of a new channel that no engine serves.
[[nodiscard]] inline Expected<void> write_channel_header(const UniqueFd& memory,
                                                         std::size_t bytes) {
  ChannelHeader header;
  header.bytes = bytes;
  if (pwrite(memory.get(), &header, sizeof header, 0) != ssize_t{sizeof header})
    return os_failure("write a channel's header");
  return {};
}

inline const std::string kChannelMemoryName = "kvhive-channel";

/// A new channel that no engine serves.
[[nodiscard]] inline Expected<UniqueFd> make_channel_memory(std::size_t bytes) {
  auto memory = create_memory(kChannelMemoryName, bytes);
  if (!memory) return memory;
  if (auto written = write_channel_header(*memory, bytes); !written) return forward_error(written);
  return memory;
}

/// Tells the client library which engine serves the channel: the engine does it as it begins.
inline void write_serving_engine(std::byte* channel, std::uint32_t engine) {
  auto& header = *reinterpret_cast<ChannelHeader*>(channel);
  std::atomic_ref(header.engine).store(engine, std::memory_order_relaxed);
}

/// The same through a descriptor, for a process that maps no channel. The client can make the
/// caller wait for ever (tools/keeper/channels/file_helpers.hpp). If the write fails, the client
/// library reads the old number. Its hint is then wrong, its results are not.
inline void write_serving_engine(int memory, std::uint32_t engine) {
  [[maybe_unused]] const ssize_t written =
      pwrite(memory, &engine, sizeof engine, offsetof(ChannelHeader, engine));
}

/// \param header  a copy, since the client can rewrite the header in the channel at any time
[[nodiscard]] inline Expected<void> check_channel_header(const ChannelHeader& header,
                                                         std::size_t bytes) {
  const auto differs = [](const char* field, std::uint64_t theirs, std::uint64_t ours) {
    return failure(Errc::layout_mismatch, std::string("the channel's ") + field + " is " +
                                              std::to_string(theirs) + ", this program's is " +
                                              std::to_string(ours) +
                                              "; use programs of the same build");
  };
  if (header.magic == 0)  // its memory was given back
    return failure(Errc::peer_died, "the channel is closed already");
  if (header.magic != kChannelMagic) return differs("magic", header.magic, kChannelMagic);
  if (header.bytes != bytes) return differs("size in bytes", header.bytes, bytes);
  if (header.slot_bytes != sizeof(RequestSlot))
    return differs("slot_bytes", header.slot_bytes, sizeof(RequestSlot));
  if (header.slots != kChannelSlots) return differs("slots", header.slots, kChannelSlots);
  return {};
}

}  // namespace kvhive
