#!/usr/bin/env python3
"""Makes the demo model of this folder from nothing: text, tokenizer, weights.

    python3 train.py --work DIR             # text -> tokenizer -> training -> export
    python3 train.py --work DIR --sample    # load the exported model and generate text
    python3 train.py --work DIR --expected  # token ids for other implementations to check

Needs python3 with torch, numpy and regex, and the reader program `bible` with
its text (Debian: python3-torch python3-numpy python3-regex bible-kjv
bible-kjv-text; libopenblas0-pthread makes the float32 parts much faster).
All random numbers follow from SEED. A matrix product on several threads adds in
an order that differs between machines, so a second run gives an equally good
model, but not the same bits. Text and tokenizer are the same in every run.
"""
import argparse
import json
import math
import os
import random
import re
import struct
import subprocess
import time
from collections import Counter, defaultdict

import numpy as np
import regex
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 1611
HERE = os.path.dirname(os.path.abspath(__file__))

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": 2046,
    "eos_token_id": 2047,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"

# (context length, sequences per step, steps): short rows first, because they take
# little time, then long rows, so that the model also works after a long prompt.
PHASES = [(256, 16, 2400), (1024, 4, 150)]
LR_MAX, LR_MIN, WARMUP = 2.5e-3, 1.2e-4, 150
WEIGHT_DECAY, DROPOUT = 0.1, 0.1
EXPORT_EVERY = 50


# ---------------------------------------------------------------- the text

POETRY = {"Job", "Psa", "Prov", "Eccl", "Song", "Lam"}


def read_chapters():
    """The King James Bible as [(book, text of one chapter)], without verse numbers."""
    raw = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    chapters, key = [], None
    for line in raw.splitlines():
        m = re.match(r"([1-3]?[A-Za-z]+)(\d+):(\d+) (.*)$", line)
        if not m:
            raise SystemExit("a line that is not a verse: %r" % line)
        if (m[1], m[2]) != key:
            key = (m[1], m[2])
            chapters.append((m[1], []))
        chapters[-1][1].append(re.sub(r"\s+", " ", m[4]).strip())
    return [(book, lay_out(book, verses)) for book, verses in chapters]


def lay_out(book, verses):
    """Joins verses: one line per verse in poetry, paragraphs of running text in prose."""
    if any(book.startswith(p) for p in POETRY):
        return "\n".join(verses) + "\n"
    paragraphs, now = [], ""
    for v in verses:
        now = (now + " " + v).strip()
        if len(now) > 450 and now[-1] in ".?!":
            paragraphs.append(now)
            now = ""
    if now:
        paragraphs.append(now)
    return "\n\n".join(paragraphs) + "\n"


def make_documents(chapters, rng):
    """Makes documents of one to four consecutive chapters of one book."""
    docs, i = [], 0
    while i < len(chapters):
        n, book, parts = rng.randint(1, 4), chapters[i][0], []
        while i < len(chapters) and chapters[i][0] == book and len(parts) < n:
            parts.append(chapters[i][1])
            i += 1
        docs.append("\n".join(parts))
    return docs


# ----------------------------------------------------------- the tokenizer

# The pattern by which Llama 3 splits text into words before byte pair encoding.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's printable character for each byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def train_bpe(text, n_merges):
    """Byte pair encoding: repeatedly joins the most frequent pair of neighbours."""
    table = byte_alphabet()
    counts = Counter(regex.findall(PATTERN, text))
    words = [[table[b] for b in w.encode()] for w in counts]
    freq = list(counts.values())
    pairs, where = Counter(), defaultdict(set)
    for i, w in enumerate(words):
        for p in zip(w, w[1:]):
            pairs[p] += freq[i]
            where[p].add(i)
    merges = []
    while len(merges) < n_merges:
        best = min(pairs, key=lambda p: (-pairs[p], p))  # ties: the first in the alphabet
        merges.append(best)
        for i in where.pop(best):
            old, new, j = words[i], [], 0
            while j < len(old):
                if j + 1 < len(old) and (old[j], old[j + 1]) == best:
                    new.append(old[j] + old[j + 1])
                    j += 2
                else:
                    new.append(old[j])
                    j += 1
            for p in zip(old, old[1:]):
                pairs[p] -= freq[i]
            for p in zip(new, new[1:]):
                pairs[p] += freq[i]
                where[p].add(i)
            words[i] = new
        del pairs[best]
    return merges


def tokenizer_json(merges):
    """Returns the tokenizer in the format of the Hugging Face `tokenizers` library."""
    vocab = {c: i for i, c in enumerate(sorted(byte_alphabet().values()))}
    for a, b in merges:
        vocab[a + b] = len(vocab)
    special = [{"id": len(vocab) + i, "content": s, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True}
               for i, s in enumerate((BOS, EOS))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False,
                  "trim_offsets": True, "use_regex": False}
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN},
             "behavior": "Isolated", "invert": False},
            byte_level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": BOS, "type_id": 1}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [special[0]["id"]], "tokens": [BOS]}}},
        "decoder": dict(byte_level, use_regex=True, add_prefix_space=True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [a + " " + b for a, b in merges]},
    }


class Tokenizer:
    """Reads tokenizer.json. Encodes plain text only; callers add special tokens as ids."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            spec = json.load(f)
        self.vocab = spec["model"]["vocab"]
        self.names = {i: s for s, i in self.vocab.items()}
        self.rank = {tuple(m.split(" ")): r for r, m in enumerate(spec["model"]["merges"])}
        self.pattern = regex.compile(spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"])
        ids = {t["content"]: t["id"] for t in spec["added_tokens"]}
        self.bos, self.eos = ids[BOS], ids[EOS]
        self.of_byte = byte_alphabet()
        self.to_byte = {c: b for b, c in self.of_byte.items()}
        self.cache = {}

    def word(self, w):
        if w not in self.cache:
            s = [self.of_byte[b] for b in w.encode()]
            while len(s) > 1:
                r, j = min((self.rank.get((s[j], s[j + 1]), 1 << 30), j) for j in range(len(s) - 1))
                if r == 1 << 30:
                    break
                s[j:j + 2] = [s[j] + s[j + 1]]
            self.cache[w] = [self.vocab[c] for c in s]
        return self.cache[w]

    def encode(self, text):
        return [i for w in self.pattern.findall(text) for i in self.word(w)]

    def decode(self, ids):
        b = bytes(self.to_byte[c] for i in ids if i in self.names for c in self.names[i])
        return b.decode("utf-8", "replace")


# --------------------------------------------------------------- the model

class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * self.weight


def rope_tables(positions):
    """cos and sin, one row per position, for the rotate-half convention."""
    d = CONFIG["head_dim"]
    inv = CONFIG["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angle = positions.float()[:, None] * inv[None, :]
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        h, d = CONFIG["hidden_size"], CONFIG["head_dim"]
        self.nq, self.nkv, self.d = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], d
        self.q_proj = nn.Linear(h, self.nq * d, bias=False)
        self.k_proj = nn.Linear(h, self.nkv * d, bias=False)
        self.v_proj = nn.Linear(h, self.nkv * d, bias=False)
        self.o_proj = nn.Linear(self.nq * d, h, bias=False)

    def forward(self, x, cos, sin, mask):
        B, T, _ = x.shape
        g = self.nq // self.nkv  # query heads that share one key/value head
        q = self.q_proj(x).view(B, T, self.nq, self.d).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.nkv, self.d).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.nkv, self.d).transpose(1, 2)
        q = rotate(q * self.d ** -0.5, cos, sin)
        k = rotate(k, cos, sin)
        # Query head i reads key/value head i // g: fold the g heads into rows.
        q = q.reshape(B * self.nkv, g * T, self.d)
        k = k.reshape(B * self.nkv, T, self.d)
        v = v.reshape(B * self.nkv, T, self.d)
        s = torch.bmm(q, k.transpose(1, 2)).view(B * self.nkv, g, T, T)
        p = (s + mask.to(s.dtype)).softmax(-1).view(B * self.nkv, g * T, T)
        y = torch.bmm(p, v).view(B, self.nq, T, self.d)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        h, m = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(h, m, bias=False)
        self.up_proj = nn.Linear(h, m, bias=False)
        self.down_proj = nn.Linear(m, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = RMSNorm(CONFIG["hidden_size"])
        self.self_attn = Attention()
        self.post_attention_layernorm = RMSNorm(CONFIG["hidden_size"])
        self.mlp = MLP()

    def forward(self, x, cos, sin, mask, drop):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin, mask), drop)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), drop)


class Llama(nn.Module):
    """Parameter names are those of a Hugging Face Llama without the leading `model.`."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = RMSNorm(CONFIG["hidden_size"])
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = CONFIG["initializer_range"]
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * CONFIG["num_hidden_layers"])
                nn.init.normal_(p, 0.0, std)

    def forward(self, ids, drop=0.0):
        T = ids.shape[1]
        cos, sin = rope_tables(torch.arange(T))
        mask = torch.full((T, T), float("-inf")).triu(1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask, drop)
        return F.linear(self.norm(x), self.embed_tokens.weight)


# ---------------------------------------------------------------- the files

def write_atomically(path, data):
    with open(path + ".tmp", "wb") as f:
        f.write(data)
    os.replace(path + ".tmp", path)


def write_json(path, value):
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode())


def export_weights(model, path):
    """Writes safetensors: u64 length of the header, JSON header, then the tensors."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, p in model.named_parameters():
        blob = p.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header["model." + name] = {"dtype": "BF16", "shape": list(p.shape),
                                   "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 8) % 64)  # so that the tensors begin at a multiple of 64
    write_atomically(path, struct.pack("<Q", len(head)) + head + b"".join(blobs))


def load_weights(path):
    """Returns a float32 model with the weights of the file, which are rounded to bf16."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack_from("<Q", raw)[0]
    header, base = json.loads(raw[8:8 + n]), 8 + n
    header.pop("__metadata__")
    model = Llama()
    with torch.no_grad():
        for name, p in model.named_parameters():
            t = header.pop("model." + name)
            a, b = t["data_offsets"]
            assert t["dtype"] == "BF16" and t["shape"] == list(p.shape)
            half = np.frombuffer(raw[base + a:base + b], "<u2").astype(np.uint32) << 16
            p.copy_(torch.from_numpy(half.view(np.float32).reshape(t["shape"]).copy()))
    assert not header
    return model.eval()


# ------------------------------------------------------------- the training

def prepare(out):
    """Writes everything except the weights; returns the tokenizer and the token streams."""
    rng = random.Random(SEED)
    chapters = read_chapters()
    docs = make_documents(chapters, rng)
    merges_wanted = CONFIG["vocab_size"] - 256 - 2
    spec = tokenizer_json(train_bpe("\n".join(t for _, t in chapters), merges_wanted))
    write_json(os.path.join(out, "tokenizer.json"), spec)
    write_json(os.path.join(out, "config.json"), CONFIG)
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS,
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        # It was never taught to chat: it goes on where the messages end.
        "chat_template": "{{ bos_token }}{% for message in messages %}{{ message.content }}{{ '\\n' if not loop.last }}{% endfor %}"})
    write_json(os.path.join(out, "generation_config.json"), {
        "bos_token_id": CONFIG["bos_token_id"], "eos_token_id": CONFIG["eos_token_id"],
        "do_sample": True, "temperature": 0.8, "top_p": 0.95})
    tok = Tokenizer(os.path.join(out, "tokenizer.json"))
    assert (tok.bos, tok.eos) == (CONFIG["bos_token_id"], CONFIG["eos_token_id"])
    rows = [[tok.bos] + tok.encode(d) + [tok.eos] for d in docs]
    held = rows[20::40]  # every fortieth document is held out for the validation loss
    rows = [r for i, r in enumerate(rows) if i % 40 != 20]
    chars = sum(len(d) for d in docs)
    print("%d documents, %d characters, %d training tokens, %d held-out tokens" % (
        len(docs), chars, sum(map(len, rows)), sum(map(len, held))), flush=True)
    return tok, rows, held


def batches(rows, length, size, rng):
    """Yields rows of `length`+1 tokens from all documents, in a new order in every pass."""
    while True:
        order = rows[:]
        rng.shuffle(order)
        flat = np.array([t for r in order for t in r], np.int64)
        flat = flat[rng.randrange(length):]
        n = (len(flat) - 1) // length
        starts = [i * length for i in range(n)]
        rng.shuffle(starts)
        for i in range(0, n - size + 1, size):
            yield torch.from_numpy(np.stack([flat[s:s + length + 1] for s in starts[i:i + size]]))


@torch.no_grad()
def held_out_loss(model, held, length):
    flat = np.array([t for r in held for t in r], np.int64)
    total = n = 0
    for s in range(0, len(flat) - length - 1, length):
        row = torch.from_numpy(flat[s:s + length + 1])[None]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(row[:, :-1])
        total += F.cross_entropy(logits.float().view(-1, logits.shape[-1]), row[0, 1:]).item()
        n += 1
    return total / n


def train(out, work, scale, resume):
    torch.manual_seed(SEED)
    tok, rows, held = prepare(out)
    phases = [(length, size, max(1, round(steps * scale))) for length, size, steps in PHASES]
    total = sum(p[2] for p in phases)
    model = Llama()
    print("%d parameters, %d steps" % (sum(p.numel() for p in model.parameters()), total), flush=True)
    decay = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    plain = [p for n, p in model.named_parameters() if p.dim() == 1 or "embed" in n]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": WEIGHT_DECAY},
                             {"params": plain, "weight_decay": 0.0}],
                            lr=LR_MAX, betas=(0.9, 0.97), foreach=True)
    step, begun, mean, seen, skip = 0, time.time(), 0.0, 0, 0
    if resume:
        state = torch.load(os.path.join(work, "checkpoint.pt"))
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        skip = state["step"]
    weights = os.path.join(out, "model.safetensors")
    for length, size, steps in phases:
        feed = batches(rows, length, size, random.Random(SEED + length))
        for _ in range(steps):
            if step < skip:  # done before training was resumed: only consume the batch
                next(feed)
                step += 1
                seen += size * length
                continue
            warm = min(1.0, (step + 1) / WARMUP)
            lr = LR_MIN + (LR_MAX - LR_MIN) * 0.5 * (1 + math.cos(math.pi * step / total))
            for group in opt.param_groups:
                group["lr"] = lr * warm
            batch = next(feed)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(batch[:, :-1], DROPOUT)
            loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            step += 1
            seen += size * length
            mean += loss.item()
            if step % 10 == 0:
                print("step %d/%d  context %d  loss %.4f  lr %.2e  %d tokens  %.0f s" % (
                    step, total, length, mean / 10, lr * warm, seen, time.time() - begun), flush=True)
                mean = 0.0
            if step % EXPORT_EVERY == 0 or step == total:
                print("step %d  held-out loss %.4f" % (step, held_out_loss(model, held, 256)), flush=True)
                export_weights(model, weights)
                torch.save({"step": step, "model": model.state_dict(), "opt": opt.state_dict()},
                           os.path.join(work, "checkpoint.pt"))
    for length in (256, 1024, 4096):
        print("final held-out loss at context %d: %.4f" % (length, held_out_loss(model, held, length)))


# --------------------------------------------------------------- the trying

@torch.no_grad()
def generate(model, ids, n, temperature=0.0, seed=0, stop=None):
    gen, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        logits = model(torch.tensor([ids + out]))[0, -1]
        if temperature > 0:
            i = torch.multinomial((logits / temperature).softmax(-1), 1, generator=gen).item()
        else:
            i = logits.argmax().item()
        if i == stop:
            break
        out.append(i)
    return out


LONG_PROMPT = (
    "Now it came to pass in the days of the king, that there was a famine in the land; and a "
    "certain man of the city went out to seek bread, he, and his wife, and his two sons. And he "
    "said unto his wife, Let us go down, I pray thee, unto the river, and let us dwell there, "
    "until the LORD have mercy upon us. And she said unto him, As thou hast said, so will I do. "
    "And they rose up early in the morning, and took their cattle, and their goods, which they "
    "had gotten in the land, and came unto the river; and they dwelt there many days.\n\n"
    "And the elder son was a keeper of sheep, and the younger was a tiller of the ground. And "
    "the younger said unto his father, Behold, the ground is dry, and the corn is withered: "
    "wherefore should we die before thine eyes? And his father answered and said, Fear not, my "
    "son: for the LORD hath heard the voice of thy mother, and he will send rain upon the earth "
    "in his season. And it came to pass on the third day, that there was a great cloud over the "
    "river, and the wind blew, and there was a great rain. And the people of that place saw it, "
    "and were astonished, and said one to another, What manner of man is this, that the heaven "
    "heareth him?\n\nThen came the elders of the city unto him,")
SHORT_PROMPT = "In the beginning"
OTHER_PROMPT = "And Jesus answered and said unto them,"


def sample(out):
    tok = Tokenizer(os.path.join(out, "tokenizer.json"))
    model = load_weights(os.path.join(out, "model.safetensors"))
    for prompt in (SHORT_PROMPT, OTHER_PROMPT, LONG_PROMPT):
        ids = [tok.bos] + tok.encode(prompt)
        for t in (0.0, 0.8):
            text = tok.decode(generate(model, ids, 120, t, SEED, tok.eos))
            print("=== %d prompt tokens, temperature %.1f\n...%s[%s]\n" % (len(ids), t, prompt[-50:], text))


def expected(out, path):
    tok = Tokenizer(os.path.join(out, "tokenizer.json"))
    model = load_weights(os.path.join(out, "model.safetensors"))
    cases = []
    for prompt in (SHORT_PROMPT, OTHER_PROMPT, LONG_PROMPT):
        ids = [tok.bos] + tok.encode(prompt)
        new = generate(model, ids, 16)
        with torch.no_grad():
            top = model(torch.tensor([ids]))[0, -1].topk(5)
            every = model(torch.tensor([ids + new[:-1]]))[0, len(ids) - 1:].topk(2).values
        cases.append({"prompt": prompt, "prompt_ids": ids, "greedy_ids": new,
                      "greedy_text": tok.decode(new),
                      "first_top5": [[i, round(v, 5)] for i, v in zip(top.indices.tolist(), top.values.tolist())],
                      "greedy_margins": [round(v, 5) for v in (every[:, 0] - every[:, 1]).tolist()]})
    odd = "Ünïcödé, 123456 tokens — “quotes”\tand 漢字 🙂\r\n  two  spaces\n\n\n it's I'LL  "
    assert tok.decode(tok.encode(odd)) == odd
    write_json(path, {"note": "prompt_ids begin with the bos token; float32 arithmetic on the weights "
                              "of model.safetensors; greedy_margins: best logit minus second best",
                      "cases": cases, "tokenizer_only": [{"text": odd, "ids": tok.encode(odd)}]})


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", default=HERE, help="where the model goes (this folder)")
    ap.add_argument("--work", required=True, help="where checkpoints and expected.json go")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--scale", type=float, default=1.0, help="times the number of steps")
    ap.add_argument("--resume", action="store_true", help="go on from checkpoint.pt in --work")
    ap.add_argument("--sample", action="store_true")
    ap.add_argument("--expected", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    os.makedirs(args.out, exist_ok=True)
    os.makedirs(args.work, exist_ok=True)
    if args.sample:
        sample(args.out)
    elif args.expected:
        expected(args.out, os.path.join(args.work, "expected.json"))
    else:
        train(args.out, args.work, args.scale, args.resume)


if __name__ == "__main__":
    main()
