#include "tools/serve/chat/template_renderer.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Rendered = tl::expected<std::string, ApiError>;

class RendererTest : public ::testing::Test {
 protected:
  void make(const std::string& text) {
    renderer_.emplace(loop_, ChatTemplate{{{"default", text}}, {{"bos_token", "<s>"}}});
  }
  /// Renders one message; `further` are further fields of the request.
  Rendered render(Json further = Json::object(), const std::string& content = "hé") {
    Json request = {{"messages", {{{"role", "user"}, {"content", content}}}}};
    request.update(further);
    return render_text(request.dump());
  }
  Rendered render_text(const std::string& request) {
    std::optional<Rendered> result;
    renderer_->render(
        {}, request, [] { return true; }, [&](Rendered text) { result = text; });
    while (!result) loop_.run_one();
    return *result;
  }
  /// Children of this process that run Python.
  static std::vector<pid_t> children() {
    std::vector<pid_t> found;
    const std::string list = "/proc/self/task/" + std::to_string(gettid()) + "/children";
    std::ifstream file(list);
    for (pid_t pid; file >> pid;) found.push_back(pid);
    return found;
  }
  static std::string status_of(pid_t pid, const std::string& field) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(field + ":")) return line.substr(line.find_last_of(" \t") + 1);
    return "";
  }

  boost::asio::io_context loop_;
  std::optional<TemplateRenderer> renderer_;
};

TEST_F(RendererTest, RendersAsTransformersDoes) {
  make(
      "{{ bos_token }}{% for m in messages %}\n  {{ m.content }}|{{ m | tojson }}\n{% endfor %}"
      "{{ {'a<': 1.0} | tojson }}{% generation %}x{% endgeneration %}");
  EXPECT_EQ(*render(), "<s>  hé|{\"role\": \"user\", \"content\": \"hé\"}\n{\"a<\": 1.0}x");
}

TEST_F(RendererTest, ArgumentsOfCallsAreObjects) {
  make("{{ messages[0].tool_calls[0].function.arguments.city }}|{{ messages[0].content }}|");
  const Json call = {{"id", "1"},
                     {"type", "function"},
                     {"function", {{"name", "f"}, {"arguments", R"({"city": "Rome"})"}}}};
  const Json message = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}};
  EXPECT_EQ(*render({{"messages", {message}}}), "Rome||");
}

TEST_F(RendererTest, PartsOfAContentAreJoinedUnlessTheTemplateGoesThroughThem) {
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  const Json request = {{"messages", {{{"role", "user"}, {"content", parts}}}}};
  make("{{ messages[0].content }}");
  EXPECT_EQ(*render(request), "a\nb");
  make(
      "{% for m in messages %}{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endfor "
      "%}");
  EXPECT_EQ(*render(request), "[a][b]");
  EXPECT_EQ(*render(), "[hé]");
  make(
      "{% for m in messages %}{% set c = m.content %}{% for part in c %}[{{ part.text }}]{% endfor "
      "%}{% endfor %}");
  EXPECT_EQ(*render(request), "[a][b]");
}

TEST_F(RendererTest, TheLastMessageMayBeContinued) {
  make(
      "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_EQ(*render(), "<user>hé</><assistant>");
  EXPECT_EQ(*render({{"add_generation_prompt", false}}), "<user>hé</>");
  EXPECT_EQ(*render({{"continue_final_message", true}}, "and "), "<user>and");
  EXPECT_THAT(
      render({{"continue_final_message", true}, {"add_generation_prompt", true}}).error().text,
      HasSubstr("are both true"));
}

TEST_F(RendererTest, WhatIsWrongIsTheCallersError) {
  make(
      "{% if kind == 'refuse' %}{{ raise_exception('no system role') }}{% endif %}"
      "{% if kind == 'fail' %}{{ 1 + 'a' }}{% endif %}{{ messages[0].content }}");
  const auto with = [](const std::string& kind) {
    return Json{{"chat_template_kwargs", {{"kind", kind}}}};
  };
  EXPECT_THAT(render(with("refuse")).error().text, HasSubstr("no system role"));
  EXPECT_THAT(render(with("fail")).error().text, HasSubstr("TypeError"));
  const Json image = {{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}};
  const Json messages = {{{"role", "user"}, {"content", image}}};
  EXPECT_THAT(render({{"messages", messages}}).error().text, HasSubstr("'image_url'"));
  EXPECT_THAT(render({{"messages", {{{"content", "a"}}}}}).error().text, HasSubstr("messages[0]"));
  EXPECT_EQ(*render(), "hé");
}

/// make beside-openai RECORD=1 has written what transformers gives.
TEST_F(RendererTest, RendersWhatTransformersHasRendered) {
  // The order of keys is part of a prompt.
  const auto recorded = nlohmann::ordered_json::parse(std::ifstream(KVHIVE_RENDERED));
  ASSERT_GE(recorded["rendered"].size(), 40u);
  std::string last;
  for (const auto& one : recorded["rendered"]) {
    const std::string file = one["template"];
    if (std::exchange(last, file) != file) {
      std::stringstream text;
      text << std::ifstream(KVHIVE_TEMPLATES "/" + file).rdbuf();
      renderer_.emplace(loop_, ChatTemplate{{{"default", text.str()}}, recorded["special_tokens"]});
    }
    const Rendered rendered = render_text(one["request"].dump());
    const std::string what = file + ": " + one["request"]["name"].get<std::string>();
    if (one["text"].is_null())
      EXPECT_FALSE(rendered.has_value()) << what;
    else
      EXPECT_EQ(rendered.value_or("refused"), one["text"].get<std::string>()) << what;
  }
}

/// A template that does not come to an end costs its request, and nobody else's.
TEST_F(RendererTest, ATemplateThatComputesForTooLongIsEnded) {
  make(
      "{% if spin %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
      "{% endif %}fine");
  const Rendered ended = render({{"chat_template_kwargs", {{"spin", true}}}});
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().status, 400);
  EXPECT_THAT(ended.error().text, HasSubstr("more than 5 s"));
  EXPECT_EQ(*render(), "fine");
}

TEST_F(RendererTest, ATemplateHasItsPartOfTheMemoryOnly) {
  make("{% if large %}{{ 'a' * 10 ** 10 }}{% endif %}fine");
  EXPECT_THAT(render({{"chat_template_kwargs", {{"large", true}}}}).error().text,
              HasSubstr("512 MiB"));
  EXPECT_EQ(*render(), "fine");
}

/// The sandbox of Jinja2 has had holes. Behind it is nothing that could be reached.
TEST_F(RendererTest, ItsProcessCanOnlyCompute) {
  make("fine");
  ASSERT_EQ(*render(), "fine");
  const auto processes = children();
  ASSERT_EQ(processes.size(), 1u);
  EXPECT_EQ(status_of(processes.front(), "Seccomp"), "2") << "no list of system calls";
  EXPECT_EQ(status_of(processes.front(), "NoNewPrivs"), "1");
  std::size_t descriptors = 0;
  const std::filesystem::path fds = "/proc/" + std::to_string(processes.front()) + "/fd";
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(fds)) ++descriptors;
  EXPECT_LE(descriptors, 4u) << "it has inherited descriptors";
}

TEST_F(RendererTest, AKilledProcessIsReplaced) {
  make("fine");
  ASSERT_EQ(*render(), "fine");
  std::optional<Rendered> lost;
  const auto processes = children();
  ASSERT_EQ(processes.size(), 1u);
  kill(processes.front(), SIGSTOP);
  renderer_->render(
      {}, R"({"messages": [{"role": "user"}]})", [] { return true; },
      [&](Rendered text) { lost = text; });
  kill(processes.front(), SIGKILL);
  while (!lost) loop_.run_one();
  ASSERT_FALSE(lost->has_value());
  EXPECT_EQ(lost->error().status, 500);
  EXPECT_EQ(*render(), "fine");
}

/// As pyenv and active virtual environments have it.
TEST_F(RendererTest, AnotherPythonThatComesFirstInPathChangesNothing) {
  namespace fs = std::filesystem;
  const TempDirectory other;
  const std::string version = fs::read_symlink("/usr/bin/python3").filename();
  fs::create_directories(other.path() / "bin");
  fs::create_directories(other.path() / "lib");
  fs::copy_file("/usr/bin/python3", other.path() / "bin/python3");
  fs::create_directory_symlink("/usr/lib/" + version, other.path() / "lib" / version);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (other.path().string() + "/bin:" + path).c_str(), 1);
  make("fine");
  const Rendered rendered = render();
  setenv("PATH", path.c_str(), 1);
  ASSERT_TRUE(rendered.has_value()) << rendered.error().text;
  EXPECT_EQ(*rendered, "fine");
}

TEST_F(RendererTest, AWrongTemplateIsNamedWithItsLine) {
  make("fine\n{% if %}");
  const Rendered refused = render();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().status, 501);
  EXPECT_THAT(refused.error().text, HasSubstr("line 2"));
}

/// Nothing is rendered for who has gone, and the others have their turn.
TEST_F(RendererTest, WhoHasGoneIsPassedOver) {
  make("{{ messages[0].content }}");
  bool was_told = false;
  for (int i = 0; i < 3; ++i)
    renderer_->render(
        {}, R"({"messages": [{"role": "user"}]})", [] { return false; },
        [&](const Rendered&) { was_told = true; });
  EXPECT_EQ(*render(), "hé");
  EXPECT_FALSE(was_told);
}

TEST_F(RendererTest, LongRequestsAreRenderedBesideShortOnes) {
  make("{{ messages[0].content | length }}");
  EXPECT_EQ(*render(Json::object(), std::string(200'000, 'a')), "200000");
  EXPECT_EQ(*render(), "2");
  EXPECT_EQ(children().size(), 2u);
}

}  // namespace
}  // namespace kvhive
