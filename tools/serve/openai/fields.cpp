#include "tools/serve/openai/fields.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// Takes from `left` what the value's text has at least; false if that is more. A value may have
/// megabytes.
bool is_within(const Json& value, std::size_t& left) {
  const std::size_t own = value.is_string() ? value.get_ref<const std::string&>().size() : 1;
  if (own > left) return false;
  left -= own;
  if (!value.is_structured()) return true;
  for (const auto& [key, part] : value.items()) {
    if (value.is_object() && key.size() > left) return false;
    if (value.is_object()) left -= key.size();
    if (!is_within(part, left)) return false;
  }
  return true;
}

/// A value as an error text shows it.
std::string shown_value(const Json& value) {
  constexpr std::size_t kMost = 60;
  std::size_t left = kMost;
  std::string text;
  if (is_within(value, left)) text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.empty() || text.size() > kMost)
    text = value.is_array() ? "a list" : value.is_object() ? "an object" : "too long a value";
  return text;
}

}  // namespace

std::optional<std::vector<TokenId>> token_list(const Json& value) {
  const auto is_token = [](const Json& token) {
    return token.is_number_integer() && token >= 0 && token <= std::numeric_limits<TokenId>::max();
  };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_token)) return std::nullopt;
  return value.get<std::vector<TokenId>>();
}

Fields::Unknown Fields::unknown() const {
  constexpr std::size_t kMostNames = 64, kMostBytes = 65;  // one more than is shown
  Unknown unknown = within_;
  for (auto field = object_.begin(); field != object_.end(); ++field) {
    if (known_.contains(field.key())) continue;
    if (unknown.count++ < kMostNames) unknown.names.push_back(field.key().substr(0, kMostBytes));
  }
  return unknown;
}

void Fields::add_unknown(const std::string& name, const Unknown& within) {
  within_.count += within.count;
  for (const std::string& field : within.names) within_.names.push_back(name + "." + field);
}

bool Fields::has(const std::string& name) {
  know(name);
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

std::string Fields::shown(const std::string& name) const { return shown_value(at(name)); }

void Fields::fail(const std::string& name, const std::string& text, int status) {
  if (!error_) error_ = ApiError{status, name + " " + text, name};
}

bool Fields::boolean(const std::string& name, bool fallback) {
  if (!has(name)) return fallback;
  if (at(name).is_boolean()) return at(name).get<bool>();
  fail(name, "is " + shown(name) + "; use true or false");
  return fallback;
}

std::int64_t Fields::integer(const std::string& name, std::int64_t fallback, std::int64_t least,
                             std::int64_t most) {
  if (!has(name)) return fallback;
  const Json& value = at(name);
  const bool is_large =
      value.is_number_unsigned() && value > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (value.is_number_integer() && !is_large && value >= least && value <= most)
    return value.get<std::int64_t>();
  fail(name, fmt::format("is {}; use a whole number, {}..{}", shown_value(value), least, most));
  return fallback;
}

double Fields::number(const std::string& name, double fallback, double least, double most) {
  return number_if(name, fallback, fmt::format(", {}..{}", least, most),
                   [&](const Json& value) { return value >= least && value <= most; });
}

double Fields::number_above(const std::string& name, double fallback, double bound, double most) {
  return number_if(name, fallback, fmt::format(" above {}, at most {}", bound, most),
                   [&](const Json& value) { return value > bound && value <= most; });
}

/// \param wanted  which numbers fit, for the error text
double Fields::number_if(const std::string& name, double fallback, const std::string& wanted,
                         const std::function<bool(const Json&)>& fits) {
  if (!has(name)) return fallback;
  const Json& value = at(name);
  if (value.is_number() && fits(value)) return value.get<double>();
  fail(name, fmt::format("is {}; use a number{}", shown_value(value), wanted));
  return fallback;
}

std::string Fields::text(const std::string& name, const std::string& fallback) {
  if (!has(name)) return fallback;
  if (at(name).is_string()) return at(name).get<std::string>();
  fail(name, "is " + shown(name) + "; use a text");
  return fallback;
}

std::vector<std::string> Fields::texts(const std::string& name, std::size_t most) {
  if (!has(name)) return {};
  const Json& value = at(name);
  if (value.is_string()) return {value.get<std::string>()};
  const auto is_text = [](const Json& text) { return text.is_string(); };
  if (value.is_array() && value.size() <= most && std::all_of(value.begin(), value.end(), is_text))
    return value.get<std::vector<std::string>>();
  fail(name, fmt::format("is {}; use a text, or a list of at most {}", shown_value(value), most));
  return {};
}

std::vector<TokenId> Fields::tokens(const std::string& name, std::size_t most) {
  if (!has(name)) return {};
  auto tokens = token_list(at(name));
  if (tokens && tokens->size() <= most) return std::move(*tokens);
  fail(name, fmt::format("is {}; use a list of at most {} token ids", shown(name), most));
  return {};
}

std::map<TokenId, float> Fields::by_token(const std::string& name, double least, double most,
                                          std::size_t most_entries) {
  std::map<TokenId, float> numbers;
  if (!has(name)) return numbers;
  const Json& value = at(name);
  const auto wrong = [&](const std::string& which) {
    fail(name, fmt::format("is {}{}; use an object of at most {} token ids with numbers in {}..{}, "
                           "as {{\"12\": -100}}",
                           shown(name), which, most_entries, least, most));
    return std::map<TokenId, float>();
  };
  if (!value.is_object() || value.size() > most_entries) return wrong("");
  for (const auto& [key, number] : value.items()) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool is_token = error == std::errc{} && end == key.data() + key.size() && token >= 0;
    if (!is_token || !number.is_number()) return wrong(", with '" + key.substr(0, 40) + "'");
    numbers[token] = static_cast<float>(std::clamp(number.get<double>(), least, most));
  }
  return numbers;
}

void Fields::refuse_unless(const std::string& name, const Json& harmless) {
  if (!has(name) || at(name) == harmless) return;
  fail(name, fmt::format("is {}, which kvhive cannot do yet; leave it out", shown(name)));
}

}  // namespace kvhive
