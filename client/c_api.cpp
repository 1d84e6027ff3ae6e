// The C API: each function checks its arguments, calls kvhive::Client and turns errors and
// exceptions into codes.

#include <algorithm>
#include <cstring>
#include <new>

#include "kvhive/client.hpp"
#include "kvhive/kvhive.h"

struct kvhive_client {
  kvhive::Client client;
  // What the last kvhive_read() handed out.
  kvhive::Progress progress;
  std::vector<kvhive_token> tokens;
  std::vector<kvhive_prompt_token> prompt;
  std::vector<kvhive_token_logprob> top;
};

namespace {

using kvhive::ClientError;
using kvhive::ErrorCode;
using kvhive::Result;

static_assert(KVHIVE_OVERLOADED == int(ErrorCode::overloaded));
static_assert(KVHIVE_FINISH_ROOM == int(kvhive::Finish::room));
static_assert(KVHIVE_FIT_LATER == int(kvhive::Fit::later));

std::string& last_error() {
  thread_local std::string text;
  return text;
}

std::int32_t fail(const ClientError& error) {
  last_error() = error.text;
  return static_cast<std::int32_t>(error.code);
}

std::int32_t bad_argument(const char* text) { return fail({ErrorCode::bad_argument, text}); }

/// Runs `call`, which returns a code. No exception leaves the library.
template <class Call>
std::int32_t guarded(const Call& call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    last_error().clear();
    return KVHIVE_OUT_OF_MEMORY;
  } catch (const std::exception& exception) {
    return fail({ErrorCode::os_error, exception.what()});
  }
}

/// The caller's struct over this library's defaults: an older header's is shorter, a newer one's
/// longer.
template <class Struct>
Struct completed(const Struct& given, Struct defaults) {
  std::memcpy(&defaults, &given, std::min(given.struct_size, sizeof(Struct)));
  return defaults;
}

/// Sizes of the structs of ABI version 1.
constexpr std::size_t kOptionsV1 = offsetof(kvhive_options, domain);
constexpr std::size_t kRequestV1 = offsetof(kvhive_request, cache_salt);
constexpr std::size_t kProgressV1 = offsetof(kvhive_progress, retry_after_ms);

kvhive::ClientOptions client_options(const kvhive_options& options) {
  kvhive::ClientOptions out;
  if (options.socket != nullptr) out.socket = options.socket;
  if (options.engine != KVHIVE_ANY_ENGINE) out.engine = static_cast<std::uint32_t>(options.engine);
  out.channel_bytes = options.channel_bytes;
  out.connect_timeout = std::chrono::milliseconds(options.connect_timeout_ms);
  if (options.domain != nullptr) out.domain = options.domain;
  if (options.model != nullptr) out.model = options.model;
  return out;
}

kvhive::GenerateRequest generate_request(const kvhive_request& request) {
  kvhive::GenerateRequest out;
  if (request.prompt != nullptr) out.prompt.assign(request.prompt, request.prompt_bytes);
  if (request.prompt_tokens != nullptr)
    out.prompt_tokens.assign(request.prompt_tokens,
                             request.prompt_tokens + request.prompt_token_count);
  if (request.stop != nullptr) out.stop.assign(request.stop, request.stop + request.stop_count);
  if (request.stop_tokens != nullptr)
    out.stop_token_ids.assign(request.stop_tokens, request.stop_tokens + request.stop_token_count);
  out.most_text_bytes = request.most_text_bytes;
  if (request.has_seed != 0) out.seed = request.seed;
  out.max_tokens = request.max_tokens;
  out.temperature = request.temperature;
  out.top_p = request.top_p;
  out.min_p = request.min_p;
  out.top_k = request.top_k;
  out.logprobs = request.logprobs;
  if (request.scores_prompt != 0) out.prompt_logprobs = request.prompt_logprobs;
  out.ignore_eos = request.ignore_eos != 0;
  out.priority = request.priority;
  if (request.cache_salt != nullptr) out.cache_salt = request.cache_salt;
  if (request.adapter != nullptr) out.adapter = request.adapter;
  out.presence_penalty = request.presence_penalty;
  out.frequency_penalty = request.frequency_penalty;
  if (request.repetition_penalty != 0) out.repetition_penalty = request.repetition_penalty;
  out.min_tokens = request.min_tokens;
  if (request.logit_bias != nullptr)
    for (std::size_t i = 0; i < request.logit_bias_count; ++i)
      out.logit_bias[request.logit_bias[i].token] = request.logit_bias[i].bias;
  if (request.allowed_tokens != nullptr)
    out.allowed_token_ids.assign(request.allowed_tokens,
                                 request.allowed_tokens + request.allowed_token_count);
  if (request.bad_words != nullptr)
    out.bad_words.assign(request.bad_words, request.bad_words + request.bad_word_count);
  out.include_stop = request.include_stop != 0;
  out.only_asks = request.only_asks != 0;
  if (request.prompt_embeds != nullptr)
    out.prompt_embeds.assign(
        request.prompt_embeds,
        request.prompt_embeds + request.prompt_row_count * request.embedding_width);
  out.embedding_width = request.embedding_width;
  out.will_be_forked = request.will_be_forked != 0;
  return out;
}

/// Lays the tokens out as C arrays. All top entries are in one array, which must not grow while
/// tokens point into it.
void lay_out_tokens(kvhive_client& client) {
  client.tokens.clear();
  client.prompt.clear();
  client.top.clear();
  const auto add_top = [&client](const auto& tokens) {
    for (const auto& token : tokens)
      for (const kvhive::TokenLogprob& entry : token.top)
        client.top.push_back({entry.token, entry.logprob});
  };
  add_top(client.progress.tokens);
  add_top(client.progress.prompt);
  const kvhive_token_logprob* top = client.top.data();
  for (const kvhive::OutputToken& token : client.progress.tokens) {
    client.tokens.push_back({token.token, token.logprob, top, token.top.size()});
    top += token.top.size();
  }
  for (const kvhive::PromptLogprob& token : client.progress.prompt) {
    client.prompt.push_back({token.token, token.logprob, top, token.top.size(), token.rank});
    top += token.top.size();
  }
}

kvhive_progress c_progress(const kvhive_client& client) {
  const kvhive::Progress& news = client.progress;
  kvhive_progress out = kvhive_empty_progress();
  out.tokens = client.tokens.data();
  out.token_count = client.tokens.size();
  out.text = news.text.c_str();
  out.text_bytes = news.text.size();
  out.whole_text_bytes = news.text_bytes;
  out.error_text = news.error.text.c_str();
  out.error = static_cast<std::int32_t>(news.error.code);
  out.finish = static_cast<std::int32_t>(news.reason);
  out.engine = news.engine ? static_cast<std::int32_t>(*news.engine) : KVHIVE_ANY_ENGINE;
  out.prompt_tokens = news.prompt_tokens;
  out.cached_tokens = news.cached_tokens;
  out.preemptions = news.preemptions;
  out.prompt = client.prompt.data();
  out.prompt_count = client.prompt.size();
  out.fit = static_cast<std::int32_t>(news.room.fit);
  out.needed_blocks = news.room.needed_blocks;
  out.available_blocks = news.room.available_blocks;
  out.retry_after_ms = static_cast<std::uint32_t>(news.error.retry_after.count());
  return out;
}

}  // namespace

extern "C" {

uint32_t kvhive_abi_version(void) { return KVHIVE_ABI_VERSION; }
const char* kvhive_version(void) { return KVHIVE_VERSION; }
const char* kvhive_code_name(int32_t code) { return kvhive::to_string(ErrorCode(code)).data(); }
const char* kvhive_last_error(void) { return last_error().c_str(); }

int32_t kvhive_connect(const kvhive_options* options, kvhive_client** client) {
  if (client == nullptr) return bad_argument("kvhive_connect: client is NULL");
  *client = nullptr;
  if (options != nullptr && options->struct_size < kOptionsV1)
    return bad_argument(
        "kvhive_connect: options->struct_size is not set; use "
        "kvhive_default_options()");
  return guarded([&]() -> std::int32_t {
    kvhive_options wanted = kvhive_default_options();
    if (options != nullptr) wanted = completed(*options, wanted);
    if (wanted.engine < KVHIVE_ANY_ENGINE)
      return bad_argument(
          "kvhive_connect: options->engine is negative; use a number or "
          "KVHIVE_ANY_ENGINE");
    auto connected = kvhive::Client::connect(client_options(wanted));
    if (!connected) return fail(connected.error());
    *client = new kvhive_client{std::move(*connected), {}, {}, {}, {}};
    return KVHIVE_OK;
  });
}

void kvhive_close(kvhive_client* client) { delete client; }

int32_t kvhive_submit(kvhive_client* client, const kvhive_request* request, uint64_t* id) {
  if (client == nullptr || request == nullptr || id == nullptr)
    return bad_argument("kvhive_submit: an argument is NULL");
  if (request->struct_size < kRequestV1)
    return bad_argument(
        "kvhive_submit: request->struct_size is not set; use "
        "kvhive_default_request()");
  return guarded([&]() -> std::int32_t {
    const auto submitted = client->client.submit(
        generate_request(completed(*request, kvhive_default_request(nullptr))));
    if (!submitted) return fail(submitted.error());
    *id = *submitted;
    return KVHIVE_OK;
  });
}

int32_t kvhive_wait(kvhive_client* client, int32_t timeout_ms) {
  if (client == nullptr) return bad_argument("kvhive_wait: client is NULL");
  return guarded([&]() -> std::int32_t {
    const auto woken = client->client.wait(std::chrono::milliseconds(timeout_ms));
    return woken ? KVHIVE_OK : fail(woken.error());
  });
}

int kvhive_descriptor(const kvhive_client* client) {
  return client == nullptr ? -1 : client->client.descriptor();
}

int32_t kvhive_read(kvhive_client* client, uint64_t id, kvhive_progress* progress) {
  if (client == nullptr || progress == nullptr)
    return bad_argument("kvhive_read: an argument is NULL");
  if (progress->struct_size < kProgressV1)
    return bad_argument(
        "kvhive_read: progress->struct_size is not set; use "
        "kvhive_empty_progress()");
  return guarded([&]() -> std::int32_t {
    auto news = client->client.read(id);
    if (!news) return fail(news.error());
    client->progress = std::move(*news);
    lay_out_tokens(*client);
    kvhive_progress out = c_progress(*client);
    const std::size_t size = progress->struct_size;
    std::memcpy(progress, &out, std::min(size, sizeof out));
    progress->struct_size = size;
    return KVHIVE_OK;
  });
}

int32_t kvhive_abort(kvhive_client* client, uint64_t id) {
  if (client == nullptr) return bad_argument("kvhive_abort: client is NULL");
  client->client.abort(id);
  return KVHIVE_OK;
}

int32_t kvhive_discard(kvhive_client* client, uint64_t id) {
  if (client == nullptr) return bad_argument("kvhive_discard: client is NULL");
  client->client.discard(id);
  return KVHIVE_OK;
}

int32_t kvhive_serving_engine(const kvhive_client* client) {
  if (client == nullptr) return KVHIVE_ANY_ENGINE;
  const auto engine = client->client.status().engine;
  return engine ? static_cast<std::int32_t>(*engine) : KVHIVE_ANY_ENGINE;
}

}  // extern "C"
