#include "tools/engine/engine.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "actors/swapper_state.hpp"
#include "actors/transformer_runner.hpp"
#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "config/models/hosted_models.hpp"
#include "config/models/lora_modules.hpp"
#include "config/machine/process_limits.hpp"
#include "kernels/copy_way.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"
#include "models/fingerprint.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "pool/processes/process_slot.hpp"
#include "tools/engine/model.hpp"

namespace kvhive {
namespace {

/// Threads of an engine that do not compute: CAF's clock, multiplexers, workers and detached
/// actors, those that ring clients, and the one that reports refused system calls.
constexpr std::size_t kThreadsBesideCompute = 12;

std::size_t longest_token_bytes(const Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token)
    longest = std::max(longest, tokenizer.token_bytes(token).size());
  return longest;
}

void reopen_log_or_say_why() {
  if (auto reopened = reopen_log(); !reopened) spdlog::error("{}", reopened.error().text);
}

struct LongestRequest {
  std::uint32_t tokens = 0;
  LengthBound bound = LengthBound::option;
};

/// The longest request, and what limits it. The keeper starts its engines with --max-model-len; an
/// engine that a user starts computes the number as the keeper does. If the model or the pool
/// limits it, a higher --max-model-len would not help, and error texts do not propose it.
LongestRequest longest_request(const Options& options, const ModelConfig& config,
                               const PoolGeometry& geometry, ModelId model) {
  const auto positions = static_cast<std::uint32_t>(config.max_position_embeddings);
  const auto held = static_cast<std::uint32_t>(geometry[model].groups.longest_sequence(
      geometry.device_blocks - 1, options.max_num_batched_tokens, geometry[model].tokens_per_block,
      std::max(positions, options.max_model_len)));
  const std::uint32_t tokens =
      options.max_model_len != 0 ? options.max_model_len : std::min(positions, held);
  const LengthBound bound = tokens == positions ? LengthBound::model
                            : tokens == held    ? LengthBound::pool
                                                : LengthBound::option;
  return {tokens, bound};
}

/// By number, as load_model() adds them.
std::vector<std::string> adapter_names(const Options& options) {
  std::vector<std::string> names;
  const auto modules = parse_lora_modules(options.lora_modules);
  if (modules)  // check_options() has looked at it
    for (const LoraModule& module : *modules) names.push_back(module.name);
  return names;
}

/// Starts what needs threads. Ends the process if the system grants none: actors that run already
/// must not be destroyed, and for one that CAF has counted but not started, ~actor_system would
/// wait for ever.
template <class Start>
auto start_or_exit(Start start) {
  try {
    return start();
  } catch (const std::exception& exception) {
    print_error_line(std::string("kvhive-engine: no thread for its actors: ") + exception.what() +
                     "; raise the limit of processes (ulimit -u) or of address space (ulimit -v)");
    _exit(1);
  }
}

/// The socket's path may lead to another daemon by now: its own was removed, and a new one made.
/// \param keeper  0 = any daemon will do
Expected<void> check_keeper(const UniqueFd& socket, pid_t keeper, const std::string& path) {
  if (keeper == 0) return {};
  const auto peer = peer_credentials(socket.get());
  if (!peer) return forward_error(peer);
  if (peer->pid == keeper) return {};
  return failure(Errc::already_running,
                 "another daemon (process " + std::to_string(peer->pid) + ") listens on " + path +
                     " now; this engine is of process " + std::to_string(keeper) +
                     ", which has lost its socket: end it with kill " + std::to_string(keeper));
}

}  // namespace

Expected<std::unique_ptr<Engine>> Engine::attach(const Options& options, const ModelConfig& config,
                                                 std::uint32_t index, pid_t keeper,
                                                 std::unique_ptr<Device> device) {
  if (auto granted = try_threads(kThreadsBesideCompute + options.threads); !granted)
    return forward_error(granted);
  const bool is_on_gpu = device != nullptr;
  const DeviceKind kind = is_on_gpu ? DeviceKind::cuda : DeviceKind::cpu;
  auto fingerprint = served_fingerprint(options, kind);
  if (!fingerprint) return forward_error(fingerprint);
  auto tokenizer = load_tokenizer(hosted_model(options).directory);
  if (!tokenizer) return forward_error(tokenizer);
  std::optional<Transformer> model;
  if (!is_on_gpu) {
    auto loaded = load_model(options);
    if (!loaded) return forward_error(loaded);
    model = std::move(*loaded);
  }
  // An exception in a handler ends the engine: the request that was being handled is incomplete,
  // and another engine takes it over.
  auto loop = EventLoop::create(EventLoop::Escape::leaves_run);
  if (!loop) return forward_error(loop);

  auto socket = connect_to_daemon(options.socket);
  if (!socket) return forward_error(socket);
  if (auto own = check_keeper(*socket, keeper, options.socket); !own) return forward_error(own);
  EngineHello hello;
  hello.engine = index;
  hello.device = kind;
  hello.cache = {options.block_size, kv_layout(options, hello.device, config), *fingerprint,
                 group_layers(config).groups};
  hello.cpu_kernels = kernels_of(hello.device);
  if (is_on_gpu) hello.gpu = FixedText<64>(device->facts().uuid);
  hello.model = FixedText<512>(model_name(options));
  hello.layout_hash = layout_hash({});
  // The keeper kills an engine that hangs up. So the connection stays open until the process ends:
  // if something fails, the reason can be told first.
  (void)fcntl(socket->get(), F_DUPFD_CLOEXEC, 0);
  auto welcome = say_hello(socket->get(), hello);
  if (!welcome) return forward_error(welcome);
  const PoolFds fds = take_pool_fds(*welcome);
  if (welcome->fds.empty())
    return failure(Errc::bad_format, "the daemon has no board; use programs of the same build");
  auto board = Board::attach(welcome->fds.front());
  if (!board) return forward_error(board);
  welcome->fds.erase(welcome->fds.begin());
  auto memory = PoolMemory::attach(fds, Access::read_write);
  if (!memory) return forward_error(memory);
  if (welcome->message.model >= memory->geometry().model_count)
    return failure(Errc::bad_format,
                   "the daemon names a model that the pool does not hold; use "
                   "programs of the same build");
  if (options.lock_metadata)
    if (auto locked = memory->lock_metadata(); !locked) return forward_error(locked);
  // Once more, because the model and the pool have taken address space since: CAF ends the process
  // by a signal if it gets a part of its threads.
  if (auto granted = try_threads(kThreadsBesideCompute + options.threads); !granted)
    return forward_error(granted);
  auto engine = std::unique_ptr<Engine>(new Engine(welcome->message, std::move(*board),
                                                   std::move(*loop), std::move(*socket),
                                                   std::move(*memory), std::move(*tokenizer)));
  auto computing =
      is_on_gpu ? engine->compute_on_gpu(std::move(device), options, config, fds, welcome->fds)
                : engine->compute_on_cpu(std::move(*model));
  if (!computing) return forward_error(computing);
  engine->start(options, config, std::move(*computing));
  return engine;
}

Engine::Engine(const EngineWelcome& welcome, Board board, EventLoop loop, UniqueFd socket,
               PoolMemory memory, Tokenizer tokenizer)
    : self_{std::make_shared<Board>(std::move(board)),
            {welcome.slot, welcome.life},
            welcome.engine,
            ModelId{static_cast<std::uint8_t>(welcome.model)},
            0},
      slot_{welcome.slot},
      pid_(welcome.pid),
      loop_(std::move(loop)),
      socket_(std::move(socket)),
      memory_(std::move(memory)),
      tokenizer_(std::move(tokenizer)) {
  memory_.hide_from_children();
}

Expected<Engine::Computing> Engine::compute_on_cpu(Transformer model) {
  // Measured now: in the first copy it would make copies look expensive (CopyPolicy).
  copy_way();
  write_way();
  dot_way();
  return Computing{
      std::make_unique<SwapperState>(memory_),
      std::make_unique<TransformerRunner>(std::move(model), memory_.arena(Tier::device),
                                          memory_.geometry()[self_.model].kv)};
}

Expected<Engine::Computing> Engine::compute_on_gpu(std::unique_ptr<Device> device,
                                                   const Options& options,
                                                   const ModelConfig& config, const PoolFds& fds,
                                                   const std::vector<UniqueFd>& more) {
  if (more.empty())
    return failure(Errc::bad_format,
                   "the daemon has no weights on its GPU; use programs of the "
                   "same build");
  auto gpu =
      attach_gpu(std::move(device), options, config, memory_, self_.model, fds, more.front());
  if (!gpu) return forward_error(gpu);
  gpu_ = std::move(*gpu);
  return Computing{std::move(gpu_->swapper), std::move(gpu_->runner)};
}

void Engine::start(const Options& options, const ModelConfig& config, Computing computing) {
  sign_in(memory_, slot_, self_.number, pid_);
  pool_ = std::make_unique<BlockPool>(memory_, slot_, options.scrub,
                                      gpu_ ? gpu_->erase : EraseOnDevice(), self_.model);
  const LongestRequest longest = longest_request(options, config, memory_.geometry(), self_.model);
  RingParts parts;
  parts.pool = pool_.get();
  parts.scheduler = {.policy = options.scheduling_policy,
                     .max_num_seqs = options.max_num_seqs,
                     .max_num_batched_tokens = options.max_num_batched_tokens,
                     .max_model_len = longest.tokens,
                     .length_bound = longest.bound,
                     .vocab_size = static_cast<std::uint32_t>(config.vocab_size),
                     .eos_token_ids = config.eos,
                     .tokenizer = &tokenizer_,
                     .tell_load =
                         [this](EngineLoad load, std::uint32_t counted, bool is_in_step) {
                           if (is_draining_) load.room = 0;
                           self_.board->tell_load(self_.life, load, counted, is_in_step);
                           if (!is_in_step) self_.board->beat(self_.life);
                         },
                     .lookup = {options.num_speculative_tokens, options.prompt_lookup_max,
                                options.prompt_lookup_min},
                     .max_queued_tokens = options.max_queued_tokens};
  parts.block_manager = {
      .prefix_caching = options.enable_prefix_caching,
      .retention = options.prefix_cache_retention_interval,
      .preemption = options.preemption_mode,
      .watermark = options.watermark,
      .max_num_seqs = options.max_num_seqs,
      .max_num_batched_tokens = options.max_num_batched_tokens,
      .long_prefill_token_threshold = options.long_prefill_token_threshold,
      .single_flight = options.single_flight,
      .async_scheduling = options.async_scheduling && options.num_speculative_tokens == 0,
      .tell_lack = [this](const Lack& lack) { self_.board->tell_lack(self_.life, lack); },
      .others_lack = [this] { return self_.board->others_lack(self_.life); }};
  parts.swapper = std::move(computing.swapper);
  parts.runner = std::move(computing.runner);
  const PromptLimits prompt{longest.tokens * longest_token_bytes(tokenizer_), longest.tokens,
                            static_cast<std::uint32_t>(config.hidden_size),
                            remedy_for(longest.bound)};
  self_.tokens_per_step = options.max_num_batched_tokens;
  self_.most_queued = options.max_queued_tokens;
  const bool is_one_of_several = memory_.geometry().model_count > 1;
  const auto ring = start_or_exit([&] { return spawn_ring(system_, std::move(parts)); });
  port_ = start_or_exit([&] {
    return std::make_unique<Port>(
        loop_, ring, tokenizer_,
        PortLimits{options.seed, prompt, self_, &pool_->counters(), adapter_names(options),
                   is_one_of_several ? model_name(options) : ""});
  });
  self_.board->serve(self_.life, {options.max_num_seqs, 0}, self_.model);
}

void Engine::run() {
  loop_.watch(socket_.get(), [this] { on_keeper(); });
  reopen_log_or_say_why();  // the log file may have been renamed before the keeper knew this engine
  // An error means that the keeper is gone: the loop then calls on_keeper(), which ends the
  // process.
  (void)send_packet(socket_.get(), Serving{});
  spdlog::info("serving, slot {}", slot_.value);
  loop_.run();
}

void Engine::on_keeper() {
  auto packet = receive_packet(socket_.get());
  if (!packet) {
    spdlog::error("from the keeper: {}", packet.error().text);
    flush_log();
    _exit(1);  // the keeper starts another engine
  }
  if (!*packet) end_without_keeper();
  if (const auto order = (*packet)->as<ChannelClose>()) return port_->close(order->channel);
  if ((*packet)->is(MessageType::reopen_log)) return reopen_log_or_say_why();
  if ((*packet)->is(MessageType::drain)) return drain();
  if (const auto limits = (*packet)->as<Limits>()) return set_limits(*limits);
  if ((*packet)->is(MessageType::shares)) return set_shares((*packet)->tail());
  if ((*packet)->is(MessageType::engine_died)) return port_->look_at_all();
  if ((*packet)->is(MessageType::channels_known)) return close_unknown_channels((*packet)->tail());
  if (const auto order = (*packet)->as<ChannelOpen>()) open_channel(*order, **packet);
}

/// What waits here seems to wait long, so that others take it.
void Engine::drain() {
  is_draining_ = true;
  port_->take_no_more([this] {
    spdlog::info("drained");
    (void)send_packet(socket_.get(), Drained{});  // as in refuse_channel()
  });
}

void Engine::set_limits(const Limits& limits) {
  set_log_level(limits.log_level.str());
  port_->set_queue_limit(limits.max_queued_tokens);
}

void Engine::set_shares(std::string_view shares) {
  for (const auto& row : nlohmann::json::parse(shares))
    port_->set_share(DomainId{row.at(0)}, {row.at(1), row.at(2), row.at(3)});
}

/// A keeper that follows a killed one does not know which of its orders had been sent.
void Engine::close_unknown_channels(std::string_view numbers) {
  const auto known = nlohmann::json::parse(numbers).get<std::set<std::uint64_t>>();
  for (const std::uint64_t channel : port_->channels())
    if (!known.contains(channel)) port_->close(channel);
}

/// The keeper is gone, and the pool with it: nothing has to be released. For an engine that a user
/// has started this is an end that nobody asked for.
void Engine::end_without_keeper() {
  spdlog::error("the daemon is gone, and its pool with it");
  flush_log();
  _exit(1);
}

/// The daemon's own user and root could harm the engine anyway: they are rung at once.
Expected<std::unique_ptr<ClientRing>> Engine::ring_for(const ChannelOpen& message,
                                                       UniqueFd client_bell) {
  if (message.is_stranger != 0) return ringers_.ring_for(message.user, std::move(client_bell));
  return direct_ring(std::move(client_bell));
}

void Engine::open_channel(const ChannelOpen& message, Packet& packet) {
  auto& fds = packet.fds;
  if (port_->has(message.channel)) {  // a killed keeper had sent it, and its successor did again
    (void)send_packet(socket_.get(), ChannelTaken{message.channel});
    return;
  }
  if (packet.lost_fds || fds.size() != 4)
    return refuse_channel(message.channel,
                          {Errc::os_error, "engine " + std::to_string(self_.number) +
                                               " has no file descriptor left for this channel; "
                                               "close others, or raise the limit (ulimit -n)"});
  auto client = ring_for(message, std::move(fds[3]));
  if (!client) return refuse_channel(message.channel, client.error());
  auto channel = EngineChannel::open(message.channel, self_, std::move(fds[0]), fds[1],
                                     message.channel_bytes, std::move(*client));
  if (!channel && message.is_stranger != 0)
    for (const std::size_t shared : {0, 2}) ringers_.close(message.user, std::move(fds[shared]));
  const bool has_client_left = !channel && channel.error().code == Errc::peer_died;
  if (!channel && !has_client_left) return refuse_channel(message.channel, channel.error());
  if (channel && message.is_shared == 0) (*channel)->do_not_share();
  if (channel) port_->open(std::move(*channel), std::move(fds[2]), message.domain, message.share);
  (void)send_packet(socket_.get(), ChannelTaken{message.channel});  // as in refuse_channel()
}

void Engine::refuse_channel(std::uint64_t channel, const Error& error) {
  static LogLimit limit;  // a client can send a thousand bad channels a second
  if (const auto note = limit.admit()) spdlog::warn("channel {}: {}{}", channel, error.text, *note);
  // An error means that the keeper is gone: on_keeper() will be called, and ends the process.
  (void)send_packet(socket_.get(), ChannelRefused{channel, error.code, FixedText<512>(error.text)});
}

}  // namespace kvhive
