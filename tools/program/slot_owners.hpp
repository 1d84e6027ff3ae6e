#pragma once
// What the keeper knows of the process slots, as it travels: in its status, and to the steward.

#include <nlohmann/json.hpp>

#include "pool/care/fsck.hpp"

namespace kvhive {

nlohmann::json to_json(const SlotOwners& owners);

/// Slots that are not named, or not as they should be, are vacant.
SlotOwners slot_owners_of(const nlohmann::json& json);

}  // namespace kvhive
