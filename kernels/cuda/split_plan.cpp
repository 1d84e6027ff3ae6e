#include "kernels/cuda/split_plan.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// The first position that a query at `position` sees.
std::int32_t first_visible(const PagedAttentionArgs& args, std::int32_t position) {
  const std::int32_t by_window = args.window > 0 ? position + 1 - args.window : 0;
  const std::int32_t by_chunk = args.chunk > 0 ? position / args.chunk * args.chunk : 0;
  return std::max({0, by_window, by_chunk});
}

/// How many tokens back a query sees at most; 0: no limit.
std::int32_t reach_of(const PagedAttentionArgs& args) {
  if (args.window > 0 && args.chunk > 0) return std::min(args.window, args.chunk);
  return std::max(args.window, args.chunk);
}

constexpr std::int64_t kEndless = std::int64_t{1} << 40;  ///< tokens

/// Consecutive query tokens of one sequence that fit into a tile.
struct Unit {
  std::int32_t b;
  std::int32_t first_query;
  std::int32_t tokens;
  std::int32_t position;  ///< of the first token
  std::int32_t begin;     ///< the first position that the first token sees
  std::int32_t end() const { return position + tokens; }
};

/// Units that see the same blocks at positions from..to-1.
struct Segment {
  std::span<const Unit> units;
  std::int32_t from;
  std::int32_t to;
};

class Planner {
 public:
  /// \param unit_tokens most tokens of a unit
  Planner(const PagedAttentionArgs& args, PieceSizes sizes, std::int32_t unit_tokens)
      : args_(args), sizes_(sizes) {
    for (std::int32_t b = 0; b < args.B; ++b) {
      const std::int32_t query_end = args.query_start[b + 1];
      const std::int32_t q_len = query_end - args.query_start[b];
      KV_CHECK(q_len >= 0 && q_len <= args.kv_len[b], b, q_len, args.kv_len[b]);
      for (std::int32_t query = args.query_start[b]; query < query_end; query += unit_tokens) {
        const std::int32_t position = args.kv_len[b] - (query_end - query);
        units_.push_back({b, query, std::min(unit_tokens, query_end - query), position,
                          first_visible(args, position)});
      }
    }
  }

  /// Call cut() next.
  void keep_apart() {
    for (const Unit& unit : units_) segments_.push_back({{&unit, 1}, unit.begin, unit.end()});
  }
  /// Call cut() next. \param shared_tokens as in PlanLimits
  void group(std::int32_t shared_tokens) {
    const auto by_begin = [](const Unit& a, const Unit& b) { return a.begin < b.begin; };
    std::stable_sort(units_.begin(), units_.end(), by_begin);
    for (auto first = units_.begin(); first != units_.end();) {
      const auto last = std::upper_bound(first, units_.end(), *first, by_begin);
      share({first, last}, first->begin, shared_tokens);
      first = last;
    }
  }

  /// \param run_tokens most tokens of a leading run, unless it is a single piece
  SplitPlan cut(std::int64_t run_tokens) {
    plan_ = {};
    plan_.sizes = sizes_;
    for (const Segment& segment : segments_) {
      std::int32_t at = segment.from;
      if (at == segment.units[0].begin) {
        at = end_of_run(at, segment.to, run_tokens);
        add_tiles(segment.units, segment.from, at);
      }
      while (at < segment.to) {
        const std::int32_t border = std::min(sizes_.border_after(at), segment.to);
        add_tiles(segment.units, at, border);
        at = border;
      }
    }
    number_states();
    sort_tiles();
    return std::move(plan_);
  }

 private:
  std::int32_t heads() const { return args_.H / args_.kv.G; }

  /// The blocks of the piece that begins at `from`.
  std::span<const BlockId> blocks_of_piece(const Unit& unit, std::int32_t from) const {
    const BlockId* row = args_.block_table + std::int64_t{unit.b} * args_.M;
    const std::int32_t last = (sizes_.border_after(from) - 1) / args_.kv.S;
    return {row + from / args_.kv.S, row + last + 1};
  }
  /// Whether all tokens of the unit see the whole piece and a tile has room for other units beside
  /// it.
  bool can_share(const Unit& unit, std::int32_t from) const {
    return unit.position + 1 >= sizes_.border_after(from) && unit.tokens * heads() * 2 <= kWideRows;
  }
  bool have_same_piece(const Unit& a, const Unit& b, std::int32_t from) const {
    return can_share(a, from) && can_share(b, from) &&
           std::ranges::equal(blocks_of_piece(a, from), blocks_of_piece(b, from));
  }

  /// Makes segments of what the units see from `from` on. Before `from` they see the same blocks,
  /// and a segment has these already.
  void share(std::span<Unit> units, std::int32_t from, std::int32_t least) {
    if (units.size() == 1) {
      segments_.push_back({units, from, units[0].end()});
      return;
    }
    std::int32_t shared = from;
    const auto is_shared = [&](const Unit& unit) {
      return have_same_piece(units[0], unit, shared);
    };
    while (std::ranges::all_of(units, is_shared)) shared = sizes_.border_after(shared);

    // A separate pass over a short prefix is not worth the state that it costs every unit.
    const bool is_leading = from == units[0].begin;
    std::span<const Unit> together;
    if (shared > from && (!is_leading || shared - from >= least)) together = units;

    // Separate the units by the blocks of the next piece. The units of each segment stay adjacent.
    const auto alone = std::ranges::stable_partition(
        units, [&](const Unit& unit) { return can_share(unit, shared); });
    const std::span<Unit> rest(units.data(), units.size() - alone.size());
    std::ranges::stable_sort(rest, [&](const Unit& a, const Unit& b) {
      return std::ranges::lexicographical_compare(blocks_of_piece(a, shared),
                                                  blocks_of_piece(b, shared));
    });
    if (!together.empty()) {
      segments_.push_back({together, from, shared});
      from = shared;
    }
    for (const Unit& unit : alone) segments_.push_back({{&unit, 1}, from, unit.end()});
    for (std::size_t first = 0; first < rest.size();) {
      std::size_t last = first + 1;
      while (last < rest.size() && have_same_piece(rest[first], rest[last], shared)) ++last;
      share(rest.subspan(first, last - first), from, least);
      first = last;
    }
  }

  /// The last border of pieces at which a run from `from` may end.
  std::int32_t end_of_run(std::int32_t from, std::int32_t last, std::int64_t run_tokens) const {
    std::int32_t end = std::min(sizes_.border_after(from), last);
    while (end < last) {
      const std::int32_t border = std::min(sizes_.border_after(end), last);
      if (border - from > run_tokens) break;
      end = border;
    }
    return end;
  }

  /// Makes as many tiles as needed for what the units' tokens see of from..to-1.
  void add_tiles(std::span<const Unit> units, std::int32_t from, std::int32_t to) {
    std::int32_t rows = 0;
    for (const Unit& unit : units) {
      if (rows == 0 || rows + unit.tokens * heads() > kWideRows) {
        plan_.tiles.push_back({static_cast<std::int32_t>(plan_.splits.size()), 0, to, from});
        rows = 0;
      }
      AttentionTile& tile = plan_.tiles.back();
      for (std::int32_t i = 0; i < unit.tokens; ++i) {
        const std::int32_t position = unit.position + i;
        const std::int32_t begin = std::max(from, first_visible(args_, position));
        const std::int32_t end = std::min(to, position + 1);
        if (begin >= end) continue;
        plan_.splits.push_back({unit.b, unit.first_query + i, position, begin, end});
        tile.begin = std::min(tile.begin, begin);
        tile.end = std::max(tile.end, end);
        ++tile.splits;
        rows += heads();
      }
    }
  }

  /// Gives each query consecutive states; its splits are in the order of positions already.
  void number_states() {
    std::vector<std::int32_t> next(static_cast<std::size_t>(args_.query_start[args_.B]), 0);
    for (const AttentionSplit& split : plan_.splits) ++next[static_cast<std::size_t>(split.query)];
    for (std::size_t query = 0; query < next.size(); ++query) {
      const std::int32_t states = std::exchange(next[query], -1);
      if (states <= 1) continue;
      next[query] = plan_.states;
      plan_.merged.push_back({static_cast<std::int32_t>(query), plan_.states, states});
      plan_.states += states;
    }
    for (AttentionSplit& split : plan_.splits)
      if (std::int32_t& state = next[static_cast<std::size_t>(split.query)]; state >= 0)
        split.state = state++;
  }

  void sort_tiles() {
    const auto is_narrow = [&](const AttentionTile& tile) {
      return tile.splits * heads() <= kNarrowRows;
    };
    const auto wide = std::ranges::stable_partition(plan_.tiles, is_narrow);
    plan_.narrow_tiles = static_cast<std::int32_t>(plan_.tiles.size() - wide.size());
    const auto is_longer = [](const AttentionTile& a, const AttentionTile& b) {
      return a.end - a.begin > b.end - b.begin;
    };
    std::stable_sort(plan_.tiles.begin(), wide.begin(), is_longer);
    std::stable_sort(wide.begin(), wide.end(), is_longer);
  }

  const PagedAttentionArgs& args_;
  PieceSizes sizes_;
  std::vector<Unit> units_;
  std::vector<Segment> segments_;
  SplitPlan plan_;
};

}  // namespace

bool is_for_tensor_cores(const PagedAttentionArgs& args) {
  const PagedKv& kv = args.kv;
  const bool is_head_size =
      kv.D == 192 || kv.D == 256 || (kv.D >= 64 && kv.D <= 128 && kv.D % 16 == 0);
  const bool has_types = bytes_of(kv.dtype) == 1
                             ? bytes_of(args.q_dtype) == 2 &&
                                   (kv.block_stride | kv.head_stride | kv.token_stride) % 16 == 0
                             : bytes_of(kv.dtype) == 2 && args.q_dtype == kv.dtype;
  return kv.layout == PageLayout::rows && args.H / kv.G > 2 && has_types && is_head_size;
}

AttentionWork SplitPlan::work(const AttentionSplit* splits_at, const AttentionTile* tiles_at,
                              const SplitQuery* merged_at, float* states_at) const {
  const auto count = [](const auto& of) { return static_cast<std::int32_t>(of.size()); };
  return {splits_at,
          tiles_at,
          merged_at,
          states_at,
          count(splits),
          narrow_tiles,
          count(tiles) - narrow_tiles,
          count(merged),
          states,
          sizes};
}

PlanCounts SplitPlan::counts() const {
  const AttentionWork all = work(nullptr);
  return {all.splits_count, all.narrow_tiles, all.wide_tiles, all.merged_count, all.states_count};
}

void SplitPlan::pad(const PlanCounts& to) {
  const PlanCounts from = counts();
  KV_CHECK(to.splits >= from.splits && to.narrow_tiles >= from.narrow_tiles &&
           to.wide_tiles >= from.wide_tiles && to.merged >= from.merged &&
           to.states >= from.states);
  splits.resize(static_cast<std::size_t>(to.splits));
  tiles.insert(tiles.begin() + from.narrow_tiles,
               static_cast<std::size_t>(to.narrow_tiles - from.narrow_tiles), AttentionTile{});
  tiles.resize(static_cast<std::size_t>(to.narrow_tiles + to.wide_tiles));
  merged.resize(static_cast<std::size_t>(to.merged));
  narrow_tiles = to.narrow_tiles;
  states = to.states;
}

SplitPlan plan_splits(const PagedAttentionArgs& args, const PlanLimits& limits) {
  KV_CHECK(args.window >= 0 && args.chunk >= 0, args.window, args.chunk);
  KV_CHECK(args.kv.G > 0 && args.H % args.kv.G == 0 && args.kv.S > 0, args.H, args.kv.G, args.kv.S);
  if (!is_for_tensor_cores(args)) {
    Planner planner(args, piece_sizes(128, reach_of(args)), 1);
    planner.keep_apart();
    SplitPlan plan = planner.cut(0);
    plan.tiles.clear();
    plan.narrow_tiles = 0;
    return plan;
  }
  Planner planner(args, piece_sizes(64, reach_of(args)),
                  std::max(1, kWideRows * args.kv.G / args.H));
  planner.group(limits.shared_tokens);
  SplitPlan plan = planner.cut(kEndless);
  std::int64_t tokens = 0, longest = 0;
  for (const AttentionTile& tile : plan.tiles) {
    tokens += tile.end - tile.begin;
    longest = std::max<std::int64_t>(longest, tile.end - tile.begin);
  }
  // A run gets an even share of the work; runs become longer if there would be too many states.
  std::int64_t run = tokens * args.kv.G / limits.tiles;
  if (run >= longest) return plan;
  plan = planner.cut(run);
  while (plan.states > limits.states && run < longest) {
    run = std::max<std::int64_t>(2 * run, plan.sizes.most);
    plan = planner.cut(run);
  }
  return plan;
}

SplitPlan plan_splits(const PagedMlaArgs& args) { return plan_splits(as_attention(args)); }

PagedAttentionArgs as_attention(const PagedMlaArgs& args) {
  PagedAttentionArgs attention;
  attention.q = args.q;
  attention.kv.G = 1;
  attention.kv.S = args.kv.S;
  attention.kv.D = kMlaLatent;
  attention.block_table = args.block_table;
  attention.query_start = args.query_start;
  attention.kv_len = args.kv_len;
  attention.out = args.out;
  attention.lse = args.lse;
  attention.B = args.B;
  attention.H = args.H;
  attention.M = args.M;
  attention.q_dtype = args.q_dtype;
  attention.scale = args.scale;
  return attention;
}

}  // namespace kvhive
