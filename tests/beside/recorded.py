"""What vLLM decides, written to a file that one of our tests reads: fresh for the comparison now, or recorded for a test that needs no vLLM."""
import os
import pathlib
import random
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def compare(lines, count, recorded, record_count, program, test, variable):
    """Runs the test on so many fresh lines; its exit code. SEED for other ones. RECORD=1 also writes the recorded ones.

    lines(rng, count): the lines; variable: that names the file to the test.
    """
    rng = random.Random(int(os.environ.get("SEED") or 1))
    if os.environ.get("RECORD"):
        (ROOT / recorded).write_text("".join(lines(random.Random(7), record_count)))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(lines(rng, count))
        file.flush()
        command = [str(ROOT / "build/bin" / program), f"--gtest_filter={test}", "--gtest_brief=1"]
        return subprocess.run(command, env=os.environ | {variable: file.name}).returncode
