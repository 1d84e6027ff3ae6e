#pragma once
// Errors in OpenAI's form, with vLLM's types.

#include <optional>
#include <string>
#include <string_view>

#include "kvhive/client.hpp"
#include "tools/serve/http/exchange.hpp"

namespace kvhive {

struct ApiError {
  int status = 400;
  std::string text;
  std::string param{};  ///< the field; empty = none
  std::chrono::milliseconds retry_after{0};
};

/// What an engine or the channel has refused, or how a request has failed.
ApiError api_error(const ClientError& error);

/// A text of a stranger's, as an error text shows it: printable, and not all of a long one.
std::string shown_text(std::string_view text);

/// Of a request that was made for a model that the daemon serves no more.
ApiError another_model();

/// {"error": {...}}, on one line.
std::string to_json_text(const ApiError& error);

HttpAnswer to_answer(const ApiError& error);

}  // namespace kvhive
