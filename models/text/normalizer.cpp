#include "models/text/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"

namespace kvhive {
namespace {

constexpr std::pair<std::string_view, int> kForms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

using CodePoints = std::vector<utf8proc_int32_t>;

/// The most code points that one decomposes into: 18, of U+FDFA in NFKD.
constexpr utf8proc_ssize_t kMostParts = 32;

/// The code points of a text, decomposed, in the text's order.
CodePoints decompose(std::string_view text, utf8proc_option_t options) {
  CodePoints points;
  points.reserve(text.size());
  while (!text.empty()) {
    utf8proc_int32_t point = 0;
    const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                        static_cast<utf8proc_ssize_t>(text.size()), &point);
    KV_CHECK(bytes > 0, bytes);  // the text is valid
    text.remove_prefix(static_cast<std::size_t>(bytes));
    utf8proc_int32_t parts[kMostParts];
    int unused = 0;
    const auto count = utf8proc_decompose_char(point, parts, kMostParts, options, &unused);
    KV_CHECK(count >= 0 && count <= kMostParts, count, point);
    points.insert(points.end(), parts, parts + count);
  }
  return points;
}

utf8proc_propval_t combining_class(utf8proc_int32_t point) {
  return utf8proc_get_property(point)->combining_class;
}

/// Puts the marks of each run into canonical order: by combining class, those of one class as they
/// were. A text may be one long run, so this takes n log n steps; utf8proc_decompose() takes n^2.
void sort_marks(CodePoints& points) {
  const auto is_mark = [](utf8proc_int32_t point) { return combining_class(point) != 0; };
  auto run = points.begin();
  while ((run = std::find_if(run, points.end(), is_mark)) != points.end()) {
    const auto end = std::find_if_not(run, points.end(), is_mark);
    if (!std::ranges::is_sorted(run, end, {}, combining_class))
      std::ranges::stable_sort(run, end, {}, combining_class);
    run = end;
  }
}

}  // namespace

Expected<Normalizer> Normalizer::parse(const nlohmann::json& json, const std::string& where) {
  Normalizer normalizer;
  if (json.is_null()) return normalizer;
  auto added = normalizer.add(json, where);
  if (!added) return forward_error(added);
  return normalizer;
}

Expected<std::size_t> Normalizer::add(const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) return failure(Errc::bad_format, where + " is not an object");
  const JsonFields fields(json, where);
  const auto type = fields.text("type");
  if (!type) return forward_error(type);
  if (*type == "Sequence") {
    const auto parts = fields.array("normalizers");
    if (!parts) return forward_error(parts);
    for (const auto& part : **parts)
      if (auto added = add(part, where); !added) return added;
    return steps_.size();
  }
  const auto form = std::ranges::find(kForms, *type, [](const auto& entry) { return entry.first; });
  if (form != std::end(kForms)) {
    steps_.emplace_back(UnicodeForm{form->second});
  } else if (*type == "Prepend") {
    auto prefix = fields.text("prepend");
    if (!prefix) return forward_error(prefix);
    steps_.emplace_back(Prepend{std::move(*prefix)});
  } else if (*type == "Replace") {
    const auto pattern = fields.object("pattern");
    if (!pattern) return forward_error(pattern);
    auto from = pattern->text("String");
    auto to = fields.text("content");
    if (!from) return forward_error(from);
    if (!to) return forward_error(to);
    if (from->empty()) return pattern->wrong("String", "a string that is not empty");
    steps_.emplace_back(Replace{std::move(*from), std::move(*to)});
  } else {
    return fields.wrong("type", "NFC, NFD, NFKC, NFKD, Prepend, Replace or Sequence",
                        Errc::unsupported);
  }
  return steps_.size();
}

std::string Normalizer::apply(std::string text) const {
  for (const auto& step : steps_)
    text = std::visit([&](const auto& one) { return apply_step(one, std::move(text)); }, step);
  return text;
}

std::string Normalizer::apply_step(const UnicodeForm& form, std::string text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return text;  // every form keeps ASCII as it is
  const auto options = static_cast<utf8proc_option_t>(form.options);
  CodePoints points = decompose(text, options);
  sort_marks(points);
  points.push_back(0);  // utf8proc_reencode needs room behind the text
  const auto bytes =
      utf8proc_reencode(points.data(), static_cast<utf8proc_ssize_t>(points.size() - 1), options);
  KV_CHECK(bytes >= 0, utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(points.data()), static_cast<std::size_t>(bytes)};
}

std::string Normalizer::apply_step(const Prepend& prepend, const std::string& text) {
  return text.empty() ? text : prepend.prefix + text;
}

std::string Normalizer::apply_step(const Replace& replace, const std::string& text) {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t at; (at = text.find(replace.from, copied)) != std::string::npos;) {
    out.append(text, copied, at - copied).append(replace.to);
    copied = at + replace.from.size();
  }
  return out.append(text, copied);
}

}  // namespace kvhive
