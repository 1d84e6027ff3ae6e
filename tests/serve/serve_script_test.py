#!/usr/bin/env python3
"""`make serve` without the build: on a terminal and without one it serves, and however it is ended nothing is left.

serve_script_test.py BIN     BIN: folder with kvhived and kvhive
"""
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/bin")
COMMAND = [str(ROOT / "tools/serve.sh"), BIN]
PATIENCE = 60  # seconds; longer than anything takes that works


class ServeScript(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        # Debian's python3 has the module that renders chat templates.
        self.environment = {**os.environ, "TMPDIR": self.place.name, "PATH": "/usr/bin:" + os.environ["PATH"], "PORT": "18000"}

    def assert_nothing_is_left(self):
        self.assertEqual(os.listdir(self.place.name), [])
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment, command = ((process / name).read_bytes() for name in ("environ", "cmdline"))
            except OSError:
                continue
            if b"KVHIVE_SOCKET=" + self.place.name.encode() in environment:
                self.fail(f"process {process.name} is left: {command}")

    def url_in(self, text):
        return re.search(r"The page +(http://127\.0\.0\.1:\d+/)", text)[1]

    # -- on a terminal ----------------------------------------------------------------------------

    def start_on_a_terminal(self):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(COMMAND[0], COMMAND, self.environment)
        self.addCleanup(self.hang_up)
        self.text = ""
        self.read_until(lambda: self.text.endswith("you: "))

    def hang_up(self):
        """What a failed test leaves."""
        if self.terminal is not None:
            os.close(self.terminal)
            os.waitpid(self.pid, 0)

    def read_until(self, is_enough, meanwhile=""):
        """\param meanwhile  typed again and again, while nothing comes"""
        end = time.monotonic() + PATIENCE
        while not is_enough():
            self.assertLess(time.monotonic(), end, self.text)
            if not select.select([self.terminal], [], [], 0.5)[0]:
                self.say(meanwhile)
                continue
            try:
                self.text += os.read(self.terminal, 1 << 16).decode(errors="replace")
            except OSError:  # the last process of the terminal has ended
                return

    def say(self, text):
        if text:
            os.write(self.terminal, text.encode())

    def wait_for_the_end(self, meanwhile=""):
        self.read_until(lambda: False, meanwhile)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.terminal)
        self.terminal = None
        self.assert_nothing_is_left()
        return os.waitstatus_to_exitcode(status)

    def test_a_chat_ends_with_its_input(self):
        self.start_on_a_terminal()
        self.assertIn("curl http://127.0.0.1:", self.text)
        self.assertEqual(urllib.request.urlopen(self.url_in(self.text)).status, 200)
        self.say("In the beginning God\n")
        self.read_until(lambda: self.text.count("you: ") == 2)
        answer = self.text.split("In the beginning God")[1].split("you: ")[0].strip()
        self.assertTrue(answer)  # however long: it is sampled
        self.assertNotIn("refused", answer)
        self.say("\x04")
        self.assertEqual(self.wait_for_the_end(), 0)

    def test_ctrl_c_stops_an_answer_and_at_the_prompt_everything(self):
        self.start_on_a_terminal()
        self.say("And the LORD said\n")
        self.read_until(lambda: len(self.text.rpartition("And the LORD said")[2]) > 20 and "said" in self.text)
        self.say("\x03")
        self.read_until(lambda: self.text.endswith("you: "))
        # Python loses one that comes just as the prompt is written. One that comes while all is cleaned up changes nothing.
        self.say("\x03")
        self.assertEqual(self.wait_for_the_end(meanwhile="\x03"), 128 + signal.SIGINT)

    # -- without one ------------------------------------------------------------------------------

    def start_without_a_terminal(self):
        out = open(self.place.name + "/out", "w+")
        self.addCleanup(out.close)
        process = subprocess.Popen(COMMAND, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True)
        os.unlink(out.name)
        end = time.monotonic() + PATIENCE
        text = ""
        while "stops everything" not in text:
            self.assertLess(time.monotonic(), end, text)
            self.assertIsNone(process.poll(), text)
            text = os.pread(out.fileno(), 1 << 16, 0).decode()
        return process, text

    def test_a_signal_ends_it_without_a_terminal(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                process, text = self.start_without_a_terminal()
                self.assertEqual(urllib.request.urlopen(self.url_in(text)).status, 200)
                process.send_signal(number)
                self.assertEqual(process.wait(PATIENCE), 128 + number)
                self.assert_nothing_is_left()

    def test_a_port_that_is_taken_is_passed_over(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.environment["PORT"] = str(port)
            process, text = self.start_without_a_terminal()
            self.assertNotIn(f":{port}/", text)
            process.terminate()
            process.wait(PATIENCE)
        self.assert_nothing_is_left()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
