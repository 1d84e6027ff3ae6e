#include "models/text/pre_tokenizer.hpp"

#include <utility>

namespace kvhive {
namespace {

/// What ByteLevel splits with unless told not to (huggingface/tokenizers, byte_level.rs; GPT-2's).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Expected<PreTokenizer> PreTokenizer::parse(const nlohmann::json& json, const std::string& where) {
  PreTokenizer parsed;
  if (json.is_null()) return parsed;
  auto added = parsed.add(json, where);
  if (!added) return forward_error(added);
  return parsed;
}

Expected<std::size_t> PreTokenizer::add(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) return failure(Errc::bad_format, where + " is not an object");
  const JsonFields fields(json, where);
  const auto type = fields.text("type");
  if (!type) return forward_error(type);
  if (*type == "Split") return add_split(fields);
  if (*type == "ByteLevel") return add_byte_level(fields);
  if (*type == "Digits") return add_digits(fields);
  if (*type == "Metaspace") return add_metaspace(fields);
  if (*type != "Sequence")
    return fields.wrong("type", "Split, ByteLevel, Digits, Metaspace or Sequence",
                        Errc::unsupported);
  const auto parts = fields.array("pretokenizers");
  if (!parts) return forward_error(parts);
  for (const auto& part : **parts)
    if (auto added = add(part, where); !added) return added;
  return steps_.size();
}

Expected<std::size_t> PreTokenizer::add_regex(const JsonFields& fields, const std::string& pattern,
                                              Regex::Syntax syntax, Between between) {
  auto regex = Regex::compile(pattern, syntax);
  if (!regex) return failure(regex.error().code, fields.where() + ": " + regex.error().text);
  steps_.emplace_back(Split{std::move(*regex), between, Matches::alone});
  return steps_.size();
}

Expected<std::size_t> PreTokenizer::add_split(const JsonFields& fields) {
  const auto pattern = fields.object("pattern");
  const auto behavior = fields.text("behavior");
  const auto invert = fields.boolean_or("invert", false);
  if (!pattern) return forward_error(pattern);
  if (!behavior) return forward_error(behavior);
  if (!invert) return forward_error(invert);
  const bool literal = pattern->has("String");
  const bool isolated = *behavior == "Isolated";
  const bool merged = *behavior == "MergedWithPrevious" && literal && !*invert;  // Gemma's
  if (!isolated && !merged && !(*behavior == "Removed" && *invert))
    return fields.wrong("behavior",
                        "Isolated, MergedWithPrevious of a String, or Removed with invert",
                        Errc::unsupported);
  const auto text = pattern->text(literal ? "String" : "Regex");
  if (!text) return forward_error(text);
  auto added = add_regex(fields, *text, literal ? Regex::Syntax::literal : Regex::Syntax::pattern,
                         isolated || merged ? Between::kept : Between::dropped);
  if (added && merged) std::get<Split>(steps_.back()).matches = Matches::behind_the_text;
  return added;
}

Expected<std::size_t> PreTokenizer::add_byte_level(const JsonFields& fields) {
  const auto prefix_space = fields.boolean_or("add_prefix_space", true);
  const auto use_regex = fields.boolean_or("use_regex", true);
  if (!prefix_space) return forward_error(prefix_space);
  if (!use_regex) return forward_error(use_regex);
  if (*prefix_space) steps_.emplace_back(SpaceBefore{});
  if (!*use_regex) return steps_.size();
  return add_regex(fields, kByteLevelPattern, Regex::Syntax::pattern, Between::kept);
}

Expected<std::size_t> PreTokenizer::add_digits(const JsonFields& fields) {
  const auto individual = fields.boolean_or("individual_digits", false);
  if (!individual) return forward_error(individual);
  return add_regex(fields, *individual ? R"(\p{N})" : R"(\p{N}+)", Regex::Syntax::pattern,
                   Between::kept);
}

Expected<std::size_t> PreTokenizer::add_metaspace(const JsonFields& fields) {
  Metaspace metaspace;
  auto replacement = fields.text("replacement");
  const auto split = fields.boolean_or("split", true);
  const auto add_prefix = fields.boolean_or("add_prefix_space", true);  // before prepend_scheme
  if (!replacement) return forward_error(replacement);
  if (!split) return forward_error(split);
  if (!add_prefix) return forward_error(add_prefix);
  const auto scheme = fields.text_or("prepend_scheme", *add_prefix ? "always" : "never");
  if (!scheme) return forward_error(scheme);
  if (replacement->empty()) return fields.wrong("replacement", "a character");

  metaspace.replacement = std::move(*replacement);
  metaspace.split = *split;
  if (*scheme == "always")
    metaspace.prefix = Prefix::always;
  else if (*scheme == "first")
    metaspace.prefix = Prefix::at_start;
  else if (*scheme == "never")
    metaspace.prefix = Prefix::never;
  else
    return fields.wrong("prepend_scheme", "always, first or never", Errc::unsupported);
  steps_.emplace_back(std::move(metaspace));
  return steps_.size();
}

Expected<std::size_t> PreTokenizer::apply(const Split& split, std::string piece, Place,
                                          Pieces& out) {
  std::size_t taken = 0;
  const auto take_between = [&](std::size_t end) {
    if (end > taken && split.between == Between::kept)
      out.push_back(piece.substr(taken, end - taken));
  };
  auto matches = split.regex.for_each_match(piece, [&](std::size_t begin, std::size_t end) {
    take_between(begin);
    const bool follows_text = begin > taken && split.matches == Matches::behind_the_text;
    if (follows_text)
      out.back().append(piece, begin, end - begin);
    else if (end > begin)
      out.push_back(piece.substr(begin, end - begin));
    taken = end;
  });
  take_between(piece.size());
  return matches;
}

Expected<std::size_t> PreTokenizer::apply(const SpaceBefore&, std::string piece, Place,
                                          Pieces& out) {
  out.push_back(piece.starts_with(' ') ? std::move(piece) : ' ' + piece);
  return out.size();
}

Expected<std::size_t> PreTokenizer::apply(const Metaspace& metaspace, const std::string& piece,
                                          Place place, Pieces& out) {
  const std::string& mark = metaspace.replacement;
  std::string marked;
  for (const char c : piece)
    if (c == ' ')
      marked += mark;
    else
      marked += c;
  const bool wants_prefix = metaspace.prefix == Prefix::always ||
                            (metaspace.prefix == Prefix::at_start && place == Place::start);
  if (wants_prefix && !marked.starts_with(mark)) marked.insert(0, mark);
  if (!metaspace.split) {
    out.push_back(std::move(marked));
    return out.size();
  }
  for (std::size_t begin = 0; begin < marked.size();) {
    const std::size_t end = std::min(marked.find(mark, begin + 1), marked.size());
    out.push_back(marked.substr(begin, end - begin));
    begin = end;
  }
  return out.size();
}

Expected<std::vector<std::string>> PreTokenizer::cut(std::string text, Place place) const {
  Pieces pieces;
  if (text.empty()) return pieces;
  pieces.push_back(std::move(text));
  for (const auto& step : steps_) {
    Pieces cut;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Place piece_place = i == 0 ? place : Place::later;
      auto done = std::visit(
          [&](const auto& one) { return apply(one, std::move(pieces[i]), piece_place, cut); },
          step);
      if (!done) return forward_error(done);
    }
    pieces = std::move(cut);
  }
  return pieces;
}

}  // namespace kvhive
