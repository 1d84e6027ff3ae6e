#pragma once
// A small channel between a client and an engine that are in the middle of their work, and a second
// channel, onto which a process can be moved so that it works on a copy of the first.
//
//   slot 0   request 2: two of its four tokens are generated, and read
//   slot 1   request 3: taken, waits
//
// Both bells are silent, and both sides sleep.

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/memory/memory_object.hpp"
#include "ipc/channel/doorbell.hpp"
#include "tests/crash/channel/story.hpp"
#include "tests/crash/traced_child.hpp"
#include "tests/support/board.hpp"
#include "tests/support/channel_memory.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {

/// All that two ends of a channel share. Both files are mapped for writing here.
struct ChannelMedium {
  ChannelMemory memory;
  MappedMemory requests, answers;
  ClientBell client_bell;
  UniqueFd engine_bell;
};

class ChannelStage {
 public:
  static constexpr std::size_t kBytes =
      round_up(std::max(prompts_offset(), answers_offset()) + 4096, 4096);

  ChannelStage();
  ChannelStage(const ChannelStage&) = delete;
  ChannelStage& operator=(const ChannelStage&) = delete;

  const ChannelMedium& medium() const { return main_; }
  const ChannelMedium& copy() const { return copy_; }
  /// A channel that no client has opened: only one can.
  const ChannelMemory& unopened() const { return unopened_; }
  StoryClient& client() { return *client_; }
  StoryEngine& engine() { return *engine_; }
  /// Another engine, whose turn no request is: it takes only what waits elsewhere.
  StoryEngine& helper() { return *helper_; }
  StoryStatus& status() { return *status_; }

  std::uint32_t serving_engine() const { return engines_; }
  /// Both engines have died, and another serves the channel.
  void replace_engine();

  /// This process works on the copy from now on.
  void move_to_copy();
  /// The traced child works on the copy from now on.
  void move_to_copy(const TracedChild& child) const;

  // Values that an operation's preparation leaves for its run.
  std::uint32_t number = 0;
  ChannelRequest request;

 private:
  /// The copy's descriptor takes the place of ours.
  struct Exchange {
    int theirs, ours;
  };
  std::vector<Exchange> exchanges() const;
  /// A mapping of the copy takes the place of ours.
  struct Remapping {
    std::span<std::byte> ours;
    int protection, theirs;
  };
  std::vector<Remapping> remappings() const;
  UniqueFd engine_end();
  RequestFile copy_of_requests();

  static constexpr std::uint32_t kHelper = 99;  ///< its number

  TestBoard board_;
  SharedValue<StoryStatus> status_;
  ChannelMedium main_, copy_;
  ChannelMemory unopened_ = make_channel_memory(kBytes);
  int clients_engine_bell_ = -1;
  std::vector<int> engine_ends_;  ///< numbers of descriptors with which engines ring
  int clients_requests_ = -1;
  std::vector<int> engines_requests_;
  std::uint32_t engines_ = 0;
  std::unique_ptr<StoryClient> client_;
  std::unique_ptr<StoryEngine> engine_, helper_;
  int helpers_end_ = -1, helpers_requests_ = -1;
};

}  // namespace kvhive::testing
