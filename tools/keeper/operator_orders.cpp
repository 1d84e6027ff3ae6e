#include "tools/keeper/operator_orders.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/byte_size.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "config/domains/domain_rules.hpp"
#include "config/machine/machine_memory.hpp"
#include "config/option_table.hpp"
#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;
using What = Order::What;

/// Before the engine is started: the kernel would kill another one for want of memory.
Expected<void> check_memory(const Tables& tables, ModelId model) {
  if (tables.pool.is_on_gpu()) return {};
  const ModelFacts& facts = tables.pool.models[model.value];
  const std::size_t needed = facts.weight_bytes + facts.engine_peak;
  const MachineMemory machine = machine_memory();
  if (machine.available >= needed) return {};
  return failure(Errc::out_of_memory, "another engine needs " + format_bytes(needed) + ", and " +
                                          machine.bound + " has " +
                                          format_bytes(machine.available) +
                                          " available; free some, or raise that limit");
}

/// The number of an engine that is to be added: the lowest that none has.
Expected<std::uint32_t> next_number(const Tables& tables) {
  for (std::uint32_t number = 0; number < kMaxProcesses; ++number) {
    const bool still_ends = number < tables.engines.size() && tables.engines[number].is_running();
    if (!tables.has_engine(number) && !still_ends) return number;
  }
  return failure(Errc::too_many_processes, "there are " + std::to_string(kMaxProcesses) +
                                               " engines, the most that a pool has; remove one");
}

Expected<std::uint32_t> add(Tables& tables, Supervisor& supervisor, const Order& order) {
  const std::string name = order.model.str();
  const auto model = name.empty() ? ModelId{} : tables.pool.find(name);
  if (!model)
    return failure(Errc::not_found,
                   "model '" + name + "' is not served here; there are: " + tables.pool.names());
  if (auto enough = check_memory(tables, *model); !enough) return forward_error(enough);
  auto number = next_number(tables);
  if (!number) return number;
  make_engine_entries(tables, *number + 1);
  Child& engine = tables.engines[*number];
  set_model(tables, *number, *model);
  engine.wanted = Wanted::serving;
  // It is another engine than the one that had this number. No order names that one: it was
  // answered when the other was removed.
  engine.starts = engine.young_deaths = 0;
  supervisor.start_engine(engine);
  return number;
}

Wanted wanted_by(What what) {
  if (what == What::restart) return Wanted::restarted;
  return what == What::remove ? Wanted::removed : Wanted::drained;
}

Expected<Child*> find_engine(Tables& tables, std::uint32_t number) {
  if (Child* const own = tables.engine_of(number)) return own;
  const std::string name = "engine " + std::to_string(number);
  if (tables.has_engine(number))
    return failure(Errc::unsupported,
                   name + " was started by hand, not by the daemon; end it as it was started");
  std::string known;
  for (std::uint32_t i = 0; i < tables.engines.size(); ++i)
    if (tables.engine_of(i) != nullptr) known += (known.empty() ? "" : ", ") + std::to_string(i);
  return failure(Errc::not_found, name + " does not exist; there are " + known);
}

/// Requests to a model without engines would wait for ever.
Expected<void> check_removal(const Tables& tables, const Child& engine) {
  bool is_last = true, is_last_of_model = true, is_last_that_serves = !engine.is_drained;
  for (const Child& other : tables.engines) {
    if (&other == &engine || other.wanted == Wanted::removed) continue;
    is_last = false;
    if (other.model != engine.model) continue;
    is_last_of_model = false;
    is_last_that_serves &= other.wanted == Wanted::drained;
  }
  if (is_last)
    return failure(Errc::bad_argument,
                   engine.name + " is the last; the daemon ends with kvhive stop");
  const std::string& model = tables.pool.models[engine.model.value].name;
  if (is_last_of_model)
    return failure(Errc::bad_argument,
                   engine.name + " is the last of model '" + model +
                       "', whose requests would wait for ever; add another first (kvhive engine "
                       "add --model " +
                       model + ")");
  if (is_last_that_serves)
    return failure(Errc::bad_argument,
                   engine.name + " is the last of model '" + model +
                       "' that takes requests: the others are drained, and these would wait for "
                       "ever; restart one of them first (kvhive engine restart)");
  return {};
}

Expected<std::uint32_t> change(Tables& tables, const Order& order) {
  auto engine = find_engine(tables, order.engine);
  if (!engine) return forward_error(engine);
  const Wanted wanted = wanted_by(order.what);
  Child& child = **engine;
  // To be drained is no reason not to be restarted or removed.
  if (child.wanted == Wanted::restarted || child.wanted == Wanted::removed)
    return failure(Errc::bad_argument,
                   child.name + " is being " +
                       (child.wanted == Wanted::removed ? "removed" : "restarted") +
                       " already; wait for that, or use --now");
  if (wanted == Wanted::removed)
    if (auto allowed = check_removal(tables, child); !allowed) return forward_error(allowed);
  // One that has just ended is started again anyway.
  child.wanted = wanted == Wanted::restarted && !child.is_running() ? Wanted::serving : wanted;
  child.is_drain_due = child.wanted != Wanted::serving && !child.is_drained;
  return order.engine;
}

/// "At once" overtakes what was ordered before.
Expected<std::uint32_t> change_at_once(Tables& tables, const Order& order) {
  if (order.what == What::drain)
    return failure(Errc::bad_argument, "an engine cannot be drained at once; restart or remove it");
  Child* const engine = tables.engine_of(order.engine);
  const Wanted before = engine == nullptr ? Wanted::serving : engine->wanted;
  if (engine != nullptr) engine->wanted = Wanted::serving;
  auto number = change(tables, order);
  if (!number) {
    if (engine != nullptr) engine->wanted = before;
    return number;
  }
  Child& child = tables.engines[*number];
  child.is_drain_due = false;
  child.is_drained = child.is_running() && child.wanted != Wanted::serving;
  return number;
}

/// By the domain's name.
std::map<std::string, BlockShare> block_shares(const Options& options) {
  std::map<std::string, BlockShare> shares;
  for (const ShareRule& rule : options.shares)
    if (rule.blocks.is_given()) shares[rule.domain] = rule.blocks;
  return shares;
}

bool is_serving(Tables& tables, const Child& child) {
  const Peer* const peer = child.is_running() ? tables.peer_of(child.pid) : nullptr;
  return peer != nullptr && peer->is_serving;
}

bool is_done(Tables& tables, const PendingOrder& order) {
  if (order.what == What::reload) return true;
  const Child& child = tables.engines[order.engine];
  switch (order.what) {
    case What::add:
    case What::restart: return child.starts > order.starts && is_serving(tables, child);
    case What::drain: return child.is_drained;
    case What::remove: return child.wanted == Wanted::removed && !child.is_running();
    default: return false;
  }
}

std::string describe(const Tables& tables, const PendingOrder& order) {
  if (order.what == What::reload) return "{}";
  return Json{{"engine", order.engine}, {"pid", tables.engines[order.engine].pid}}.dump();
}

/// Another order came, or the engine was removed.
bool is_overtaken(const Tables& tables, const PendingOrder& order) {
  if (order.what == What::reload) return false;
  const Child& child = tables.engines[order.engine];
  switch (order.what) {
    case What::drain: return child.wanted != Wanted::drained;
    case What::remove: return child.wanted != Wanted::removed;
    case What::add:
    case What::restart: return child.wanted == Wanted::removed;
    default: return false;
  }
}

}  // namespace

void take_engine_order(Tables& tables, Connections& connections, Supervisor& supervisor,
                       const Peer& asker, const Order& order) {
  const auto refuse = [&](const Error& error) {
    connections.refuse(tables.peers.at(asker.socket.get()), error);
  };
  if (!tables.is_ready)
    return refuse({Errc::not_running, "the daemon is starting; try again in a moment"});
  const Child* const named = tables.engine_of(order.engine);
  std::uint32_t starts = named != nullptr ? named->starts : 0;
  const auto number = order.what == What::add ? add(tables, supervisor, order)
                      : order.is_at_once != 0 ? change_at_once(tables, order)
                                              : change(tables, order);
  if (!number) return refuse(number.error());
  if (order.what == What::add) starts = tables.engines[*number].starts - 1;
  tables.orders.emplace(tables.next_ticket++, PendingOrder{order.what, *number, starts,
                                                           asker.socket.get(), order.ticket});
  constexpr const char* kNames[] = {"", "to be drained", "to be restarted", "is added",
                                    "to be removed"};
  spdlog::info("{}: {}, as pid {} ordered", tables.engines[*number].name,
               kNames[std::size_t(order.what)], asker.pid);
}

bool drain_engines(Tables& tables) {
  bool all_are_told = true;
  for (Child& engine : tables.engines) {
    if (engine.wanted == Wanted::serving || !engine.is_running()) continue;
    if (engine.is_drained) {
      if (engine.wanted != Wanted::drained) kill_by_pidfd(engine.pidfd);
      continue;
    }
    const Peer* const peer = tables.peer_of(engine.pid);
    if (!engine.is_drain_due || peer == nullptr || peer->is_welcome_due) continue;
    engine.is_drain_due = !send_packet(peer->socket.get(), Drain{});
    all_are_told &= !engine.is_drain_due;
  }
  return all_are_told;
}

void on_drained(Tables& tables, const Peer& peer) {
  for (Child& engine : tables.engines) {
    if (tables.child_of(peer) != &engine || engine.wanted == Wanted::serving) continue;
    engine.is_drained = true;
    spdlog::info("{} (pid {}) is drained", engine.name, engine.pid);
  }
}

Expected<Options> changed_options(const Options& before, const Json& values) {
  Options changed = before;
  if (!values.is_object()) return failure(Errc::bad_format, "reload: no options are named");
  for (const auto& [name, value] : values.items()) {
    const auto field = find_option(name);
    if (!field) return forward_error(field);
    if (!may_change((*field)->name) || !value.is_string())
      return failure(Errc::unsupported, name + ": changes with a restart of the daemon only");
    if (auto set = set_option(changed, **field, value); !set) return forward_error(set);
  }
  if (auto sound = check_options(changed); !sound) return forward_error(sound);
  if (block_shares(changed) != block_shares(before))
    return failure(Errc::unsupported,
                   "shares: min-blocks and max-blocks change with a restart of the daemon only");
  // By numbers: neither the keeper nor its successor may have to ask the system for names.
  if (changed.domains != before.domains)
    if (const auto rules = with_numbers(changed.domains); !rules || *rules != changed.domains)
      return failure(Errc::bad_argument,
                     "domains: users and groups change by their numbers only; kvhive reload looks "
                     "them up");
  return changed;
}

void use_options(Tables& tables, Options options) {
  const auto used = tables.domains.use(options);
  KV_CHECK(used.has_value());  // changed_options()
  tables.options.asked = std::move(options);
  for (std::size_t i = 0; i < tables.domains.names().size(); ++i) {
    const DomainId domain{static_cast<std::uint16_t>(i)};
    tables.channels.set_share(domain, tables.domains.share(domain));
  }
}

Expected<void> tell_options(const Tables& tables, const Peer& child) {
  const Options& options = tables.options.asked;
  if (auto sent = send_packet(child.socket.get(), Limits{FixedText<8>(to_string(options.log_level)),
                                                         options.max_queued_tokens});
      !sent || child.role != Role::engine)
    return sent;
  constexpr std::size_t kAtOnce = 1000;
  const std::set<DomainId> domains = tables.channels.domains();
  Json rows = Json::array();
  for (auto domain = domains.begin(); domain != domains.end();) {
    const DomainShare share = tables.domains.share(*domain);
    rows.push_back({domain->value, share.weight, share.max_num_seqs, share.max_queued_tokens});
    if (++domain != domains.end() && rows.size() < kAtOnce) continue;
    if (auto sent = send_packet(child.socket.get(), Shares{}, {},
                                std::exchange(rows, Json::array()).dump());
        !sent)
      return sent;
  }
  return {};
}

bool answer_orders(Tables& tables, Connections& connections) {
  std::vector<std::uint64_t> ended;
  for (const auto& [ticket, order] : tables.orders) {
    if (order.what == What::take_over) continue;
    const bool was_done = is_done(tables, order);
    if (!was_done && !is_overtaken(tables, order)) continue;
    ended.push_back(ticket);
    const auto asker = tables.peers.find(order.asker);
    if (asker == tables.peers.end()) continue;
    if (!was_done)
      connections.refuse(asker->second, {Errc::bad_argument, "another order for engine " +
                                                                 std::to_string(order.engine) +
                                                                 " has overtaken this one"});
    else if (!send_packet(order.asker, Done{order.asker_ticket}, {}, describe(tables, order)))
      connections.drop(order.asker);
  }
  for (const std::uint64_t ticket : ended) tables.orders.erase(ticket);
  return !ended.empty();
}

}  // namespace kvhive
