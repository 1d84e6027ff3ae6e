#pragma once
// What operators order of a running daemon: engines are drained, started again, added and removed,
// and some options are changed. An order is in the tables until it is done, and then its asker is
// told; so a successor of the keeper goes on with it. Ending an engine costs nothing at any time,
// because others go on with its requests; to drain it first saves them the recomputing.

#include <nlohmann/json.hpp>

#include "tools/keeper/connections.hpp"
#include "tools/keeper/supervisor.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Takes an order about an engine, or refuses its asker.
void take_engine_order(Tables& tables, Connections& connections, Supervisor& supervisor,
                       const Peer& asker, const Order& order);

/// Tells engines that are to be drained, and ends those that are done and are to end. Called when
/// that is written down.
/// \return  false = an engine could not be told, because its queue is full: call again soon
[[nodiscard]] bool drain_engines(Tables& tables);
/// The engine has no request any more, and takes none.
void on_drained(Tables& tables, const Peer& engine);
/// The options with others, which may change while the daemon runs.
/// \param values  their texts, by name
[[nodiscard]] Expected<Options> changed_options(const Options& options,
                                                const nlohmann::json& values);
/// From now on these hold. The children are to be told.
void use_options(Tables& tables, Options options);
/// Tells a child of the keeper those options. Error: its queue is full.
[[nodiscard]] Expected<void> tell_options(const Tables& tables, const Peer& child);

/// Answers the orders that are done. Returns whether there were any.
bool answer_orders(Tables& tables, Connections& connections);

}  // namespace kvhive
