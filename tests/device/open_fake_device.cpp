// Makes programs open a fake GPU instead of CUDA's. Environment variables:
//
// KVHIVE_FAKE_GPU: what it can do: "none", "ipc" (no descriptors of its memory), or "" (everything)
// KVHIVE_FAKE_GPU_UUID: its uuid
// KVHIVE_FAKE_GPU_FAULT: a file with the number of the call that fails; only for the next process
// that opens the device
// KVHIVE_FAKE_GPU_LOSS: a file; as soon as it exists, the contexts of all processes are lost, as
// under MPS
// KVHIVE_FAKE_GPU_STALL: a FIFO; making shared memory waits until all its writers have closed it

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/device/fake_device.hpp"

namespace kvhive {

Expected<std::unique_ptr<Device>> open_cuda_device(int, GpuMemorySharing sharing) {
  const char* like = std::getenv("KVHIVE_FAKE_GPU");
  if (like == nullptr || std::string(like) == "none")
    return failure(Errc::not_found, "no fake GPU; set KVHIVE_FAKE_GPU, or use --device cpu");
  const bool has_vmm = std::string(like) != "ipc";
  if (sharing == GpuMemorySharing::vmm && !has_vmm)
    return failure(Errc::unsupported, "no descriptors of a fake GPU; use --gpu-memory-sharing ipc");
  DeviceFacts facts = testing::fake_facts();
  facts.total_bytes = std::size_t{2} << 30;
  if (const char* uuid = std::getenv("KVHIVE_FAKE_GPU_UUID"); uuid != nullptr) facts.uuid = uuid;
  facts.memory_needs_its_maker = sharing == GpuMemorySharing::ipc || !has_vmm;
  if (sharing != GpuMemorySharing::ipc && !has_vmm)
    facts.sharing_reason = "no descriptors of a fake GPU";
  auto device = std::make_unique<testing::FakeDevice>(facts);
  testing::FakeFaults faults;
  if (const char* path = std::getenv("KVHIVE_FAKE_GPU_FAULT"); path != nullptr)
    if (std::ifstream file(path); !(file >> faults.call) || std::remove(path) != 0) faults.call = 0;
  const char* stall = std::getenv("KVHIVE_FAKE_GPU_STALL");
  const char* loss = std::getenv("KVHIVE_FAKE_GPU_LOSS");
  if (stall != nullptr || loss != nullptr)
    faults.before_call = [stall, loss, of = device.get()](std::uint64_t number,
                                                          const std::string& name) {
      if (stall != nullptr && name == "create_shared") {
        std::ifstream fifo(stall);
        while (fifo.get() != std::char_traits<char>::eof()) {
        }
      }
      if (loss == nullptr || !std::filesystem::exists(loss)) return;
      testing::FakeFaults all_is_lost;
      all_is_lost.call = number;
      of->set_faults(all_is_lost);
    };
  device->set_faults(faults);
  return device;
}

}  // namespace kvhive
