#pragma once
// The keeper's answer to a hello: checks whether the process may join, and enters it into the
// tables; sends what its role is entitled to, once the tables are written down.

#include "ipc/protocol.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Decides on `hello`. From then on a welcome is due, but a client's: its channel's memory has to
/// be made first. An error says why the process is refused; the tables are then unchanged.
[[nodiscard]] Expected<void> welcome(Tables& tables, Peer& peer, const Packet& hello);

/// Sends a welcome that is due.
[[nodiscard]] Expected<void> send_welcome(const Tables& tables, const Peer& peer);

/// What clients' channels may take, as the operator wants it. Error: a domain could have none.
[[nodiscard]] Expected<void> check_quota(const Options& options);
ChannelQuota quota_of(const Options& options);

}  // namespace kvhive
