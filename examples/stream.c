/* Streams a completion to standard output.    usage: stream_c "In the beginning" [SOCKET] */
#include <kvhive/kvhive.h>

#include <stdio.h>

static int fail(const char *what, kvhive_client *client) {
  fprintf(stderr, "%s: %s\n", what, kvhive_last_error());
  kvhive_close(client);
  return 1;
}

int main(int argc, char **argv) {
  kvhive_options options = kvhive_default_options();
  kvhive_progress news = kvhive_empty_progress();
  kvhive_client *client = NULL;
  kvhive_request request;
  uint64_t id = 0;
  unsigned long tokens = 0;

  if (argc < 2) {
    fprintf(stderr, "usage: stream_c PROMPT [SOCKET]\n");
    return 2;
  }
  if (argc > 2) options.socket = argv[2];
  if (kvhive_connect(&options, &client) != KVHIVE_OK) return fail("cannot connect", client);

  request = kvhive_default_request(argv[1]);
  request.max_tokens = 48;
  if (kvhive_submit(client, &request, &id) != KVHIVE_OK) return fail("cannot submit", client);

  while (news.finish == KVHIVE_FINISH_NONE) {
    if (kvhive_wait(client, 1000) != KVHIVE_OK) return fail("no result", client);
    if (kvhive_read(client, id, &news) != KVHIVE_OK) return fail("cannot read", client);
    fwrite(news.text, 1, news.text_bytes, stdout);
    fflush(stdout);
    tokens += news.token_count;
  }
  if (news.finish == KVHIVE_FINISH_ERROR) {
    fprintf(stderr, "\nrefused: %s\n", news.error_text);
    kvhive_close(client);
    return 1;
  }
  printf("\n");
  fprintf(stderr, "[%lu tokens; %u of %u prompt tokens cached]\n", tokens, news.cached_tokens,
          news.prompt_tokens);
  kvhive_close(client);
  return 0;
}
