// For programs that are to find a fake GPU where others look for CUDA's. KVHIVE_FAKE_GPU says what
// it is like: "none", or "" for one that works. A file named by KVHIVE_FAKE_GPU_FAULT holds the
// number of a call that fails, for the next process that opens the device and for it alone.

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/device/fake_device.hpp"

namespace kvhive {

Expected<std::unique_ptr<Device>> open_cuda_device(int) {
  const char* like = std::getenv("KVHIVE_FAKE_GPU");
  if (like == nullptr || std::string(like) == "none")
    return failure(Errc::not_found, "no fake GPU; set KVHIVE_FAKE_GPU, or use --device cpu");
  auto device = std::make_unique<testing::FakeDevice>(std::size_t{2} << 30);
  if (const char* path = std::getenv("KVHIVE_FAKE_GPU_FAULT"); path != nullptr) {
    testing::FakeFaults faults;
    std::ifstream file(path);
    if (file >> faults.call && std::remove(path) == 0) device->set_faults(faults);
  }
  return device;
}

}  // namespace kvhive
