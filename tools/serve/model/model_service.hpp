#pragma once
// One of the daemon's models, as this service serves it: where it is from, who notices that it is
// another one, and the channels to its engines.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/serve/hive/hives.hpp"
#include "tools/serve/model/model_follower.hpp"
#include "tools/serve/model/model_in_use.hpp"

namespace kvhive {

class ModelService {
 public:
  /// \param first      what the daemon serves at the start
  /// \param limits     of this model's channels, and what waits for them
  /// \param domains    see Hives
  /// \param on_loaded  called in the loop when it has become another model
  ModelService(boost::asio::io_context& loop, const ModelOptions& options, LoadedModel first,
               const Hive::Limits& limits, const std::vector<std::string>& domains,
               std::function<void()> on_loaded);
  ModelService(const ModelService&) = delete;
  ModelService& operator=(const ModelService&) = delete;
  ~ModelService();

  const ModelInUsePtr& serving() const { return serving_; }
  const ServedModel& model() const { return serving_->model(); }
  /// Why requests for it are refused now; nothing = they are not.
  std::optional<ApiError> trouble() const;
  Hives& hives() { return hives_; }
  const Hives& hives() const { return hives_; }

  /// Perhaps there is another daemon. From any thread.
  void check() { follower_.check(); }
  /// Ends the processes that render messages; what waits for them is refused.
  void stop_rendering() { serving_->renderer.reset(); }
  /// Whether its threads ask the daemon, or load. The destructor waits for them.
  bool is_busy() const { return hives_.is_opening() || follower_.is_busy(); }

 private:
  void serve(const ModelFollower::Model& model);

  boost::asio::io_context& loop_;
  const ModelSource source_;
  ModelFollower follower_;
  Hives hives_;
  ModelInUsePtr serving_;
};

}  // namespace kvhive
