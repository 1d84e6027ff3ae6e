#pragma once
// Cache groups as tests write them down.

#include <initializer_list>

#include "config/cache_groups.hpp"

namespace kvhive::testing {

inline constexpr CacheGroup kFull{};
constexpr CacheGroup window(std::uint32_t span) { return {CacheKind::sliding_window, span}; }
constexpr CacheGroup chunks(std::uint32_t span) { return {CacheKind::chunked_local, span}; }

inline CacheGroups groups_of(std::initializer_list<CacheGroup> list) {
  CacheGroups groups;
  groups.count = 0;
  for (const CacheGroup& group : list) groups.group[groups.count++] = group;
  return groups;
}

}  // namespace kvhive::testing
