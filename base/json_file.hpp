#pragma once
// Reads JSON files that other programs wrote. Every error names the file, the field, its value and
// what is allowed.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/expected.hpp"

namespace kvhive {

/// Reads a whole file. A file larger than `max_bytes` is an error: the path is probably wrong (for
/// example a 10 GB file of weights).
[[nodiscard]] Expected<std::string> read_text_file(const std::filesystem::path& path,
                                                   std::size_t max_bytes = std::size_t{256} << 20);

/// Parses a text that is one JSON object. The error says where it is not, as "line 1, column 7:
/// ...". A text that is nested too deeply is refused: printing and copying recurse, and could
/// exhaust the stack.
[[nodiscard]] Expected<nlohmann::json> parse_json_object(std::string_view text);

/// Reads a file that must be one JSON object.
[[nodiscard]] Expected<nlohmann::json> read_json_object(const std::filesystem::path& path);

/// Typed access to the fields of one JSON object. A field that is null counts as absent, as in
/// Hugging Face's code. The JSON object must outlive this object.
class JsonFields {
 public:
  /// \param where  the beginning of error texts: a file name, or "file: field"
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  bool has(const std::string& name) const;
  /// Whether the field is there and null: another thing than left out, where that means a default.
  bool is_null(const std::string& name) const { return object_.contains(name) && !has(name); }
  const nlohmann::json& json() const { return object_; }
  const std::string& where() const { return where_; }

  [[nodiscard]] Expected<std::int64_t> integer(const std::string& name, std::int64_t least,
                                               std::int64_t most) const;
  [[nodiscard]] Expected<std::int64_t> integer_or(const std::string& name, std::int64_t fallback,
                                                  std::int64_t least, std::int64_t most) const;
  /// The number must be finite and in [least, most].
  [[nodiscard]] Expected<double> number(const std::string& name, double least, double most) const;
  [[nodiscard]] Expected<double> number_or(const std::string& name, double fallback, double least,
                                           double most) const;
  [[nodiscard]] Expected<bool> boolean_or(const std::string& name, bool fallback) const;
  [[nodiscard]] Expected<std::string> text(const std::string& name) const;
  [[nodiscard]] Expected<std::string> text_or(const std::string& name, std::string fallback) const;
  [[nodiscard]] Expected<JsonFields> object(const std::string& name) const;
  [[nodiscard]] Expected<const nlohmann::json*> array(const std::string& name) const;

  /// An error with the text "where: field = value, expected <wanted>". A field that is absent had a
  /// default, which is what is wrong then.
  tl::unexpected<Error> wrong(const std::string& name, std::string_view wanted,
                              Errc code = Errc::bad_format) const;

 private:
  const nlohmann::json* find(const std::string& name) const;
  tl::unexpected<Error> missing(const std::string& name, std::string_view wanted) const;

  const nlohmann::json& object_;
  std::string where_;
};

/// Takes checked fields over into a struct, one after the other. After the first error nothing more
/// is taken; the error waits in error(). So a parser reads like the list of fields that it is.
class FieldReader {
 public:
  explicit FieldReader(const JsonFields& fields) : fields_(fields) {}

  template <class T, class Value>
  void take(T& target, Expected<Value> value) {
    if (failed_) return;
    if (value)
      target = static_cast<T>(std::move(*value));
    else
      failed_ = std::move(value.error());
  }
  /// A field that must be there, from 1 to `most`.
  void integer(std::int32_t& target, const char* name, std::int64_t most) {
    take(target, fields_.integer(name, 1, most));
  }
  void fail(tl::unexpected<Error> error) {
    if (!failed_) failed_ = std::move(error.value());
  }
  bool ok() const { return !failed_; }
  /// \pre !ok()
  tl::unexpected<Error> error() { return tl::unexpected<Error>(std::move(*failed_)); }

 private:
  const JsonFields& fields_;
  std::optional<Error> failed_;
};

/// Prints a JSON value, shortened if it is too long for an error text.
std::string shown(const nlohmann::json& value);

/// A stranger's text as an error text or the log shows it: what is no printable ASCII as '?', and
/// at most so many bytes of it, with "..." behind them.
std::string printable(std::string_view text, std::size_t most);

}  // namespace kvhive
