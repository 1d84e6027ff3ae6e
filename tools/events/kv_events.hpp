#pragma once
// Changes of the pool's content as vLLM writes them (vllm/distributed/kv_events.py, 2026): batches
// of events in msgpack, [time, [event, ...], rank].

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.hpp"
#include "tools/events/pool_content.hpp"
#include "tools/events/pool_names.hpp"

namespace kvhive {

/// How an event looks: as a map with its type, which vLLM writes since June 2026, or as an array,
/// which it wrote before.
enum class EventForm : std::uint8_t { maps, arrays };
constexpr std::array<std::string_view, 2> names_of(EventForm) { return {"maps", "arrays"}; }

/// How a block's name looks: its low 64 bits, as with vLLM by default, or all 16 bytes.
enum class HashForm : std::uint8_t { integers, bytes };
constexpr std::array<std::string_view, 2> names_of(HashForm) { return {"integers", "bytes"}; }

struct EventFormat {
  EventForm events = EventForm::maps;
  HashForm hashes = HashForm::integers;
};

/// A batch has at most so many blocks, so that no message is long.
inline constexpr std::size_t kMostBlocksInBatch = 256;

class EventWriter {
 public:
  /// \param block_tokens  tokens per block
  /// \param groups  named in each event, unless there is one only, of full attention
  EventWriter(EventFormat format, std::uint32_t block_tokens, const CacheGroups& groups = {})
      : format_(format), block_tokens_(block_tokens), groups_(groups) {}

  /// The batches of a change: stored before removed, so that a content that goes from one tier to
  /// another is never missing; contents that follow each other in one event.
  /// \param names  a first block of another domain than the daemon's user's says so in its extra
  ///               keys, as vLLM does with a cache salt; each block of an adapter names it
  /// \param clear_first  AllBlocksCleared is the first event: the subscriber forgets what it knows
  [[nodiscard]] std::vector<std::string> batches(const ContentChange& change,
                                                 const PoolNames& names, double unix_seconds,
                                                 bool clear_first) const;

 private:
  EventFormat format_;
  std::uint32_t block_tokens_;
  CacheGroups groups_;
};

}  // namespace kvhive
