#include "tools/cli/inspector.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/stop_watch.hpp"
#include "config/domains/rule_text.hpp"
#include "ipc/pidfd.hpp"
#include "ipc/questions.hpp"
#include "tools/cli/stopped_keeper.hpp"

namespace kvhive {

namespace {

/// A living keeper answers within a millisecond; one on an overloaded machine may take longer.
constexpr int kPatienceMs = 2'000;
/// For a view that does not wait: it tries again later.
constexpr int kBriefMs = 500;

struct Reached {
  UniqueFd socket;  ///< none: nobody can connect
  DaemonPids pids;

  bool can_answer() const { return socket && !is_stopped(pids.keeper); }
};

/// Error: no daemon listens there.
Expected<Reached> reach(const std::string& socket_path, int timeout_ms) {
  auto socket = connect_to_daemon(socket_path, timeout_ms);
  const pid_t daemon = socket ? peer_of(socket->get()) : listener_on(socket_path).value_or(0);
  const pid_t keeper = keeper_of(daemon);
  if (!socket && keeper == 0) return forward_error(socket);
  return Reached{socket ? std::move(*socket) : UniqueFd(), {daemon, keeper}};
}

Error keeper_is_silent(const std::string& socket_path, DaemonPids pids) {
  const auto [daemon, keeper] = pids;
  const std::string process =
      keeper != 0 ? "kvhived (process " + std::to_string(keeper) + ")" : "kvhived";
  if (keeper != 0 && is_stopped(keeper))
    return {Errc::not_running, process + " on " + socket_path +
                                   " is stopped; let it go on with kill -CONT " +
                                   std::to_string(keeper)};
  if (keeper != 0 && access(socket_path.c_str(), F_OK) != 0)
    return {Errc::not_running, "the socket " + socket_path + " of " + process +
                                   " was removed, so nothing can reach it; end it with kill " +
                                   std::to_string(daemon) + ", and start it again"};
  return {Errc::not_running, process + " on " + socket_path +
                                 " does not answer; it is starting (see its log), " +
                                 "stopped (kill -CONT it) or overloaded"};
}

}  // namespace

Expected<DaemonPids> find_daemon(const std::string& socket_path) {
  const auto found = reach(socket_path, kAnswerMs);
  if (!found) return forward_error(found);
  if (found->can_answer()) return found->pids;
  return tl::unexpected(keeper_is_silent(socket_path, found->pids));
}

Expected<Inspector> Inspector::attach(const std::string& socket_path, Privilege privilege,
                                      WithoutKeeper without_keeper) {
  DaemonPids pids;
  const bool is_brief = without_keeper == WithoutKeeper::read_pool_at_once;
  const std::vector<int> timeouts =
      is_brief ? std::vector{kBriefMs} : std::vector{kPatienceMs, kAnswerMs};
  for (const int timeout_ms : timeouts) {
    auto found = reach(socket_path, is_brief ? kBriefMs : kAnswerMs);
    if (!found) return forward_error(found);
    pids = found->pids;
    if (!found->can_answer()) break;
    const StopWatch watch;
    auto attached = attach_by(std::move(found->socket), pids, privilege, timeout_ms);
    const bool is_silent = !attached && attached.error().code == Errc::not_running &&
                           watch.seconds() * 1000 >= timeout_ms;
    if (!is_silent) return attached;
    if (is_stopped(pids.keeper)) break;
  }
  const Error silence = keeper_is_silent(socket_path, pids);
  if (without_keeper == WithoutKeeper::fail || pids.keeper == 0)
    return failure(silence.code, silence.text);
  auto attached = attach_without(pids, privilege);
  if (is_brief && attached) return attached;
  if (!attached)
    return failure(silence.code, silence.text + "; nor can its pool be read without it: " +
                                     attached.error().text);
  std::fprintf(stderr,
               "kvhive: %s. The pool is read without it: names of model and domains, states of "
               "engines, and clients are not known\n",
               silence.text.c_str());
  return attached;
}

Expected<Inspector> Inspector::attach_by(UniqueFd socket, DaemonPids pids, Privilege privilege,
                                         int timeout_ms) {
  const InspectorHello hello{layout_hash({}), privilege == Privilege::tokens_too ? 1u : 0u};
  auto welcome = say_hello(socket.get(), hello, timeout_ms);
  if (!welcome) return forward_error(welcome);
  auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_only);
  if (!memory) return forward_error(memory);
  return Inspector(std::move(socket), pids, std::move(*memory), welcome->message.model.str());
}

Expected<Inspector> Inspector::attach_without(DaemonPids pids, Privilege privilege) {
  const PoolFds fds = open_pool_of(
      pids.keeper, privilege == Privilege::tokens_too ? Tokens::included : Tokens::left_out);
  if (!fds[std::size_t(PoolObject::control)] || !fds[std::size_t(PoolObject::metadata)])
    return failure(Errc::not_running, "its descriptors cannot be opened by this user");
  auto memory = PoolMemory::attach(fds, Access::read_only);
  if (!memory) return forward_error(memory);
  return Inspector(UniqueFd(), pids, std::move(*memory), "a model not known");
}

std::vector<std::string> Inspector::models() const {
  if (memory_.geometry().model_count == 1) return {model_};
  return split_list(model_, ',');  // these names have no commas
}

Expected<nlohmann::json> Inspector::status(int timeout_ms) const {
  if (!has_keeper()) return no_keeper();
  return ask_status(socket_.get(), ++last_ticket_, timeout_ms);
}

Expected<Inspector::Domains> Inspector::domains() const {
  if (!has_keeper()) return Domains{};
  auto status = this->status();
  if (!status) return forward_error(status);
  const nlohmann::json& told = (*status)["domains"];
  Domains domains{told["names"].get<std::vector<std::string>>(), std::nullopt};
  if (told["yours"].is_string()) {
    auto ours = domains.find(told["yours"].get<std::string>());
    if (!ours) return forward_error(ours);
    domains.ours = *ours;
  }
  return domains;
}

std::string Inspector::Domains::name(DomainId domain) const {
  return domain.value < names.size() ? names[domain.value] : std::to_string(domain.value);
}

Expected<DomainId> Inspector::Domains::find(const std::string& wanted) const {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return DomainId{static_cast<std::uint16_t>(found - names.begin())};
  return failure(Errc::not_found, "domain: no client of '" + wanted +
                                      "' has come yet; these are known: " + joined(names));
}

Expected<nlohmann::json> Inspector::have_steward(Care care) const {
  if (!has_keeper()) return no_keeper();
  const auto answer = ask_keeper<RepairDone>(socket_.get(), RepairRequest{++last_ticket_, care});
  if (!answer) return forward_error(answer);
  return nlohmann::json::parse(answer->tail());
}

Expected<nlohmann::json> Inspector::order(Order order, const nlohmann::json& details,
                                          int timeout_ms) const {
  if (!has_keeper()) return no_keeper();
  order.ticket = ++last_ticket_;
  const auto answer = ask_keeper<Done>(socket_.get(), order, details.dump(), timeout_ms);
  if (!answer) return forward_error(answer);
  return nlohmann::json::parse(answer->tail());
}

tl::unexpected<Error> Inspector::no_keeper() const {
  return failure(Errc::not_running, "kvhived (process " + std::to_string(pids_.keeper) +
                                        ") does not answer; if it is stopped, let it go on with "
                                        "kill -CONT " +
                                        std::to_string(pids_.keeper));
}

}  // namespace kvhive
