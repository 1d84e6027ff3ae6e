#pragma once
// A hash map by ids that are drawn one after the other. Values stay where they are, as in
// std::unordered_map. Boost's finds its bucket without a division, which would take as long as the
// rest of a lookup.

#include <boost/unordered_map.hpp>
#include <functional>

namespace kvhive {

template <class Id, class T>
using IdMap = boost::unordered_map<Id, T, std::hash<Id>>;

}  // namespace kvhive
