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

/// A request as found in a slot, checked: every range lies in the channel, every number in its
/// bounds.
struct TakenRequest {
  std::uint32_t slot = 0;
  GenerationParams params;
  PromptKind prompt_kind = PromptKind::text;
  std::string text;              ///< if the prompt is text
  std::vector<TokenId> tokens;   ///< if it is tokens
  std::vector<TokenId> journal;  ///< generated already, by an engine that died
  /// What the first admission found, if an engine that died had admitted the request.
  std::optional<RequestStats> earlier_admission;
};

class EngineChannel : public std::enable_shared_from_this<EngineChannel> {
 public:
  /// Maps a client's channel. `doorbell` is our end of the pair the client sleeps on.
  static Expected<std::shared_ptr<EngineChannel>> open(std::uint64_t id, std::uint32_t engine,
                                                       const UniqueFd& memory, std::size_t bytes,
                                                       UniqueFd doorbell);

  /// The same over memory that somebody else keeps mapped for as long as the channel is in use, its
  /// header checked.
  static std::shared_ptr<EngineChannel> over(std::uint64_t id, std::uint32_t engine,
                                             std::span<std::byte> memory, UniqueFd doorbell);

  std::uint64_t id() const { return id_; }

  /// Slots submitted since the last call; the first call after open() also takes up what a dead
  /// engine had accepted. A request that does not hold together, or that one engine after the other
  /// has died at, is finished with an error at once and not returned.
  std::vector<TakenRequest> take_submitted();

  /// Slots whose client wants no more of them; each is named once.
  std::vector<std::uint32_t> take_aborts();

  /// Where the results of a taken request go.
  std::unique_ptr<OutputSink> sink(const TakenRequest& request);

  /// Ends a taken request that never got as far as the scheduler.
  void refuse(std::uint32_t slot, const Error& error);

  /// Wakes the client if anything was written since the last call.
  void ring();

 private:
  class Sink;
  EngineChannel(std::uint64_t id, std::uint32_t engine, std::span<std::byte> memory,
                UniqueFd doorbell);

  Expected<TakenRequest> take(std::uint32_t slot, std::size_t& room);
  std::optional<RequestStats> earlier_admission(std::uint32_t slot) const;
  Expected<void> check(const RequestBody& body) const;
  bool contains(const ChannelRange& range, std::size_t alignment) const;
  RequestSlot& slot(std::uint32_t index) const;
  void finish(RequestSlot& slot, FinishReason reason, const Error& error, std::size_t text_bytes);

  std::uint64_t id_;
  std::uint32_t engine_;
  MappedMemory map_;  ///< keeps memory_ there, if it is ours to keep
  std::span<std::byte> memory_;
  UniqueFd doorbell_;
  std::atomic<bool> has_news_{false};
  bool takes_over_ = true;
  std::array<bool, kChannelSlots> abort_seen_{};
};

}  // namespace kvhive
