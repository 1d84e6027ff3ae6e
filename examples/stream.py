#!/usr/bin/python3
"""Streams a completion to standard output.    usage: stream.py "In the beginning" [SOCKET]"""
import sys

import kvhive


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: stream.py PROMPT [SOCKET]", file=sys.stderr)
        return 2
    try:
        with kvhive.Client(sys.argv[2] if len(sys.argv) > 2 else None) as client:
            tokens = 0
            for news in client.generate(sys.argv[1], max_tokens=48):
                print(news.text, end="", flush=True)
                tokens += len(news.tokens)
    except kvhive.Error as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 1
    print()
    print(
        f"[{tokens} tokens; {news.cached_tokens} of {news.prompt_tokens} prompt tokens cached; {news.finish_reason}]",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
