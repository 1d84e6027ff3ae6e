#include "tools/serve/access/api_keys.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "base/log.hpp"
#include "config/domains/domain_name.hpp"

namespace kvhive {
namespace {

/// Each has channels of its own.
constexpr std::size_t kMostDomains = 64;

Error error_in(const std::string& path, std::size_t line, const std::string& text) {
  return {Errc::bad_argument, "--api-key-file: " + path + ":" + std::to_string(line) + ": " + text};
}

/// Takes as long for a wrong key as for the right one.
bool are_equal(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

}  // namespace

Expected<ApiKeys> ApiKeys::load(const std::string& path) {
  struct stat file {};
  std::ifstream stream(path);
  if (!stream || stat(path.c_str(), &file) != 0)
    return failure(Errc::not_found, "--api-key-file: '" + path + "' cannot be read (" +
                                        std::strerror(errno) +
                                        "); give a file with one KEY or KEY DOMAIN a line");
  if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return failure(Errc::bad_argument, "--api-key-file: others than its owner may write to '" +
                                           path + "', and so add keys; chmod 600 " + path);
  // No error: secrets that container platforms mount are so.
  if ((file.st_mode & S_IROTH) != 0)
    spdlog::warn("--api-key-file: everybody on this machine may read '{}'; chmod 600 it", path);
  return parse({std::istreambuf_iterator<char>(stream), {}}, path);
}

Expected<ApiKeys> ApiKeys::parse(const std::string& text, const std::string& path) {
  ApiKeys keys;
  std::map<std::string, std::size_t> line_of;
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    Key key;
    std::string more;
    if (!(words >> key.text) || key.text.front() == '#') continue;
    words >> key.domain;
    if (words >> more)
      return tl::unexpected(error_in(path, number,
                                     "there is more than a key and a domain; write KEY or KEY "
                                     "DOMAIN, and a comment on a line of its own"));
    if (!key.domain.empty() && !is_domain_name(key.domain))
      return tl::unexpected(
          error_in(path, number,
                   "'" + key.domain + "' is no name of a domain; those have " + kDomainNameRule));
    const auto [first, is_new] = line_of.emplace(key.text, number);
    if (!is_new)
      return tl::unexpected(error_in(
          path, number,
          "this key is in line " + std::to_string(first->second) + " already; remove one"));
    key.number = keys.keys_.size() + 1;
    keys.keys_.push_back(std::move(key));
  }
  if (keys.empty())
    return failure(Errc::not_found,
                   "--api-key-file: '" + path + "' has no key; give one KEY or KEY DOMAIN a line");
  if (keys.domains().size() > kMostDomains)
    return failure(Errc::bad_argument, "--api-key-file: '" + path + "' names " +
                                           std::to_string(keys.domains().size()) +
                                           " domains; one service takes " +
                                           std::to_string(kMostDomains) + ", run several");
  return keys;
}

const ApiKeys::Key* ApiKeys::find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";  // in any case (RFC 9110, 11.1)
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  if (authorization.size() < kScheme.size() ||
      !std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, {}, lower))
    return nullptr;
  const Key* found = nullptr;
  for (const Key& key : keys_)
    if (are_equal(authorization.substr(kScheme.size()), key.text)) found = &key;
  return found;
}

std::vector<std::string> ApiKeys::domains() const {
  if (keys_.empty()) return {""};
  std::set<std::string> names;
  for (const Key& key : keys_) names.insert(key.domain);
  return {names.begin(), names.end()};
}

}  // namespace kvhive
