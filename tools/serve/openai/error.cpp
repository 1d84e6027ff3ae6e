#include "tools/serve/openai/error.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/json_file.hpp"
#include "tools/serve/hive/hive.hpp"

namespace kvhive {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string type_of(int status) {
  switch (status) {
    case 400: return "BadRequestError";
    case 401: return "AuthenticationError";
    case 403: return "PermissionDeniedError";
    case 404: return "NotFoundError";
    case 405: return "MethodNotAllowedError";
    case 501: return "NotImplementedError";
    case 503: return "ServiceUnavailableError";
    default: return status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

int status_of(ErrorCode code) {
  if (code == Hive::kNotAllowed) return 403;
  switch (code) {
    case ErrorCode::bad_argument:
    case ErrorCode::bad_format:
    case ErrorCode::never_fits: return 400;
    case ErrorCode::not_found: return 404;
    case ErrorCode::unsupported: return 501;
    case ErrorCode::overloaded:
    case ErrorCode::pool_exhausted:
    case ErrorCode::out_of_memory:
    case ErrorCode::not_running:
    case ErrorCode::peer_died: return 503;
    default: return 500;
  }
}

}  // namespace

ApiError api_error(const ClientError& error) {
  return {status_of(error.code), error.text, {}, error.retry_after};
}

std::string shown_text(std::string_view text) { return printable(text, 60); }

ApiError another_model() {
  return {503,
          "the daemon was started anew with another model since this request came; try again",
          {},
          std::chrono::milliseconds(1000)};
}

std::string to_json_text(const ApiError& error) {
  OrderedJson body;
  body["error"] = {{"message", error.text},
                   {"type", type_of(error.status)},
                   {"param", error.param.empty() ? OrderedJson() : OrderedJson(error.param)},
                   {"code", error.status}};
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

HttpAnswer to_answer(const ApiError& error) {
  HttpAnswer answer{error.status, to_json_text(error), "application/json", {}};
  // OpenAI's clients try again after every 5xx; what is not there does not come.
  if (error.status == 501) answer.headers = {{"x-should-retry", "false"}};
  if (error.status != 429 && error.status != 503) return answer;
  // Clients that know only the header in seconds wait one at least.
  const auto soonest = std::max<std::chrono::milliseconds::rep>(error.retry_after.count(), 100);
  // Whoever was refused in the same moment does not come back in the same moment.
  thread_local std::minstd_rand random(std::random_device{}());
  const auto ms = std::uniform_int_distribution(soonest, soonest + soonest / 2)(random);
  answer.headers = {{"Retry-After", std::to_string((ms + 999) / 1000)},
                    {"retry-after-ms", std::to_string(ms)}};
  return answer;
}

}  // namespace kvhive
