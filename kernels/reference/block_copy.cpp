#include "kernels/block_copy.hpp"

#include <cstring>

namespace kvhive {

void block_copy_reference(const BlockCopyArgs& args) {
  for (std::size_t i = 0; i < args.pairs_count; ++i) {
    const BlockPair pair = args.pairs[i];
    std::memcpy(args.destination + pair.destination * args.destination_stride,
                args.source + pair.source * args.source_stride, args.bytes);
  }
}

}  // namespace kvhive
