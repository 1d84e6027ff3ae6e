#include "tools/program/slot_owners.hpp"

namespace kvhive {

using Json = nlohmann::json;

Json to_json(const SlotOwners& owners) {
  Json json = Json::array();
  for (std::size_t slot = 0; slot < owners.size(); ++slot) {
    if (owners[slot].use == SlotOwner::Use::vacant) continue;
    json.push_back({{"slot", slot},
                    {"pid", owners[slot].pid},
                    {"use", owners[slot].use == SlotOwner::Use::used ? "used" : "unswept"}});
  }
  return json;
}

SlotOwners slot_owners_of(const Json& json) {
  SlotOwners owners{};
  if (!json.is_array()) return owners;
  for (const Json& entry : json) {
    const std::size_t slot = entry.value("slot", owners.size());
    if (slot >= owners.size()) continue;
    owners[slot].use =
        entry.value("use", "") == "used" ? SlotOwner::Use::used : SlotOwner::Use::unswept;
    owners[slot].pid = entry.value("pid", 0u);
  }
  return owners;
}

}  // namespace kvhive
