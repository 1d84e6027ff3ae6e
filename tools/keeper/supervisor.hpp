#pragma once
// Starts the keeper's children and starts them again when they end: at once after a long life,
// after a growing delay when they die young. A child that never worked is not started again: the
// daemon ends with what that child said.

#include <string>

#include "base/event_loop.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

class Supervisor {
 public:
  /// What the router does about children.
  class Events {
   public:
    virtual ~Events() = default;
    /// A child has ended and is collected; `pid` is the number it had.
    virtual void on_child_end(const Child& child, pid_t pid) = 0;
  };

  Supervisor(Tables& tables, EventLoop& loop, Events& events)
      : tables_(tables), loop_(loop), events_(events) {}

  /// Starts the steward with these flags.
  void start_steward(std::vector<std::string> flags);
  /// Starts those engines of the options that were never started.
  void start_engines();
  /// Kills all children and waits until they have ended.
  void stop_all();

  /// Ends the daemon with this error: run() of the loop returns.
  void fail(Error error);
  /// Why the daemon has to end; Errc::none = it has not.
  const Error& fatal() const { return fatal_; }

 private:
  void make_engine_entries();
  void start(Child& child);
  void on_end(Child& child);
  void restart_later(Child& child);

  Tables& tables_;
  EventLoop& loop_;
  Events& events_;
  Error fatal_;
};

}  // namespace kvhive
