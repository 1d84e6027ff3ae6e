#pragma once
// Everything the operator can ask of a daemon and its engines, as it was asked. What the options
// come to on a machine and with a model is ResolvedOptions (config/resolved_options.hpp). Flags,
// keys of the options file, help, manual page and completion follow from config/option_table.hpp;
// the names are vLLM's wherever vLLM has them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "config/cpu_bind.hpp"
#include "config/cpu_kernels.hpp"
#include "config/domains/allowed_users.hpp"
#include "config/choices.hpp"
#include "config/domains/domain_rules.hpp"
#include "config/domains/domain_shares.hpp"
#include "config/dtype.hpp"
#include "config/window_retention.hpp"

namespace kvhive {

/// Where engines compute; `automatic` = on a GPU if there is one, else on the CPU.
enum class RequestedDevice : std::uint8_t { automatic, cpu, cuda };
constexpr std::array<std::string_view, 3> names_of(RequestedDevice) {
  return {"auto", "cpu", "cuda"};
}

/// Which domain a client is in that Options::domains does not name.
enum class Sharing : std::uint8_t {
  user,    ///< its user's own: clients of one user share
  all,     ///< one domain for all such clients
  listed,  ///< none: the client is refused
};
constexpr std::array<std::string_view, 3> names_of(Sharing) { return {"user", "all", "listed"}; }

/// What happens to the cached blocks of the device tier after an engine has lost its GPU context.
enum class GpuFault : std::uint8_t {
  drop_unpinned,  ///< blocks that no living engine holds are dropped
  keep,           ///< all stay
  drop_all,       ///< all are dropped, and the other engines are restarted
};
constexpr std::array<std::string_view, 3> names_of(GpuFault) {
  return {"drop_unpinned", "keep", "drop_all"};
}

/// Whether the daemon's processes keep only the system calls that they need (seccomp).
enum class SystemCallFilter : std::uint8_t {
  /// If the kernel supports it; not with engines on a GPU, because what the driver calls is not
  /// known.
  automatic,
  on,  ///< as automatic, and refuses to start where that means no filter
  off,
};
constexpr std::array<std::string_view, 3> names_of(SystemCallFilter) {
  return {"auto", "on", "off"};
}

enum class LogLevel : std::uint8_t { trace, debug, info, warn, error, off };
constexpr std::array<std::string_view, 6> names_of(LogLevel) {
  return {"trace", "debug", "info", "warn", "error", "off"};
}

/// A row of weights is read once for so many rows of a step and more; guesses get worse from token
/// to token.
inline constexpr std::uint32_t kMostSpeculativeTokens = 64;

struct Options {
  /// Directory in Hugging Face's format; or several models, NAME=DIRECTORY,...
  /// (config/models/hosted_models.hpp).
  std::string model;
  std::string model_options;  ///< of some of several models; empty = all have the same
  /// Adapters that requests may name: NAME=DIRECTORY,..., or MODEL:NAME=DIRECTORY,... of several
  /// models (config/models/lora_modules.hpp); empty = none.
  std::string lora_modules;
  std::string socket;         ///< path of the daemon's Unix socket; empty = default_socket()
  std::uint32_t engines = 1;  ///< engine processes of each model; at most 31 share a pool
  std::uint32_t threads = 0;  ///< compute threads of each engine; 0 = cores / engines
  CpuBind cpu_bind;           ///< which processors each engine has for itself
  RequestedDevice device = RequestedDevice::automatic;
  /// On the CPU: the arithmetic of all engines of the pool.
  RequestedCpuKernels cpu_kernels = RequestedCpuKernels::automatic;

  std::uint32_t block_size = 16;  ///< tokens per block
  /// Share of the memory for weights, activations and KV together: of a GPU's free memory, or of
  /// the machine's memory; 0 = default_memory_share() of the device.
  double gpu_memory_utilization = 0;
  /// Bytes of the device tier. If it is not 0, gpu_memory_utilization is ignored.
  std::size_t kv_cache_memory_bytes = 0;
  /// Blocks of the device tier, the null block included, whatever the memory; 0 = by memory.
  std::uint32_t num_gpu_blocks_override = 0;
  std::size_t swap_space = 0;  ///< bytes of the host tier of the whole pool; 0 = no host tier
  KvCacheDtype kv_cache_dtype = KvCacheDtype::of_model;

  /// Tokens of a request, prompt and output together; 0 = what model and pool allow.
  std::uint32_t max_model_len = 0;
  std::uint32_t max_num_seqs = 128;             ///< sequences that run at once in one engine
  std::uint32_t max_num_batched_tokens = 2048;  ///< tokens computed in one step of one engine
  /// Tokens of one request in a step, if there are others; 0 = no limit.
  std::uint32_t long_prefill_token_threshold = 0;
  /// Tokens guessed ahead of each request, from its own text; 0 = none (vLLM: speculative_config,
  /// method "ngram"). Its last prompt_lookup_min to prompt_lookup_max tokens are looked for.
  std::uint32_t num_speculative_tokens = 0;
  std::uint32_t prompt_lookup_max = 4;
  std::uint32_t prompt_lookup_min = 2;
  /// Tokens of the requests that wait in one engine; what comes then is refused. 0 = no limit.
  std::uint32_t max_queued_tokens = 0;
  bool enable_prefix_caching = true;
  /// Which blocks of sliding windows stay in the cache.
  WindowRetention prefix_cache_retention_interval;
  bool single_flight = true;  ///< requests wait for blocks that others are computing
  /// Short steps are planned while the last one is computed, unless there are guesses ahead.
  bool async_scheduling = true;
  /// On a GPU: a request's tokens do not depend on the requests beside it (on the CPU they never
  /// do).
  bool batch_invariant = false;
  bool enforce_eager = false;  ///< on a GPU: decode steps are not recorded as CUDA graphs
  SchedulingPolicy scheduling_policy = SchedulingPolicy::fcfs;
  double watermark = 0.0;  ///< share of the blocks kept free when requests are admitted, [0, 1)
  PreemptionMode preemption_mode = PreemptionMode::recompute;
  /// If it is not 0, a request without a seed gets one that is made of this number and its prompt.
  std::uint64_t seed = 0;
  Sharing sharing = Sharing::user;
  std::vector<DomainRule> domains;  ///< which users share cached blocks; empty = no rule
  std::vector<ShareRule> shares;    ///< what domains may have of the engines; empty = all the same
  /// Bytes that the channels of one domain's clients may have together; 0 = half of what all
  /// clients may have.
  std::size_t channel_bytes_per_domain = 0;
  EvictionPolicy eviction_policy = EvictionPolicy::lru;
  HashAlgorithm prefix_caching_hash_algo = HashAlgorithm::xxhash;
  /// Share of the device tier's blocks whose lives are measured; 0 = of none.
  double kv_cache_metrics_sample = 0;
  Scrub scrub = Scrub::on_domain_change;
  GpuFault gpu_fault = GpuFault::drop_unpinned;
  GpuMemorySharing gpu_memory_sharing = GpuMemorySharing::automatic;
  AllowedUsers socket_access;
  /// Name or number of the user to run as, for a start as root. Empty = the same.
  std::string user;
  SystemCallFilter system_call_filter = SystemCallFilter::automatic;
  bool lock_metadata = false;  ///< the pool's metadata cannot be swapped out (mlock)
  /// Engines may write core dumps. They contain prompts.
  bool core_dumps = false;
  LogLevel log_level = LogLevel::info;
  std::string log_file;  ///< path; empty = standard error

  /// The most rows of one step of one engine that are sampled.
  std::uint32_t most_sampled_rows() const {
    const auto rows = std::uint64_t{max_num_seqs} * (num_speculative_tokens + 1);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(rows, max_num_batched_tokens));
  }
  /// PoolGeometry::life_stride: the share as one block in so many; of a small pool 8 blocks at
  /// least.
  std::uint32_t life_stride(std::uint32_t device_blocks) const {
    const double share = kv_cache_metrics_sample;
    if (share == 0) return 0;
    return std::clamp(static_cast<std::uint32_t>(1 / share + 0.5), 1u,
                      std::max(device_blocks / 8, 1u));
  }
};

/// Reads a TOML file over `options`. Errors name the file, the key and the remedy.
[[nodiscard]] Expected<void> load_options(Options& options, const std::filesystem::path& file);

/// Checks ranges and combinations. Errors name the option, its value and the remedy.
[[nodiscard]] Expected<void> check_options(const Options& options);

/// The options as flags, so that a child process gets the same: {"--model", "...", ...}.
std::vector<std::string> to_flags(const Options& options);

}  // namespace kvhive
