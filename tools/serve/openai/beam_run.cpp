#include "tools/serve/openai/beam_run.hpp"

#include <algorithm>
#include <utility>

namespace kvhive {
namespace {

/// For one token behind each beam, whichever: what counts are the likeliest ones.
GenerateRequest request_of_a_step(GenerateRequest request, std::size_t width) {
  request.max_tokens = 1;
  request.temperature = 0;
  request.logprobs = static_cast<std::uint32_t>(2 * width);
  request.ignore_eos = true;
  request.will_be_forked = true;
  return request;
}

}  // namespace

BeamRun::BeamRun(Hive& hive, Hive::ModelId model, GenerateRequest request, BeamSearch::Rules rules)
    : hive_(hive),
      model_(model),
      request_(request_of_a_step(std::move(request), rules.width)),
      search_(std::move(rules)) {}

void BeamRun::start(OnEnd on_end) {
  on_end_ = std::move(on_end);
  step();
}

void BeamRun::step() {
  const std::vector<Beam>& beams = search_.beams();
  missing_ = beams.size();
  next_.assign(beams.size(), {});
  keys_.clear();
  for (std::size_t i = 0; i < beams.size(); ++i) {
    GenerateRequest request = request_;
    for (const Beam::Token& token : beams[i].tokens) request.prompt_tokens.push_back(token->token);
    keys_.push_back(hive_.submit(
        std::move(request), model_,
        [self = shared_from_this(), i](const Progress& news) { self->hear(i, news); }));
  }
}

void BeamRun::hear(std::size_t beam, const Progress& news) {
  if (!on_end_) return;
  if (news.reason == Finish::error) return end(news.error);
  if (prompt_tokens_ == 0) {
    prompt_tokens_ = news.prompt_tokens;
    cached_tokens_ = news.cached_tokens;
  }
  if (!news.tokens.empty()) next_[beam] = news.tokens.front();
  if (news.reason == Finish::none) return;
  if (next_[beam].top.empty())
    return end(ClientError{ErrorCode::peer_died, "the engines have ended this request; try again",
                           std::chrono::milliseconds(1000)});
  if (--missing_ != 0) return;
  search_.extend(next_);
  search_.beams().empty() ? end({}) : step();
}

void BeamRun::end(const std::optional<ClientError>& error) {
  const OnEnd on_end = std::exchange(on_end_, nullptr);
  if (error) cancel();
  on_end(error);
}

void BeamRun::cancel() {
  on_end_ = nullptr;
  for (const Hive::Key key : keys_) hive_.cancel(key);
}

}  // namespace kvhive
