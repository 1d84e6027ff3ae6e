#pragma once
// How the keeper makes a channel's memory and writes its header. The keeper maps nothing. Engine
// and client check the header before they read anything else in the channel.

#include <unistd.h>

#include <string>
#include <vector>

#include "base/memory/memory_object.hpp"
#include "ipc/channel/channel_layout.hpp"

namespace kvhive {

inline const std::string kRequestsName = "kvhive-requests";
inline const std::string kAnswersName = "kvhive-answers";

/// A channel's two files, open for writing, and the pipes that keep their pages small
/// (tools/keeper/channels/page_pins.hpp).
struct ChannelMemory {
  UniqueFd requests, answers;
  std::vector<UniqueFd> pins = {};
};

/// Writes the header of a new channel that no engine serves.
[[nodiscard]] inline Expected<void> write_channel_header(const UniqueFd& answers,
                                                         std::size_t bytes) {
  ChannelHeader header;
  header.bytes = bytes;
  if (pwrite(answers.get(), &header, sizeof header, 0) != ssize_t{sizeof header})
    return os_failure("write a channel's header");
  return {};
}

/// Tells the client library which engines serve the channel. If the write fails, the library reads
/// the old numbers. Its hint is then wrong, its results are not.
/// \param engine  the number of one of them, or kNoEngine
/// \param slots  the process slots of all, a bit each
inline void write_serving_engines(const UniqueFd& answers, std::uint32_t engine,
                                  std::uint32_t slots) {
  const std::uint32_t fields[] = {engine, slots};
  static_assert(offsetof(ChannelHeader, engine_slots) ==
                offsetof(ChannelHeader, engine) + sizeof engine);
  [[maybe_unused]] const ssize_t written =
      pwrite(answers.get(), fields, sizeof fields, offsetof(ChannelHeader, engine));
}

/// \param header  of the answers
/// \param bytes  the channel's size, as the keeper says
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
  if (header.slot_bytes != sizeof(AnswerSlot))
    return differs("slot_bytes", header.slot_bytes, sizeof(AnswerSlot));
  if (header.body_bytes != sizeof(RequestBody))
    return differs("body_bytes", header.body_bytes, sizeof(RequestBody));
  if (header.slots != kChannelSlots) return differs("slots", header.slots, kChannelSlots);
  return {};
}

}  // namespace kvhive
