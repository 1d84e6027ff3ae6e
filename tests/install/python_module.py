"""The installed Python module on a running daemon.    usage: python_module.py KVHIVE SOCKET"""
import array
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import unittest

import kvhive

SOCKET = sys.argv.pop()
KVHIVE = sys.argv.pop()
PROMPT = "In the beginning"


@contextlib.contextmanager
def stopped_engines():
    hive = json.loads(subprocess.check_output([KVHIVE, "pool", "procs", "--format", "json", "--socket", SOCKET]))
    engines = [engine["pid"] for engine in hive["engines"]]
    for engine in engines:
        os.kill(engine, signal.SIGSTOP)
    try:
        yield
    finally:
        for engine in engines:
            os.kill(engine, signal.SIGCONT)


def interrupt_when_it_waits():
    """Sends Ctrl-C as soon as the main thread waits for news in poll()."""
    def wait():
        while True:
            with open(f"/proc/self/task/{os.getpid()}/syscall") as call:
                if call.read().split()[0] in ("7", "73", "271"):  # poll; ppoll, of 64-bit Arm and x86
                    return os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()


class PythonModule(unittest.TestCase):
    def setUp(self):
        self.client = kvhive.Client(SOCKET)

    def tearDown(self):
        self.client.close()

    def test_a_stream_has_the_same_text_as_its_result(self):
        pieces = [news.text for news in self.client.generate(PROMPT, max_tokens=20, ignore_eos=True)]
        whole = self.client.generate(PROMPT, max_tokens=20, ignore_eos=True).result()
        self.assertEqual("".join(pieces), whole.text)
        self.assertEqual(len(whole.tokens), 20)
        self.assertEqual(whole.finish_reason, "length")
        self.assertEqual(whole.engine, 0)

    def test_a_result_is_the_whole_however_often_and_late_it_is_asked_for(self):
        stream = self.client.generate(PROMPT, max_tokens=5, ignore_eos=True)
        next(stream)
        for _ in range(2):
            whole = stream.result()
            self.assertEqual((len(whole.tokens), whole.finish_reason), (5, "length"))
        self.assertEqual(list(stream), [])

    def test_a_prompt_of_token_ids_and_logprobs(self):
        whole = self.client.generate([1, 2, 3], max_tokens=3, logprobs=2, prompt_logprobs=1, ignore_eos=True).result()
        self.assertEqual([token.token for token in whole.prompt], [1, 2, 3])
        self.assertEqual([(token.rank > 0, len(token.top)) for token in whole.prompt], [(False, 0), (True, 1), (True, 1)])
        self.assertEqual(whole.prompt_tokens, 3)
        self.assertEqual([len(token.top) for token in whole.tokens], [2, 2, 2])
        self.assertGreaterEqual(whole.tokens[0].top[0].logprob, whole.tokens[0].top[1].logprob)

    def test_a_prompt_of_embeddings(self):
        def rows(values, width):
            return memoryview(array.array("f", values)).cast("B").cast("f", shape=[len(values) // width, width])
        width = 256  # of the demo model
        values = [0.01 * (i % 17 - 8) for i in range(40 * width)]
        whole = self.client.generate(rows(values, width), max_tokens=5, ignore_eos=True).result()
        self.assertEqual((whole.prompt_tokens, len(whole.tokens)), (40, 5))
        again = self.client.generate(rows(values, width), max_tokens=5, ignore_eos=True).result()
        self.assertEqual([token.token for token in again.tokens], [token.token for token in whole.tokens])
        self.assertEqual(again.cached_tokens, 32)
        values[0] += 1
        self.assertEqual(self.client.ask(rows(values, width)).cached_tokens, 0)
        with self.assertRaisesRegex(kvhive.Error, "hidden_size\\] of float32"):
            self.client.generate(memoryview(array.array("i", [1, 2])).cast("B").cast("i", shape=[1, 2]))
        for wrong in ([0.5, 1.5], None, 7):
            with self.assertRaisesRegex(TypeError, "hidden_size\\] of float32"):
                self.client.generate(wrong)
        with self.assertRaisesRegex(kvhive.Error, "rows of 128 values; the model's hidden_size is 256"):
            self.client.generate(rows(values, 128)).result()

    def test_rules_about_tokens(self):
        plain = self.client.generate(PROMPT, max_tokens=8, ignore_eos=True).result()
        first = plain.tokens[0].token
        other = self.client.generate(PROMPT, max_tokens=8, ignore_eos=True, logit_bias={first: -100}).result()
        self.assertNotEqual(other.tokens[0].token, first)
        few = self.client.generate(PROMPT, max_tokens=8, ignore_eos=True, allowed_token_ids=[300, 301]).result()
        self.assertLessEqual({token.token for token in few.tokens}, {300, 301})
        stopped = self.client.generate(PROMPT, max_tokens=40, min_tokens=6, stop=["e"], include_stop=True,
                                       presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1, bad_words=["God"]).result()
        self.assertGreater(len(stopped.tokens), 6)
        self.assertTrue(stopped.text.endswith("e"))
        self.assertNotIn("God", stopped.text)

    def test_a_fork_computes_only_the_tokens_that_are_new(self):
        def cached(first):  # behind a prompt of 21 tokens
            prompt = [300 + (37 * first + 11 * i) % 1000 for i in range(21)]
            self.client.generate(prompt, max_tokens=1, will_be_forked=True).result()
            return self.client.generate(prompt + [300], max_tokens=1).result().cached_tokens
        self.assertTrue(any(cached(first) == 21 for first in range(50)))

    def test_prompts_of_different_cache_salts_share_nothing(self):
        def cached(salt):
            return self.client.generate(PROMPT * 20, max_tokens=1, cache_salt=salt).result().cached_tokens
        self.assertEqual([cached(salt) for salt in ("alice", "bob", None)], [0, 0, 0])
        for salt in ("alice", "bob", None):
            self.assertGreater(cached(salt), 16)

    def test_the_same_seed_gives_the_same_text(self):
        texts = {self.client.generate(PROMPT, temperature=1.0, seed=7, max_tokens=12).result().text for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_errors_have_a_text_and_a_code(self):
        with self.assertRaises(kvhive.Error) as caught:
            kvhive.Client("/nowhere/kvhived.sock")
        self.assertEqual(caught.exception.code, "not_running")
        self.assertIsNone(caught.exception.retry_after)
        self.assertIn("no daemon listens on", str(caught.exception))
        with self.assertRaises(kvhive.Error) as caught:
            self.client.generate("")
        self.assertEqual(caught.exception.code, "bad_argument")
        with self.assertRaises(kvhive.Error) as caught:
            self.client.generate([1 << 30]).result()
        self.assertNotEqual(caught.exception.code, "none")
        with self.assertRaises(TypeError):
            self.client.generate(PROMPT, stop="a text, not a list")

    def test_abort_and_break_end_a_request(self):
        stream = self.client.generate(PROMPT, max_tokens=3000, ignore_eos=True)
        next(stream)
        stream.abort()
        self.assertEqual(stream.result().finish_reason, "abort")
        for _ in self.client.generate(PROMPT, max_tokens=3000, ignore_eos=True):
            break
        self.assertEqual(len(self.client.generate(PROMPT, max_tokens=4, ignore_eos=True).result().tokens), 4)

    def test_two_streams_of_one_client(self):
        streams = [self.client.generate(PROMPT, max_tokens=30, ignore_eos=True) for _ in range(2)]
        texts = [stream.result().text for stream in reversed(streams)]
        self.assertEqual(texts[0], texts[1])

    def test_other_threads_run_while_a_stream_waits(self):
        texts = []

        def generate():
            with kvhive.Client(SOCKET) as client:
                texts.append(client.generate(PROMPT, max_tokens=30, ignore_eos=True).result().text)

        threads = [threading.Thread(target=generate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 4)
        self.assertEqual(len(set(texts)), 1)

    def test_ask_says_whether_a_prompt_finds_room(self):
        prompt = "Is there any room in the inn? " * 5
        self.client.generate(prompt, max_tokens=1).result()
        room = self.client.ask(prompt)
        self.assertEqual((room.fit, room.text), ("ok", ""))
        self.assertGreater(room.cached_tokens, 0)
        self.assertGreater(room.available_blocks, room.needed_blocks)
        self.assertEqual(self.client.ask(prompt, cache_salt="nobody's").cached_tokens, 0)
        never = self.client.ask([300] * 100_000)
        self.assertEqual(never.fit, "never")
        self.assertIn("tokens", never.text)
        with self.assertRaises(kvhive.Error):
            self.client.ask(PROMPT, adapter="none")

    def test_ctrl_c_ends_an_ask_and_a_stream_that_nobody_answers(self):
        for wait in (lambda: self.client.ask(PROMPT), lambda: self.client.generate(PROMPT).result()):
            with stopped_engines():
                interrupt_when_it_waits()
                with self.assertRaises(KeyboardInterrupt):
                    wait()
            self.assertEqual(self.client.ask(PROMPT).fit, "ok")

    def test_a_closed_client_says_so(self):
        self.client.close()
        with self.assertRaisesRegex(kvhive.Error, "has been closed"):
            self.client.generate(PROMPT)


unittest.main()
