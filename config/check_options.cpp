#include <algorithm>

#include "config/models/lora_modules.hpp"
#include "config/models/hosted_models.hpp"
#include "config/option_table.hpp"
#include "config/options.hpp"

namespace kvhive {
namespace {

tl::unexpected<Error> bad_option(std::string_view name, const std::string& value,
                                 const std::string& remedy) {
  return failure(Errc::bad_argument, std::string(name) + ": '" + value + "' " + remedy);
}

Expected<void> check_range(const Options& options, const OptionField& field) {
  if (field.type.number == nullptr) return {};
  const OptionRange& range = field.range;
  const double value = field.type.number(options);
  const bool is_below_most = range.is_most_excluded ? value < range.most : value <= range.most;
  if (value >= range.least && is_below_most) return {};  // not NaN
  if (value == 0 && !field.zero.empty()) return {};
  std::string remedy = "must be " + range_text(field);
  if (!field.zero.empty()) remedy += "; 0 = " + std::string(field.zero);
  return bad_option(field.name, field.type.format(options), remedy);
}

/// A list for each engine that the daemon starts.
Expected<void> check_cpu_bind(const CpuBind& bind, std::size_t engines) {
  if (bind.way != CpuBind::Way::listed || bind.lists.size() == engines) return {};
  return bad_option("cpu-bind", to_string(bind),
                    "has " + std::to_string(bind.lists.size()) + " lists for " +
                        std::to_string(engines) + " engines; write one for each, with a | between");
}

/// A share for a domain that there can never be is a spelling mistake.
Expected<void> check_shares(const Options& o) {
  std::string known =
      "'*', '" + std::string(kDomainOfAll) + "', '" + std::string(kDomainOfUser) + "NUMBER'";
  for (const DomainRule& rule : o.domains) known += ", '" + rule.name + "'";
  for (const ShareRule& share : o.shares) {
    const std::string& domain = share.domain;
    const bool is_ruled = std::any_of(o.domains.begin(), o.domains.end(),
                                      [&](const DomainRule& rule) { return rule.name == domain; });
    if (is_ruled || domain == kOtherDomains || domain == kDomainOfAll ||
        domain.rfind(kDomainOfUser, 0) == 0)
      continue;
    return bad_option("shares", domain, "is no domain; name one of " + known);
  }
  return {};
}

}  // namespace

Expected<void> check_options(const Options& o) {
  if (o.model.empty())
    return failure(Errc::bad_argument, "model is not set; give --model DIRECTORY");
  for (const OptionField& field : option_fields())
    if (auto checked = check_range(o, field); !checked) return checked;
  const auto models = hosted_models(o);
  if (!models) return forward_error(models);
  if (auto bound = check_cpu_bind(o.cpu_bind, all_engines(*models)); !bound) return bound;
  if (auto modules = parse_lora_modules(o.lora_modules, model_names(*models)); !modules)
    return forward_error(modules);
  if (o.max_num_batched_tokens < o.max_num_seqs)
    return bad_option(
        "max-num-batched-tokens", std::to_string(o.max_num_batched_tokens),
        "must be at least max-num-seqs (" + std::to_string(o.max_num_seqs) + "), a token for each");
  if (o.prompt_lookup_min > o.prompt_lookup_max)
    return bad_option(
        "prompt-lookup-min", std::to_string(o.prompt_lookup_min),
        "must be at most prompt-lookup-max (" + std::to_string(o.prompt_lookup_max) + ")");
  if (o.preemption_mode != PreemptionMode::recompute && o.swap_space == 0)
    return bad_option("preemption-mode",
                      std::string(names_of(o.preemption_mode)[std::size_t(o.preemption_mode)]),
                      "needs a host tier; give --swap-space, e.g. 4GiB");
  if (o.sharing == Sharing::listed && o.domains.empty())
    return bad_option("sharing", "listed",
                      "refuses every client: list users or groups under domains");
  return check_shares(o);
}

}  // namespace kvhive
