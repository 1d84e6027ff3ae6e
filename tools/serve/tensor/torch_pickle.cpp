#include "tools/serve/tensor/torch_pickle.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "base/json_file.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kMostBytes = 4096;  ///< one tensor's has some 150
constexpr int kDeepest = 2;               ///< a call's arguments, with sizes or strides in them
constexpr std::string_view kRemedy =
    "; send torch.save() of one dense tensor of float32, float16 or bfloat16";

// What may be on the machine's stack.
struct Mark {};
struct OrderedDict {};  ///< an empty one
struct Storage {
  Dtype dtype = Dtype::f32;
  std::string_view name;
  std::uint64_t size = 0;
};
enum class Global : std::uint8_t {
  rebuild_tensor,
  rebuild_parameter,
  ordered_dict,
  float_storage,
  half_storage,
  bfloat16_storage,
};
struct Tuple;
using Value =
    std::variant<Mark, OrderedDict, bool, std::uint64_t, std::string_view, Global, Storage,
                 std::shared_ptr<const TorchTensor>, std::shared_ptr<const Tuple>>;
struct Tuple {
  std::vector<Value> items;
  int depth = 1;
};

template <class Kind>
const Kind* as(const std::vector<Value>& items, std::size_t i) {
  return i < items.size() ? std::get_if<Kind>(&items[i]) : nullptr;
}

const Tuple* tuple_in(const std::vector<Value>& items, std::size_t i) {
  const auto* tuple = as<std::shared_ptr<const Tuple>>(items, i);
  return tuple != nullptr ? tuple->get() : nullptr;
}

std::optional<Global> global_of(std::string_view module, std::string_view name) {
  static const std::map<std::pair<std::string_view, std::string_view>, Global> kGlobals = {
      {{"torch._utils", "_rebuild_tensor_v2"}, Global::rebuild_tensor},
      {{"torch._utils", "_rebuild_parameter"}, Global::rebuild_parameter},
      {{"collections", "OrderedDict"}, Global::ordered_dict},
      {{"torch", "FloatStorage"}, Global::float_storage},
      {{"torch", "HalfStorage"}, Global::half_storage},
      {{"torch", "BFloat16Storage"}, Global::bfloat16_storage}};
  const auto found = kGlobals.find({module, name});
  return found != kGlobals.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<Dtype> dtype_of(Global storage) {
  switch (storage) {
    case Global::float_storage: return Dtype::f32;
    case Global::half_storage: return Dtype::f16;
    case Global::bfloat16_storage: return Dtype::bf16;
    default: return std::nullopt;
  }
}

std::optional<std::vector<std::uint64_t>> numbers_in(const Tuple* tuple) {
  if (tuple == nullptr) return std::nullopt;
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < tuple->items.size(); ++i) {
    const auto* number = as<std::uint64_t>(tuple->items, i);
    if (number == nullptr) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

/// ("storage", type, name, device, size). The device does not count: the values are in the archive.
std::optional<Storage> storage_of(const std::vector<Value>& id) {
  const auto* kind = as<std::string_view>(id, 0);
  const auto* type = as<Global>(id, 1);
  const auto* name = as<std::string_view>(id, 2);
  const auto* device = as<std::string_view>(id, 3);
  const auto* size = as<std::uint64_t>(id, 4);
  if (id.size() != 5 || !kind || !type || !name || !device || !size || *kind != "storage")
    return std::nullopt;
  const auto dtype = dtype_of(*type);
  if (!dtype) return std::nullopt;
  return Storage{*dtype, *name, *size};
}

/// (storage, offset, sizes, strides, requires_grad, hooks)
std::optional<Value> rebuilt_tensor(const std::vector<Value>& arguments) {
  const auto* storage = as<Storage>(arguments, 0);
  const auto* offset = as<std::uint64_t>(arguments, 1);
  auto sizes = numbers_in(tuple_in(arguments, 2));
  auto strides = numbers_in(tuple_in(arguments, 3));
  if (arguments.size() != 6 || !storage || !offset || !sizes || !strides ||
      !as<bool>(arguments, 4) || !as<OrderedDict>(arguments, 5))
    return std::nullopt;
  return std::make_shared<const TorchTensor>(TorchTensor{storage->dtype, std::string(storage->name),
                                                         storage->size, *offset, std::move(*sizes),
                                                         std::move(*strides)});
}

/// (tensor, requires_grad, hooks)
std::optional<Value> rebuilt_parameter(const std::vector<Value>& arguments) {
  const auto* tensor = as<std::shared_ptr<const TorchTensor>>(arguments, 0);
  if (arguments.size() != 3 || !tensor || !as<bool>(arguments, 1) || !as<OrderedDict>(arguments, 2))
    return std::nullopt;
  return *tensor;
}

std::optional<Value> result_of(Global called, const std::vector<Value>& arguments) {
  switch (called) {
    case Global::rebuild_tensor: return rebuilt_tensor(arguments);
    case Global::rebuild_parameter: return rebuilt_parameter(arguments);
    case Global::ordered_dict:
      return arguments.empty() ? std::optional<Value>(OrderedDict()) : std::nullopt;
    default: return std::nullopt;
  }
}

/// The machine, as far as one tensor takes it. The first thing that is wrong ends it.
class Reader {
 public:
  explicit Reader(std::string_view pickle) : pickle_(pickle) {}

  Expected<TorchTensor> read() {
    bool goes_on = true;
    while (goes_on && !trouble_) goes_on = step();
    const auto* tensor = as<std::shared_ptr<const TorchTensor>>(stack_, 0);
    if (stack_.size() != 1 || tensor == nullptr || next_ != pickle_.size())
      wrong("holds something other than one tensor");
    if (trouble_) return failure(Errc::bad_format, *trouble_ + std::string(kRemedy));
    return **tensor;
  }

 private:
  /// As Python's pickletools describe them, protocol 2. False: it was the last one.
  bool step() {
    const std::uint64_t instruction = number(1);
    switch (instruction) {
      case 0x80: return protocol(number(1));
      case 'c': return global();
      case 'q': return remember(number(1));
      case 'r': return remember(number(4));
      case 'h': return recall(number(1));
      case 'j': return recall(number(4));
      case '(': return push(Mark());
      case ')': return push_tuple({});
      case 't': return push_tuple(taken_to_mark());
      case 0x85: return push_tuple(taken(1));
      case 0x86: return push_tuple(taken(2));
      case 0x87: return push_tuple(taken(3));
      case 'X': return push(bytes(number(4)));
      case 'K': return push(number(1));
      case 'M': return push(number(2));
      case 'J': return push_signed(number(4), 4);
      case 0x8a: return push_long(number(1));
      case 0x88: return push(true);
      case 0x89: return push(false);
      case 'Q': return push_storage();
      case 'R': return call();
      case '.': return false;
      default: return wrong("holds something other than one tensor");
    }
  }

  bool protocol(std::uint64_t version) {
    return version == 2 || wrong("has a pickle of protocol " + std::to_string(version) +
                                 ", not torch.save()'s own, which is 2");
  }

  /// Always false.
  bool wrong(const std::string& text) {
    if (!trouble_) trouble_ = text;
    return false;
  }

  // -- bytes --------------------------------------------------------------------------------------

  std::string_view bytes(std::uint64_t size) {
    if (size > pickle_.size() - next_) return wrong("has a pickle that was cut"), "";
    const std::string_view taken = pickle_.substr(next_, size);
    next_ += size;
    return taken;
  }

  /// Little endian. 0 behind the end, which is an error.
  std::uint64_t number(std::uint64_t size) {
    const std::string_view taken = bytes(size);
    std::uint64_t value = 0;
    for (std::size_t i = taken.size(); i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }

  std::string_view line() {
    const std::size_t end = std::min(pickle_.find('\n', next_), pickle_.size());
    const std::string_view text = bytes(end - next_);
    bytes(1);
    return text;
  }

  // -- the stack ----------------------------------------------------------------------------------

  bool push(Value value) {
    stack_.push_back(std::move(value));
    return true;
  }

  bool push_signed(std::uint64_t value, std::uint64_t size) {
    if (size != 0 && value >> (8 * size - 1) != 0) return wrong("has a negative number");
    return push(value);
  }

  bool push_long(std::uint64_t size) {
    if (size > sizeof(std::uint64_t))
      return wrong("has a number of " + std::to_string(size) + " bytes");
    return push_signed(number(size), size);
  }

  std::vector<Value> taken(std::size_t count) {
    if (count > stack_.size())
      return wrong("takes what its pickle has not put"), std::vector<Value>();
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<Value> values(std::make_move_iterator(first),
                              std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    return values;
  }

  std::vector<Value> taken_to_mark() {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(), [](const Value& value) {
      return std::holds_alternative<Mark>(value);
    });
    std::vector<Value> values = taken(static_cast<std::size_t>(mark - stack_.rbegin()));
    taken(1);
    return values;
  }

  /// Nothing of a tensor's lies deep: so what frees a tuple does not call itself often.
  bool push_tuple(std::vector<Value> items) {
    int depth = 1;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (const Tuple* within = tuple_in(items, i)) depth = std::max(depth, 1 + within->depth);
    if (depth > kDeepest) return wrong("holds something other than one tensor");
    return push(std::make_shared<const Tuple>(Tuple{std::move(items), depth}));
  }

  std::optional<Value> top() {
    if (stack_.empty()) return wrong("takes what its pickle has not put"), std::nullopt;
    return stack_.back();
  }

  bool remember(std::uint64_t number) {
    if (auto value = top()) memory_[number] = std::move(*value);
    return true;
  }

  bool recall(std::uint64_t number) {
    const auto found = memory_.find(number);
    if (found == memory_.end()) return wrong("takes what its pickle has not put");
    return push(found->second);
  }

  // -- names and calls ----------------------------------------------------------------------------

  bool global() {
    const std::string_view module = line(), name = line();
    if (const auto global = global_of(module, name)) return push(*global);
    return wrong("has " + printable(module, 40) + "." + printable(name, 40) + " in it");
  }

  bool push_storage() {
    const std::vector<Value> ids = taken(1);
    const Tuple* const id = tuple_in(ids, 0);
    const auto storage = id != nullptr ? storage_of(id->items) : std::nullopt;
    return storage ? push(*storage) : wrong("holds something other than one tensor");
  }

  bool call() {
    const std::vector<Value> called = taken(2);
    const auto* global = as<Global>(called, 0);
    const Tuple* const arguments = tuple_in(called, 1);
    std::optional<Value> result;
    if (global != nullptr && arguments != nullptr) result = result_of(*global, arguments->items);
    return result ? push(std::move(*result)) : wrong("holds something other than one tensor");
  }

  const std::string_view pickle_;
  std::size_t next_ = 0;  ///< byte
  std::vector<Value> stack_;
  std::map<std::uint64_t, Value> memory_;
  std::optional<std::string> trouble_;
};

}  // namespace

Expected<TorchTensor> read_torch_pickle(std::string_view pickle) {
  if (pickle.size() > kMostBytes)
    return failure(Errc::bad_format, "has a pickle of " + std::to_string(pickle.size()) +
                                         " bytes, more than one tensor takes" +
                                         std::string(kRemedy));
  return Reader(pickle).read();
}

}  // namespace kvhive
