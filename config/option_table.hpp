#pragma once
// The table of options: one row for each field of Options. Flags, keys of the options file, --help,
// manual page, completion, to_flags() and range checks follow from the rows.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "base/expected.hpp"
#include "config/options.hpp"

namespace kvhive {

/// What a value is, for help and completion.
enum class ValueKind : std::uint8_t {
  text,
  file,
  directory,
  whole_number,
  number,
  size,    ///< bytes; a unit may follow the number
  truth,   ///< true or false; the flag alone means true
  choice,  ///< one of OptionType::choices
  table,   ///< "name=item,item;name=item"; in the options file also a table of lists
};

/// How text becomes a field of Options; follows from the field's C++ type.
struct OptionType {
  ValueKind kind = ValueKind::text;
  std::span<const std::string_view> choices;  ///< for ValueKind::choice
  /// Sets the field. Errors: what is wrong with the text, without the option's name.
  Expected<void> (*parse)(Options& options, const std::string& text) = nullptr;
  std::string (*format)(const Options& options) = nullptr;  ///< as `parse` reads it
  double (*number)(const Options& options) = nullptr;       ///< null for what is not a number
};

/// The numbers that an option accepts.
struct OptionRange {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool is_most_excluded = false;
  std::string_view advice = {};  ///< follows the range in error texts: "16 is usual"
};

/// One option.
struct OptionField {
  std::string_view name;  ///< as a flag, without the dashes
  OptionType type;
  std::string_view help;       ///< without a full stop
  std::string_view unit = {};  ///< what a number counts ("tokens"), or what a text names ("user")
  std::string_view zero = {};  ///< what 0 stands for, and then it is accepted whatever the range
  OptionRange range = {};
  /// A flag that is given several times adds, with a comma between; in the options file it may be a
  /// list, or a table of names.
  bool is_list = false;
  bool has_rules = false;  ///< a text that may be written like ValueKind::table
};

/// Whether an option may change while a daemon runs (kvhive reload).
bool may_change(std::string_view name);

/// All options, in the order of Options.
std::span<const OptionField> option_fields();

/// The field called `name` ('_' and '-' alike); an unknown name is an error that suggests the
/// nearest known one.
[[nodiscard]] Expected<const OptionField*> find_option(std::string_view name);

/// Sets one field from text; errors name the option, the value and the remedy.
[[nodiscard]] Expected<void> set_option(Options& options, const OptionField& field,
                                        const std::string& text);

/// The numbers that the option accepts, in words: "1..1024 tokens; 16 is usual". Empty = any.
std::string range_text(const OptionField& field);

}  // namespace kvhive
