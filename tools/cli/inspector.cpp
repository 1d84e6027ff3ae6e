#include "tools/cli/inspector.hpp"

#include <algorithm>

namespace kvhive {

Expected<Inspector> Inspector::attach(const std::string& socket_path, Privilege privilege) {
  auto socket = connect_to_daemon(socket_path);
  if (!socket) return forward_error(socket);
  const InspectorHello hello{layout_hash({}), privilege == Privilege::tokens_too ? 1u : 0u};
  auto welcome = say_hello(socket->get(), hello);
  if (!welcome) return forward_error(welcome);
  auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_only);
  if (!memory) return forward_error(memory);
  return Inspector(std::move(*socket), std::move(*memory), welcome->message.model.str());
}

Expected<nlohmann::json> Inspector::status() const { return ask<StatusRequest, Status>(); }

Expected<Inspector::Domains> Inspector::domains() const {
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

std::string Inspector::Domains::name(std::uint16_t domain) const {
  return domain < names.size() ? names[domain] : std::to_string(domain);
}

Expected<DomainId> Inspector::Domains::find(const std::string& wanted) const {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return DomainId{static_cast<std::uint16_t>(found - names.begin())};
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  return failure(Errc::not_found,
                 "domain: no client of '" + wanted + "' has come yet; these are known: " + known);
}

Expected<nlohmann::json> Inspector::repair() const { return ask<RepairRequest, RepairDone>(); }

template <class Question, class Answer>
Expected<nlohmann::json> Inspector::ask() const {
  if (auto sent = send_packet(socket_.get(), Question{}); !sent) return forward_error(sent);
  auto answer = receive_answer(socket_.get());
  if (!answer) return forward_error(answer);
  if (!*answer) return failure(Errc::peer_died, "the daemon hung up instead of answering");
  if (const auto refused = (*answer)->as<Refused>()) return tl::unexpected(error_of(*refused));
  if (!(*answer)->is(Answer::kType))
    return failure(Errc::peer_died, "the daemon hung up instead of answering");
  return nlohmann::json::parse((*answer)->tail());
}

}  // namespace kvhive
