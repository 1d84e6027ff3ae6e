#pragma once
// Everything a daemon and its engines can be told, in one aggregate. The same names in flags
// (--block-size), in the TOML file (block-size or block_size) and here; they are vLLM's wherever
// vLLM has them.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

struct Options {
  std::string model;          ///< directory in Hugging Face's format
  std::string socket;         ///< of the daemon; empty = default_socket()
  std::uint32_t engines = 1;  ///< engine processes sharing the pool, at most 31
  std::uint32_t threads = 0;  ///< compute threads of each engine; 0 = cores / engines
  /// Where engines compute and the device tier is: cpu, cuda, or auto (cuda if it can be had).
  std::string device = "auto";

  std::uint32_t block_size = 16;  ///< tokens per block
  /// Share of the machine's memory, or of what is free of a GPU's, for weights, activations and KV
  /// together.
  /// 0 = by the device, see default_memory_share().
  double gpu_memory_utilization = 0;
  /// Of the device tier; not 0 = no profile run, utilization ignored.
  std::size_t kv_cache_memory_bytes = 0;
  /// Device blocks, the null block included, whatever the memory says; 0 = by memory.
  std::uint32_t num_gpu_blocks_override = 0;
  std::size_t swap_space = 0;           ///< bytes of the host tier for the whole pool; 0 = none
  std::string kv_cache_dtype = "auto";  ///< auto = the model's; see parse_kv_dtype

  /// Tokens, prompt and output together; 0 = the model's, or what the pool can hold.
  std::uint32_t max_model_len = 0;
  std::uint32_t max_num_seqs = 128;             ///< sequences running at once in one engine
  std::uint32_t max_num_batched_tokens = 2048;  ///< tokens computed in one step of one engine
  bool enable_prefix_caching = true;
  /// On a GPU: the same tokens whatever else is computed beside them (on the CPU always so).
  bool batch_invariant = false;
  bool enforce_eager = false;  ///< on a GPU: decode steps are not recorded as CUDA graphs
  /// fcfs or priority (lower value first, ties by arrival).
  std::string scheduling_policy = "fcfs";
  double watermark = 0.0;  ///< share of the blocks kept free when admitting requests, [0, 1)
  std::string preemption_mode = "recompute";  ///< recompute or swap
  std::uint64_t seed = 0;  ///< not 0: requests without a seed get one from this and their prompt
  /// Clients that `domains` does not name: user = those of one user share, all = all of them do,
  /// listed = they are refused.
  std::string sharing = "user";
  std::string domains;  ///< who shares with whom (config/domain_rules.hpp); empty = nobody is named
  /// Bytes of memory that the channels of one domain's clients may have together; 0 = what all
  /// have.
  std::size_t channel_bytes_per_domain = 0;
  /// What becomes of a block's bytes when it goes to another domain: on_domain_change = zeros.
  std::string scrub = "on_domain_change";
  /// After an engine has lost its GPU's context, of what is in the device tier: drop_unpinned =
  /// what no living engine holds goes, keep = all stays, drop_all = the other engines are started
  /// anew and all goes.
  std::string gpu_fault = "drop_unpinned";
  /// How engines share a GPU's memory: vmm = by descriptors that keep it, ipc = by names, a process
  /// more keeps it, auto = vmm if it can be had.
  std::string gpu_memory_sharing = "auto";
  /// Who may connect: owner (the daemon's user), everybody, or @GROUP.
  std::string socket_access = "owner";
  std::string log_level = "info";  ///< trace, debug, info, warn, error, off
};

/// One field of Options: the single source of its flag, its key in the file, its help and its type.
struct OptionField {
  /// A size may be written with a unit; `plain_unit` is what a bare number means.
  struct Size {
    std::size_t Options::*member;
    std::size_t plain_unit;
  };
  /// A text that may also be a table of lists in the file: "name=item,item;name=item".
  struct Table {
    std::string Options::*member;
  };
  std::string_view name;  ///< as a flag, without the dashes
  std::variant<std::string Options::*, std::uint32_t Options::*, std::uint64_t Options::*,
               double Options::*, bool Options::*, Size, Table>
      target;
  std::string_view help;
};

std::span<const OptionField> option_fields();

/// Sets one field from text; errors name the field, the value and the remedy.
Expected<void> set_option(Options& options, const OptionField& field, const std::string& text);

/// The field called `name` ('_' and '-' alike); an unknown name is an error that suggests the
/// nearest known one.
Expected<const OptionField*> find_option(std::string_view name);

/// Reads a TOML file over `options`.
Expected<void> load_options(Options& options, const std::filesystem::path& file);

/// Checks ranges and combinations.
Expected<void> check_options(const Options& options);

/// As flags, so that a child process gets the same options: {"--model", "...", ...}.
std::vector<std::string> to_flags(const Options& options);

/// $KVHIVE_SOCKET, or kvhive/kvhived.sock under $XDG_RUNTIME_DIR, or /run/kvhive/kvhived.sock.
std::string default_socket();

}  // namespace kvhive
