#include "tools/serve/metrics/metrics.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace kvhive {
namespace asio = boost::asio;
namespace {

/// "view=host" among the query's fields.
Expected<MetricsView> view_in(std::string_view query) {
  constexpr std::string_view kField = "view=";
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (!field.starts_with(kField)) continue;
    constexpr auto kNames = names_of(MetricsView{});
    const std::string_view value = field.substr(kField.size());
    const auto found = std::find(kNames.begin(), kNames.end(), value);
    if (found == kNames.end())
      return failure(Errc::bad_argument, "view: there is no '" + std::string(value) +
                                             "'; give engines, host or service\n");
    return MetricsView(found - kNames.begin());
  }
  return MetricsView::engines;
}

}  // namespace

Metrics::Metrics(asio::io_context& loop, PoolLink& link, std::string model, OldNames old_names,
                 std::function<ServiceNumbers()> numbers)
    : loop_(loop),
      model_(std::move(model)),
      old_names_(old_names),
      numbers_(std::move(numbers)),
      link_(link) {}

Metrics::~Metrics() { making_.join(); }

void Metrics::answer(const std::shared_ptr<Exchange>& exchange) {
  const auto view = view_in(exchange->request().query);
  if (!view) return exchange->answer({400, view.error().text, "text/plain", {}});
  asio::post(
      making_, [this, exchange, view = *view, model = model_, numbers = numbers_()]() mutable {
        auto text = std::make_shared<std::string>(make(view, std::move(model), std::move(numbers)));
        asio::post(loop_, [exchange, text] {
          exchange->answer({200, std::move(*text), "text/plain; version=0.0.4; charset=utf-8", {}});
        });
      });
}

std::string Metrics::make(MetricsView view, std::string model, ServiceNumbers numbers) {
  MetricsPage page;
  page.view = view;
  page.old_names = old_names_;
  page.model = std::move(model);
  page.service = std::move(numbers);
  PoolLink::Known known = link_.known();
  page.keeper_answers = known.keeper_answers;
  page.keeper = std::move(known.keeper);
  if (known.memory != nullptr && view != MetricsView::service) {
    const PoolMemory& memory = *known.memory;
    const Scan& scanned = scan(known.memory);
    page.pool = PoolNumbers{memory.geometry(), epoch_of(memory), read_statistics(memory),
                            scanned.blocks,    scanned.index,    memory.resets().value};
    // A domain that is new has its name in the next answer of the keeper.
    const auto& domains = scanned.blocks.domains;
    if (!domains.empty() && domains.rbegin()->first.value >= page.keeper.domains.size())
      link_.hurry();
    if (known.status) page.pool->states = states_of(*known.status, page.pool->statistics.processes);
  }
  return page.text();
}

const Metrics::Scan& Metrics::scan(const std::shared_ptr<const PoolMemory>& memory) {
  const auto now = std::chrono::steady_clock::now();
  if (scan_.memory.lock() != memory || now - scan_.made > std::chrono::seconds(1))
    scan_ = {memory, now, count_blocks(*memory), count_marks(*memory)};
  return scan_;
}

}  // namespace kvhive
