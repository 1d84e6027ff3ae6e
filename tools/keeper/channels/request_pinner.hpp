#pragma once
// Pins the pages of clients' requests (page_pins.hpp), in expendable processes.
//
// A client seals its requests before they are pinned, so that it cannot put other pages in their
// place afterwards. Before that it could do what it liked with them, and whoever touches them first
// may wait for as long as the client has arranged it.
//
// A process pins one file after the other. While one waits, others work for other clients.

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <optional>
#include <set>

#include "ipc/channel/channel_memory.hpp"
#include "tools/keeper/strangers/expendable.hpp"

namespace kvhive {

class RequestPinner {
 public:
  /// Called on the event loop; the keeper implements it.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_pinned(std::uint64_t channel, Expected<void> result) = 0;
  };

  RequestPinner(EventLoop& loop, Events& events) : loop_(loop), events_(events), processes_(loop) {}
  RequestPinner(const RequestPinner&) = delete;
  RequestPinner& operator=(const RequestPinner&) = delete;
  ~RequestPinner();

  /// Begins after the event that is being handled. on_pinned() follows, unless it is cancelled.
  /// \param memory  stays where it is until then; its pipes have room for the requests' pages
  void pin(std::uint64_t channel, uid_t user, const ChannelMemory& memory, std::size_t bytes);
  /// The client is gone.
  void cancel(std::uint64_t channel);
  /// How many processes there are.
  std::size_t count() const { return helpers_.size(); }

 private:
  /// So many files of one user are pinned at a time; the user's others wait.
  static constexpr std::size_t kMostOfUser = 4;

  struct Job {
    std::uint64_t channel = 0;
    uid_t user = 0;
    const ChannelMemory* memory = nullptr;
    std::size_t bytes = 0;
  };
  struct Helper {
    UniqueFd socket;
    std::optional<Job> job;  ///< nothing = it waits for one
  };
  static bool is_idle(const Helper& helper) { return helper.socket && !helper.job; }
  using Helpers = std::list<Helper>;

  void start_waiting();
  bool may_start(const Job& job) const;
  [[nodiscard]] Expected<void> start(const Job& job);
  [[nodiscard]] Expected<Helpers::iterator> idle_helper();
  void on_answer(Helpers::iterator helper);
  void on_end(Helpers::iterator helper, int status);
  void hang_up(Helper& helper);
  void tell(const Job& job, Expected<void> result);

  EventLoop& loop_;
  Events& events_;
  std::set<std::uint64_t> wanted_;  ///< channels of which on_pinned() will tell
  std::list<Job> waiting_;
  Helpers helpers_;
  Expendables processes_;
};

}  // namespace kvhive
