#include "tools/serve/metrics/exposition.hpp"

#include <gtest/gtest.h>

#include "tests/serve/metrics/exposition_parser.hpp"

namespace kvhive::testing {
namespace {

TEST(Exposition, IsTheTextThatTheFormatSays) {
  Exposition out;
  out.family("a_total", MetricType::counter, "first\nsecond \\ \"third\"");
  out.sample({}, std::uint64_t{18'446'744'073'709'551'615u});
  out.sample({{"x", "1"}, {"y", ""}}, std::uint64_t{0});
  out.family("b:c", MetricType::gauge, "");
  out.sample({}, 0.25);
  EXPECT_EQ(out.take(),
            "# HELP a_total first\\nsecond \\\\ \"third\"\n"
            "# TYPE a_total counter\n"
            "a_total 18446744073709551615\n"
            "a_total{x=\"1\",y=\"\"} 0\n"
            "# HELP b:c \n"
            "# TYPE b:c gauge\n"
            "b:c 0.25\n");
}

TEST(Exposition, LabelValuesComeBackAsTheyWere) {
  const std::string nasty = "a\\n\"b\"\n{},= \\ \xc3\xa4";
  Exposition out;
  out.family("a", MetricType::gauge, "help");
  out.sample({{"name", nasty}}, 1.0);
  const MetricsText text(out.take());
  EXPECT_EQ(text.families().at("a").samples.at(0).labels.at("name"), nasty);
}

TEST(Exposition, BucketsAreCumulativeAndInfinityIsTheCount) {
  const std::uint64_t edges[] = {1'000'000, 500'000'000, 1'000'000'000};
  const std::uint64_t buckets[] = {2, 0, 3, 4};
  const HistogramInfo info{"h", HistogramUnit::nanoseconds, "help", edges};
  Exposition out;
  out.family("h", MetricType::histogram, "help");
  out.histogram({{"engine", "0"}}, info, {buckets, 12'000'000'345});
  const std::string text = out.take();
  EXPECT_EQ(text,
            "# HELP h help\n# TYPE h histogram\n"
            "h_bucket{engine=\"0\",le=\"0.001\"} 2\n"
            "h_bucket{engine=\"0\",le=\"0.5\"} 2\n"
            "h_bucket{engine=\"0\",le=\"1.0\"} 5\n"
            "h_bucket{engine=\"0\",le=\"+Inf\"} 9\n"
            "h_sum{engine=\"0\"} 12.000000345\n"
            "h_count{engine=\"0\"} 9\n");
  EXPECT_NO_THROW(MetricsText{text});
}

TEST(Exposition, AHistogramOfTokensHasItsSumInTokens) {
  const std::uint64_t edges[] = {1, 500'000};
  const std::uint64_t buckets[] = {1, 1, 0};
  Exposition out;
  out.family("h", MetricType::histogram, "help");
  out.histogram({}, {"h", HistogramUnit::tokens, "help", edges}, {buckets, 8});
  EXPECT_EQ(out.take(),
            "# HELP h help\n# TYPE h histogram\nh_bucket{le=\"1.0\"} 1\n"
            "h_bucket{le=\"500000.0\"} 2\nh_bucket{le=\"+Inf\"} 2\nh_sum 8\nh_count 2\n");
}

/// The edges of all histograms are written as numbers that a reader takes for the same.
TEST(Exposition, EveryEdgeIsANumberOfItsOwn) {
  Exposition out;
  const HistogramValues none;
  for (std::size_t i = 0; i < kHistograms.size(); ++i) {
    out.family(kHistograms[i].name, MetricType::histogram, "");
    out.histogram({}, kHistograms[i], none.at(i));
  }
  const MetricsText text(out.take());
  EXPECT_EQ(text.count("time_to_first_token_seconds_bucket", {{"le", "0.001"}}), 1u);
  EXPECT_EQ(text.count("e2e_request_latency_seconds_bucket", {{"le", "7680.0"}}), 1u);
  EXPECT_EQ(text.count("inter_token_latency_seconds_bucket", {{"le", "0.00025"}}), 1u);
}

TEST(ExpositionParser, RefusesWhatTheFormatForbids) {
  const std::string head = "# HELP a x\n# TYPE a gauge\n";
  const std::string histogram = "# HELP h x\n# TYPE h histogram\n";
  for (const std::string& wrong :
       {std::string("a 1\n"), head + "a 1", head + "b 1\n", head + "a{x=1} 1\n",
        head + "a{x=\"\\t\"} 1\n", head + "a{x=\"1} 1\n", head + "a{x=\"1\",x=\"2\"} 1\n",
        head + "a one\n", head + "a 1\na 1\n", head + "a 1\n" + head,
        std::string("# HELP a x\n# TYPE a counter\n"),
        histogram + "h_bucket{le=\"1.0\"} 1\nh_sum 1\nh_count 1\n",
        histogram + "h_bucket{le=\"1.0\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        histogram + "h_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
        histogram + "h_bucket{le=\"+Inf\"} 1\nh_count 1\n"})
    EXPECT_THROW(MetricsText{wrong}, std::runtime_error) << wrong;
  EXPECT_NO_THROW(MetricsText{head + "a{x=\"1\"} 1\na 1\n"});
}

}  // namespace
}  // namespace kvhive::testing
