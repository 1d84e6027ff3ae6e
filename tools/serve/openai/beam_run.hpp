#pragma once
// A beam search under way: each step is a request to the engines for every beam. They find all but
// the newest tokens of it in the cache, and whatever becomes of an engine, its requests go on.

#include <functional>
#include <memory>
#include <vector>

#include "tools/serve/hive/hive.hpp"
#include "tools/serve/openai/beam_search.hpp"

namespace kvhive {

class BeamRun : public std::enable_shared_from_this<BeamRun> {
 public:
  /// Called in the loop, once; with an error if the engines have refused or failed.
  using OnEnd = std::function<void(const std::optional<ClientError>&)>;

  /// \param request  with the prompt's tokens; what decides about tokens must be left out
  BeamRun(Hive& hive, Hive::ModelId model, GenerateRequest request, BeamSearch::Rules rules);

  void start(OnEnd on_end);
  /// OnEnd is not called any more.
  void cancel();

  /// When it has ended well: the best first.
  std::vector<Beam> take_best() { return search_.take_best(); }
  std::uint32_t prompt_tokens() const { return prompt_tokens_; }
  std::uint32_t cached_tokens() const { return cached_tokens_; }

 private:
  void step();
  void hear(std::size_t beam, const Progress& news);
  void end(const std::optional<ClientError>& error);

  Hive& hive_;
  const Hive::ModelId model_;
  const GenerateRequest request_;
  BeamSearch search_;
  OnEnd on_end_;
  std::vector<Hive::Key> keys_;    ///< of this step, by beam
  std::vector<OutputToken> next_;  ///< that the engines have told, by beam
  std::size_t missing_ = 0;        ///< beams of this step of which nothing was told yet
  std::uint32_t prompt_tokens_ = 0, cached_tokens_ = 0;
};

}  // namespace kvhive
