#pragma once
// The engine's end of a channel: takes requests out of their slots and writes results into them.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory_object.hpp"
#include "ipc/channel_layout.hpp"
#include "ipc/output_sink.hpp"

namespace kvhive {

/// A request copied out of a slot and checked: every range lies in the channel, every number is in
/// its bounds.
struct TakenRequest {
  std::uint32_t slot = 0;
  GenerationParams params;
  PromptKind prompt_kind = PromptKind::text;
  std::string text;              ///< the prompt, if its kind is text
  std::vector<TokenId> tokens;   ///< the prompt, if its kind is tokens
  std::vector<TokenId> journal;  ///< tokens that an engine generated before it died
  /// The statistics of the first admission, if an engine that died had admitted the request.
  std::optional<RequestStats> earlier_admission;
};

class EngineChannel : public std::enable_shared_from_this<EngineChannel> {
 public:
  /// Maps a client's channel. `doorbell` is the engine's end; the client waits at the other end.
  [[nodiscard]] static Expected<std::shared_ptr<EngineChannel>> open(std::uint64_t id,
                                                                     std::uint32_t engine,
                                                                     const UniqueFd& memory,
                                                                     std::size_t bytes,
                                                                     UniqueFd doorbell);

  /// The same for memory that is mapped already. The caller keeps it mapped for as long as the
  /// channel is in use, and has checked its header.
  static std::shared_ptr<EngineChannel> in_memory(std::uint64_t id, std::uint32_t engine,
                                                  std::span<std::byte> memory, UniqueFd doorbell);

  std::uint64_t id() const { return id_; }

  /// Accepts and returns the requests submitted since the last call. The first call also takes over
  /// the requests that a dead engine had accepted. A malformed request, or a request with more than
  /// kMostTakeovers takeovers, is not returned: its slot is finished with an error at once.
  std::vector<TakenRequest> take_submitted();

  /// Slots whose client has asked for an abort. Each abort is returned once.
  std::vector<std::uint32_t> take_aborts();

  /// The object that writes the results of a taken request into its slot.
  std::unique_ptr<OutputSink> sink(const TakenRequest& request);

  /// Ends a taken request with an error before the scheduler has seen it.
  void refuse(std::uint32_t slot, const Error& error);

  /// Wakes the client if anything was written since the last call.
  void ring();

 private:
  class Sink;
  EngineChannel(std::uint64_t id, std::uint32_t engine, std::span<std::byte> memory,
                UniqueFd doorbell);

  [[nodiscard]] Expected<TakenRequest> take(std::uint32_t slot, std::size_t& room);
  std::optional<RequestStats> earlier_admission(std::uint32_t slot) const;
  [[nodiscard]] Expected<void> check(const RequestBody& body) const;
  bool contains(const ChannelRange& range, std::size_t alignment) const;
  RequestSlot& slot(std::uint32_t index) const;
  void finish(RequestSlot& slot, FinishReason reason, const Error& error, std::size_t text_bytes);

  std::uint64_t id_;
  std::uint32_t engine_;
  MappedMemory map_;  ///< owns the mapping behind memory_; empty if in_memory() made the channel
  std::span<std::byte> memory_;
  UniqueFd doorbell_;
  std::atomic<bool> has_news_{false};
  bool takes_over_ = true;
  std::array<bool, kChannelSlots> abort_seen_{};
};

}  // namespace kvhive
