// The Python module `kvhive`, over the C++ API. kvhive.pyi beside it has the types.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>

#include "kvhive/client.hpp"

namespace py = pybind11;

namespace {

/// While it waits, a stream looks for Ctrl-C this often.
constexpr std::chrono::milliseconds kSignalPeriod{200};
/// A stream yields at least this often, with an empty text if nothing is new.
constexpr std::chrono::milliseconds kYieldPeriod{1000};

/// Raises kvhive.Error; its `code` is the error code's name, `retry_after` in seconds.
[[noreturn]] void raise(const kvhive::ClientError& error) {
  const py::object type = py::module_::import("kvhive").attr("Error");
  const py::object exception = type(error.text);
  exception.attr("code") = std::string(kvhive::to_string(error.code));
  if (error.retry_after.count() != 0)
    exception.attr("retry_after") = std::chrono::duration<double>(error.retry_after).count();
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw py::error_already_set();
}

/// The value of a result, or kvhive.Error.
template <class T>
T value_or_raise(kvhive::Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// Yields a request's progress. Discards the request if it is dropped before its end.
class Stream {
 public:
  Stream(std::shared_ptr<kvhive::Client> client, kvhive::RequestId request)
      : client_(std::move(client)), request_(request) {}
  Stream(Stream&&) = default;
  ~Stream() {
    if (client_) client_->discard(request_);
  }

  kvhive::Progress next() {
    if (whole_.reason != kvhive::Finish::none) throw py::stop_iteration();
    const auto end = std::chrono::steady_clock::now() + kYieldPeriod;
    kvhive::Progress news = read();
    while (is_empty(news) && std::chrono::steady_clock::now() < end) {
      {
        const py::gil_scoped_release others_run;
        woken_ = client_->wait(kSignalPeriod);
      }
      if (!woken_) raise(woken_.error());
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      news = read();
    }
    append(news);
    if (news.reason == kvhive::Finish::error) raise(news.error);
    return news;
  }

  /// The whole request as one progress, what was iterated over before included.
  kvhive::Progress result() {
    while (whole_.reason == kvhive::Finish::none) next();
    if (whole_.reason == kvhive::Finish::error) raise(whole_.error);
    return whole_;
  }

  void abort() { client_->abort(request_); }

 private:
  static bool is_empty(const kvhive::Progress& news) {
    return news.tokens.empty() && news.text.empty() && news.reason == kvhive::Finish::none;
  }
  void append(kvhive::Progress news) {
    whole_.tokens.insert(whole_.tokens.end(), news.tokens.begin(), news.tokens.end());
    whole_.text += news.text;
    if (!whole_.prompt.empty()) news.prompt = std::move(whole_.prompt);
    news.tokens = std::move(whole_.tokens);
    news.text = std::move(whole_.text);
    whole_ = std::move(news);
  }
  kvhive::Progress read() { return value_or_raise(client_->read(request_)); }

  std::shared_ptr<kvhive::Client> client_;  ///< null after a move
  kvhive::RequestId request_;
  kvhive::Progress whole_;  ///< all that was read so far; its reason says whether that is the end
  kvhive::Result<void> woken_;
};

class PythonClient {
 public:
  PythonClient(const std::optional<std::string>& socket, std::optional<std::uint32_t> engine,
               std::size_t channel_bytes, double connect_timeout,
               const std::optional<std::string>& domain, const std::optional<std::string>& model) {
    kvhive::ClientOptions options;
    options.socket = socket.value_or("");
    options.engine = engine;
    options.channel_bytes = channel_bytes;
    options.domain = domain.value_or("");
    options.model = model.value_or("");
    options.connect_timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(connect_timeout * 1000));
    kvhive::Result<kvhive::Client> client = [&] {
      const py::gil_scoped_release others_run;
      return kvhive::Client::connect(options);
    }();
    client_ = std::make_shared<kvhive::Client>(value_or_raise(std::move(client)));
  }

  Stream generate(const kvhive::GenerateRequest& request) {
    return {client_, value_or_raise(open().submit(request))};
  }
  kvhive::Room ask(const kvhive::GenerateRequest& request) {
    kvhive::Client& client = open();
    const auto look_for_signals = [](const kvhive::Progress&) {
      const py::gil_scoped_acquire lock;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    auto room = [&] {
      const py::gil_scoped_release others_run;
      return client.ask(request, look_for_signals);
    }();
    return value_or_raise(std::move(room));
  }
  kvhive::ClientStatus status() { return open().status(); }
  void close() { client_.reset(); }

 private:
  kvhive::Client& open() {
    if (!client_) raise({kvhive::ErrorCode::bad_argument, "this kvhive.Client has been closed"});
    return *client_;
  }

  std::shared_ptr<kvhive::Client> client_;
};

constexpr const char* kPrompts =
    "prompt must be text, a list of token ids, or a contiguous array [tokens, hidden_size] of "
    "float32 (numpy.ascontiguousarray(rows, numpy.float32))";

/// Rows of float32, one behind the other: a numpy array, or whatever else has a buffer of that
/// kind.
void set_rows(kvhive::GenerateRequest& request, const py::buffer_info& rows) {
  const auto width = static_cast<py::ssize_t>(sizeof(float));
  if (rows.ndim != 2 || rows.format != py::format_descriptor<float>::format() ||
      rows.strides[1] != width || rows.strides[0] != rows.shape[1] * width)
    raise({kvhive::ErrorCode::bad_argument, kPrompts});
  const auto* values = static_cast<const float*>(rows.ptr);
  request.prompt_embeds.assign(values, values + rows.size);
  request.embedding_width = static_cast<std::uint32_t>(rows.shape[1]);
}

/// An array with more than one dimension has rows; one with one dimension, token ids.
bool set_rows_of(kvhive::GenerateRequest& request, const py::object& prompt) {
  if (!py::isinstance<py::buffer>(prompt)) return false;
  const py::buffer_info rows = py::reinterpret_borrow<py::buffer>(prompt).request();
  if (rows.ndim == 1) return false;
  set_rows(request, rows);
  return true;
}

kvhive::GenerateRequest request_of(const py::object& prompt) {
  kvhive::GenerateRequest request;
  if (py::isinstance<py::str>(prompt)) {
    request.prompt = prompt.cast<std::string>();
  } else if (!set_rows_of(request, prompt)) {
    try {
      request.prompt_tokens = prompt.cast<std::vector<kvhive::TokenId>>();
    } catch (const py::cast_error&) {
      throw py::type_error(kPrompts);
    }
  }
  return request;
}

Stream generate(PythonClient& client, const py::object& prompt, std::uint32_t max_tokens,
                float temperature, std::int32_t top_k, float top_p, float min_p,
                std::optional<std::uint64_t> seed, std::uint32_t logprobs, bool ignore_eos,
                std::int32_t priority, std::vector<std::string> stop,
                std::vector<kvhive::TokenId> stop_token_ids,
                const std::optional<std::string>& cache_salt,
                const std::optional<std::string>& adapter,
                std::optional<std::uint32_t> prompt_logprobs, float presence_penalty,
                float frequency_penalty, float repetition_penalty, std::uint32_t min_tokens,
                std::optional<std::map<kvhive::TokenId, float>> logit_bias,
                std::optional<std::vector<kvhive::TokenId>> allowed_token_ids,
                std::vector<std::string> bad_words, bool include_stop, bool will_be_forked) {
  kvhive::GenerateRequest request = request_of(prompt);
  request.max_tokens = max_tokens;
  request.temperature = temperature;
  request.top_k = top_k;
  request.top_p = top_p;
  request.min_p = min_p;
  request.seed = seed;
  request.logprobs = logprobs;
  request.ignore_eos = ignore_eos;
  request.priority = priority;
  request.stop = std::move(stop);
  request.stop_token_ids = std::move(stop_token_ids);
  request.cache_salt = cache_salt.value_or("");
  request.adapter = adapter.value_or("");
  request.prompt_logprobs = prompt_logprobs;
  request.presence_penalty = presence_penalty;
  request.frequency_penalty = frequency_penalty;
  request.repetition_penalty = repetition_penalty;
  request.min_tokens = min_tokens;
  if (logit_bias) request.logit_bias = std::move(*logit_bias);
  if (allowed_token_ids) request.allowed_token_ids = std::move(*allowed_token_ids);
  request.bad_words = std::move(bad_words);
  request.include_stop = include_stop;
  request.will_be_forked = will_be_forked;
  return client.generate(request);
}

kvhive::Room ask(PythonClient& client, const py::object& prompt,
                 const std::optional<std::string>& cache_salt,
                 const std::optional<std::string>& adapter) {
  kvhive::GenerateRequest request = request_of(prompt);
  request.cache_salt = cache_salt.value_or("");
  request.adapter = adapter.value_or("");
  return client.ask(request);
}

/// "stop", "length", "abort", or None while the request goes on.
std::optional<std::string> finish_reason(const kvhive::Progress& progress) {
  if (progress.reason == kvhive::Finish::none) return std::nullopt;
  return std::string(kvhive::to_string(progress.reason));
}

/// Text may end within a character: such bytes become U+FFFD.
py::str text_of(const kvhive::Progress& progress) {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
      progress.text.data(), static_cast<Py_ssize_t>(progress.text.size()), "replace"));
}

void define_values(py::module_& m) {
  py::class_<kvhive::TokenLogprob>(m, "TokenLogprob")
      .def_readonly("token", &kvhive::TokenLogprob::token)
      .def_readonly("logprob", &kvhive::TokenLogprob::logprob);
  py::class_<kvhive::OutputToken>(m, "Token", "A generated token.")
      .def_readonly("token", &kvhive::OutputToken::token)
      .def_readonly("logprob", &kvhive::OutputToken::logprob)
      .def_readonly("top", &kvhive::OutputToken::top, "The likeliest tokens of this position.");
  py::class_<kvhive::PromptLogprob>(m, "PromptToken", "A token of a scored prompt.")
      .def_readonly("token", &kvhive::PromptLogprob::token)
      .def_readonly("logprob", &kvhive::PromptLogprob::logprob)
      .def_readonly("rank", &kvhive::PromptLogprob::rank,
                    "Its place among all tokens, 1 = the likeliest; 0 = the first token, which has "
                    "nothing before it.")
      .def_readonly("top", &kvhive::PromptLogprob::top, "The likeliest tokens in its place.");
  py::class_<kvhive::Progress>(m, "Progress", "What is new about a request.")
      .def_property_readonly("text", &text_of)
      .def_readonly("tokens", &kvhive::Progress::tokens)
      .def_readonly("prompt", &kvhive::Progress::prompt,
                    "If it was to be scored: once, with the first token.")
      .def_readonly("prompt_tokens", &kvhive::Progress::prompt_tokens)
      .def_readonly("cached_tokens", &kvhive::Progress::cached_tokens,
                    "Tokens of the prompt that were found in the cache.")
      .def_readonly("preemptions", &kvhive::Progress::preemptions)
      .def_readonly("engine", &kvhive::Progress::engine,
                    "The engine that works on the request; None = no engine does.")
      .def_property_readonly("finish_reason", &finish_reason,
                             "'stop', 'length' or 'abort' at the end, None before.");
  py::class_<kvhive::Room>(m, "Room", "Whether a prompt finds room.")
      .def_property_readonly(
          "fit", [](const kvhive::Room& room) { return std::string(kvhive::to_string(room.fit)); },
          "'ok' = there is room for all its tokens now, and what waits goes first; 'later' = "
          "there may be when others have ended; 'never' = it is too long, and `text` says why.")
      .def_readonly("prompt_tokens", &kvhive::Room::prompt_tokens)
      .def_readonly("cached_tokens", &kvhive::Room::cached_tokens,
                    "Found in the cache: they need not be computed.")
      .def_readonly("needed_blocks", &kvhive::Room::needed_blocks,
                    "Besides those that are found and in use.")
      .def_readonly("available_blocks", &kvhive::Room::available_blocks,
                    "Free, or in use by nobody.")
      .def_readonly("text", &kvhive::Room::text);
}

void define_client(py::module_& m) {
  py::class_<Stream>(m, "Stream", "Iterates over a request's Progress; comes from generate().")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &Stream::next)
      .def("abort", &Stream::abort, "Asks the engine to end the request; the stream ends then.")
      .def("result", &Stream::result,
           "Waits for the end; the whole request in one Progress, whatever was iterated over "
           "before.");
  py::class_<PythonClient>(m, "Client",
                           "A connection to a running kvhived. One Client is for one thread.")
      .def(py::init<const std::optional<std::string>&, std::optional<std::uint32_t>, std::size_t,
                    double, const std::optional<std::string>&, const std::optional<std::string>&>(),
           py::arg("socket") = py::none(), py::kw_only(), py::arg("engine") = py::none(),
           py::arg("channel_bytes") = 0, py::arg("connect_timeout") = 10.0,
           py::arg("domain") = py::none(), py::arg("model") = py::none(),
           "Connects; raises kvhive.Error.\n\n"
           "socket: the daemon's socket (default: KVHIVE_SOCKET, or where kvhived puts it).\n"
           "engine: the one engine that serves this client (default: all share its requests).\n"
           "channel_bytes: shared memory for the answers under way, as much for prompts (default: "
           "2 MiB).\n"
           "connect_timeout: seconds to wait for a daemon that does not answer.\n"
           "domain: whose cached blocks are shared (default: as the operator's rules put this "
           "user).\n"
           "model: of a daemon that serves several, the one that serves this client, by name "
           "(default: the first).")
      .def(
          "generate", &generate, py::arg("prompt"), py::kw_only(), py::arg("max_tokens") = 16,
          py::arg("temperature") = 0.0f, py::arg("top_k") = 0, py::arg("top_p") = 1.0f,
          py::arg("min_p") = 0.0f, py::arg("seed") = py::none(), py::arg("logprobs") = 0,
          py::arg("ignore_eos") = false, py::arg("priority") = 0,
          py::arg("stop") = std::vector<std::string>(),
          py::arg("stop_token_ids") = std::vector<kvhive::TokenId>(),
          py::arg("cache_salt") = py::none(), py::arg("adapter") = py::none(),
          py::arg("prompt_logprobs") = py::none(), py::arg("presence_penalty") = 0.0f,
          py::arg("frequency_penalty") = 0.0f, py::arg("repetition_penalty") = 1.0f,
          py::arg("min_tokens") = 0, py::arg("logit_bias") = py::none(),
          py::arg("allowed_token_ids") = py::none(),
          py::arg("bad_words") = std::vector<std::string>(), py::arg("include_stop") = false,
          py::arg("will_be_forked") = false,
          "Starts a request and returns its Stream. `prompt` is text, a list of token ids, or an\n"
          "array of float32 with a row of the model's hidden_size for each token (embeddings).\n"
          "Prompts with different cache_salts share no cached blocks; `adapter` names a LoRA "
          "adapter of the client's model.\n"
          "prompt_logprobs: score the prompt, with so many of the likeliest tokens in each place; "
          "nothing of it is read from the cache then.\n"
          "presence_penalty and what follows it change which tokens are chosen, as vLLM's of the "
          "same names do.\n"
          "will_be_forked: other requests go on from this one's tokens as soon as it has ended, as "
          "beams do; what was computed of its last block is then copied, not computed again.\n\n"
          "The stream yields a Progress whenever there is something new, and every second while\n"
          "there is not. Other Python threads run while it waits.")
      .def(
          "ask", &ask, py::arg("prompt"), py::kw_only(), py::arg("cache_salt") = py::none(),
          py::arg("adapter") = py::none(),
          "Whether a prompt would find room now: its Room. Nothing is queued, generated or cached.")
      .def_property_readonly(
          "serving_engine", [](PythonClient& c) { return c.status().engine; },
          "The engine that serves this client; None = no engine does.")
      .def("close", &PythonClient::close, "Disconnects as soon as no Stream is left.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PythonClient& c, const py::args&) { c.close(); });
}

}  // namespace

PYBIND11_MODULE(kvhive, m) {
  m.doc() = "Client of kvhive, one KV cache per host.";
  m.attr("__version__") = KVHIVE_VERSION;
  const py::object error = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "kvhive.Error",
      "What went wrong in one line; `code` is its kind, such as 'not_running'. If that is "
      "'overloaded', `retry_after` says in how many seconds to try again; None = nobody knows.",
      PyExc_RuntimeError, nullptr));
  error.attr("code") = "none";
  error.attr("retry_after") = py::none();
  m.attr("Error") = error;
  define_values(m);
  define_client(m);
}
