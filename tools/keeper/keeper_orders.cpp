// What the keeper does when an operator orders something: engines, options, another program.

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "ipc/pidfd.hpp"
#include "tools/keeper/keeper.hpp"
#include "tools/keeper/operator_orders.hpp"
#include "tools/keeper/welcome.hpp"
#include "tools/program/version.hpp"

namespace kvhive {

using Json = nlohmann::json;

void Keeper::take_order(Peer& asker, const Order& order, std::string_view tail) {
  if (auto room = ledger_->make_room(); !room) return connections_.refuse(asker, room.error());
  switch (order.what) {
    case Order::What::drain:
    case Order::What::restart:
    case Order::What::add:
    case Order::What::remove:
      take_engine_order(tables_, connections_, supervisor_, asker, order);
      // One that runs is heard of when it has ended (on_engine_gone()).
      if (order.what == Order::What::remove && !tables_.has_engine(order.engine))
        refuse_clients_of(order.engine);
      return;
    case Order::What::take_over: return hand_over(asker, order, tail);
    case Order::What::reload: return reload(asker, order, tail);
  }
  connections_.refuse(
      asker, {Errc::bad_format, "unknown order " + std::to_string(std::uint32_t(order.what))});
}

// -- options --------------------------------------------------------------------------------------

/// The order is in the tables for the answer's sake alone.
void Keeper::reload(Peer& asker, const Order& order, std::string_view tail) {
  auto changed = changed_options(tables_.options.asked, Json::parse(tail, nullptr, false));
  if (!changed) return connections_.refuse(asker, changed.error());
  if (auto sound = check_quota(*changed); !sound) return connections_.refuse(asker, sound.error());
  if (auto written = write_options(*changed, estate_.ledger); !written)
    return connections_.refuse(asker, written.error());
  spdlog::info("options are changed, as pid {} ordered: {}", asker.pid, tail);
  use_options(tables_, *changed);
  estate_.options = std::move(*changed);
  tables_.channels.set_quota(quota_of(estate_.options));
  set_log_level(std::string(to_string(estate_.options.log_level)));
  supervisor_.describe_again(steward_flags(estate_), estate_.lifeline.get());
  options_are_due_ = true;
  tables_.orders.emplace(
      tables_.next_ticket++,
      PendingOrder{.what = order.what, .asker = asker.socket.get(), .asker_ticket = order.ticket});
}

/// A child that does not take them is started again with them.
void Keeper::send_options(const Peer& child) {
  const auto told = tell_options(tables_, child);
  if (told || told.error().code == Errc::peer_died) return;  // its end will be heard
  spdlog::warn("pid {} does not take its new options: it is started again", child.pid);
  connections_.fence(child);
}

// -- another program ------------------------------------------------------------------------------

/// The daemon is to go on with another program. When that is written down, this process ends like
/// one that is killed, and the front executes the program.
void Keeper::hand_over(Peer& asker, const Order& order, std::string_view tail) {
  const auto refuse = [&](Errc code, const std::string& text) {
    connections_.refuse(asker, {code, text});
  };
  if (order.version != kLedgerVersion)
    return refuse(Errc::layout_mismatch,
                  "the daemon's ledger is of version " + std::to_string(kLedgerVersion) +
                      ", that program's of " + std::to_string(order.version) +
                      "; stop the daemon and start that one");
  if (!tables_.is_told) return refuse(Errc::not_running, "the daemon is starting; try again soon");
  const bool is_under_way = std::any_of(tables_.orders.begin(), tables_.orders.end(), [](auto& o) {
    return o.second.what == Order::What::take_over;
  });
  if (is_under_way) return refuse(Errc::bad_argument, "another program takes over just now");
  const Json details = Json::parse(tail, nullptr, false);
  if (!details.is_object() || !details.contains("program") || !details["program"].is_string())
    return refuse(Errc::bad_format, "take_over: no program is named");
  const std::string program = details["program"];
  if (program.empty() || program[0] != '/' || program.size() >= PATH_MAX)
    return refuse(Errc::bad_argument,
                  "take_over: the program must be named by a whole path of "
                  "less than " +
                      std::to_string(PATH_MAX) + " bytes");
  if (is_stopped(tables_.front))
    return refuse(Errc::not_running, "process " + std::to_string(tables_.front) +
                                         " of the daemon, which is to execute the program, is "
                                         "stopped (kill -CONT it)");
  HandOver{program, {}}.write(estate_.ledger);
  tables_.orders.emplace(
      tables_.next_ticket++,
      PendingOrder{.what = order.what, .asker = asker.socket.get(), .asker_ticket = order.ticket});
  spdlog::info("pid {} orders {} to take over", asker.pid, program);
  hands_over_ = true;
}

void Keeper::leave() {
  flush_log();
  _exit(kExitHandsOver);
}

/// For a successor: the other program goes on, or could not, or is still to be executed.
void Keeper::end_hand_over() {
  const auto found = std::find_if(tables_.orders.begin(), tables_.orders.end(), [](auto& order) {
    return order.second.what == Order::What::take_over;
  });
  if (found == tables_.orders.end()) return;
  const HandOver state = HandOver::read(estate_.ledger);
  if (!state.program.empty()) {  // a keeper that was to leave was killed
    hands_over_ = true;
    return;
  }
  const auto asker = tables_.peers.find(found->second.asker);
  if (!state.error.empty()) {
    spdlog::error("the daemon goes on as it is: {}", state.error);
    if (asker != tables_.peers.end())
      connections_.refuse(asker->second, {Errc::os_error, state.error});
  } else {
    spdlog::info("{} has taken over", version_text("kvhived"));
    if (Child& steward = tables_.steward; steward.is_running()) {
      steward.wanted = Wanted::restarted;  // the next one is of this program, too
      steward.is_drained = true;
      kill_by_pidfd(steward.pidfd);
    }
    const Json told = {
        {"version", version_text("kvhived")}, {"front", tables_.front}, {"keeper", getpid()}};
    if (asker != tables_.peers.end() &&
        !send_packet(asker->first, Done{found->second.asker_ticket}, {}, told.dump()))
      connections_.drop(asker->first);
  }
  tables_.orders.erase(found);
}

}  // namespace kvhive
