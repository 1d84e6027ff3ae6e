#include "models/fingerprint.hpp"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/memory/mapped_file.hpp"
#include "models/safetensors.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kWhole = std::size_t{1}
                               << 20;  ///< files up to this size, and headers, are hashed entirely
constexpr std::size_t kSample = 4096;
constexpr std::size_t kSmallTensor = 256;  ///< bytes of a tensor that is hashed entirely
constexpr std::size_t kSamples = 64;

void add(XXH3_state_t* state, std::span<const std::byte> bytes) {
  XXH3_64bits_update(state, bytes.data(), bytes.size());
}

void add_file(XXH3_state_t* state, std::span<const std::byte> file) {
  const std::uint64_t size = file.size();
  XXH3_64bits_update(state, &size, sizeof size);
  add(state, file.first(std::min(file.size(), kWhole)));
  if (file.size() <= kWhole) return;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::size_t offset = (file.size() - kSample) / kSamples * i;
    add(state, file.subspan(offset, kSample));
  }
  add(state, file.last(kSample));
  // A file that cannot be read is refused when the model is loaded.
  const auto tensors = parse_safetensors(file, "");
  if (!tensors) return;
  for (const auto& [name, entry] : *tensors)
    if (entry.bytes.size() <= kSmallTensor) add(state, entry.bytes);
}

}  // namespace

Expected<std::vector<std::filesystem::path>> weight_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  if (error)
    return failure(Errc::not_found,
                   "model directory " + directory.string() + ": " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

Expected<std::uint64_t> model_fingerprint(const std::filesystem::path& directory) {
  auto files = weight_files(directory);
  if (!files) return forward_error(files);
  files->insert(files->begin(), directory / "config.json");

  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const auto& path : *files) {
    auto file = MappedFile::open(path);
    if (!file) return forward_error(file);
    add_file(state.get(), file->bytes());
  }
  return XXH3_64bits_digest(state.get());
}

std::uint64_t with_arithmetic(std::uint64_t fingerprint, std::string_view arithmetic) {
  return XXH3_64bits_withSeed(arithmetic.data(), arithmetic.size(), fingerprint);
}

Expected<std::uint64_t> with_adapter(std::uint64_t fingerprint, const std::string& name,
                                     const std::filesystem::path& directory) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), &fingerprint, sizeof fingerprint);
  const std::uint64_t length = name.size();
  XXH3_64bits_update(state.get(), &length, sizeof length);
  XXH3_64bits_update(state.get(), name.data(), name.size());
  for (const char* part : {"adapter_config.json", "adapter_model.safetensors"}) {
    auto file = MappedFile::open(directory / part);
    if (!file) return forward_error(file);
    const std::uint64_t size = file->bytes().size();
    XXH3_64bits_update(state.get(), &size, sizeof size);
    add(state.get(), file->bytes());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace kvhive
