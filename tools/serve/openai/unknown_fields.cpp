#include "tools/serve/openai/unknown_fields.hpp"

#include "base/json_file.hpp"
#include "base/log.hpp"

namespace kvhive {

std::string UnknownFields::shown(const std::string& name) { return printable(name, kMostBytes); }

void UnknownFields::add(const Fields::Unknown& fields) {
  count_ += fields.count;
  for (const std::string& name : fields.names) {
    if (logged_.size() == kMostNames) return;
    const std::string text = shown(name);
    if (!logged_.insert(text).second) continue;
    spdlog::warn("a request has the field '{}', which kvhive does not know: it changes nothing{}",
                 text, logged_.size() == kMostNames ? " (further names are not logged)" : "");
  }
}

}  // namespace kvhive
