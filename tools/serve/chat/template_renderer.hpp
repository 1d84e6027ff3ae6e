#pragma once
// Renders a model's chat template in processes of its own (render_chat.py): a template comes with a
// model and is a program. There it has limits of memory and time and cannot reach files, network or
// other processes. One process renders short requests, another long ones, which take longer.

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "tools/serve/chat/chat_template.hpp"
#include "tools/serve/chat/template_process.hpp"

namespace kvhive {

class TemplateRenderer {
 public:
  TemplateRenderer(boost::asio::io_context& loop, const ChatTemplate& chat);
  ~TemplateRenderer();

  /// \param turn       requests of one process take turns
  /// \param request    a JSON object with "messages", as it came
  /// \param is_wanted  asked before it is rendered, and before it is answered
  /// \param answer     called in the loop, while it is wanted
  void render(const Turn& turn, std::string request, TemplateProcess::IsWanted is_wanted,
              TemplateProcess::Answer answer);

 private:
  std::shared_ptr<TemplateProcess> short_, long_;
};

}  // namespace kvhive
