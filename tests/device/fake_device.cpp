#include "tests/device/fake_device.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "device/ipc_record.hpp"
#include "kernels/element.hpp"
#include "kernels/simt/stream.hpp"

namespace kvhive::testing {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr int kPoison = 0xcb;

using Work = std::function<void()>;

struct Item {
  Work work;
  bool is_mark = false;  ///< true: an event, which happens even when the context is lost
};

bool contains(const std::map<const std::byte*, std::size_t>& ranges, const std::byte* from,
              std::size_t bytes) {
  auto after = ranges.upper_bound(from);
  if (after == ranges.begin()) return false;
  const auto& [start, length] = *std::prev(after);
  return from + bytes <= start + length;
}

/// The content of a fake device's IPC handle.
struct Maker {
  pid_t pid = 0;
  int fd = -1;
  ino_t inode = 0;  ///< because another process may have got the number since
};

ino_t inode_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

void load_elements(const std::byte* from, std::size_t first, std::size_t count, Dtype dtype,
                   float* to) {
  if (dtype == Dtype::bf16) {
    const auto* const elements = reinterpret_cast<const std::uint16_t*>(from) + first;
    for (std::size_t i = 0; i < count; ++i) to[i] = float_of_bf16(elements[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = load_element(from, first + i, dtype);
  }
}

/// Sixteen sums, of which the compiler makes vectors; it may not reorder one.
float dot(const float* x, const float* w, std::size_t K) {
  constexpr std::size_t kSums = 16;
  float sums[kSums] = {};
  std::size_t k = 0;
  for (; k + kSums <= K; k += kSums)
    for (std::size_t i = 0; i < kSums; ++i) sums[i] += x[k + i] * w[k + i];
  for (; k < K; ++k) sums[k % kSums] += x[k] * w[k];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0f);
}

void multiply_now(const DeviceProductArgs& args) {
  const auto T = static_cast<std::size_t>(args.T), N = static_cast<std::size_t>(args.N),
             K = static_cast<std::size_t>(args.K);
  std::vector<float> x(T * K), w(K);
  load_elements(args.x, 0, T * K, args.dtype, x.data());
  for (std::size_t n = 0; n < N; ++n) {
    load_elements(args.w, n * K, K, args.dtype, w.data());
    const float bias = args.bias == nullptr ? 0 : load_element(args.bias, n, args.out_dtype);
    for (std::size_t t = 0; t < T; ++t)
      store_element(args.y, t * N + n, dot(&x[t * K], w.data(), K) + bias, args.out_dtype);
  }
}

}  // namespace

/// Counts the record()s that have happened.
struct FakeDevice::Event {
  std::mutex mutex;
  std::condition_variable reached;
  std::uint64_t recorded = 0, done = 0;

  std::uint64_t record() {
    const std::lock_guard lock(mutex);
    return ++recorded;
  }
  std::uint64_t last_record() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
  void finish(std::uint64_t number) {
    const std::lock_guard lock(mutex);
    done = std::max(done, number);
    reached.notify_all();
  }
  void wait_for(std::uint64_t number) {
    std::unique_lock lock(mutex);
    reached.wait(lock, [&] { return done >= number; });
  }
};

struct FakeDevice::Graph {
  std::vector<Work> works;
};

struct FakeDevice::Stream final : CUstream_st {
  explicit Stream(FakeDevice& of) : device(of), thread([this] { run(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() override {
    {
      const std::lock_guard lock(mutex);
      is_ending = true;
    }
    changed.notify_all();
    thread.join();
  }

  void enqueue(Work work) override {
    const std::lock_guard lock(mutex);
    if (captured) {
      captured->works.push_back(std::move(work));
      return;
    }
    items.push_back({std::move(work), false});
    changed.notify_all();
  }
  void enqueue_mark(Work mark) {
    const std::lock_guard lock(mutex);
    items.push_back({std::move(mark), true});
    changed.notify_all();
  }
  bool is_capturing() {
    const std::lock_guard lock(mutex);
    return captured != nullptr;
  }

  void run() {
    while (true) {
      Item item;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return is_ending || !items.empty(); });
        if (items.empty()) return;
        item = std::move(items.front());
        items.pop_front();
      }
      if (item.is_mark)
        item.work();
      else
        device.perform(item.work);
    }
  }

  FakeDevice& device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  std::shared_ptr<Graph> captured;  ///< not null while capturing
  bool is_ending = false;
  std::thread thread;  ///< last member, since it uses the others
};

DeviceFacts fake_facts() {
  return {.name = "fake GPU",
          .uuid = "GPU-fake",
          .major = 9,
          .minor = 0,
          .total_bytes = std::size_t{1} << 30,
          .shared_granularity = kGranularity,
          .driver_version = 13000,
          .memory_needs_its_maker = false,
          .sharing_reason = ""};
}

FakeDevice::FakeDevice(DeviceFacts facts) : facts_(std::move(facts)) {}

FakeDevice::~FakeDevice() {
  streams_.clear();  // their work may use the members that are destroyed next
  for (const auto& [memory, bytes] : shared_) munmap(const_cast<std::byte*>(memory), bytes);
  for (const auto& [memory, bytes] : private_) munmap(const_cast<std::byte*>(memory), bytes);
}

void FakeDevice::set_faults(FakeFaults faults) {
  const std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

std::size_t FakeDevice::leftovers() const {
  const std::lock_guard lock(mutex_);
  return private_.size() + shared_.size() + locked_.size() + streams_.size() + events_.size() +
         graphs_.size();
}

// -- faults ---------------------------------------------------------------------------------------

Expected<void> FakeDevice::call(const char* name) {
  std::function<void(std::uint64_t, const char*)> before;
  const std::uint64_t number = ++calls_;
  {
    const std::lock_guard lock(mutex_);
    before = faults_.before_call;
  }
  if (before) before(number, name);  // it may set the fault that this call is to meet
  const std::lock_guard lock(mutex_);
  if (number == faults_.call) {
    const std::string text = std::string(name) + ": a fault was wanted";
    if (faults_.error != Errc::device_lost) return failure(faults_.error, text);
    lost_ = text;
  }
  if (!lost_.empty()) return failure(Errc::device_lost, lost_);
  return {};
}

void FakeDevice::perform(const Work& work) {
  std::function<void(std::uint64_t)> before;
  std::chrono::microseconds delay{};
  const std::uint64_t number = ++works_;
  {
    const std::lock_guard lock(mutex_);
    before = faults_.before_work;
    delay = faults_.delay;
    if (number == faults_.work && lost_.empty()) lost_ = "a fault of work on a stream was wanted";
    if (!lost_.empty()) return;
  }
  if (before) before(number);
  if (delay.count() != 0) std::this_thread::sleep_for(delay);
  try {
    work();
  } catch (const std::exception& exception) {
    const std::lock_guard lock(mutex_);
    if (lost_.empty()) lost_ = exception.what();
  }
}

Expected<void> FakeDevice::check_memory(const char* name, const std::byte* from,
                                        std::size_t bytes) const {
  if (is_on_device(from, bytes)) return {};
  return failure(Errc::os_error, std::string(name) + ": an address that is not on the device");
}

bool FakeDevice::is_on_device(const std::byte* from, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return contains(private_, from, bytes) || contains(shared_, from, bytes);
}

bool FakeDevice::is_page_locked(const std::byte* from, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return contains(locked_, from, bytes);
}

// -- memory ---------------------------------------------------------------------------------------

Expected<std::size_t> FakeDevice::free_bytes() {
  if (auto called = call("free_bytes"); !called) return forward_error(called);
  const std::lock_guard lock(mutex_);
  std::size_t used = shared_created_;
  for (const auto& [memory, bytes] : private_) used += bytes;
  return facts_.total_bytes - std::min(used, facts_.total_bytes);
}

Expected<UniqueFd> FakeDevice::create_shared(std::size_t bytes) {
  if (auto called = call("create_shared"); !called) return forward_error(called);
  if (bytes == 0 || bytes % kGranularity != 0)
    return failure(Errc::os_error, "create_shared: not a multiple of the granularity");
  const std::lock_guard lock(mutex_);
  if (shared_created_ + bytes > facts_.total_bytes)
    return failure(Errc::out_of_memory, "create_shared: the device is full");
  UniqueFd fd{memfd_create("fake-device-memory", MFD_CLOEXEC)};
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return os_failure("memfd of a fake device");
  void* all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (all == MAP_FAILED) return os_failure("mmap of a fake device");
  std::memset(all, kPoison, bytes);
  munmap(all, bytes);
  shared_created_ += bytes;
  return facts_.memory_needs_its_maker ? keep(std::move(fd), bytes) : std::move(fd);
}

/// Keeps the memory as long as this device lives, and returns the record that names it for other
/// processes.
Expected<UniqueFd> FakeDevice::keep(UniqueFd memory, std::size_t bytes) {
  prctl(PR_SET_DUMPABLE, 1);  // else another process without capabilities may not open what it has
  const Maker maker{getpid(), memory.get(), inode_of(memory.get())};
  IpcHandle handle{};
  std::memcpy(handle.data(), &maker, sizeof maker);
  kept_.emplace(memory.get(), std::move(memory));
  return write_ipc_record(handle, bytes, facts_.uuid);
}

Expected<UniqueFd> FakeDevice::ask_maker(int record, std::size_t bytes) const {
  auto handle = read_ipc_record(record, bytes, facts_.uuid);
  if (!handle) return forward_error(handle);
  Maker maker;
  std::memcpy(&maker, handle->data(), sizeof maker);
  const std::string path = "/proc/" + std::to_string(maker.pid) + "/fd/" + std::to_string(maker.fd);
  UniqueFd memory{open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (!memory || inode_of(memory.get()) != maker.inode)
    return failure(Errc::os_error, "map_shared: its maker is gone");
  return memory;
}

Expected<std::byte*> FakeDevice::map_shared(int fd, std::size_t bytes) {
  if (auto called = call("map_shared"); !called) return forward_error(called);
  UniqueFd asked;
  if (is_ipc_record(fd)) {
    auto memory = ask_maker(fd, bytes);
    if (!memory) return forward_error(memory);
    asked = std::move(*memory);
    fd = asked.get();
  }
  struct stat status {};
  if (fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes)
    return failure(Errc::os_error, "map_shared: not shared device memory of this size");
  void* all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (all == MAP_FAILED) return os_failure("mmap of a fake device");
  const std::lock_guard lock(mutex_);
  shared_.emplace(static_cast<std::byte*>(all), bytes);
  return static_cast<std::byte*>(all);
}

void FakeDevice::unmap_shared(std::byte* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (shared_.erase(memory) == 1) munmap(memory, bytes);
}

Expected<std::byte*> FakeDevice::allocate(std::size_t bytes) {
  if (auto called = call("allocate"); !called) return forward_error(called);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return os_failure("mmap of a fake device");
  std::memset(memory, kPoison, bytes);
  const std::lock_guard lock(mutex_);
  private_.emplace(static_cast<std::byte*>(memory), bytes);
  return static_cast<std::byte*>(memory);
}

void FakeDevice::release(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = private_.find(memory);
  if (found == private_.end()) return;
  munmap(memory, found->second);
  private_.erase(found);
}

Expected<void> FakeDevice::lock_pages(std::byte* host, std::size_t bytes) {
  if (auto called = call("lock_pages"); !called) return called;
  const std::lock_guard lock(mutex_);
  if (contains(locked_, host, 1) || contains(locked_, host + bytes - 1, 1))
    return failure(Errc::os_error, "lock_pages: this memory is page-locked already");
  locked_.emplace(host, bytes);
  return {};
}

void FakeDevice::unlock_pages(std::byte* host) {
  const std::lock_guard lock(mutex_);
  locked_.erase(host);
}

// -- order ----------------------------------------------------------------------------------------

Expected<DeviceStream> FakeDevice::create_stream() {
  if (auto called = call("create_stream"); !called) return forward_error(called);
  auto stream = std::make_unique<Stream>(*this);
  const DeviceStream handle = stream.get();
  const std::lock_guard lock(mutex_);
  streams_.emplace(handle, std::move(stream));
  return handle;
}

void FakeDevice::destroy(DeviceStream stream) {
  std::unique_ptr<Stream> ended;  // destroyed outside the lock, because its work takes the lock
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  ended = std::move(found->second);
  streams_.erase(found);
}

Expected<DeviceEvent> FakeDevice::create_event() {
  if (auto called = call("create_event"); !called) return forward_error(called);
  auto event = std::make_shared<Event>();
  const auto handle = reinterpret_cast<DeviceEvent>(event.get());
  const std::lock_guard lock(mutex_);
  events_.emplace(handle, std::move(event));
  return handle;
}

void FakeDevice::destroy(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

FakeDevice::Stream& FakeDevice::stream_of(DeviceStream stream) const {
  const std::lock_guard lock(mutex_);
  return *streams_.at(stream);
}

std::shared_ptr<FakeDevice::Event> FakeDevice::event_of(DeviceEvent event) const {
  const std::lock_guard lock(mutex_);
  return events_.at(event);
}

Expected<void> FakeDevice::record(DeviceEvent event, DeviceStream stream) {
  if (auto called = call("record"); !called) return called;
  if (stream_of(stream).is_capturing())
    return failure(Errc::os_error, "record: not while capturing");
  const auto recorded = event_of(event);
  const std::uint64_t number = recorded->record();
  stream_of(stream).enqueue_mark([recorded, number] { recorded->finish(number); });
  return {};
}

Expected<void> FakeDevice::wait(DeviceStream stream, DeviceEvent event) {
  if (auto called = call("wait"); !called) return called;
  const auto awaited = event_of(event);
  stream_of(stream).enqueue_mark(
      [awaited, number = awaited->last_record()] { awaited->wait_for(number); });
  return {};
}

Expected<void> FakeDevice::synchronize(DeviceEvent event) {
  if (auto called = call("synchronize"); !called) return called;
  const auto awaited = event_of(event);
  awaited->wait_for(awaited->last_record());
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) return failure(Errc::device_lost, "synchronize: " + lost_);
  return {};
}

// -- work -----------------------------------------------------------------------------------------

Expected<void> FakeDevice::copy(std::byte* to, const std::byte* from, std::size_t bytes,
                                DeviceStream stream) {
  if (auto called = call("copy"); !called) return called;
  if (bytes == 0) return {};
  const bool is_source_late = is_on_device(from, bytes) || is_page_locked(from, bytes);
  const bool is_target_late = is_on_device(to, bytes) || is_page_locked(to, bytes);
  if (!is_on_device(from, bytes) && !is_on_device(to, bytes))
    return failure(Errc::os_error, "copy: neither address is on the device");
  if ((!is_source_late && is_page_locked(from, 1)) || (!is_target_late && is_page_locked(to, 1)))
    return failure(Errc::os_error, "copy: over the border of page-locked memory");
  if (is_source_late) {
    stream_of(stream).enqueue([=] { std::memcpy(to, from, bytes); });
  } else {
    stream_of(stream).enqueue([to, taken = std::vector<std::byte>(from, from + bytes)] {
      std::memcpy(to, taken.data(), taken.size());
    });
  }
  if (is_target_late) return {};
  Event done;  // memory that is not page-locked: the call waits, as a synchronous copy does
  stream_of(stream).enqueue_mark([&] { done.finish(1); });
  done.wait_for(1);
  return {};
}

Expected<void> FakeDevice::fill(std::byte* to, std::byte value, std::size_t bytes,
                                DeviceStream stream) {
  if (auto called = call("fill"); !called) return called;
  if (auto valid = check_memory("fill", to, bytes); !valid) return valid;
  stream_of(stream).enqueue([=] { std::memset(to, std::to_integer<int>(value), bytes); });
  return {};
}

Expected<void> FakeDevice::multiply(const DeviceProductArgs& args, DeviceStream stream) {
  if (auto called = call("multiply"); !called) return called;
  const auto T = static_cast<std::size_t>(args.T), N = static_cast<std::size_t>(args.N),
             K = static_cast<std::size_t>(args.K);
  const std::size_t in = bytes_of(args.dtype), out = bytes_of(args.out_dtype);
  for (const auto& [from, bytes] :
       {std::pair{args.x, T * K * in}, std::pair{args.w, N * K * in},
        std::pair{static_cast<const std::byte*>(args.y), T * N * out},
        std::pair{args.bias == nullptr ? args.w : args.bias, args.bias == nullptr ? in : N * out}})
    if (auto valid = check_memory("multiply", from, bytes); !valid) return valid;
  stream_of(stream).enqueue([args] { multiply_now(args); });
  return {};
}

// -- graphs ---------------------------------------------------------------------------------------

Expected<void> FakeDevice::begin_capture(DeviceStream stream) {
  if (auto called = call("begin_capture"); !called) return called;
  Stream& capturing = stream_of(stream);
  const std::lock_guard lock(capturing.mutex);
  if (capturing.captured) return failure(Errc::os_error, "begin_capture: it is capturing already");
  capturing.captured = std::make_shared<Graph>();
  return {};
}

Expected<DeviceGraph> FakeDevice::end_capture(DeviceStream stream) {
  Stream& capturing = stream_of(stream);
  std::shared_ptr<Graph> graph;
  {
    const std::lock_guard lock(capturing.mutex);
    graph = std::exchange(capturing.captured, nullptr);
  }
  if (auto called = call("end_capture"); !called) return forward_error(called);
  if (!graph) return failure(Errc::os_error, "end_capture: it is not capturing");
  const auto handle = reinterpret_cast<DeviceGraph>(graph.get());
  const std::lock_guard lock(mutex_);
  graphs_.emplace(handle, std::move(graph));
  return handle;
}

Expected<void> FakeDevice::launch(DeviceGraph graph, DeviceStream stream) {
  if (auto called = call("launch"); !called) return called;
  std::shared_ptr<Graph> started;
  {
    const std::lock_guard lock(mutex_);
    started = graphs_.at(graph);
  }
  for (const Work& work : started->works) stream_of(stream).enqueue(work);
  return {};
}

void FakeDevice::destroy(DeviceGraph graph) {
  const std::lock_guard lock(mutex_);
  graphs_.erase(graph);
}

}  // namespace kvhive::testing
