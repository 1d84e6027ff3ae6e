#include "tools/replay/trace.hpp"

#include <zlib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace kvhive {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostBlocks = 1u << 24;

std::vector<std::uint64_t> content_of(const Json& line) {
  if (line.contains("hash_ids")) return line.at("hash_ids").get<std::vector<std::uint64_t>>();
  std::vector<std::uint64_t> content;
  for (const Json& run : line.at("id_runs")) {
    const auto first = run.at(0).get<std::uint64_t>(), count = run.at(1).get<std::uint64_t>();
    if (count > kMostBlocks)
      throw std::out_of_range("a run of " + std::to_string(count) + " blocks");
    for (std::uint64_t id = first; id < first + count; ++id) content.push_back(id);
  }
  return content;
}

}  // namespace

Expected<std::vector<TraceRequest>> read_trace(const std::filesystem::path& path,
                                               std::size_t limit) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file)
    return failure(
        Errc::not_found,
        "trace " + path.string() + " cannot be opened; give the path of a .jsonl or .jsonl.gz");
  std::vector<TraceRequest> requests;
  std::string line;
  for (std::size_t number = 1; limit == 0 || requests.size() < limit; ++number) {
    line.clear();
    char piece[1 << 16];
    while (gzgets(file.get(), piece, sizeof piece) != nullptr) {
      line += piece;
      if (line.back() == '\n') break;
    }
    if (line.empty()) break;
    try {
      const Json parsed = Json::parse(line);
      requests.push_back({parsed.at("input_length").get<std::uint64_t>(),
                          parsed.value("output_length", std::uint64_t{0}), content_of(parsed)});
    } catch (const std::exception& exception) {
      return failure(Errc::bad_format,
                     path.string() + " line " + std::to_string(number) + ": " + exception.what());
    }
  }
  if (requests.empty())
    return failure(Errc::bad_format, "trace " + path.string() + " holds no request");
  return requests;
}

}  // namespace kvhive
