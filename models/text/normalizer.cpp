#include "models/text/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.hpp"

namespace kvhive {
namespace {

constexpr std::pair<std::string_view, int> kForms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

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
  utf8proc_uint8_t* mapped = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                  static_cast<utf8proc_option_t>(form.options));
  KV_CHECK(bytes >= 0, utf8proc_errmsg(bytes));  // the text is valid: only memory can run out
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, std::free);
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(bytes)};
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
