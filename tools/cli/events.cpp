// kvhive events: what the pool stores and loses, as vLLM's KV events over ZeroMQ.

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "base/log.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/hive_watch.hpp"
#include "tools/events/event_publisher.hpp"
#include "tools/events/kv_events.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/program/output.hpp"
#include "tools/program/signals.hpp"

namespace kvhive {
namespace {

using Clock = HiveWatch::Clock;

/// Between two questions to the keeper, and for how long the name of a new domain is waited for.
constexpr std::chrono::milliseconds kEventsPause{200};
constexpr std::chrono::milliseconds kEventsNamesLimit = 3 * kEventsPause;

struct EventsFlags {
  CommonFlags common;
  PublisherOptions publisher;
  EventFormat format;
  std::string model;
  double interval = 0.05;
};

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// One pool after the other, and what of it has been published.
class PublishedPool {
 public:
  /// \param model  of several models, the one whose blocks are told of; empty = the first
  PublishedPool(const HiveWatch& watch, EventFormat format, std::string model)
      : watch_(watch), format_(format), model_(std::move(model)) {}

  /// Whether the daemon has the model, if it is known yet.
  Expected<void> check_model() const {
    const HiveWatch::News news = watch_.news();
    if (!news.hive || find_model(*news.hive)) return {};
    return failure(Errc::not_found,
                   "model: '" + model_ + "' is not served here; there are: " + news.hive->model());
  }

  /// Batches for what has changed.
  std::vector<std::string> changes() {
    const HiveWatch::News news = watch_.news();
    const bool is_gone = news.keeper == HiveWatch::News::Keeper::ended;
    const bool is_other = hive_ != news.hive && hive_ && !is_same_pool(*hive_, *news.hive);
    const bool clears = must_clear_ || is_gone != is_gone_ || (is_other && !is_gone);
    if (clears) content_.reset();
    is_gone_ = is_gone;
    // The mapping of a pool that lives on is as good as the new one.
    if (!is_gone && !content_) {
      hive_ = news.hive;
      // Nothing is told of a later daemon that has not this model.
      if (const auto model = find_model(*hive_)) content_.emplace(hive_->memory(), *model);
      write_for(*hive_);
    }
    if (!clears && is_gone) return {};
    must_clear_ = false;
    if (!writer_) write_for(*news.hive);
    const ContentChange change = content_ ? content_->read() : ContentChange{};
    names_ = watch_.names_with(change.newest_domain(), news, kEventsNamesLimit);
    return writer_->batches(change, names_, unix_seconds(), clears);
  }

  /// Batches for all that changes() has told of.
  std::vector<std::string> all() const {
    ContentChange change;
    if (content_) change.stored = content_->all();
    return writer_->batches(change, names_, unix_seconds(), true);
  }

 private:
  std::optional<ModelId> find_model(const Inspector& hive) const {
    const std::vector<std::string> names = hive.models();
    for (std::uint8_t m = 0; m < names.size(); ++m)
      if (model_.empty() || names[m] == model_) return ModelId{m};
    return std::nullopt;
  }
  void write_for(const Inspector& hive) {
    const ModelCache& cache = hive.memory().geometry()[find_model(hive).value_or(ModelId{})];
    writer_.emplace(format_, cache.tokens_per_block, cache.groups);
  }

  const HiveWatch& watch_;
  EventFormat format_;
  std::string model_;
  PoolNames names_;
  std::shared_ptr<const Inspector> hive_;
  std::optional<PoolContent> content_;
  std::optional<EventWriter> writer_;
  bool must_clear_ = true;  ///< subscribers may know what an earlier publisher has told
  bool is_gone_ = false;
};

Expected<void> publish_events(const EventsFlags& flags) {
  const auto end = signals_as_descriptor({SIGINT, SIGTERM, SIGHUP});
  if (!end) return forward_error(end);
  const auto watch =
      HiveWatch::start(flags.common.socket_path(), kEventsPause, Privilege::tokens_too);
  if (!watch) return forward_error(watch);
  (*watch)->wait_for_first_answer(kEventsPause);

  PublishedPool pool(**watch, flags.format, flags.model);
  if (auto known = pool.check_model(); !known) return known;
  auto publisher = EventPublisher::open(flags.publisher, [&] { return pool.all(); });
  if (!publisher) return forward_error(publisher);
  std::printf("events on %s", (*publisher)->endpoint().c_str());
  if (!flags.publisher.replay_endpoint.empty())
    std::printf(", replays on %s", (*publisher)->replay_endpoint().c_str());
  std::printf("\n");
  if (auto done = flush_output(); !done) return done;

  const std::chrono::duration<double> interval(flags.interval);
  while (next_signal(end->get()) == 0) {
    const auto begin = Clock::now();
    for (std::string& batch : pool.changes()) (*publisher)->publish(std::move(batch));
    // A large pool is read less often, so that reading it takes a twentieth of a processor.
    const auto pause =
        std::max<std::chrono::duration<double>>(interval, 19 * (Clock::now() - begin));
    (*publisher)
        ->serve_replays(std::chrono::duration_cast<std::chrono::milliseconds>(pause), end->get());
  }
  return {};
}

}  // namespace

void add_events(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EventsFlags>();
  flags->publisher.endpoint = "tcp://127.0.0.1:5557";
  CLI::App* command = app.add_subcommand(
      "events",
      "publishes what the pool stores and loses, as vLLM's KV events over ZeroMQ, until it is "
      "ended; who subscribes reads the tokens of all clients");
  flags->common.add_socket_to(*command);
  PublisherOptions& publisher = flags->publisher;
  command->add_option("--endpoint", publisher.endpoint, "where subscribers connect; port 0 = any")
      ->type_name("URL")
      ->capture_default_str();
  command->add_flag("--connect", publisher.connects,
                    "connect to a collector at --endpoint, instead of listening there");
  command
      ->add_option("--replay-endpoint", publisher.replay_endpoint,
                   "where subscribers ask for batches that they missed; none if not given")
      ->type_name("URL");
  command->add_option("--topic", publisher.topic, "such as kv@ADDRESS@MODEL, which llm-d expects")
      ->type_name("TEXT");
  command
      ->add_option("--buffer-batches", publisher.buffer_batches,
                   "kept for replays, 64 MiB at most; who asks for older ones gets all content")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--high-water-mark", publisher.high_water_mark,
                   "batches that wait for a slow subscriber before it loses some")
      ->type_name("N")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command
      ->add_option("--model", flags->model,
                   "of a daemon with several models, the one whose blocks are told of; by "
                   "default the first")
      ->type_name("NAME");
  command->add_option("--interval", flags->interval, "time between two looks at the pool")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.005, 10.0))
      ->capture_default_str();
  add_choice<EventForm>(*command, "--events", flags->format.events,
                        "maps, as vLLM since June 2026, or arrays, as before")
      ->default_str("maps");
  add_choice<HashForm>(*command, "--hashes", flags->format.hashes,
                       "a block's name as an integer of 64 bits, or as 16 bytes")
      ->default_str("integers");
  command->callback([flags, &exit_code] {
    const auto done = publish_events(*flags);
    exit_code = done ? 0 : fail(done.error());
  });
}

}  // namespace kvhive
