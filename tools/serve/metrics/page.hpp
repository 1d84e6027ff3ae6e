#pragma once
// The page /metrics: what the pool's slots and blocks, the keeper and this service say, as families
// of Prometheus. Names are vLLM's ("vllm:") where the meaning is the same, else kvhive's own.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "config/pool_geometry.hpp"
#include "pool/care/index_marks.hpp"
#include "pool/care/pool_report.hpp"
#include "tools/serve/http/http_counts.hpp"
#include "tools/serve/metrics/pool_link.hpp"
#include "tools/snapshot/snapshot.hpp"

namespace kvhive {

/// What a page is about.
enum class MetricsView : std::uint8_t {
  engines,  ///< a series for each engine, and all else
  host,     ///< one series for each family: the sum over all engines there ever were
  service,  ///< this process alone, where several serve the same daemon
};
constexpr std::array<std::string_view, 3> names_of(MetricsView) {
  return {"engines", "host", "service"};
}

/// Names that vLLM has given up and production-stack still reads.
enum class OldNames : std::uint8_t { left_out, too };

/// What the service itself counts.
struct ServiceNumbers {
  std::map<HttpCounts::Kind, std::uint64_t> http;
  std::uint64_t connections_reading = 0, connections_answering = 0;
  std::uint64_t requests_running = 0, requests_waiting = 0, channels = 0;
  std::uint64_t unknown_fields = 0;
  struct OfAdapter {
    std::uint64_t running = 0, waiting = 0, total = 0;
  };
  std::map<std::string, OfAdapter> adapters;  ///< requests, by name
  std::uint64_t served_adapters = 0;          ///< that the daemon has
  double unix_seconds = 0;                    ///< now
};

/// What the pool's memory says.
struct PoolNumbers {
  PoolGeometry geometry;
  std::string epoch;
  Statistics statistics;
  BlockCounts blocks;                              ///< perhaps a second old
  IndexMarks index;                                ///< the same
  std::uint32_t resets = 0;                        ///< of the prefix cache
  std::map<std::uint32_t, ProcessState> states{};  ///< of the processes, by slot
};

struct MetricsPage {
  MetricsView view = MetricsView::engines;
  OldNames old_names = OldNames::left_out;
  std::string model;  ///< as this service calls its only one; empty = it has several
  ServiceNumbers service;
  std::optional<PoolNumbers> pool;  ///< none = no daemon's pool can be read
  bool keeper_answers = false;
  KeeperAnswer keeper;

  std::string text() const;
};

}  // namespace kvhive
