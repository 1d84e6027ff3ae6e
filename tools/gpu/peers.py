"""Other implementations on the same GPU and shapes, in the same run: cuBLAS, PyTorch's SDPA on
gathered KV, and a paged decode in Triton (split KV, GQA heads packed in M). One JSON object.

    peers.py BxCTX [BxCTX ...]      sequences x tokens of each, 32/8 heads of 128, bf16, block 16
"""

import json
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 32, 8, 128, 16
GROUP = HEADS // KV_HEADS
SPLIT_TOKENS = 1024
L2_BYTES = torch.cuda.get_device_properties(0).L2_cache_size


@triton.jit
def decode_part(q, k, v, table, lens, part, part_lse, scale, table_width, splits,
                block_stride: tl.constexpr, head_stride: tl.constexpr, group: tl.constexpr,
                kv_heads: tl.constexpr, size: tl.constexpr, page: tl.constexpr,
                split_tokens: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr):
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens + sequence)
    begin = split * split_tokens
    end = tl.minimum(begin + split_tokens, length)
    row, dim = tl.arange(0, rows), tl.arange(0, size)
    query_head = head * group + row
    is_query = row < group
    queries = tl.load(q + (sequence * kv_heads * group + query_head)[:, None] * size + dim[None, :],
                      mask=is_query[:, None], other=0.0)
    largest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, size], tl.float32)
    for first in range(begin, end, tile):
        token = first + tl.arange(0, tile)
        is_seen = token < end
        block = tl.load(table + sequence * table_width + token // page, mask=is_seen, other=0)
        at = block.to(tl.int64) * block_stride + head * head_stride + (token % page) * size
        keys = tl.load(k + at[None, :] + dim[:, None], mask=is_seen[None, :], other=0.0)
        values = tl.load(v + at[:, None] + dim[None, :], mask=is_seen[:, None], other=0.0)
        scores = tl.where(is_seen[None, :], tl.dot(queries, keys) * scale, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - now)
        weights = tl.exp2(scores - now[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        largest = now
    at = ((sequence * kv_heads * group + query_head) * splits + split)
    is_there = is_query & (begin < end)
    tl.store(part + at[:, None] * size + dim[None, :], acc / total[:, None],
             mask=is_there[:, None])
    tl.store(part_lse + at, tl.where(begin < end, largest + tl.log2(total), float("-inf")),
             mask=is_query)


@triton.jit
def combine(part, part_lse, out, splits, size: tl.constexpr, most: tl.constexpr):
    row = tl.program_id(0)
    split, dim = tl.arange(0, most), tl.arange(0, size)
    is_there = split < splits
    lse = tl.load(part_lse + row * splits + split, mask=is_there, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, 0))
    parts = tl.load(part + (row * splits + split)[:, None] * size + dim[None, :],
                    mask=(is_there & (weights > 0))[:, None], other=0.0)
    result = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + row * size + dim, result)


class PagedDecode:
    """Some layers of the same shape, used in turn, so that no KV is in the L2."""

    def __init__(self, sequences, tokens):
        self.sequences, self.tokens = sequences, tokens
        self.width = (tokens + BLOCK - 1) // BLOCK
        blocks = sequences * self.width
        layer_bytes = 2 * blocks * BLOCK * KV_HEADS * HEAD_SIZE * 2
        self.layers = max(1, min(16, -(-4 * L2_BYTES // layer_bytes)))
        shape = (self.layers, blocks, KV_HEADS, BLOCK, HEAD_SIZE)
        self.k = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.v = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.q = torch.randn((sequences, HEADS, HEAD_SIZE), dtype=torch.bfloat16, device="cuda")
        self.table = torch.randperm(blocks, device="cuda").int().view(sequences, self.width)
        self.lens = torch.full((sequences,), tokens, dtype=torch.int32, device="cuda")
        self.splits = -(-tokens // SPLIT_TOKENS)
        self.part = torch.empty((sequences, HEADS, self.splits, HEAD_SIZE), device="cuda")
        self.part_lse = torch.empty((sequences, HEADS, self.splits), device="cuda")
        self.out = torch.empty_like(self.q)
        self.scale = HEAD_SIZE ** -0.5
        self.bytes = layer_bytes

    def triton(self, layer):
        k, v = self.k[layer], self.v[layer]
        decode_part[(self.sequences, KV_HEADS, self.splits)](
            self.q, k, v, self.table, self.lens, self.part, self.part_lse,
            self.scale * 1.4426950408889634, self.width, self.splits, block_stride=k.stride(0),
            head_stride=k.stride(1), group=GROUP, kv_heads=KV_HEADS, size=HEAD_SIZE, page=BLOCK,
            split_tokens=SPLIT_TOKENS, rows=16, tile=64, num_warps=4, num_stages=4)
        combine[(self.sequences * HEADS,)](self.part, self.part_lse, self.out, self.splits,
                                           size=HEAD_SIZE,
                                           most=triton.next_power_of_2(self.splits))
        return self.out

    def gather(self, plane):
        blocks = plane[self.table.long()]  # [sequences, width, G, BLOCK, D]
        return blocks.transpose(1, 2).reshape(self.sequences, KV_HEADS, -1, HEAD_SIZE)[
            :, :, : self.tokens].contiguous()

    def sdpa(self, layer, backend, gathered):
        k, v = gathered[layer]
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(self.q[:, :, None], k, v, enable_gqa=True)


def microseconds(work, layers):
    """Median of 20 calls over the layers in turn, each timed by events."""
    for layer in range(min(layers, 3)):
        work(layer)
    times = []
    for i in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(i % layers)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def decode_cell(sequences, tokens):
    problem = PagedDecode(sequences, tokens)
    cell = {"bytes": problem.bytes}
    cell["triton_us"] = microseconds(problem.triton, problem.layers)
    has_room = problem.bytes * problem.layers < 40 << 30
    gathered = [(problem.gather(problem.k[i]), problem.gather(problem.v[i]))
                for i in range(problem.layers)] if has_room else None
    for name, backend in (("sdpa_flash_us", SDPBackend.FLASH_ATTENTION),
                          ("sdpa_cudnn_us", SDPBackend.CUDNN_ATTENTION)):
        try:
            if gathered is None:
                raise RuntimeError("no room for a second copy")
            cell[name] = microseconds(lambda i: problem.sdpa(i, backend, gathered), problem.layers)
        except RuntimeError as error:
            cell[name] = None
            cell[name.replace("_us", "_refused")] = str(error).splitlines()[0]
    if gathered is not None:  # check the paged peer's result before measuring its time
        with sdpa_kernel([SDPBackend.MATH]):
            k, v = (plane.float() for plane in gathered[0])
            want = F.scaled_dot_product_attention(problem.q[:, :, None].float(), k, v,
                                                  enable_gqa=True)[:, :, 0]
        got = problem.triton(0).float()
        cell["triton_error"] = ((got - want).norm() / want.norm()).item()
    return cell


def matmul_tflops(n=8192):
    a = torch.randn((n, n), dtype=torch.bfloat16, device="cuda")
    b = torch.randn((n, n), dtype=torch.bfloat16, device="cuda")
    return 2 * n ** 3 / microseconds(lambda _: a @ b, 1) / 1e6


def prefill_tflops(tokens=8192):
    """Causal, one sequence, 32/8 heads of 128: operations that are not masked."""
    q = torch.randn((1, HEADS, tokens, HEAD_SIZE), dtype=torch.bfloat16, device="cuda")
    k = torch.randn((1, KV_HEADS, tokens, HEAD_SIZE), dtype=torch.bfloat16, device="cuda")
    v = torch.randn_like(k)
    rates = {}
    for name, backend in (("sdpa_flash", SDPBackend.FLASH_ATTENTION),
                          ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION)):
        def attend(_):
            with sdpa_kernel([backend]):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        try:
            rates[name] = 2 * HEADS * HEAD_SIZE * tokens ** 2 / microseconds(attend, 1) / 1e6
        except RuntimeError as error:
            rates[name] = str(error).splitlines()[0]
    return rates


def main(shapes):
    report = {"torch": torch.__version__, "triton": triton.__version__,
              "matmul_bf16_tflops": matmul_tflops(), "prefill_tflops": prefill_tflops(),
              "decode": {}}
    for shape in shapes:
        sequences, tokens = map(int, shape.split("x"))
        report["decode"][shape] = decode_cell(sequences, tokens)
        torch.cuda.empty_cache()
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
