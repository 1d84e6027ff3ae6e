#include "tools/cli/daemon_view.hpp"

namespace kvhive {
namespace {

using Clock = HiveWatch::Clock;

DaemonView view_of(const HiveWatch::News& news) {
  DaemonView daemon;
  switch (news.keeper) {
    case HiveWatch::News::Keeper::answering: daemon.state = DaemonState::answering; break;
    case HiveWatch::News::Keeper::silent: daemon.state = DaemonState::silent; break;
    case HiveWatch::News::Keeper::ended: daemon.state = DaemonState::ended; break;
  }
  daemon.trouble = news.trouble;
  daemon.model = news.hive->model();
  daemon.keeper = news.keeper_pid();
  if (news.status)
    daemon.told_ago = std::chrono::duration<double>(Clock::now() - news.told).count();
  return daemon;
}

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

Snapshot snapshot_of(const HiveWatch::News& news) {
  static const nlohmann::json kNothing = nlohmann::json::object();
  return take_snapshot(news.hive->memory(), news.status ? *news.status : kNothing, view_of(news),
                       seconds_now());
}

}  // namespace kvhive
