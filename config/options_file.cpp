#include <charconv>
#include <sstream>
#include <toml++/toml.h>

#include "config/option_table.hpp"
#include "config/options.hpp"

namespace kvhive {
namespace {

/// A TOML value as the text a flag would carry.
Expected<std::string> text_of(std::string_view key, const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto truth = node.value_exact<bool>()) return std::string(*truth ? "true" : "false");
  if (const auto whole = node.value_exact<std::int64_t>()) return std::to_string(*whole);
  if (const auto number = node.value_exact<double>()) {
    char text[400];  // the largest double has 309 digits before the point
    const auto end = std::to_chars(text, std::end(text), *number, std::chars_format::fixed).ptr;
    return std::string(text, end);
  }
  return failure(Errc::bad_format, std::string(key) + " must be a string, a number or true/false");
}

/// One name or number.
Expected<std::string> text_of_item(const std::string& place, const toml::node& node) {
  auto item = text_of(place, node);
  if (item && item->find_first_of(",;=:") != std::string::npos)
    return failure(Errc::bad_argument,
                   place + ": '" + *item + "' is not one name or number; write a list of them");
  return item;
}

/// ["alice", 1001] as "alice,1001", {weight = 3} as "weight:3".
Expected<std::string> text_of_rule(const std::string& place, const toml::node& node) {
  std::string text;
  Expected<void> fine;
  const auto add = [&](const std::string& before, const toml::node& item) {
    auto added = text_of_item(place, item);
    if (!added) return void(fine = forward_error(added));
    text += (text.empty() ? "" : ",") + before + *added;
  };
  if (const toml::array* list = node.as_array())
    for (const toml::node& item : *list) add("", item);
  else if (const toml::table* parts = node.as_table())
    for (const auto& [name, item] : *parts) add(std::string(name.str()) + ":", item);
  else
    add("", node);
  if (!fine) return forward_error(fine);
  return text;
}

/// {research = ["alice", 1001]} as "research=alice,1001".
Expected<std::string> text_of_table(std::string_view key, const toml::table& table) {
  std::string text;
  for (const auto& [name, node] : table) {
    auto rule = text_of_rule(std::string(key) + "." + std::string(name.str()), node);
    if (!rule) return rule;
    text += (text.empty() ? "" : ";") + std::string(name.str()) + "=" + *rule;
  }
  return text;
}

/// ["a=/x", "b=/y"] and {a = "/x", b = "/y"} as "a=/x,b=/y".
Expected<std::string> text_of_list(std::string_view key, const toml::node& node) {
  std::string text;
  const auto add = [&](const std::string& before, const toml::node& item) -> Expected<void> {
    auto one = text_of(key, item);
    if (!one) return forward_error(one);
    if (one->find(',') != std::string::npos)
      return failure(Errc::bad_argument, std::string(key) + ": '" + *one +
                                             "' has a comma; write each as an item of its own");
    text += (text.empty() ? "" : ",") + before + *one;
    return {};
  };
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& item : *list)
      if (auto added = add("", item); !added) return forward_error(added);
  } else {
    for (const auto& [name, item] : *node.as_table())
      if (auto added = add(std::string(name.str()) + "=", item); !added)
        return forward_error(added);
  }
  return text;
}

/// A value of the file as the option's flag would carry it.
Expected<std::string> text_for(const OptionField& field, std::string_view key,
                               const toml::node& node) {
  if (field.is_list && (node.is_array() || node.is_table())) return text_of_list(key, node);
  const bool is_table = field.type.kind == ValueKind::table || field.has_rules;
  if (is_table && node.is_table()) return text_of_table(key, *node.as_table());
  return text_of(key, node);
}

}  // namespace

Expected<void> load_options(Options& options, const std::filesystem::path& file) {
  std::error_code ignored;
  const auto type = std::filesystem::status(file, ignored).type();
  if (type == std::filesystem::file_type::not_found)
    return failure(Errc::not_found,
                   "options file " + file.string() + " does not exist; give --config another path");
  if (type == std::filesystem::file_type::directory)
    return failure(
        Errc::bad_argument,
        "options file " + file.string() + " is a directory; give --config the path of a TOML file");
  toml::table table;
  try {
    table = toml::parse_file(file.string());
  } catch (const toml::parse_error& error) {
    std::ostringstream text;
    text << file.string() << " line " << error.source().begin.line << ": " << error.description();
    return failure(Errc::bad_format, text.str());
  }
  for (const auto& [key, node] : table) {
    auto field = find_option(key.str());
    if (!field) return failure(field.error().code, file.string() + ": " + field.error().text);
    auto text = text_for(**field, key.str(), node);
    if (!text) return failure(text.error().code, file.string() + ": " + text.error().text);
    if (auto set = set_option(options, **field, *text); !set)
      return failure(set.error().code, file.string() + ": " + set.error().text);
  }
  return {};
}

}  // namespace kvhive
