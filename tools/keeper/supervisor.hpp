#pragma once
// Starts the keeper's children and starts them again when they end: at once if the child ran for
// some seconds, after a growing delay if it ended soon after its start. A child that ends before it
// ever worked is not started again (the steward: not after its third start). The daemon then ends,
// with that child's last message as its error.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/loop/event_loop.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Enters engines, and what they are started with, until there are so many. The new ones are
/// removed ones (Wanted::removed) but for those that the options ask for.
void make_engine_entries(Tables& tables, std::size_t count);
/// From its next start on this engine computes that model.
void set_model(Tables& tables, std::size_t number, ModelId model);

class Supervisor {
 public:
  /// Called when a child ends; the keeper implements it.
  class Events {
   public:
    virtual ~Events() = default;
    /// A child has ended, and it is known how. `pid` is the pid that it had.
    virtual void on_child_end(const Child& child, pid_t pid) = 0;
    /// How a process ended that an earlier keeper had started, as waitpid() would tell it.
    virtual std::optional<int> end_of_orphan(pid_t pid) = 0;
    /// Calls `action` when no row of the ledger names what the child had.
    virtual void after_commit(std::function<void()> action) = 0;
  };

  Supervisor(Tables& tables, EventLoop& loop, Events& events)
      : tables_(tables), loop_(loop), events_(events) {}

  /// Starts the steward with these flags. It keeps `lifeline` open.
  void start_steward(std::vector<std::string> flags, int lifeline);
  /// Starts the engines that the options ask for, except those that were started before.
  void start_engines();
  /// Starts one that an operator has added.
  void start_engine(Child& engine) { start(engine); }
  void describe_steward(std::vector<std::string> flags, int lifeline);
  /// The options have changed: children that are started from now on get these.
  void describe_again(std::vector<std::string> flags_of_steward, int lifeline);
  /// For a successor: watches the children that run, and starts the others.
  void resume();
  /// Lets the children go that were started and are written down now. Returns whether there were
  /// any.
  bool let_children_go();
  /// Kills all children and waits until they have ended.
  void stop_all();

  /// Ends the daemon with this error, by stopping the event loop.
  void fail(Error error);
  /// Why the daemon has to end; Errc::none = it has not.
  const Error& fatal() const { return fatal_; }

 private:
  std::vector<Child*> all();
  void watch(Child& child);
  void start(Child& child);
  void on_end(Child& child);
  void wait_for_the_front(Child& child, int times = 0);
  void has_ended(Child& child);
  void restart_later(Child& child);

  Tables& tables_;
  EventLoop& loop_;
  Events& events_;
  Error fatal_;
};

}  // namespace kvhive
