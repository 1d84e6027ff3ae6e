#pragma once
// All of the daemon's models that this service serves, in the daemon's order. Each has channels of
// its own, so one whose engines are full holds up no other.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/serve/model/model_service.hpp"

namespace kvhive {

class ModelServices {
 public:
  struct First {
    ModelOptions options;
    LoadedModel loaded;
  };
  /// \param models  one at least
  /// \param limits  of all together; each model gets an even part of them
  ModelServices(boost::asio::io_context& loop, std::vector<First> models,
                const Hive::Limits& limits, const std::vector<std::string>& domains);

  /// Called in the loop when one of them has become another model.
  std::function<void()> on_loaded;

  std::vector<ModelInUsePtr> servings() const;
  std::vector<std::string> names() const;
  std::vector<std::string> adapters() const;
  /// Why requests are refused whichever model they name; nothing = not all are.
  std::optional<ApiError> trouble() const;

  /// Whether the daemon serves one of them, or why not the last of them.
  using Answer = std::function<void(std::optional<ApiError>)>;
  void look_for_daemon(const Answer& answer) { look_from(0, answer); }
  /// Perhaps there is another daemon. From any thread.
  void check();

  std::map<std::string, Hive::OfAdapter> adapter_counts() const;
  std::size_t running() const { return sum(&Hives::running); }
  std::size_t waiting() const { return sum(&Hives::waiting); }
  std::size_t channels() const { return sum(&Hives::channels); }
  /// Before the process ends without this object's destructor: processes that render end with it.
  void stop_rendering();
  /// Whether threads ask the daemon, or load. The destructor waits for them.
  bool is_busy() const;
  /// The most channels of all together.
  static std::size_t most_channels(const Hive::Limits& limits, std::size_t models,
                                   std::size_t domains);

 private:
  void look_from(std::size_t next, const Answer& answer);
  std::size_t sum(std::size_t (Hives::*count)() const) const;

  std::vector<std::unique_ptr<ModelService>> models_;
};

}  // namespace kvhive
