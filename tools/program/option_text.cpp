#include "tools/program/option_text.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace kvhive {
namespace {

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return result;
}

std::string form_of(const OptionField& field) {
  switch (field.type.kind) {
    case ValueKind::text: return field.unit.empty() ? "TEXT" : upper(field.unit);
    case ValueKind::file: return "FILE";
    case ValueKind::directory: return "DIR";
    case ValueKind::whole_number: return field.unit.empty() ? "N" : upper(field.unit);
    case ValueKind::number: return "X";
    case ValueKind::size: return "SIZE";
    case ValueKind::truth: return "{true,false}";
    case ValueKind::choice: return "{" + joined(field.type.choices, ",") + "}";
    case ValueKind::table: return "NAME=MEMBER,...;...";
  }
  return "TEXT";
}

}  // namespace

std::string joined(std::span<const std::string_view> names, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : std::string(separator)) + std::string(names[i]);
  return text;
}

void describe(CLI::Option& option, const OptionField& field) {
  const Options defaults;
  const bool is_zero = field.type.number != nullptr && field.type.number(defaults) == 0;
  const std::string preset = is_zero ? "0" : field.type.format(defaults);
  // The parser takes a bare flag for its default, but --enforce-eager alone means true: the default
  // is shown as a part of the type instead.
  const bool is_truth = field.type.kind == ValueKind::truth;
  option.type_name(form_of(field) + (is_truth ? " [" + preset + "]" : ""));
  option.default_str(is_truth ? "" : preset);
  option.description(help_text(field));
}

std::string help_text(const OptionField& field) {
  std::string text(field.help);
  if (const std::string range = range_text(field); !range.empty()) text += "; " + range;
  if (!field.zero.empty()) text += "; 0 = " + std::string(field.zero);
  return text;
}

std::string name_text(const CLI::Option& option) {
  return option.get_positional() && option.get_lnames().empty()
             ? upper(option.get_name(true, false))
             : option.get_name(false, true);
}

std::string value_text(const CLI::Option& option) {
  if (option.get_type_size() == 0 || (option.get_positional() && option.get_lnames().empty()))
    return {};
  std::string type = option.get_type_name();
  if (const auto choices = type.find(":{"); choices != std::string::npos)
    return type.substr(choices + 1);
  type = type.substr(0, type.find(':'));
  if (type == "INT" || type == "UINT") return "N";
  return type == "FLOAT" ? "X" : type;
}

std::string default_text(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  return text == "[]" || text == "\"\"" ? std::string() : text;
}

std::string usage_text(const CLI::Option& option) {
  std::string text = name_text(option);
  if (const std::string value = value_text(option); !value.empty()) text += " " + value;
  const bool is_list = option.get_expected_max() == CLI::detail::expected_max_vector_size;
  if (is_list && !text.ends_with("...")) text += " ...";
  if (const std::string preset = default_text(option); !preset.empty()) text += " [" + preset + "]";
  return text + (option.get_required() ? " (required)" : "");
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string text = value_text(option);
  std::vector<std::string> choices;
  if (text.empty() || text.front() != '{') return choices;
  std::istringstream words(text.substr(1, text.find('}') - 1));
  for (std::string word; std::getline(words, word, ',');) choices.push_back(word);
  return choices;
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  std::vector<const CLI::Option*> options =
      app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
  std::stable_partition(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->get_positional() && option->get_lnames().empty();
  });
  return options;
}

}  // namespace kvhive
