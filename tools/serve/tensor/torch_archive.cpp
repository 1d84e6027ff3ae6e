#include "tools/serve/tensor/torch_archive.hpp"

#include <zip.h>

#include <utility>

#include "base/json_file.hpp"

namespace kvhive {
namespace {

/// One tensor's has seven.
constexpr std::int64_t kMostEntries = 64;

struct CloseEntry {
  void operator()(zip_file_t* entry) const { zip_fclose(entry); }
};

tl::unexpected<Error> broken(const std::string& name, const std::string& what) {
  return failure(Errc::bad_format, "has " + printable(name, 40) + " in its archive, which " + what +
                                       "; send what torch.save() writes, whole and unchanged");
}

}  // namespace

void TorchArchive::Close::operator()(zip* archive) const { zip_discard(archive); }

Expected<TorchArchive> TorchArchive::open(std::span<const std::byte> bytes) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  std::unique_ptr<zip, Close> archive(
      source != nullptr ? zip_open_from_source(source, ZIP_RDONLY, &error) : nullptr);
  const std::string why = zip_error_strerror(&error);
  zip_error_fini(&error);
  if (!archive) {
    if (source != nullptr) zip_source_free(source);  // an archive has its source
    return failure(Errc::bad_format, "has " + std::to_string(bytes.size()) +
                                         " bytes that are no archive of torch.save() (" + why +
                                         "); send what that writes, as base64");
  }
  const std::int64_t entries = zip_get_num_entries(archive.get(), 0);
  if (entries < 1 || entries > kMostEntries)
    return failure(Errc::bad_format, "is an archive of " + std::to_string(entries) +
                                         " entries; send torch.save() of one tensor");
  const char* const first = zip_get_name(archive.get(), 0, ZIP_FL_ENC_RAW);
  const std::string name = first != nullptr ? first : "";
  return TorchArchive(std::move(archive), name.substr(0, name.find('/')) + "/");
}

/// Negative = there is none.
std::int64_t TorchArchive::place_of(const std::string& name) const {
  return zip_name_locate(archive_.get(), (folder_ + name).c_str(), ZIP_FL_ENC_RAW);
}

bool TorchArchive::has(const std::string& name) const { return place_of(name) >= 0; }

/// Read to the end and once more, where libzip compares the checksum.
Expected<std::vector<std::byte>> TorchArchive::read(const std::string& name,
                                                    std::uint64_t most) const {
  const std::int64_t place = place_of(name);
  if (place < 0)
    return failure(Errc::bad_format, "is an archive without " + printable(name, 40) +
                                         "; send what torch.save() writes of one tensor");
  const auto index = static_cast<std::uint64_t>(place);
  zip_stat_t stat;
  zip_stat_init(&stat);
  constexpr std::uint64_t kNeeded =
      ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if (zip_stat_index(archive_.get(), index, 0, &stat) != 0 || (stat.valid & kNeeded) != kNeeded)
    return broken(name, "cannot be read");
  if (stat.comp_method != ZIP_CM_STORE || stat.encryption_method != ZIP_EM_NONE ||
      stat.comp_size != stat.size)
    return broken(name, "is compressed or encrypted");
  if (stat.size > most)
    return broken(name,
                  "has " + std::to_string(stat.size) + " bytes, more than " + std::to_string(most));
  const std::unique_ptr<zip_file_t, CloseEntry> entry(zip_fopen_index(archive_.get(), index, 0));
  if (!entry) return broken(name, "cannot be read");
  std::vector<std::byte> bytes(stat.size);
  std::uint64_t got = 0;
  while (got < stat.size) {
    const std::int64_t more = zip_fread(entry.get(), bytes.data() + got, stat.size - got);
    if (more <= 0) return broken(name, "was cut");
    got += static_cast<std::uint64_t>(more);
  }
  char behind = 0;
  if (zip_fread(entry.get(), &behind, 1) != 0) return broken(name, "does not fit its checksum");
  return bytes;
}

}  // namespace kvhive
