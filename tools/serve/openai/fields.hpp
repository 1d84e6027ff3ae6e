#pragma once
// Reads the fields of a request's JSON. The first field that is wrong is remembered with what is
// allowed, and the rest is read as if it were absent.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "tools/serve/openai/error.hpp"

namespace kvhive {

/// A field that is null counts as absent.
class Fields {
 public:
  /// \param object  outlives this
  explicit Fields(const nlohmann::json& object) : object_(object) {}

  bool has(const std::string& name);
  const nlohmann::json& at(const std::string& name) const { return object_.at(name); }
  /// A field's value as an error text shows it: not all of a long one.
  std::string shown(const std::string& name) const;

  bool boolean(const std::string& name, bool fallback);
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t least,
                       std::int64_t most);
  double number(const std::string& name, double fallback, double least, double most);
  /// Above `bound`, at most `most`.
  double number_above(const std::string& name, double fallback, double bound, double most);
  std::string text(const std::string& name, const std::string& fallback);
  /// One text, or a list of them.
  std::vector<std::string> texts(const std::string& name, std::size_t most);
  std::vector<TokenId> tokens(const std::string& name, std::size_t most);
  /// An object of numbers in least..most, named by token ids.
  std::map<TokenId, float> by_token(const std::string& name, double least, double most,
                                    std::size_t most_entries);

  /// An error unless the field is absent or has the value that changes nothing.
  void refuse_unless(const std::string& name, const nlohmann::json& harmless);

  /// A field that is read elsewhere, or is known to change nothing.
  void know(const std::string& name) { known_.insert(name); }
  /// The fields that nobody has asked for so far: how many, and the beginnings of some names.
  struct Unknown {
    std::size_t count = 0;
    std::vector<std::string> names;
  };
  /// A request may have as many as its body has room for, so not all names are kept.
  Unknown unknown() const;
  /// Those of an object that is a field of this one.
  void add_unknown(const std::string& name, const Unknown& within);

  void fail(const std::string& name, const std::string& text, int status = 400);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  double number_if(const std::string& name, double fallback, const std::string& wanted,
                   const std::function<bool(const nlohmann::json&)>& fits);

  const nlohmann::json& object_;
  std::set<std::string> known_;  ///< all that were asked for
  Unknown within_;
  std::optional<ApiError> error_;
};

/// A JSON list of token ids; nothing = it is none.
std::optional<std::vector<TokenId>> token_list(const nlohmann::json& value);

}  // namespace kvhive
