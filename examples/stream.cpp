// Streams a completion to standard output.    usage: stream_cpp "In the beginning" [SOCKET]
#include <kvhive/client.hpp>

#include <iostream>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: stream_cpp PROMPT [SOCKET]\n";
    return 2;
  }
  kvhive::ClientOptions options;
  if (argc > 2) options.socket = argv[2];
  auto client = kvhive::Client::connect(options);
  if (!client) {
    std::cerr << "cannot connect: " << client.error().text << '\n';
    return 1;
  }

  kvhive::GenerateRequest request;
  request.prompt = argv[1];
  request.max_tokens = 48;
  const auto result = client->generate(request, [](const kvhive::Progress& news) {
    if (!news.engine && news.reason == kvhive::Finish::none)
      std::cerr << "[no engine works on the request yet]\n";
    std::cout << news.text << std::flush;
  });
  if (!result) {  // for example: the daemon has ended
    std::cerr << "\nno result: " << result.error().text << '\n';
    return 1;
  }
  if (result->reason == kvhive::Finish::error) {  // for example: the prompt is too long
    std::cerr << "\nrefused: " << result->error.text << '\n';
    return 1;
  }
  std::cout << '\n';
  std::cerr << '[' << result->tokens.size() << " tokens; " << result->cached_tokens << " of "
            << result->prompt_tokens << " prompt tokens cached; " << to_string(result->reason)
            << "]\n";
}
