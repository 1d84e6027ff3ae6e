#include "tools/serve/chat/template_renderer.hpp"

#include <utility>

namespace kvhive {
namespace {

/// A request larger than this takes longer to render than others should wait: milliseconds.
constexpr std::size_t kLongBytes = 64 << 10;

std::string config_of(const ChatTemplate& chat) {
  return nlohmann::json{{"templates", chat.by_use}, {"tokenizer", chat.special_tokens}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

TemplateRenderer::TemplateRenderer(boost::asio::io_context& loop, const ChatTemplate& chat)
    : short_(std::make_shared<TemplateProcess>(loop, config_of(chat))),
      long_(std::make_shared<TemplateProcess>(loop, config_of(chat))) {
  short_->start();
}

TemplateRenderer::~TemplateRenderer() {
  short_->stop();
  long_->stop();
}

void TemplateRenderer::render(const Turn& turn, std::string request,
                              TemplateProcess::IsWanted is_wanted, TemplateProcess::Answer answer) {
  const auto& process = request.size() > kLongBytes ? long_ : short_;
  process->render(turn, {std::move(request), std::move(is_wanted), std::move(answer)});
}

}  // namespace kvhive
