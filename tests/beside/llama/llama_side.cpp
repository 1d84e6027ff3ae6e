// llama.cpp's side of the comparison (bench_llama.py), by its public interface and with its
// defaults: the cache in f16, steps of at most 512 tokens. Attention is its flash kernel or not.
//
// Usage: llama_side MODEL.gguf THREADS flash|plain < commands

#include <cstdlib>
#include <map>
#include <span>
#include <string_view>
#include <tuple>

#include "llama.h"
#include "tests/beside/llama/commands.hpp"

namespace kvhive::beside {
namespace {

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "llama.cpp: %s failed\n", what);
  std::exit(1);
}

/// A context with the tokens that its sequences have already, as llama-bench makes one for each
/// test.
struct Context {
  llama_context* context = nullptr;
  std::int32_t depth = 0;
};

class LlamaSide {
 public:
  LlamaSide(const char* file, std::int32_t threads, llama_flash_attn_type flash)
      : threads_(threads), flash_(flash) {
    model_ = llama_model_load_from_file(file, llama_model_default_params());
    if (model_ == nullptr) give_up("loading the model");
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  }
  ~LlamaSide() {
    for (auto& [key, at] : contexts_) llama_free(at.context);
    llama_model_free(model_);
  }
  LlamaSide(const LlamaSide&) = delete;
  LlamaSide& operator=(const LlamaSide&) = delete;

  std::string about() const {
    char name[128];
    llama_model_desc(model_, name, sizeof name);
    return std::string(name) + ", " + std::to_string(threads_) + " threads, " +
           llama_print_system_info();
  }

  void make_room(std::int32_t tokens) {
    current_ = &context_of(1, 0, tokens);
    llama_memory_clear(llama_get_memory(current_->context), /*data=*/false);
  }

  void prompt(std::int32_t tokens) {
    std::vector<llama_token> ids(static_cast<std::size_t>(tokens));
    for (std::int32_t i = 0; i < tokens; ++i) ids[static_cast<std::size_t>(i)] = some(i);
    compute(0, 0, ids);
  }

  void prepare(std::int32_t count, std::int32_t depth, std::int32_t tokens) {
    current_ = &context_of(count, depth, tokens);
    count_ = count;
    llama_memory_t memory = llama_get_memory(current_->context);
    if (current_->depth == depth) {  // the steps of the last time are taken back
      for (std::int32_t i = 0; i < count; ++i) llama_memory_seq_rm(memory, i, depth, -1);
      return;
    }
    std::vector<llama_token> ids(static_cast<std::size_t>(depth));
    for (std::int32_t i = 0; i < depth; ++i) ids[static_cast<std::size_t>(i)] = some(i);
    for (std::int32_t i = 0; i < count; ++i) compute(i, 0, ids);
    current_->depth = depth;
  }

  void step(std::int32_t index) {
    llama_batch batch = llama_batch_init(count_, 0, 1);
    for (std::int32_t i = 0; i < count_; ++i)
      add(batch, some(index * count_ + i), current_->depth + index, i, true);
    decode(batch);
    if (llama_get_logits_ith(current_->context, count_ - 1) == nullptr) give_up("a step");
    llama_batch_free(batch);
  }

  std::span<const float> logits(const std::vector<llama_token>& ids) {
    compute(0, 0, ids);
    return {llama_get_logits_ith(current_->context, -1), static_cast<std::size_t>(vocab_)};
  }

 private:
  llama_token some(std::int32_t at) const { return some_token(at, vocab_); }

  Context& context_of(std::int32_t count, std::int32_t depth, std::int32_t tokens) {
    const std::int32_t room = (depth + tokens + 255) / 256 * 256;
    Context& at = contexts_[{count, depth, room}];
    if (at.context != nullptr) return at;
    llama_context_params wanted = llama_context_default_params();
    wanted.n_seq_max = static_cast<std::uint32_t>(count);
    wanted.n_ctx = static_cast<std::uint32_t>(count * room);
    wanted.n_threads = wanted.n_threads_batch = threads_;
    wanted.flash_attn_type = flash_;
    at.context = llama_init_from_model(model_, wanted);
    if (at.context == nullptr) give_up("making a context");
    batch_most_ = static_cast<std::int32_t>(llama_n_batch(at.context));
    return at;
  }

  static void add(llama_batch& batch, llama_token token, std::int32_t position,
                  std::int32_t sequence, bool wants_logits) {
    const std::int32_t i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = wants_logits;
  }

  void decode(const llama_batch& batch) {
    if (llama_decode(current_->context, batch) != 0) give_up("a step");
    llama_synchronize(current_->context);
  }

  /// Tokens of one sequence, in as many calls as it takes; logits of the last.
  void compute(std::int32_t sequence, std::int32_t from, const std::vector<llama_token>& ids) {
    const auto all = static_cast<std::int32_t>(ids.size());
    for (std::int32_t at = 0; at < all;) {
      const std::int32_t some_of = std::min(batch_most_, all - at);
      llama_batch batch = llama_batch_init(some_of, 0, 1);
      for (std::int32_t i = at; i < at + some_of; ++i)
        add(batch, ids[static_cast<std::size_t>(i)], from + i, sequence, i + 1 == all);
      decode(batch);
      llama_batch_free(batch);
      at += some_of;
    }
  }

  std::int32_t threads_, vocab_ = 0, count_ = 1, batch_most_ = 0;
  llama_flash_attn_type flash_;
  llama_model* model_ = nullptr;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Context> contexts_;
  Context* current_ = nullptr;
};

}  // namespace
}  // namespace kvhive::beside

int main(int argc, char** argv) {
  using namespace kvhive::beside;
  if (argc != 4) {
    std::fputs("usage: llama_side MODEL.gguf THREADS flash|plain < commands\n", stderr);
    return 2;
  }
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  LlamaSide side(argv[1], std::atoi(argv[2]),
                 std::string_view(argv[3]) == "flash" ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                      : LLAMA_FLASH_ATTN_TYPE_DISABLED);
  answer_commands(side);
}
