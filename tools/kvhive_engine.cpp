// kvhive-engine: one engine process. Loads the model, attaches to the pool, serves the channels the
// keeper gives it. With --describe it only says what the model needs, which is all the keeper knows
// of models.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/port.hpp"
#include "actors/ring.hpp"
#include "actors/transformer_runner.hpp"
#include "config/log.hpp"
#include "models/fingerprint.hpp"
#include "pool/process_slot.hpp"
#include "tools/keeper/protocol.hpp"
#include "tools/option_flags.hpp"
#include "tools/progress_bar.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

std::string model_name(const Options& options) {
  return std::filesystem::weakly_canonical(options.model).filename().string();
}

Dtype kv_dtype(const Options& options, const ModelConfig& config) {
  return options.kv_cache_dtype == "auto" ? config.dtype : *parse_dtype(options.kv_cache_dtype);
}

std::size_t weight_bytes(const std::filesystem::path& directory) {
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  return bytes;
}

Expected<Transformer> load_model(const Options& options) {
  ProgressBar bar("loading " + model_name(options));
  return Transformer::load(options.model,
                           [&](std::size_t done, std::size_t total) { bar.show(done, total); });
}

/// Our private memory at its highest, after the largest step there can be (vLLM's profile run).
/// Weights are file pages that all engines share, and are counted once elsewhere.
Expected<std::size_t> profile(const Options& options, const ModelConfig& config) {
  auto model = load_model(options);
  if (!model) return forward_error(model);
  const auto length = std::min(options.max_num_batched_tokens,
                               static_cast<std::uint32_t>(config.max_position_embeddings));
  const KvLayout layout = kv_layout(config, options.block_size, kv_dtype(options, config));
  const std::uint32_t blocks = (length + options.block_size - 1) / options.block_size;
  std::vector<std::byte> arena(blocks * layout.block_bytes());
  TransformerRunner runner(std::move(*model), arena.data(), layout);
  StepPlan plan;
  plan.work.push_back({SeqId{1}, 0, std::vector<TokenId>(length, 0), {}, true, {}, 0});
  for (std::uint32_t b = 0; b < blocks; ++b) plan.work.back().blocks.push_back(b);
  runner.run(plan);

  std::ifstream status("/proc/self/status");
  std::size_t anonymous = 0;
  for (std::string word; status >> word;)
    if (word == "RssAnon:") status >> anonymous;
  return std::max(anonymous * 1024, arena.size()) - arena.size();
}

Expected<void> describe(const Options& options, const ModelConfig& config,
                        const std::string& what) {
  auto fingerprint = model_fingerprint(options.model);
  if (!fingerprint) return forward_error(fingerprint);
  std::size_t peak = 0;
  if (what == "profile") {
    auto measured = profile(options, config);
    if (!measured) return forward_error(measured);
    peak = *measured;
  } else if (auto model = Transformer::load(options.model); !model) {
    return forward_error(model);
  }
  if (auto tokenizer = Tokenizer::load(options.model); !tokenizer) return forward_error(tokenizer);
  const KvLayout layout = kv_layout(config, options.block_size, kv_dtype(options, config));
  const Json facts = {{"name", model_name(options)},
                      {"fingerprint", *fingerprint},
                      {"positions", config.max_position_embeddings},
                      {"weight_bytes", weight_bytes(options.model)},
                      {"engine_peak", peak},
                      {"kv",
                       {{"layers", layout.layers},
                        {"kv_heads", layout.kv_heads},
                        {"head_size", layout.head_size},
                        {"dtype", static_cast<int>(layout.dtype)}}}};
  std::printf("%s\n", facts.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  return {};
}

std::size_t longest_token_bytes(const Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token)
    longest = std::max(longest, tokenizer.token_bytes(token).size());
  return longest;
}

/// A running engine: the pool, the ring of actors over it, and the line to the keeper.
class Engine {
 public:
  static Expected<std::unique_ptr<Engine>> attach(const Options& options, const ModelConfig& config,
                                                  std::uint32_t index) {
    auto fingerprint = model_fingerprint(options.model);
    if (!fingerprint) return forward_error(fingerprint);
    auto tokenizer = Tokenizer::load(options.model);
    if (!tokenizer) return forward_error(tokenizer);
    auto model = load_model(options);
    if (!model) return forward_error(model);

    auto socket = connect_to_daemon(options.socket);
    if (!socket) return forward_error(socket);
    Message hello;
    hello.role = Role::engine;
    hello.engine = index;
    hello.geometry.tokens_per_block = options.block_size;
    hello.geometry.kv = kv_layout(config, options.block_size, kv_dtype(options, config));
    hello.geometry.fingerprint = *fingerprint;
    hello.set_text(model_name(options));
    auto welcome = say_hello(socket->get(), hello);
    if (!welcome) return forward_error(welcome);
    auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_write);
    if (!memory) return forward_error(memory);
    return std::unique_ptr<Engine>(new Engine(options, config, welcome->message, std::move(*socket),
                                              std::move(*memory), std::move(*tokenizer),
                                              std::move(*model)));
  }

  void run() {
    port_->watch(socket_.get(), [this] { on_keeper(); });
    spdlog::info("serving, slot {}", slot_.value);
    port_->run();
  }

 private:
  Engine(const Options& options, const ModelConfig& config, const Message& welcome, UniqueFd socket,
         PoolMemory memory, Tokenizer tokenizer, Transformer model)
      : index_(welcome.engine),
        slot_{welcome.slot},
        socket_(std::move(socket)),
        memory_(std::move(memory)),
        tokenizer_(std::move(tokenizer)) {
    memory_.hide_from_children();
    sign_in(memory_, slot_, index_);
    pool_ = std::make_unique<BlockPool>(memory_, slot_);
    const std::uint32_t max_model_len =
        options.max_model_len != 0 ? options.max_model_len
                                   : static_cast<std::uint32_t>(config.max_position_embeddings);
    RingParts parts;
    parts.pool = pool_.get();
    parts.scheduler = {options.scheduling_policy == "priority" ? SchedulingPolicy::priority
                                                               : SchedulingPolicy::fcfs,
                       options.max_num_seqs,
                       options.max_num_batched_tokens,
                       max_model_len,
                       static_cast<std::uint32_t>(config.vocab_size),
                       config.eos,
                       &tokenizer_};
    parts.block_manager = {
        DomainId{0}, options.enable_prefix_caching,
        options.preemption_mode == "swap" ? PreemptionMode::swap : PreemptionMode::recompute,
        options.watermark, options.max_num_seqs};
    parts.runner = std::make_unique<TransformerRunner>(
        std::move(model), memory_.arena(Tier::device), memory_.geometry().kv);
    port_ = std::make_unique<Port>(
        spawn_ring(system_, std::move(parts)), tokenizer_,
        PortLimits{options.seed, max_model_len * longest_token_bytes(tokenizer_)});
  }

  void on_keeper() {
    auto packet = receive_packet(socket_.get());
    if (!packet || !*packet)
      _exit(0);  // the keeper is gone, and with it the pool: there is nothing to tidy up
    Message& message = (*packet)->message;
    if (message.type == MessageType::channel_close) return port_->close(message.channel);
    if (message.type != MessageType::channel_open || (*packet)->fds.size() != 3) return;
    auto& fds = (*packet)->fds;
    auto channel = EngineChannel::open(message.channel, index_, fds[0], message.channel_bytes,
                                       std::move(fds[2]));
    if (channel)
      port_->open(std::move(*channel), std::move(fds[1]));
    else
      spdlog::warn("channel {}: {}", message.channel, channel.error().text);
  }

  std::uint32_t index_;
  ProcessSlot slot_;
  UniqueFd socket_;
  PoolMemory memory_;
  Tokenizer tokenizer_;
  std::unique_ptr<BlockPool> pool_;
  ActorConfig actor_config_;
  caf::actor_system system_{actor_config_};
  std::unique_ptr<Port> port_;  ///< last: its handle must be gone before the system goes
};

int fail(const Error& error) {
  std::fprintf(stderr, "kvhive-engine: %s\n", error.text.c_str());
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app{"kvhive-engine: one engine process of a pool; usually started by kvhived"};
  app.name("kvhive-engine");
  OptionFlags flags(app);
  std::uint32_t index = 0;
  std::string describe_what;
  app.add_option("--index", index, "number of this engine");
  app.add_option("--describe", describe_what,
                 "print what the model needs as JSON and leave: config, or profile to measure")
      ->check(CLI::IsMember({"config", "profile"}));
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  signal(SIGINT, SIG_IGN);  // Ctrl-C is for the keeper
  signal(SIGPIPE, SIG_IGN);
  auto options = flags.options();
  if (!options) return fail(options.error());
  if (options->socket.empty()) options->socket = default_socket();
  if (auto valid = check_options(*options); !valid) return fail(valid.error());
  start_log("engine " + std::to_string(index), options->log_level);

  auto config = load_model_config(options->model);
  if (!config) return fail(config.error());
  if (!describe_what.empty()) {
    auto described = describe(*options, *config, describe_what);
    return described ? 0 : fail(described.error());
  }
  auto engine = Engine::attach(*options, *config, index);
  if (!engine) return fail(engine.error());
  (*engine)->run();
  return 0;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  try {
    return kvhive::run(argc, argv);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "kvhive-engine: %s\n", exception.what());
    return 1;
  }
}
