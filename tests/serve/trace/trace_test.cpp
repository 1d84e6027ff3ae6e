// Spans of requests: whose trace they are in, and what they tell.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/serve/served.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/serve/trace/span_file.hpp"
#include "tools/serve/trace/traceparent.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kParent = "b7ad6b7169203331";

TEST(Traceparent, GivesTraceAndParent) {
  const auto parsed = parse_traceparent("00-" + kTrace + "-" + kParent + "-01");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->trace, kTrace);
  EXPECT_EQ(parsed->parent, kParent);
  EXPECT_TRUE(parse_traceparent("cc-" + kTrace + "-" + kParent + "-00-later")) << "a later version";
}

TEST(Traceparent, WhatIsNotRightIsNone) {
  const std::string zeros(32, '0');
  for (const std::string& wrong :
       {std::string(), std::string("00"), "00-" + kTrace + "-" + kParent,
        "00-" + kTrace + "-" + kParent + "-01-more", "00-" + kTrace + "-" + kParent + "-01 ",
        "ff-" + kTrace + "-" + kParent + "-01", "00-" + zeros + "-" + kParent + "-01",
        "00-" + kTrace + "-" + zeros.substr(16) + "-01", "00_" + kTrace + "-" + kParent + "-01",
        "00-" + kTrace.substr(1) + "X-" + kParent + "-01", "0g-" + kTrace + "-" + kParent + "-01",
        "00-" + kTrace + "-B" + kParent.substr(1) + "-01"})
    EXPECT_FALSE(parse_traceparent(wrong).has_value()) << wrong;
}

TEST(SpanFileTest, AppendsLinesAndKeepsWhatIsThere) {
  const TempDirectory directory;
  directory.write("spans", "old\n");
  const std::string path = (directory.path() / "spans").string();
  {
    const auto file = SpanFile::open(path).value();
    for (int i = 0; i < 100; ++i) file->write(std::to_string(i));
  }
  const std::string all = directory.read("spans");
  EXPECT_TRUE(all.starts_with("old\n0\n1\n2\n"));
  EXPECT_TRUE(all.ends_with("\n98\n99\n"));
}

TEST(SpanFileTest, OnlyARegularFileIsTaken) {
  const TempDirectory directory;
  const std::string fifo = (directory.path() / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, directory.path().string(), fifo + "/none"}) {
    const auto refused = SpanFile::open(path);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().text, HasSubstr("--trace-file '" + path + "'"));
  }
}

class TracedService : public ::testing::Test {
 protected:
  /// Spans in the file, once there are so many.
  std::vector<Json> spans(std::size_t count) {
    std::vector<Json> all;
    EXPECT_TRUE(eventually(
        [&] {
          all.clear();
          std::ifstream file(path_);
          for (std::string line; std::getline(file, line);)
            if (Json::accept(line)) all.push_back(Json::parse(line));
          return all.size() >= count;
        },
        kHang));
    return all;
  }
  static std::string traced(const Json& body, const std::string& traceparent) {
    const std::string text = body.dump();
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ntraceparent: " + traceparent +
           "\r\nX-Request-Id: mine\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" +
           text;
  }

  TempDirectory directory_;
  const std::string path_ = (directory_.path() / "spans").string();
  Daemon daemon_{{"--engines", "1", "--kv-cache-memory-bytes", "8M"}};
  Service service_{daemon_.socket(), {"--trace-file", path_}};
};

TEST_F(TracedService, AnAnswerIsASpanInItsCallersTrace) {
  const Json request = {{"prompt", passage(0, 600)}, {"max_tokens", 5}, {"ignore_eos", true}};
  const std::string parent = "00-" + kTrace + "-" + kParent + "-01";
  ASSERT_EQ(service_.ask(traced(request, parent)).status, 200);
  ASSERT_EQ(service_.ask(traced(request, "nonsense")).status, 200);
  const auto all = spans(2);
  ASSERT_EQ(all.size(), 2u);
  const Json first = all[0], second = all[1];
  EXPECT_EQ(first["trace_id"], kTrace);
  EXPECT_EQ(first["parent_span_id"], kParent);
  EXPECT_EQ(first["status"]["code"], "OK");
  const Json attributes = first["attributes"];
  EXPECT_EQ(attributes["gen_ai.request.id"], "cmpl-mine");
  EXPECT_EQ(attributes["gen_ai.usage.completion_tokens"], 5);
  EXPECT_EQ(attributes["gen_ai.response.finish_reasons"], Json::array({"length"}));
  EXPECT_EQ(attributes["kvhive.usage.cached_tokens"], 0);
  const double whole = attributes["gen_ai.latency.e2e"];
  const double to_first = attributes["gen_ai.latency.time_to_first_token"];
  EXPECT_GT(to_first, 0);
  EXPECT_LE(to_first, whole);
  EXPECT_LT(first["start_time_unix_nano"].get<std::int64_t>(),
            first["end_time_unix_nano"].get<std::int64_t>());

  EXPECT_EQ(second["parent_span_id"], nullptr) << "a trace of its own";
  EXPECT_NE(second["trace_id"], kTrace);
  EXPECT_EQ(second["trace_id"].get<std::string>().size(), 32u);
  EXPECT_NE(second["span_id"], first["span_id"]);
  const Json cached = second["attributes"];
  EXPECT_GT(cached["kvhive.usage.cached_tokens"].get<int>(), 0);
}

TEST_F(TracedService, ARequestWhoseClientGoesIsASpanToo) {
  HttpClient client = service_.connect();
  const Json request = {
      {"prompt", "a"}, {"max_tokens", 3000}, {"ignore_eos", true}, {"stream", true}};
  client.send(traced(request, ""));
  ASSERT_TRUE(client.receive_until("data: "));
  client.close();
  const auto all = spans(1);
  ASSERT_EQ(all.size(), 1u);
  const Json status = all[0]["status"];
  EXPECT_EQ(status["code"], "ERROR");
  EXPECT_EQ(status["message"], "the client has gone");
}

}  // namespace
}  // namespace kvhive::testing
