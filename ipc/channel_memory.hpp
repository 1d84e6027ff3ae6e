#pragma once
// A channel's memory, fresh: made by the keeper, which writes the header and maps nothing. Engine
// and client check the header before they believe anything else in there.

#include <unistd.h>

#include <string>

#include "base/memory_object.hpp"
#include "ipc/channel_layout.hpp"

namespace kvhive {

inline Expected<UniqueFd> make_channel_memory(std::size_t bytes) {
  auto memory = create_memory("kvhive-channel", bytes);
  if (!memory) return memory;
  const ChannelHeader header{kChannelMagic, bytes, sizeof(RequestSlot), kChannelSlots};
  if (pwrite(memory->get(), &header, sizeof header, 0) != ssize_t{sizeof header})
    return os_failure("write a channel's header");
  return memory;
}

/// \param header  a copy: the channel's own is the client's to rewrite
inline Expected<void> check_channel_header(const ChannelHeader& header, std::size_t bytes) {
  const auto differs = [](const char* field, std::uint64_t theirs, std::uint64_t ours) {
    return failure(Errc::layout_mismatch, std::string("the channel's ") + field + " is " +
                                              std::to_string(theirs) + ", this program's is " +
                                              std::to_string(ours) +
                                              "; use programs of the same build");
  };
  if (header.magic != kChannelMagic) return differs("magic", header.magic, kChannelMagic);
  if (header.bytes != bytes) return differs("size in bytes", header.bytes, bytes);
  if (header.slot_bytes != sizeof(RequestSlot))
    return differs("slot_bytes", header.slot_bytes, sizeof(RequestSlot));
  if (header.slots != kChannelSlots) return differs("slots", header.slots, kChannelSlots);
  return {};
}

}  // namespace kvhive
