#ifndef KVHIVE_KVHIVE_H
#define KVHIVE_KVHIVE_H
/* The C API of a kvhive client, in C11 and C++: connect to a running kvhived, submit prompts, read
 * tokens as they are generated.
 *
 * Errors: a function that can fail returns KVHIVE_OK or another code of kvhive_code.
 * kvhive_last_error() has the text.
 *
 * Versions: fields are only ever added at the end of a struct, and every struct that the caller
 * passes begins with struct_size. Set it by the kvhive_default_...() functions. A program compiled
 * with an older header goes on working with a newer library.
 *
 * Ownership: a client belongs to the caller, who closes it. Strings and arrays in arguments stay
 * the caller's and are copied before the call returns. What a kvhive_progress points to belongs to
 * the client and is valid until the next kvhive_read() or kvhive_close() of that client.
 *
 * Threads: clients are independent of each other. On one client, kvhive_submit(), kvhive_abort()
 * and kvhive_discard() may be called from any thread at any time; kvhive_wait() and kvhive_read()
 * from one thread at a time each; kvhive_close() when no other call is running. A process forked
 * after kvhive_connect() must not use the parent's client. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef KVHIVE_API
#define KVHIVE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. Grows when something is added. */
#define KVHIVE_ABI_VERSION 8
/* KVHIVE_ABI_VERSION of the library that is loaded. */
KVHIVE_API uint32_t kvhive_abi_version(void);
/* Version of the library, for example "0.1.0". */
KVHIVE_API const char* kvhive_version(void);

typedef enum kvhive_code {
  KVHIVE_OK = 0,
  KVHIVE_BAD_ARGUMENT = 1,   /* an option or a field is out of range; the text names it */
  KVHIVE_NOT_FOUND = 2,      /* what was named (an engine, a file) does not exist */
  KVHIVE_BAD_FORMAT = 3,     /* a message or file is malformed */
  KVHIVE_UNSUPPORTED = 4,    /* kvhive cannot do this yet */
  KVHIVE_POOL_EXHAUSTED = 5, /* no room now: read results, close clients or ask for less */
  KVHIVE_NEVER_FITS = 6,     /* larger than the model or the pool ever allows */
  KVHIVE_OUT_OF_MEMORY = 7,  /* the machine or one of its limits has less memory */
  KVHIVE_TOO_MANY_PROCESSES = 8,
  KVHIVE_LAYOUT_MISMATCH = 9, /* library and daemon are of different versions */
  KVHIVE_ALREADY_RUNNING = 10,
  KVHIVE_NOT_RUNNING = 11, /* no daemon listens on the socket, or it does not answer */
  KVHIVE_DEVICE_LOST = 12,
  KVHIVE_PEER_DIED = 13, /* the daemon has ended: connect again and submit anew */
  KVHIVE_OS_ERROR = 14,  /* a system call failed; the text names it */
  KVHIVE_OVERLOADED = 15 /* too much is waiting already; try again after retry_after_ms */
} kvhive_code;

/* The code's name, for example "not_running". Static. */
KVHIVE_API const char* kvhive_code_name(int32_t code);

/* Text of the last error in this thread, "" if there was none. Valid until the next failing call in
 * the same thread. */
KVHIVE_API const char* kvhive_last_error(void);

/* -- connecting ------------------------------------------------------------------------------- */

typedef struct kvhive_client kvhive_client;

#define KVHIVE_ANY_ENGINE (-1)

typedef struct kvhive_options {
  size_t struct_size;
  const char* socket; /* NULL = $KVHIVE_SOCKET, else $XDG_RUNTIME_DIR/kvhive/kvhived.sock, else
                         /run/kvhive/kvhived.sock */
  int32_t engine;     /* the one engine that serves this client; KVHIVE_ANY_ENGINE = all share its
                         requests */
  int32_t connect_timeout_ms; /* how long a stopped or overloaded daemon is waited for; < 0 = for
                                 ever */
  uint64_t channel_bytes; /* shared memory for the answers to all requests under way, and as much
                             for their prompts, 1 MiB to 1 GiB; 0 = 2 MiB */
  const char* domain;     /* the domain whose cached blocks are shared; NULL = the one that the
                             operator's rules give this user */
  const char* model;      /* of a daemon that serves several models, the one that serves this
                             client, by its name; NULL = the engine's, else the first */
} kvhive_options;

static inline kvhive_options kvhive_default_options(void) {
  kvhive_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.engine = KVHIVE_ANY_ENGINE;
  options.connect_timeout_ms = 10000;
  return options;
}

/* Connects to a daemon and stores a new client in *client (NULL if it fails).
 * \param options  NULL = the defaults */
KVHIVE_API int32_t kvhive_connect(const kvhive_options* options, kvhive_client** client);

/* Ends the client's requests and frees it. NULL is allowed. */
KVHIVE_API void kvhive_close(kvhive_client* client);

/* -- requests --------------------------------------------------------------------------------- */

/* Added to a token's logit before it is chosen: -100..100. */
typedef struct kvhive_token_bias {
  int32_t token;
  float bias;
} kvhive_token_bias;

typedef struct kvhive_request {
  size_t struct_size;
  const char* prompt; /* UTF-8, prompt_bytes long; ignored if there are prompt_tokens */
  size_t prompt_bytes;
  const int32_t* prompt_tokens; /* token ids instead of text, or NULL */
  size_t prompt_token_count;
  const char* const* stop; /* stop_count texts to end before: at most 8 of 64 bytes, or NULL */
  size_t stop_count;
  const int32_t* stop_tokens; /* stop_token_count tokens to end after: at most 16, or NULL */
  size_t stop_token_count;
  uint64_t most_text_bytes; /* room for the text; 0 = 16 per token, at least 4 KiB */
  uint64_t seed;            /* used if has_seed is not 0 */
  int32_t has_seed;
  uint32_t max_tokens;
  float temperature; /* 0 = greedy */
  float top_p;       /* above 0, at most 1 */
  float min_p;
  int32_t top_k;            /* 0 or -1 = all tokens */
  uint32_t logprobs;        /* report the k likeliest tokens of each position, at most 20 */
  int32_t ignore_eos;       /* not 0 = go on after an end-of-sequence token */
  int32_t priority;         /* lower goes first, with --scheduling-policy priority */
  const char* cache_salt;   /* prompts with different salts share no cached blocks: at most 128
                               bytes, then '\0'; NULL or "" = none */
  const char* adapter;      /* the name of an adapter of the client's model to compute with, at most
                               64 bytes, then '\0'; NULL or "" = the model alone */
  int32_t scores_prompt;    /* not 0 = report how likely the prompt's tokens are; it is then
                               computed whole, and nothing of it is read from the cache */
  uint32_t prompt_logprobs; /* and the k likeliest tokens in their places, at most 20 */
  float presence_penalty;   /* -2..2: taken from the logits of tokens that the answer has */
  float frequency_penalty;  /* -2..2: the same for each time that the answer has them */
  float repetition_penalty; /* divides positive logits of tokens that prompt or answer have, and
                               multiplies others; 0 or 1 = none */
  uint32_t min_tokens;      /* so many before anything but max_tokens ends the answer */
  const kvhive_token_bias* logit_bias; /* logit_bias_count of them, at most 1,024, or NULL */
  size_t logit_bias_count;
  const int32_t* allowed_tokens; /* only these: allowed_token_count, at most 262,144; NULL = all */
  size_t allowed_token_count;
  const char* const* bad_words; /* bad_word_count texts not to generate: at most 128 of 64 bytes,
                                   or NULL */
  size_t bad_word_count;
  int32_t include_stop;       /* not 0 = the stop text that ends the answer stays in it */
  int32_t only_asks;          /* not 0 = generate nothing, but say whether the prompt finds room
                                 now: kvhive_progress.fit */
  const float* prompt_embeds; /* instead of text and tokens, or NULL: prompt_row_count rows of
                                 embedding_width finite numbers, the model's hidden_size, such as
                                 its embedding layer makes of tokens */
  size_t prompt_row_count;
  uint32_t embedding_width;
  int32_t will_be_forked; /* not 0 = other requests go on from this one's tokens as soon as it
                             has ended, as the beams of a search do: what an engine has computed
                             of its last block is then copied, not computed again */
} kvhive_request;

/* A request for `prompt`, a string that ends with '\0'. */
static inline kvhive_request kvhive_default_request(const char* prompt) {
  kvhive_request request;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  request.prompt = prompt;
  request.prompt_bytes = prompt ? strlen(prompt) : 0;
  request.max_tokens = 16;
  request.top_p = 1;
  request.repetition_penalty = 1;
  return request;
}

/* Starts a request and stores its number in *id: never 0, never reused within a client. */
KVHIVE_API int32_t kvhive_submit(kvhive_client* client, const kvhive_request* request,
                                 uint64_t* id);

/* Sleeps until there may be something new to read, the timeout has run out (KVHIVE_OK, too) or a
 * signal has come. timeout_ms < 0 = for ever. */
KVHIVE_API int32_t kvhive_wait(kvhive_client* client, int32_t timeout_ms);

/* For an event loop: a descriptor that is readable (poll, epoll) while kvhive_wait() would return
 * at once. Call kvhive_wait(client, 0) then, and kvhive_read() the requests. The client keeps and
 * closes it. -1 if client is NULL. */
KVHIVE_API int kvhive_descriptor(const kvhive_client* client);

/* Why a request has ended. */
typedef enum kvhive_finish {
  KVHIVE_FINISH_NONE = 0,   /* it has not ended */
  KVHIVE_FINISH_STOP = 1,   /* an end-of-sequence token, a stop text or a stop token */
  KVHIVE_FINISH_LENGTH = 2, /* max_tokens or the model's longest sequence reached */
  KVHIVE_FINISH_ABORT = 3,  /* kvhive_abort() was called */
  KVHIVE_FINISH_ERROR = 4,  /* error and error_text say why */
  KVHIVE_FINISH_ROOM = 5    /* it only asked for room; fit is the answer */
} kvhive_finish;

/* Whether a prompt finds room (vLLM's AllocStatus). One that never does ends with
 * KVHIVE_FINISH_ERROR and the error KVHIVE_NEVER_FITS. */
typedef enum kvhive_fit {
  KVHIVE_FIT_NONE = 0, /* it was not asked */
  KVHIVE_FIT_OK = 1,   /* there is room for all its tokens now; what waits goes first */
  KVHIVE_FIT_LATER = 2 /* there is not, but there may be when others have ended */
} kvhive_fit;

/* These three structs keep their size. */
typedef struct kvhive_token_logprob {
  int32_t token;
  float logprob; /* before temperature */
} kvhive_token_logprob;

typedef struct kvhive_token {
  int32_t token;
  float logprob;
  const kvhive_token_logprob* top; /* top_count entries, likeliest first */
  size_t top_count;
} kvhive_token;

/* A token of a scored prompt. The first has nothing before it: its logprob and rank are 0. */
typedef struct kvhive_prompt_token {
  int32_t token;
  float logprob;
  const kvhive_token_logprob* top; /* top_count entries, likeliest first */
  size_t top_count;
  uint64_t rank; /* its place among all tokens, 1 = the likeliest */
} kvhive_prompt_token;

/* What is new about a request since it was last read. */
typedef struct kvhive_progress {
  size_t struct_size;
  const kvhive_token* tokens; /* token_count of them */
  size_t token_count;
  const char* text; /* UTF-8, text_bytes long, then '\0': completed by these tokens */
  size_t text_bytes;
  size_t whole_text_bytes; /* when finished: length of the whole text */
  const char* error_text;  /* "" unless finish is KVHIVE_FINISH_ERROR */
  int32_t error;           /* a kvhive_code */
  int32_t finish;          /* a kvhive_finish; not NONE = the last progress of this request */
  int32_t engine;          /* the engine that works on it; -1 = none does */
  uint32_t prompt_tokens;  /* known once an engine has admitted the request */
  uint32_t cached_tokens;  /* tokens of the prompt that were found in the cache */
  uint32_t preemptions;
  uint32_t retry_after_ms;           /* if error is KVHIVE_OVERLOADED: a guess; 0 = nobody knows */
  const kvhive_prompt_token* prompt; /* if it was to be scored: once, with the first token */
  size_t prompt_count;
  int32_t fit;               /* a kvhive_fit, if finish is KVHIVE_FINISH_ROOM; then also: */
  uint32_t needed_blocks;    /* besides those that are found and in use */
  uint32_t available_blocks; /* free, or cached and used by nobody */
} kvhive_progress;

static inline kvhive_progress kvhive_empty_progress(void) {
  kvhive_progress progress;
  memset(&progress, 0, sizeof progress);
  progress.struct_size = sizeof progress;
  return progress;
}

/* Fills *progress; its struct_size must be set. */
KVHIVE_API int32_t kvhive_read(kvhive_client* client, uint64_t id, kvhive_progress* progress);

/* Asks the engine to end a request; kvhive_read() reports the end. No effect on one that ended. */
KVHIVE_API int32_t kvhive_abort(kvhive_client* client, uint64_t id);

/* Ends a request that will not be read any more. */
KVHIVE_API int32_t kvhive_discard(kvhive_client* client, uint64_t id);

/* An engine that serves the client now; -1 = none does, or client is NULL. */
KVHIVE_API int32_t kvhive_serving_engine(const kvhive_client* client);

#ifdef __cplusplus
}
#endif
#endif /* KVHIVE_KVHIVE_H */
