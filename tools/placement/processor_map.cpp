#include "tools/placement/processor_map.hpp"

#include <hwloc.h>

#include <utility>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// Move-only, because hwloc's are plain pointers.
class Bitmap {
 public:
  Bitmap() : bits_(hwloc_bitmap_alloc()) { KV_CHECK(bits_ != nullptr); }
  explicit Bitmap(hwloc_bitmap_t bits) : bits_(bits) {}
  explicit Bitmap(const ProcessorList& list) : Bitmap() {
    for (const std::uint32_t number : list) hwloc_bitmap_set(bits_, number);
  }
  Bitmap(Bitmap&& other) noexcept : bits_(std::exchange(other.bits_, nullptr)) {}
  Bitmap& operator=(Bitmap&&) = delete;
  ~Bitmap() { hwloc_bitmap_free(bits_); }

  hwloc_bitmap_t get() const { return bits_; }

 private:
  hwloc_bitmap_t bits_;
};

ProcessorList list_of(hwloc_const_bitmap_t bits) {
  ProcessorList list;
  for (int number = hwloc_bitmap_first(bits); number >= 0; number = hwloc_bitmap_next(bits, number))
    list.push_back(static_cast<std::uint32_t>(number));
  return list;
}

/// Calls `visit` with each object of a kind.
template <class Visit>
void for_each(hwloc_topology_t topology, hwloc_obj_type_t type, Visit visit) {
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;)
    visit(*object);
}

}  // namespace

void ProcessorMap::Destroy::operator()(hwloc_topology* topology) const {
  hwloc_topology_destroy(topology);
}

Expected<ProcessorMap> ProcessorMap::of_this_process() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return os_failure("hwloc_topology_init");
  Handle handle(topology);
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                         HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING |
                                         HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
  // It would run on each processor in turn to ask it what /sys says, too.
  hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  return load(std::move(handle));
}

Expected<ProcessorMap> ProcessorMap::made_up(const std::string& machine) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return os_failure("hwloc_topology_init");
  Handle handle(topology);
  if (hwloc_topology_set_synthetic(topology, machine.c_str()) != 0)
    return failure(Errc::bad_argument, "'" + machine + "' is no machine to hwloc");
  return load(std::move(handle));
}

Expected<ProcessorMap> ProcessorMap::load(Handle handle) {
  if (hwloc_topology_load(handle.get()) != 0) return os_failure("hwloc_topology_load");
  return ProcessorMap(std::move(handle));
}

ProcessorList ProcessorMap::processors() const {
  return list_of(hwloc_topology_get_topology_cpuset(handle_.get()));
}

std::uint32_t ProcessorMap::cores() const { return cores_of(processors()); }

std::uint32_t ProcessorMap::cores_of(const ProcessorList& list) const {
  const Bitmap wanted(list);
  std::uint32_t cores = 0;
  for_each(handle_.get(), HWLOC_OBJ_CORE, [&](const hwloc_obj& core) {
    cores += hwloc_bitmap_intersects(core.cpuset, wanted.get()) != 0;
  });
  // Some virtual machines show no cores.
  return cores != 0 ? cores : static_cast<std::uint32_t>(list.size());
}

NodeList ProcessorMap::nodes_of(const ProcessorList& list) const {
  const Bitmap wanted(list);
  NodeList nodes;
  for_each(handle_.get(), HWLOC_OBJ_NUMANODE, [&](const hwloc_obj& node) {
    if (hwloc_bitmap_intersects(node.cpuset, wanted.get()) != 0) nodes.push_back(node.os_index);
  });
  return nodes;
}

ProcessorList ProcessorMap::processors_near(std::uint32_t node) const {
  const hwloc_obj_t found = hwloc_get_numanode_obj_by_os_index(handle_.get(), node);
  return found == nullptr ? ProcessorList() : list_of(found->cpuset);
}

std::vector<ProcessorList> ProcessorMap::split(std::uint32_t parts) const {
  KV_CHECK(parts >= 1 && parts <= cores(), parts);
  std::vector<hwloc_cpuset_t> sets(parts);
  hwloc_obj_t root = hwloc_get_root_obj(handle_.get());
  const int depth = hwloc_get_type_or_below_depth(handle_.get(), HWLOC_OBJ_CORE);
  KV_CHECK(hwloc_distrib(handle_.get(), &root, 1, sets.data(), parts, depth, 0) == 0);
  std::vector<ProcessorList> lists;
  for (const hwloc_cpuset_t set : sets) lists.push_back(list_of(Bitmap(set).get()));
  return lists;
}

}  // namespace kvhive
