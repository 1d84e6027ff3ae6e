// For the test program on a GPU, which is built without the CPU's kernels: their ways to copy and
// to write pages, of which there are none.

#include "kernels/copy_way.hpp"

namespace kvhive {

ChosenWay<WriteWay> write_way() { return {}; }
void force_copy_way(std::optional<CopyWay>) {}
void force_write_way(std::optional<WriteWay>) {}

}  // namespace kvhive
