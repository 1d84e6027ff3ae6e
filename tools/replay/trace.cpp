#include "tools/replay/trace.hpp"

#include <zlib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace kvhive {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostBlocks = 1u << 24;

tl::unexpected<Error> bad(const std::string& what) { return failure(Errc::bad_format, what); }

Expected<std::uint64_t> number_of(const Json& value, const std::string& name) {
  if (!value.is_number() || value.get<double>() < 0)
    return bad("'" + name + "' is not a number of at least 0");
  return value.get<std::uint64_t>();
}

/// [first id, count]
Expected<void> add_run(std::vector<std::uint64_t>& content, const Json& run) {
  if (!run.is_array() || run.size() != 2)
    return bad("'id_runs' has an entry that is not [first id, count]");
  auto first = number_of(run[0], "id_runs"), count = number_of(run[1], "id_runs");
  if (!first) return forward_error(first);
  if (!count) return forward_error(count);
  if (*count > kMostBlocks)
    return bad("'id_runs' has a run of " + std::to_string(*count) + " blocks; at most " +
               std::to_string(kMostBlocks) + " are read");
  for (std::uint64_t id = *first; id < *first + *count; ++id) content.push_back(id);
  return {};
}

Expected<std::vector<std::uint64_t>> content_of(const Json& line) {
  const bool has_ids = line.contains("hash_ids");
  const Json list = has_ids ? line.at("hash_ids") : line.value("id_runs", Json());
  if (!list.is_array()) return bad("there is no list 'hash_ids' or 'id_runs'");
  std::vector<std::uint64_t> content;
  for (const Json& entry : list) {
    if (!has_ids) {
      if (auto added = add_run(content, entry); !added) return forward_error(added);
      continue;
    }
    auto id = number_of(entry, "hash_ids");
    if (!id) return forward_error(id);
    content.push_back(*id);
  }
  return content;
}

Expected<TraceRequest> parse_request(const std::string& text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object()) return bad("is not a JSON object");
  if (!line.contains("input_length")) return bad("there is no number 'input_length'");
  auto input = number_of(line["input_length"], "input_length");
  auto output = number_of(line.value("output_length", Json(0)), "output_length");
  auto content = content_of(line);
  if (!input) return forward_error(input);
  if (!output) return forward_error(output);
  if (!content) return forward_error(content);
  const Json session = line.value("session", Json());
  return TraceRequest{*input, *output, std::move(*content),
                      session.is_null()     ? ""
                      : session.is_string() ? session.get<std::string>()
                                            : session.dump()};
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
    auto request = parse_request(line);
    if (!request)
      return bad(path.string() + " line " + std::to_string(number) + ": " + request.error().text);
    requests.push_back(std::move(*request));
  }
  if (requests.empty())
    return failure(Errc::bad_format, "trace " + path.string() + " holds no request");
  return requests;
}

}  // namespace kvhive
