#include "config/cpu_bind.hpp"

#include <algorithm>

#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

/// Far above what Linux can be built for (8,192), and a range that is mistyped takes no memory.
constexpr std::uint32_t kMostProcessors = 65'536;

}  // namespace

Expected<ProcessorList> parse_processors(const std::string& text) {
  ProcessorList processors;
  const auto none = failure(Errc::bad_argument, "'" + text +
                                                    "' is no list of processors; write numbers and "
                                                    "ranges as in 0-3,8");
  for (const std::string& range : split_list(text, ',')) {
    const auto dash = range.find('-');
    std::uint32_t first = 0, last = 0;
    const bool is_read = parse_number(first, range.substr(0, dash)) &&
                         parse_number(last, dash == range.npos ? range : range.substr(dash + 1));
    if (!is_read || first > last || last >= kMostProcessors) return none;
    for (std::uint32_t number = first; number <= last; ++number) processors.push_back(number);
  }
  if (processors.empty()) return none;
  std::ranges::sort(processors);
  // Not ranges::unique: the fuzzers' clang 14 cannot read what libstdc++ 12 returns from it.
  processors.erase(std::unique(processors.begin(), processors.end()), processors.end());
  return processors;
}

std::string to_string(const ProcessorList& processors) {
  std::string text;
  for (std::size_t first = 0; first < processors.size();) {
    std::size_t last = first;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(processors[first]);
    if (last != first) text += "-" + std::to_string(processors[last]);
    first = last + 1;
  }
  return text;
}

Expected<CpuBind> parse_cpu_bind(const std::string& text) {
  if (text == "auto") return CpuBind{};
  CpuBind bind{CpuBind::Way::none, {}};
  if (text == "none") return bind;
  bind.way = CpuBind::Way::listed;
  for (const std::string& part : split_list(text, '|')) {
    auto list = parse_processors(part);
    if (!list)
      return failure(Errc::bad_argument,
                     list.error().text + ", with a | between those of two engines; or auto, none");
    bind.lists.push_back(std::move(*list));
  }
  if (bind.lists.empty()) return forward_error(parse_processors(text));
  return bind;
}

std::string to_string(const CpuBind& bind) {
  if (bind.way == CpuBind::Way::automatic) return "auto";
  if (bind.way == CpuBind::Way::none) return "none";
  std::string text;
  for (const ProcessorList& list : bind.lists) text += (text.empty() ? "" : "|") + to_string(list);
  return text;
}

}  // namespace kvhive
