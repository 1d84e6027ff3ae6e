#pragma once
// The flags of kvhive generate that say which tokens are chosen beyond their likelihood.

#include <CLI/CLI.hpp>
#include <string>

#include "base/expected.hpp"
#include "kvhive/client.hpp"

namespace kvhive {

class TokenRuleFlags {
 public:
  /// \param app  and `request` outlive the parsing
  void add_to(CLI::App& app, GenerateRequest& request);

  /// What is given as lists, into the request. The error names the flag.
  [[nodiscard]] Expected<void> read(GenerateRequest& request) const;

 private:
  std::int64_t min_tokens_ = 0;
  std::string logit_bias_, allowed_token_ids_;
};

}  // namespace kvhive
