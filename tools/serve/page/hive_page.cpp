#include "tools/serve/page/hive_page.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include <fmt/format.h>

#include "tools/serve/page/page_files.hpp"
#include "tools/snapshot/process_facts.hpp"

namespace kvhive {
namespace asio = boost::asio;
namespace {

constexpr std::string_view kHive = "/hive.json", kHistory = "/hive/history.json";

/// A little less than the second in which browsers come back, or each would find an old answer.
constexpr std::chrono::milliseconds kFresh{900};
/// Between two readings of a large pool: so many times what the last one took.
constexpr int kPauses = 5;
/// The map's shape: at most so many cells, whatever the pool's size.
constexpr std::size_t kMapColumns = 64, kMapRows = 32;

/// Nothing from elsewhere, no script that is not one of our files, and no frame around the page.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string tag_of(std::string_view body) {
  return fmt::format("\"{:016x}\"", std::hash<std::string_view>()(body));
}

/// Browsers keep the answer, and ask each time whether it is still the same.
void answer_tagged(Exchange& exchange, std::string body, std::string_view type,
                   const std::string& tag) {
  HttpAnswer answer{200, std::move(body), std::string(type), {}};
  answer.headers = {{"ETag", tag},
                    {"Cache-Control", "no-cache"},
                    {"Content-Security-Policy", kPolicy},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (exchange.request().header("If-None-Match") == tag) {
    answer.status = 304;
    answer.body.clear();
    answer.content_type.clear();
  }
  exchange.answer(std::move(answer));
}

const PageFile* file_at(std::string_view path) {
  const auto files = page_files();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [path](const PageFile& file) { return file.path == path; });
  return found != files.end() ? &*found : nullptr;
}

/// "after=17" among the query's fields; else 0, as if nothing were known.
std::uint64_t after_in(std::string_view query) {
  constexpr std::string_view kField = "after=";
  const std::size_t place = query.starts_with(kField) ? 0 : query.find("&after=");
  if (place == std::string_view::npos) return 0;
  query.remove_prefix(place + kField.size() + (place == 0 ? 0 : 1));
  std::uint64_t number = 0;
  std::from_chars(query.data(), query.data() + query.size(), number);
  return number;
}

double seconds_of(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::map<std::uint32_t, ToldEnd> ends_told(const nlohmann::json& status) {
  std::map<std::uint32_t, ToldEnd> ends;
  for (const auto& engine : status.at("engines")) {
    if (!engine.contains("last_end")) continue;
    const auto& told = engine.at("last_end");
    ToldEnd& end = ends[engine.at("engine").get<std::uint32_t>()];
    end.pid = told.at("pid");
    end.unix_ms = told.at("unix_ms");
    if (!told.at("requests").is_null()) end.requests = told.at("requests").get<std::uint64_t>();
    if (!told.at("back_after_ms").is_null())
      end.seconds_until_back = told.at("back_after_ms").get<double>() / 1e3;
  }
  return ends;
}

DaemonView view_of(const PoolLink::Known& known) {
  DaemonView daemon;
  daemon.state = known.keeper_answers ? DaemonState::answering : DaemonState::silent;
  if (known.status) daemon.told_ago = seconds_of(std::chrono::steady_clock::now() - known.told);
  return daemon;
}

}  // namespace

HivePage::HivePage(asio::io_context& loop, PoolLink& link, PageFacts facts)
    : loop_(loop), link_(link), second_(loop, Clock::now()), facts_(std::move(facts)) {
  remember_each_second();
}

HivePage::~HivePage() { making_.join(); }

bool HivePage::has(std::string_view path) const {
  return path == kHive || path == kHistory || file_at(path) != nullptr;
}

void HivePage::answer(const std::shared_ptr<Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  if (path == kHive) return answer_hive(exchange);
  if (path == kHistory) return answer_history(exchange);
  const PageFile& file = *file_at(path);
  answer_tagged(*exchange, std::string(file.content), file.content_type, tag_of(file.content));
}

void HivePage::set_models(std::vector<std::string> names) {
  asio::post(making_, [this, names = std::move(names)] { facts_.models = names; });
}

void HivePage::answer_hive(const std::shared_ptr<Exchange>& exchange) {
  link_.hurry();
  if (made_ != nullptr && Clock::now() < made_->fresh_until)
    return answer_tagged(*exchange, made_->body, "application/json", made_->tag);
  waiting_.push_back(exchange);
  if (waiting_.size() > 1) return;
  asio::post(making_, [this] {
    auto made = std::make_shared<const Made>(make());
    asio::post(loop_, [this, made] {
      made_ = made;
      for (const auto& one : std::exchange(waiting_, {}))
        answer_tagged(*one, made->body, "application/json", made->tag);
    });
  });
}

void HivePage::answer_history(const std::shared_ptr<Exchange>& exchange) {
  asio::post(making_, [this, exchange, after = after_in(exchange->request().query)] {
    auto body = std::make_shared<std::string>(history_.json(after));
    asio::post(loop_, [exchange, body] {
      const std::string tag = tag_of(*body);
      answer_tagged(*exchange, std::move(*body), "application/json", tag);
    });
  });
}

void HivePage::remember_each_second() {
  asio::post(making_, [this] { remember(); });
  second_.expires_at(std::max(second_.expiry() + std::chrono::seconds(1), Clock::now()));
  second_.async_wait([this](boost::system::error_code ended) {
    if (!ended) remember_each_second();
  });
}

HivePage::Made HivePage::make() {
  const auto begun = Clock::now();
  Made made;
  made.body = hive_json(look(), facts_);
  made.tag = tag_of(made.body);
  const auto now = Clock::now();
  made.fresh_until = now + std::max<Clock::duration>(kFresh, kPauses * (now - begun));
  return made;
}

HiveMoment HivePage::look() {
  const PoolLink::Known known = link_.known();
  HiveMoment moment;
  if (known.memory == nullptr) {
    last_.reset();
    moment.sight = known.is_refused ? HiveSight::refused : HiveSight::no_daemon;
    moment.trouble = known.trouble;
    return moment;
  }
  static const nlohmann::json kNothing = nlohmann::json::object();
  static constexpr std::array<MapBy, names_of(MapBy{}).size()> kViews = {
      MapBy::state, MapBy::owner, MapBy::domain, MapBy::age, MapBy::sharing, MapBy::tier};
  const PoolMemory& memory = *known.memory;
  moment.sight = HiveSight::reading;
  moment.snapshot = take_snapshot(memory, known.status ? *known.status : kNothing, view_of(known),
                                  seconds_of(Clock::now().time_since_epoch()));
  moment.maps = map_pool(memory, moment.snapshot->names, kViews,
                         blocks_per_cell(memory.geometry(), kMapColumns, kMapRows));
  if (last_) moment.rates = rates_between(*last_, *moment.snapshot);
  last_ = *moment.snapshot;
  return moment;
}

/// A dead engine has its slot until it is reaped, which takes as long as the keeper is stopped.
/// Only what was seen alive before is believed to be dead: processes of another PID namespace never
/// are.
void HivePage::leave_out_dead(Statistics& statistics) {
  std::set<pid_t> seen;
  std::erase_if(statistics.processes, [&](const ProcessReport& process) {
    const auto pid = static_cast<pid_t>(process.pid);
    const auto facts = facts_of(pid);
    const bool is_alive = facts && !facts->has_ended();
    if (is_alive || seen_.contains(pid)) seen.insert(pid);
    return seen.contains(pid) && !is_alive;
  });
  seen_ = std::move(seen);
}

void HivePage::remember() {
  HiveReading reading;
  reading.seconds = seconds_of(Clock::now().time_since_epoch());
  reading.unix_time = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  if (const PoolLink::Known known = link_.known(); known.memory != nullptr) {
    reading.epoch = epoch_of(*known.memory);
    reading.statistics = read_statistics(*known.memory);
    leave_out_dead(reading.statistics);
    reading.tiers = count_blocks(*known.memory).tiers;
    if (known.status) reading.told_ends = ends_told(*known.status);
  }
  history_.add(std::move(reading));
}

}  // namespace kvhive
