"""Joins the results of first_run.sh in a folder: writes first_run.json there and a table to standard output.

Fractions are of the read-only yardstick of the same run; goals are of docs/PERFORMANCE.md.
"""

import json
import pathlib
import sys

# Bytes of KV that a decode step reads in bf16 -> goal as a fraction of the read bandwidth.
GOALS = [(20e6, None), (70e6, 0.75), (300e6, 0.87), (600e6, 0.92), (1e12, 0.94)]


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def goal_of(size):
    return next(goal for limit, goal in GOALS if size <= limit)


def cell(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def decode_rows(kernels, peers, read_gb_s):
    for shape, ours in kernels["decode"].items():
        theirs = (peers or {}).get("decode", {}).get(shape, {})
        bf16 = ours["bf16"]
        yield [shape, cell(bf16["us"], "{:.1f}"), cell(bf16["gb_s"] / read_gb_s),
               cell(goal_of(bf16["bytes"])), cell(bf16["us"] / ours["fp8"]["us"]),
               cell(bf16["us"] / ours["int8"]["us"]),
               *(cell(theirs[name] / bf16["us"]) if theirs.get(name) else "-"
                 for name in ("triton_us", "sdpa_flash_us", "sdpa_cudnn_us"))]


def main(folder):
    parts = {name: read(folder / f"{name}.json") for name in ("yardsticks", "kernels", "peers")}
    (folder / "first_run.json").write_text(json.dumps(parts, indent=1) + "\n")
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        print("missing:", ", ".join(missing))
    yardsticks, kernels = parts["yardsticks"], parts["kernels"]
    if yardsticks:
        print(" ".join(f"{name} {value}" for name, value in yardsticks.items()))
    if not (yardsticks and kernels):
        return
    head = ["decode", "us", "of read", "goal", "fp8 x", "int8 x", "Triton x", "flash x", "cuDNN x"]
    for row in [head, *decode_rows(kernels, parts["peers"], yardsticks["read_gb_s"])]:
        print("".join(f"{text:>10}" for text in row))
    print("skewed over uniform:", cell(kernels["skewed_1x65536_63x512"]["gb_s"] / kernels["uniform_64x1528"]["gb_s"]))
    copy, link = yardsticks["copy_gb_s"], min(yardsticks["h2d_gb_s"], yardsticks["d2h_gb_s"])
    peers_prefill = (parts["peers"] or {}).get("prefill_tflops", {})
    for name in ("prefill_tflops", "cascade", "row_product_tflops"):
        print(name, kernels[name], peers_prefill if name == "prefill_tflops" else "")
    for name, timing in kernels.items():
        if "us" not in timing or name.startswith(("skewed", "uniform")):
            continue
        limit, of = ((link, "the link") if name.startswith("swap") else
                     (yardsticks["read_gb_s"], "a read") if name.startswith("row_product") else (copy, "a copy"))
        print(f"{name:>32} {timing['us']:10.1f} us {timing['gb_s'] / limit:6.2f} of {of}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
