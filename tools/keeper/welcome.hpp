#pragma once
// The keeper's answer to a hello: checks whether the process may join, enters it into the tables
// and sends what its role is entitled to.

#include "ipc/protocol.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Answers `hello`. An error says why the process is refused; the tables are then unchanged. A
/// client is answered later: its channel's memory has to be made first.
[[nodiscard]] Expected<void> welcome(Tables& tables, Peer& peer, const Packet& hello);

/// Answers a client whose channel's memory is made.
[[nodiscard]] Expected<void> welcome_to_channel(Tables& tables, const Peer& client,
                                                ChannelMemory memory);

}  // namespace kvhive
