#pragma once
// Where the service learns which model the daemon serves, and what it loads for it.

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "tools/serve/chat/chat_template.hpp"
#include "tools/serve/hive/hive.hpp"
#include "tools/serve/openai/served_model.hpp"

namespace kvhive {

/// What the operator has said. What is empty, the daemon tells.
struct ModelOptions {
  std::string socket;  ///< the daemon's
  std::string hosted;  ///< of several models that the daemon serves, this one; empty = the first
  std::string name;    ///< in requests and answers
  std::string directory;
  std::uint32_t max_model_len = 0;
  std::string chat_template;        ///< a file, instead of the model's own
  std::optional<ToolFormat> tools;  ///< nothing = as the template shows
};

/// What a daemon says of its model.
struct DaemonModel {
  std::string epoch;  ///< of its pool: no two daemons have the same
  std::string name, directory, fingerprint;
  std::uint32_t max_model_len = 0;
  std::vector<std::string> adapters;
  Hive::ModelId id = 0;
};

/// All that the service has of one model.
struct LoadedModel {
  ServedModel model;
  std::optional<ChatTemplate> chat;  ///< none = no chat
  ToolFormat tools = ToolFormat::none;
};

/// The names of the models that the daemon serves, in its order. Waits for the keeper, 10 s at
/// most.
[[nodiscard]] Expected<std::vector<std::string>> ask_for_models(const std::string& socket);

class ModelSource {
 public:
  explicit ModelSource(ModelOptions options) : options_(std::move(options)) {}

  /// False: the operator has said all. Then nothing is asked, and no change is noticed: only the
  /// daemon's own user, and root, may ask.
  bool asks_daemon() const;

  /// What the daemon serves now. Its id stays while the daemon lives; another daemon has the same
  /// one if it serves the same model, with the same limits and adapters, from files that have not
  /// changed. Waits for the keeper, 10 s at most. From any thread.
  [[nodiscard]] Expected<DaemonModel> ask() const;

  /// Reads tokenizer, defaults and chat template. Takes long with a large tokenizer. Errors name
  /// the file and the remedy.
  [[nodiscard]] Expected<LoadedModel> load(const DaemonModel& told) const;

 private:
  std::string directory_of(const DaemonModel& told) const;

  const ModelOptions options_;
  mutable std::mutex mutex_;
  mutable std::string epoch_;  ///< guarded by mutex_: of the daemon that was asked last
  mutable Hive::ModelId id_ = 0;
};

}  // namespace kvhive
