#pragma once
// The keeper's tables as rows of the ledger.

#include <set>

#include "tools/keeper/succession/ledger.hpp"
#include "tools/keeper/tables.hpp"

namespace kvhive {

/// Puts what has changed. The caller commits.
void put_changes(Tables& tables, Ledger& ledger);

/// What is written once, when the pool is made: the pool, and what the model has decided.
void write_pool(const Tables& tables, const LedgerMemory& memory);

/// Fills the tables with what a killed keeper has written down. The tables then own the
/// descriptors. `tables.engines` has its entries already if the pool is formatted.
void restore_pool(Tables& tables, const LedgerMemory& memory);
void restore_daemon(Tables& tables, const Ledger& ledger);
void restore_processes(Tables& tables, const Ledger& ledger);

/// All descriptors that the tables name.
std::set<int> descriptors_in(const Tables& tables);

}  // namespace kvhive
