#pragma once
// A channel as the keeper makes it, for tests that need no keeper.

#include <fcntl.h>

#include <atomic>
#include <cstring>

#include "base/check.hpp"
#include "ipc/channel/channel_memory.hpp"

namespace kvhive::testing {

inline UniqueFd copy_of(const UniqueFd& fd) {
  return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
}

/// A new channel that no engine serves.
inline ChannelMemory make_channel_memory(std::size_t bytes) {
  ChannelMemory memory{create_empty_memory(kRequestsName, bytes).value(),
                       create_memory(kAnswersName, bytes).value()};
  KV_CHECK(write_channel_header(memory.answers, bytes).has_value());
  return memory;
}

/// What an engine may write, and a client cannot.
inline MappedMemory map_answers(const ChannelMemory& memory, std::size_t bytes) {
  return MappedMemory::map(memory.answers.get(), bytes, Access::read_write, kAnswersName).value();
}

inline AnswerSlot& answer_in(std::byte* answers, std::size_t slot) {
  return reinterpret_cast<AnswerSlot*>(answers + slots_offset())[slot];
}

// The client's file, as a hostile client writes it.

inline RequestMark& mark_in(std::byte* requests, std::size_t slot) {
  return reinterpret_cast<RequestMark*>(requests)[slot];
}
inline RequestBody& body_in(std::byte* requests, std::size_t slot) {
  return *reinterpret_cast<RequestBody*>(requests + body_offset(static_cast<std::uint32_t>(slot)));
}
/// Submits what may be no request at all, as the slot's next one, without ringing.
inline void submit_raw(std::byte* requests, std::size_t slot, RequestBody body) {
  RequestMark& mark = mark_in(requests, slot);
  body.number = mark.submitted + 1;
  std::memcpy(&body_in(requests, slot), &body, sizeof body);  // the padding, too
  std::atomic_ref(mark.submitted).store(body.number, std::memory_order_release);
}

}  // namespace kvhive::testing
