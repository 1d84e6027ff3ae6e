#include "base/json_file.hpp"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>

namespace kvhive {
namespace {

std::string range_text(std::string_view kind, double least, double most) {
  std::ostringstream text;
  text.precision(12);
  text << kind << " in " << least << ".." << most;
  return text.str();
}

constexpr int kMaxDepth = 64;

bool is_nested_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size() && depth <= kMaxDepth; ++i) {
    const char c = text[i];
    if (c == '\\' && in_string)
      ++i;  // whatever is escaped ends no string
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '[' || c == '{'))
      ++depth;
    else if (!in_string && (c == ']' || c == '}'))
      --depth;
  }
  return depth > kMaxDepth;
}

/// "line 1, column 7: syntax error while parsing value - unexpected ...": printable, and short.
std::string place_and_reason(const nlohmann::json::exception& error) {
  constexpr std::size_t kLongest = 160;
  std::string_view text = error.what();
  for (const std::string_view before : {"] ", "parse error at "})
    if (const auto begin = text.find(before); begin != text.npos)
      text.remove_prefix(begin + before.size());
  return printable(text, kLongest);
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string shown(text.substr(0, most));
  for (char& letter : shown)
    if (letter < ' ' || letter > '~') letter = '?';
  return shown + (text.size() > most ? "..." : "");
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 80;
  // A string may hold invalid UTF-8: replace it, an error text must always be printable.
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

Expected<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error == std::errc::permission_denied) {
    errno = EACCES;
    return os_failure(path.string());
  }
  if (error)
    return failure(Errc::not_found, path.string() + ": " + error.message() +
                                        "; give the directory of a Hugging Face model");
  if (bytes > max_bytes)
    return failure(Errc::bad_format, path.string() + ": " + std::to_string(bytes) +
                                         " bytes, expected at most " + std::to_string(max_bytes));
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes)))
    return failure(Errc::os_error, path.string() + ": cannot be read; check its permissions");
  return text;
}

Expected<nlohmann::json> parse_json_object(std::string_view text) {
  if (is_nested_too_deep(text))
    return failure(Errc::bad_format,
                   "nested more than " + std::to_string(kMaxDepth) + " levels deep");
  try {
    auto json = nlohmann::json::parse(text);
    if (json.is_object()) return json;
    return failure(Errc::bad_format, std::string("JSON, but of type ") + json.type_name());
  } catch (const nlohmann::json::exception& error) {  // a number like 1e999 is no parse_error
    return failure(Errc::bad_format, place_and_reason(error));
  }
}

Expected<nlohmann::json> read_json_object(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (!text) return forward_error(text);
  auto json = parse_json_object(*text);
  if (!json)
    return failure(Errc::bad_format, path.string() + ": " + std::to_string(text->size()) +
                                         " bytes that are not one JSON object (" +
                                         json.error().text + "); fetch the file again");
  return std::move(*json);
}

const nlohmann::json* JsonFields::find(const std::string& name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::has(const std::string& name) const { return find(name) != nullptr; }

tl::unexpected<Error> JsonFields::wrong(const std::string& name, std::string_view wanted,
                                        Errc code) const {
  const auto* value = find(name);
  const std::string found =
      value ? " = " + shown(*value) : " is missing, and its default does not fit";
  return failure(code, where_ + ": " + name + found + ", expected " + std::string(wanted));
}

tl::unexpected<Error> JsonFields::missing(const std::string& name, std::string_view wanted) const {
  return failure(Errc::bad_format,
                 where_ + ": " + name + " is missing, expected " + std::string(wanted));
}

Expected<std::int64_t> JsonFields::integer(const std::string& name, std::int64_t least,
                                           std::int64_t most) const {
  const auto wanted = [&] {
    return "a whole number in " + std::to_string(least) + ".." + std::to_string(most);
  };
  const auto* value = find(name);
  if (!value) return missing(name, wanted());
  if (!value->is_number_integer()) return wrong(name, wanted());
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX)
    return wrong(name, wanted());
  const auto number = value->get<std::int64_t>();
  if (number < least || number > most) return wrong(name, wanted());
  return number;
}

Expected<std::int64_t> JsonFields::integer_or(const std::string& name, std::int64_t fallback,
                                              std::int64_t least, std::int64_t most) const {
  if (!has(name)) return fallback;
  return integer(name, least, most);
}

Expected<double> JsonFields::number(const std::string& name, double least, double most) const {
  const auto* value = find(name);
  if (!value) return missing(name, range_text("a number", least, most));
  if (!value->is_number()) return wrong(name, range_text("a number", least, most));
  const auto number = value->get<double>();
  if (!std::isfinite(number) || number < least || number > most)
    return wrong(name, range_text("a number", least, most));
  return number;
}

Expected<double> JsonFields::number_or(const std::string& name, double fallback, double least,
                                       double most) const {
  if (!has(name)) return fallback;
  return number(name, least, most);
}

Expected<bool> JsonFields::boolean_or(const std::string& name, bool fallback) const {
  const auto* value = find(name);
  if (!value) return fallback;
  if (!value->is_boolean()) return wrong(name, "true or false");
  return value->get<bool>();
}

Expected<std::string> JsonFields::text(const std::string& name) const {
  const auto* value = find(name);
  if (!value) return missing(name, "a string");
  if (!value->is_string()) return wrong(name, "a string");
  return value->get<std::string>();
}

Expected<std::string> JsonFields::text_or(const std::string& name, std::string fallback) const {
  if (!has(name)) return fallback;
  return text(name);
}

Expected<JsonFields> JsonFields::object(const std::string& name) const {
  const auto* value = find(name);
  if (!value) return missing(name, "an object");
  if (!value->is_object()) return wrong(name, "an object");
  return JsonFields(*value, where_ + ": " + name);
}

Expected<const nlohmann::json*> JsonFields::array(const std::string& name) const {
  const auto* value = find(name);
  if (!value) return missing(name, "a list");
  if (!value->is_array()) return wrong(name, "a list");
  return value;
}

}  // namespace kvhive
