#!/usr/bin/env python3
"""Checks that every test of ours which docs/VLLM_TESTS.md names exists, so that a test cannot be renamed or lost unnoticed.

In its tables, what stands in backticks is a file below tests/, or a test `Suite.Name` of the file named before it in the same
cell; `Suite.*` is any test of the suite.

usage: named_tests.py ROOT
"""
import pathlib
import re
import sys

DOCUMENT = "docs/VLLM_TESTS.md"
DEFINED = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
NAMED = re.compile(r"`([^`]+)`")
TEST = re.compile(r"(\w+)\.(\w+|\*)")


def cells(text):
    """The cells of all tables, with their line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            for cell in line.split("|"):
                yield number, cell


def mistakes(root):
    tests_of = {}  # file -> its (suite, name) pairs
    counted = 0
    for number, cell in cells((root / DOCUMENT).read_text()):
        file = None
        for word in NAMED.findall(cell):
            if word.startswith("tests/"):
                file = word
                if not (root / file).exists():
                    yield f"{DOCUMENT}:{number}: there is no file {file}"
                continue
            if not (test := TEST.fullmatch(word)):
                continue
            counted += 1
            if file is None or not (root / file).is_file():
                yield f"{DOCUMENT}:{number}: {word} stands behind no file"
                continue
            if file not in tests_of:
                tests_of[file] = set(DEFINED.findall((root / file).read_text()))
            suite, name = test.groups()
            if not any(suite == s and name in (n, "*") for s, n in tests_of[file]):
                yield f"{DOCUMENT}:{number}: {file} has no test {word}"
    if counted < 100:
        yield f"{DOCUMENT}: only {counted} tests are named; has its form changed?"


def main():
    found = list(mistakes(pathlib.Path(sys.argv[1])))
    for mistake in found:
        print(mistake)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
