"""Honest clients, measured from outside: how long a first token takes, in a calm time and beside a
scene's harm.

A client sends a request of one token every so often, whatever became of the last one. A request
that is due while the last one still waits counts as waiting, too, until that one ends: else a
standstill of 20 s would be one sample among hundreds of short ones."""

import math
import os
import struct
import tempfile
import time

import library
import processes

PROMPT = b"And it came to pass"
HONEST_USER = 4100
RECORD = struct.Struct("<dd")  # when the request was due, when its first token came


def keep_asking(socket, engine, period, connects_anew, records, say):
    client = None
    due = time.monotonic()
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        while True:
            try:
                client = client or library.Client(socket, engine)
                client.first_token(PROMPT)
                break
            except library.Refused as refused:
                say(str(refused))
                if client:
                    client.close()
                client = None
                time.sleep(0.1)
        if connects_anew:
            client.close()
            client = None
        now = time.monotonic()
        while due < now:
            os.write(records, RECORD.pack(due, now))
            due += period


class Honest:
    def __init__(self, socket, engine, period, connects_anew):
        self.period = period
        self.start = time.monotonic()
        self.file = tempfile.TemporaryFile()
        self.player = processes.Player(
            lambda say: keep_asking(socket, engine, period, connects_anew, self.file.fileno(), say),
            HONEST_USER, is_idle=False)
        self.refusals = []

    def samples(self, begin, end):
        """(seconds, has ended) of each request that was due between the two times."""
        os.lseek(self.file.fileno(), 0, os.SEEK_SET)
        data = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size, 0)
        data = data[:len(data) // RECORD.size * RECORD.size]
        found, last = [], self.start - self.period
        for due, came in RECORD.iter_unpack(data):
            last = max(last, due)
            if begin <= due < end:
                found.append((came - due, True) if came <= end else (end - due, False))
        due = last + self.period
        while due < end:
            if due >= begin:
                found.append((end - due, False))
            due += self.period
        return sorted(found)

    def all_refusals(self):
        self.refusals += self.player.heard()
        return self.refusals

    def end(self):
        self.player.end()
        self.file.close()


def percentile(samples, share):
    """In words; ">" = the request had not ended when the measurement did."""
    if not samples:
        return "-"
    seconds, has_ended = samples[max(0, math.ceil(len(samples) * share) - 1)]
    return ("" if has_ended else "> ") + in_ms(seconds)


def in_ms(seconds):
    ms = seconds * 1000
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def in_words(samples):
    return f"{percentile(samples, 0.5)} / {percentile(samples, 0.99)}"
