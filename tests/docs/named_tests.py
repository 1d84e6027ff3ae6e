#!/usr/bin/env python3
"""Checks that every test of ours which a document names exists, so that a test cannot be renamed or lost unnoticed.

In the tables of docs/VLLM_TESTS.md, what stands in backticks is a file below tests/, or a test `Suite.Name` of the file named
before it in the same cell; `Suite.*` is any test of the suite. In all other documents a test `Suite.Name` may be of any file, a
file may be named by the end of its path, and what is behind a slash (`Suite.Name/Parameter`) is not looked at.

usage: named_tests.py ROOT
"""
import pathlib
import re
import sys

DOCUMENT = "docs/VLLM_TESTS.md"
DEFINED = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
NAMED = re.compile(r"`([^`]+)`")
TEST = re.compile(r"(\w+)\.(\w+|\*)")
ANY_TEST = re.compile(r"(?:\w+/)?([A-Z]\w+)\.([A-Z]\w+|\*)(?:/.*)?")
FILE = re.compile(r"[\w/]+_test\.(?:cpp|py|sh)")


def cells(text):
    """The cells of all tables, with their line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            for cell in line.split("|"):
                yield number, cell


def documents(root):
    """All but the one above, with their names."""
    for pattern in ["*.md", "docs/*.md", "[a-z]*/**/README.md"]:
        for file in sorted(root.glob(pattern)):
            name = file.relative_to(root)
            if name.parts[0] != "build" and str(name) != DOCUMENT:
                yield name, file.read_text()


def mistakes_elsewhere(root):
    files = ["/" + str(file.relative_to(root)) for file in (root / "tests").rglob("*") if file.is_file()]
    tests = {test for file in (root / "tests").rglob("*.cpp") for test in DEFINED.findall(file.read_text())}
    suites = {suite for suite, _ in tests}
    counted = 0
    for name, text in documents(root):
        for number, line in enumerate(text.splitlines(), 1):
            for word in NAMED.findall(line):
                if test := ANY_TEST.fullmatch(word):
                    counted += 1
                    if test.groups() not in tests and not (test[2] == "*" and test[1] in suites):
                        yield f"{name}:{number}: there is no test {word}"
                elif word.startswith("tests/") and not any(root.glob(word)):
                    yield f"{name}:{number}: there is no file {word}"
                elif FILE.fullmatch(word) and not any(file.endswith("/" + word) for file in files):
                    yield f"{name}:{number}: there is no file {word}"
    if counted < 100:
        yield f"only {counted} tests are named in the other documents; has their form changed?"


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
    root = pathlib.Path(sys.argv[1])
    found = [*mistakes(root), *mistakes_elsewhere(root)]
    for mistake in found:
        print(mistake)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
