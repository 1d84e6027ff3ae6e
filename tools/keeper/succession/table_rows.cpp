#include "tools/keeper/succession/table_rows.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.hpp"
#include "tools/keeper/supervisor.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;
using Kind = Ledger::Kind;
using std::chrono::steady_clock;

/// What there is one of.
struct DaemonRow {
  std::uint64_t next_connection, next_ticket, next_death, next_channel;
  std::uint32_t is_formatted, is_ready, is_told, engines;
};

struct PeerRow {
  std::int32_t socket, pidfd, pid;
  std::uint32_t uid;
  std::uint64_t channel;
  std::uint32_t role, engine, slot;
  std::uint8_t is_serving, awaits_channel, wants_tokens, is_welcome_due;
  std::uint8_t model, unused[3];
  std::uint32_t unused_too;
};

struct SlotRow {
  std::uint64_t death, order;
  std::uint32_t use, life, drops_unheld, is_order_due;
  FixedText<64> last_owner;
};

struct ChildRow {
  std::int32_t pid, pidfd, line;
  std::uint32_t starts, young_deaths;
  std::uint8_t wanted, is_drain_due, is_drained, model;
  std::int64_t last_start;  ///< of the steady clock, which all processes share
};
/// A child's key: the steward's, the GPU memory maker's, and that of engine 0.
constexpr std::uint64_t kSteward = 0, kGpuMemory = 1, kFirstEngine = 16;

struct RepairRow {
  std::uint64_t asker_ticket;
  std::int32_t asker;
  std::uint16_t care, is_due;
};

struct OrderRow {
  std::uint64_t asker_ticket;
  std::int32_t asker;
  std::uint32_t what, engine, starts;
};

using DomainRow = FixedText<64>;

// Rows are compared byte by byte.
static_assert(std::has_unique_object_representations_v<DaemonRow> &&
              std::has_unique_object_representations_v<PeerRow> &&
              std::has_unique_object_representations_v<SlotRow> &&
              std::has_unique_object_representations_v<ChildRow> &&
              std::has_unique_object_representations_v<RepairRow> &&
              std::has_unique_object_representations_v<OrderRow>);

// -- writing --------------------------------------------------------------------------------------

PeerRow row_of(const Peer& peer) {
  return {peer.socket.get(),
          peer.pidfd.get(),
          peer.pid,
          peer.uid,
          peer.channel,
          static_cast<std::uint32_t>(peer.role),
          peer.engine,
          peer.slot,
          peer.is_serving,
          peer.awaits_channel,
          peer.wants_tokens,
          peer.is_welcome_due,
          peer.model.value,
          {},
          0};
}

ChildRow row_of(const Child& child) {
  return {child.pid,
          child.pidfd.get(),
          -1,
          child.starts,
          child.young_deaths,
          static_cast<std::uint8_t>(child.wanted),
          child.is_drain_due,
          child.is_drained,
          child.model.value,
          child.last_start.time_since_epoch().count()};
}

void put_peers(Tables& tables, Ledger& ledger) {
  for (const auto& [number, socket] : std::exchange(tables.changed_peers, {})) {
    const auto found = tables.peers.find(socket);
    const bool is_there = found != tables.peers.end() && found->second.number == number;
    if (is_there && found->second.is_welcome)
      ledger.put(Kind::peer, number, row_of(found->second));
    else
      ledger.erase(Kind::peer, number);
  }
}

void put_channels(Tables& tables, Ledger& ledger) {
  for (const std::uint64_t id : tables.channels.take_changed())
    if (const auto row = tables.channels.row_of(id))
      ledger.put(Kind::channel, id, *row);
    else
      ledger.erase(Kind::channel, id);
}

/// Erases the rows of what is not in the table any more.
template <class Row, class Table>
void erase_done(Kind kind, const Table& table, Ledger& ledger) {
  std::vector<std::uint64_t> done;
  ledger.for_each<Row>(kind, [&](std::uint64_t ticket, const Row&) {
    if (!table.contains(ticket)) done.push_back(ticket);
  });
  for (const std::uint64_t ticket : done) ledger.erase(kind, ticket);
}

void put_repairs(const Tables& tables, Ledger& ledger) {
  erase_done<RepairRow>(Kind::repair, tables.repairs, ledger);
  for (const auto& [ticket, repair] : tables.repairs)
    ledger.put(Kind::repair, ticket,
               RepairRow{repair.asker_ticket, repair.asker, static_cast<std::uint16_t>(repair.care),
                         repair.is_due});
}

void put_orders(const Tables& tables, Ledger& ledger) {
  erase_done<OrderRow>(Kind::order, tables.orders, ledger);
  for (const auto& [ticket, order] : tables.orders)
    ledger.put(Kind::order, ticket,
               OrderRow{order.asker_ticket, order.asker, static_cast<std::uint32_t>(order.what),
                        order.engine, order.starts});
}

void put_children(const Tables& tables, Ledger& ledger) {
  ledger.put(Kind::child, kSteward, row_of(tables.steward));
  for (std::size_t i = 0; i < tables.engines.size(); ++i)
    ledger.put(Kind::child, kFirstEngine + i, row_of(tables.engines[i]));
  const auto gpu = tables.pool.gpu_memory.running();
  if (gpu.pid != 0)
    ledger.put(Kind::child, kGpuMemory,
               ChildRow{gpu.pid, gpu.pidfd, gpu.line, 1, 0, 0, 0, 0, 0, 0});
}

// -- reading --------------------------------------------------------------------------------------

void restore(Child& child, const ChildRow& row) {
  child.pid = row.pid;
  child.pidfd = UniqueFd(row.pidfd);
  child.starts = row.starts;
  child.young_deaths = row.young_deaths;
  child.wanted = Wanted(row.wanted);
  child.is_drain_due = row.is_drain_due != 0;
  child.is_drained = row.is_drained != 0;
  child.last_start = steady_clock::time_point(steady_clock::duration(row.last_start));
}

void restore_peer(Tables& tables, std::uint64_t number, const PeerRow& row) {
  Peer peer;
  peer.socket = UniqueFd(row.socket);
  peer.pidfd = UniqueFd(row.pidfd);
  peer.pid = row.pid;
  peer.uid = row.uid;
  peer.number = number;
  peer.since = steady_clock::now();
  peer.has_spoken = peer.is_welcome = true;
  peer.is_serving = row.is_serving != 0;
  peer.role = Role(row.role);
  peer.engine = row.engine;
  peer.slot = row.slot;
  peer.model = ModelId{row.model};
  peer.channel = row.channel;
  peer.awaits_channel = row.awaits_channel != 0;
  peer.wants_tokens = row.wants_tokens != 0;
  peer.is_welcome_due = row.is_welcome_due != 0;
  if (peer.is_welcome_due) tables.due_welcomes.push_back(row.socket);
  if (peer.role == Role::engine)
    tables.channels.add_engine(row.socket, peer.engine, ProcessSlot{peer.slot}, peer.model);
  tables.peers.emplace(row.socket, std::move(peer));
}

}  // namespace

void put_changes(Tables& tables, Ledger& ledger) {
  ledger.put(Kind::daemon, 0,
             DaemonRow{tables.next_connection, tables.next_ticket, tables.next_death,
                       tables.channels.next_id(), tables.is_formatted, tables.is_ready,
                       tables.is_told, static_cast<std::uint32_t>(tables.engines.size())});
  put_peers(tables, ledger);
  put_channels(tables, ledger);
  put_repairs(tables, ledger);
  put_orders(tables, ledger);
  put_children(tables, ledger);
  for (std::uint32_t i = 0; i < kMaxProcesses; ++i) {
    const Slot& slot = tables.slots[i];
    ledger.put(Kind::slot, i,
               SlotRow{slot.death, slot.order, static_cast<std::uint32_t>(slot.use), slot.life,
                       slot.drops_unheld, slot.is_order_due, FixedText<64>(slot.last_owner)});
  }
  // Domains are never removed.
  const auto& domains = tables.domains.names();
  for (std::size_t i = tables.written_domains; i < domains.size(); ++i)
    ledger.put(Kind::domain, i, DomainRow(domains[i]));
  tables.written_domains = domains.size();
}

void restore_daemon(Tables& tables, const Ledger& ledger) {
  ledger.for_each<DaemonRow>(Kind::daemon, [&](std::uint64_t, const DaemonRow& row) {
    tables.next_connection = row.next_connection;
    tables.next_ticket = row.next_ticket;
    tables.next_death = row.next_death;
    tables.channels.set_next_id(row.next_channel);
    tables.is_formatted = row.is_formatted != 0;
    tables.is_ready = row.is_ready != 0;
    tables.is_told = row.is_told != 0;
    make_engine_entries(tables, row.engines);
  });
  std::vector<std::string> domains;
  ledger.for_each<DomainRow>(
      Kind::domain, [&](std::uint64_t, const DomainRow& row) { domains.push_back(row.str()); });
  tables.domains.restore(domains);
}

void restore_processes(Tables& tables, const Ledger& ledger) {
  ledger.for_each<ChildRow>(Kind::child, [&](std::uint64_t key, const ChildRow& row) {
    if (key == kSteward) return restore(tables.steward, row);
    if (key == kGpuMemory) return tables.pool.gpu_memory.resume({row.pid, row.pidfd, row.line});
    KV_CHECK(key - kFirstEngine < tables.engines.size(), key);
    restore(tables.engines[key - kFirstEngine], row);
    set_model(tables, key - kFirstEngine, ModelId{row.model});
  });
  ledger.for_each<SlotRow>(Kind::slot, [&](std::uint64_t number, const SlotRow& row) {
    tables.slots.at(number) = {.use = Slot::Use(row.use),
                               .life = row.life,
                               .drops_unheld = row.drops_unheld != 0,
                               .last_owner = row.last_owner.str(),
                               .death = row.death,
                               .order = row.order,
                               .is_order_due = row.is_order_due != 0};
  });
  ledger.for_each<PeerRow>(Kind::peer, [&](std::uint64_t number, const PeerRow& row) {
    restore_peer(tables, number, row);
  });
  ledger.for_each<ChannelRow>(Kind::channel, [&](std::uint64_t, const ChannelRow& row) {
    const DomainId domain{static_cast<std::uint16_t>(row.domain)};
    tables.channels.restore(row, tables.domains.share(domain));
  });
  ledger.for_each<RepairRow>(Kind::repair, [&](std::uint64_t ticket, const RepairRow& row) {
    tables.repairs[ticket] = {row.asker, row.asker_ticket, Care(row.care), row.is_due != 0};
  });
  ledger.for_each<OrderRow>(Kind::order, [&](std::uint64_t ticket, const OrderRow& row) {
    tables.orders[ticket] = {Order::What(row.what), row.engine, row.starts, row.asker,
                             row.asker_ticket};
  });
}

// -- the pool -------------------------------------------------------------------------------------

namespace {

Json to_json(const ModelFacts& model, const HostedModel& hosted) {
  const KvLayout& kv = model.layout;
  Json groups = Json::array();
  for (const CacheGroup& group : model.groups.all())
    groups.push_back({std::uint32_t(group.kind), group.span});
  return {
      {"name", model.name},
      {"fingerprint", model.fingerprint},
      {"kv",
       {kv.layers, kv.kv_heads, kv.head_size, kv.block_size, std::uint32_t(kv.dtype),
        std::uint32_t(kv.pages), std::uint32_t(kv.kind), kv.padding}},
      {"groups", groups},
      {"first_group", model.groups.first},
      {"positions", model.positions},
      {"weight_bytes", model.weight_bytes},
      {"engine_peak", model.engine_peak},
      {"max_model_len", model.max_model_len},
      {"device", model.device},
      {"device_reason", model.device_reason},
      {"cpu_kernels", model.cpu_kernels},
      {"gpu",
       {model.gpu.total, model.gpu.available, model.gpu.name, model.gpu.uuid,
        model.gpu.memory_needs_its_maker, model.gpu.sharing_reason}},
      {"hosted",
       {hosted.name, hosted.directory, hosted.engines, hosted.block_size, hosted.max_model_len}}};
}

ModelFacts facts_from(const Json& text) {
  ModelFacts model;
  model.name = text.at("name");
  model.fingerprint = text.at("fingerprint");
  const Json& kv = text.at("kv");
  model.layout = {kv[0],
                  kv[1],
                  kv[2],
                  kv[3],
                  Dtype(kv[4].get<std::uint32_t>()),
                  PageLayout(kv[5].get<std::uint32_t>()),
                  KvKind(kv[6].get<std::uint32_t>()),
                  kv[7]};
  const Json& groups = text.at("groups");
  model.groups.count = static_cast<std::uint32_t>(groups.size());
  model.groups.first = text.at("first_group");
  for (std::size_t g = 0; g < groups.size(); ++g)
    model.groups.group[g] = {CacheKind(groups[g][0].get<std::uint32_t>()), groups[g][1]};
  model.positions = text.at("positions");
  model.weight_bytes = text.at("weight_bytes");
  model.engine_peak = text.at("engine_peak");
  model.max_model_len = text.at("max_model_len");
  model.device = text.at("device");
  model.device_reason = text.at("device_reason");
  model.cpu_kernels = text.at("cpu_kernels");
  const Json& gpu = text.at("gpu");
  model.gpu = {gpu[0], gpu[1], gpu[2], gpu[3], gpu[4], gpu[5]};
  return model;
}

}  // namespace

void write_pool(const Tables& tables, const LedgerMemory& memory) {
  const MadePool& pool = tables.pool;
  Json objects = Json::array();
  for (const UniqueFd& fd : pool.objects) objects.push_back(fd.get());
  Json gpu_weights = Json::array();
  for (const UniqueFd& fd : pool.gpu_weights) gpu_weights.push_back(fd.get());
  Json models = Json::array();
  for (std::size_t m = 0; m < pool.models.size(); ++m)
    models.push_back(to_json(pool.models[m], tables.options.models[m]));
  Json places = Json::array();
  for (const EnginePlace& engine : tables.options.places)
    places.push_back({engine.threads, engine.processors});
  Json limits = Json::array();
  for (const BlockLimits& of_domain : pool.geometry.limits)
    limits.push_back({of_domain.min, of_domain.max});
  const Json text = {{"device", tables.options.device},
                     {"cpu_kernels", tables.options.cpu_kernels},
                     {"gpu_memory_sharing", tables.options.gpu_memory_sharing},
                     {"places", places},
                     {"objects", objects},
                     {"board", pool.board.get()},
                     {"gpu_weights", gpu_weights},
                     {"size", {pool.size.device_blocks, pool.size.host_blocks}},
                     {"limits", limits},
                     {"model_minimums", pool.geometry.model_minimums},
                     {"eviction_policy", pool.geometry.eviction_policy},
                     {"life_stride", pool.geometry.life_stride},
                     {"hash_algorithm", pool.geometry.hash_algorithm},
                     {"models", models}};
  memory.write_text(LedgerMemory::Text::pool,
                    text.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void restore_pool(Tables& tables, const LedgerMemory& memory) {
  const Json text = Json::parse(memory.text(LedgerMemory::Text::pool));
  tables.options.device = text.at("device");
  tables.options.cpu_kernels = text.at("cpu_kernels");
  tables.options.gpu_memory_sharing = text.at("gpu_memory_sharing");
  for (const Json& engine : text.at("places"))
    tables.options.places.push_back({engine[0], engine[1]});
  MadePool& pool = tables.pool;
  PoolGeometry& geometry = pool.geometry;
  const Json& size = text.at("size");
  pool.size = {size[0], size[1]};
  geometry.device_blocks = pool.size.device_blocks;
  geometry.host_blocks = pool.size.host_blocks;
  geometry.model_count = static_cast<std::uint32_t>(text.at("models").size());
  for (const Json& row : text.at("models")) {
    const ModelFacts model = facts_from(row);
    geometry.models[pool.models.size()] = {model.layout.block_size, model.layout, model.fingerprint,
                                           model.groups};
    const Json& hosted = row.at("hosted");
    tables.options.models.push_back({hosted[0], hosted[1], hosted[2], hosted[3], hosted[4]});
    pool.models.push_back(model);
  }
  geometry.device = pool.device_facts().device;
  geometry.cpu_kernels = tables.options.cpu_kernels;
  geometry.model_minimums = text.at("model_minimums");
  geometry.eviction_policy = text.at("eviction_policy");
  geometry.life_stride = text.at("life_stride");
  geometry.hash_algorithm = text.at("hash_algorithm");
  for (std::size_t i = 0; i < kLimitedDomains; ++i)
    geometry.limits[i] = {text.at("limits")[i][0], text.at("limits")[i][1]};
  for (std::size_t i = 0; i < kPoolObjects; ++i)
    pool.objects[i] = UniqueFd(text.at("objects")[i].get<int>());
  pool.board = UniqueFd(text.at("board").get<int>());
  for (const int fd : text.at("gpu_weights")) pool.gpu_weights.emplace_back(fd);
}

std::set<int> descriptors_in(const Tables& tables) {
  std::set<int> fds;
  const auto add = [&](int fd) {
    if (fd >= 0) fds.insert(fd);
  };
  for (const UniqueFd& fd : tables.pool.objects) add(fd.get());
  add(tables.pool.board.get());
  for (const UniqueFd& fd : tables.pool.gpu_weights) add(fd.get());
  add(tables.pool.gpu_memory.running().pidfd);
  add(tables.pool.gpu_memory.running().line);
  add(tables.steward.pidfd.get());
  for (const Child& engine : tables.engines) add(engine.pidfd.get());
  for (const auto& [socket, peer] : tables.peers) {
    add(socket);
    add(peer.pidfd.get());
  }
  for (const auto& [id, stage] : tables.channels.stages()) {
    const ChannelRow row = *tables.channels.row_of(id);
    for (const int fd : {row.requests, row.answers, row.engine_bell, row.client_bell,
                         row.clients_requests, row.clients_bell})
      add(fd);
    for (const int fd : row.pins) add(fd);
  }
  return fds;
}

}  // namespace kvhive
