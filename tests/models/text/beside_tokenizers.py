#!/usr/bin/env python3
"""Writes beside_tokenizers.json: the results of Hugging Face's tokenizers library, which beside_tokenizers_test.cpp compares with.

needs: pip install tokenizers (0.23.3 made the file in the tree; it runs Oniguruma 6.9), Python with Unicode 14 (3.11)
usage: beside_tokenizers.py > beside_tokenizers.json
"""
import json
import pathlib
import random
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# The regular expressions of published tokenizers.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + WORDS + r"?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + WORDS + r"?|")
REAL = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": WORDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Qwen2": WORDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "GPT-4": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
             r"\s*[\r\n]|\s+(?!\S)|\s",
    "GPT-4o": O200K + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Tekken": O200K.replace(WORDS + "?", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek-V3 numbers": r"\p{N}{1,3}",
    "DeepSeek-V3 kanji": r"[一-龥぀-ゟ゠-ヿ]+",
    "DeepSeek-V3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                   r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek-V2 letters": r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-Ϋά-ώϐ-ϵϷ-ҁҊ-ԯԱ-Ֆა-ჺჽ-ჿᎠ-Ᏽᏸ-ᏽ]+",
    "DeepSeek-V2 marks": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "Falcon digits": r"[0-9][0-9][0-9]",
    "Kimi K2": r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") +
               r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "GPT-SW3 or OLMo": r" ?[[:alpha:]]+| ?[[:digit:]]+|[^[:alpha:][:digit:]]",
}
# What Oniguruma and PCRE2 read differently.
ODD = [
    r"\s+", r"\S+", r"[^\s]+", r"[\S]+", r"\w+", r"\W+", r"[\w]+", r"[^\w]+", r"[\W]+", r"\b", r"\B", r"\h+", r"\H+", r"[\h]+",
    r"\v", r"\N+", r"\O+", r"\R", ".+", "(?m).+", "(?m:.+)", "^", "$", "a$", "^b", r"\A.", r".\z", r"\n\Z", r".\Z",
    r"\G[a-z]", "[a-w&&[^c-g]z]+", "[^a&&b]", r"[\p{L}&&[^\p{Han}]]+", r"[\p{L}&&\p{Lu}&&A-F]+", "[a[bc]]+", "[^a[bc]]+",
    "[]a]+", "[a-]+", "[-a]+", "[^^]+", "a{1,3}+", "a{2}+", "a{2}?", "a{,2}", "a{2,}", "a{1,2}?", r"\p{N}{1,3}+", "a{2}{3}",
    "a{", "a{x}", "a]b", "a}b", "a(?i)b|c", "(?i:a|'s|k)", "(?i:[a-s]+)", "(?i)a(?-i)b", r"\x61", r"\x{6F22}", r"\u0061",
    r"\p{Han}+", r"\p{Katakana}+", r"\p{^L}+", r"\P{L}+", r"\p{Uppercase Letter}+", r"\p{Punct}+", "[[:punct:]]+",
    "[[:^alpha:]]+", "[[:graph:]]+", "[[:print:]]+", "[[:cntrl:]]+", "[[:word:]]+", r"\p{Word}+", r"[\p{Word}]+",
    "(a)(b)?", "(?<name>a)b", "(?>a+)b", "(?<=a)b", "(?<!a)b", "(?=[A-Z])", "x*", "", "|a", "()",
]
TEXTS = [
    "I'LL pay 12345 €\n\n  twice  now ", "we're 'Sure' it'\u017f \u212aelvin's 5'T", "漢字 \u00a0ñandú 々ー〆カタカナ・ひらがな", "CamelCaseHTTPServer2x",
    "a\u180eb \u180e c\u2028d\u2029e\u0085f\u000bg\fh", "aaaaaab aab abab aB C ac aC axxb éx字", "x{x} a{ a]b a}b [](){}^$|?*+\\", "a\nb\n\n", "a\r\nb\rc\n", "\n", "",
    "1² ½ Ⅷ ٣٤ 1234567 0x1F beef", "e\u0301 नमस्ते हिन्दी עברית العربية", "🙂👩\u200d👩\u200d👧🇩🇪 \ufeff\u00ad", "tab\t\tspace   \u3000\u2003end   ",
    "print(f\"{x:>10}\") // --- /* ... */\n\treturn a&&b;", "BEEF cafe 9abz \\h \\v", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ¿¡§¶«» ¢£¬°±×÷",
]
SETS = [r"\s", r"\S", r"[\s]", r"[^\S]", r"\d", r"\D", r"\h", r"\H", r"\w", r"\W", r"[\w]", r"[\W]", r"\p{Word}", r"[\p{Word}]",
        "[[:space:]]", "[[:punct:]]", r"\p{Punct}", "[[:graph:]]", "[[:print:]]", "[[:cntrl:]]", "[[:blank:]]", "[[:upper:]]",
        "[[:xdigit:]]", "[[:ascii:]]", "[[:word:]]", "[[:digit:]]", r"\p{Han}", r"\p{Katakana}", r"\p{Latin}", r"\p{Common}", r"\p{L}",
        r"\p{LC}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{Z}", r"\p{C}", r"\p{Cased Letter}", r"\p{Emoji}", r"\p{Any}",
        r"[\p{L}&&[^\p{Han}]]", "(?i:s)", "(?i:k)", "(?i:i)", "(?i:[a-z])", "(?i:[^a])"]


def pieces(pattern, text):
    return [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


def assigned():
    """Code points that have meant the same since Unicode 14: newer ones depend on the library's version."""
    assert unicodedata.unidata_version.startswith("14."), unicodedata.unidata_version
    return [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def set_figures(expression, code_points):
    """How many of the code points the expression matches, and FNV-1a over them."""
    text = "".join(map(chr, code_points))
    left = pre_tokenizers.Split(Regex(expression), "removed").pre_tokenize_str(text)
    unmatched = set("".join(piece for piece, _ in left))
    count, digest = 0, 0xCBF29CE484222325
    for c in text:
        if c in unmatched:
            continue
        count += 1
        digest = (digest ^ ord(c)) * 0x100000001B3 & (1 << 64) - 1
    return {"set": expression, "count": count, "fnv1a": f"{digest:016x}"}


def ranges(code_points):
    """[first, count, first, count, ...]"""
    flat = []
    for c in code_points:
        if flat and flat[-2] + flat[-1] == c:
            flat[-1] += 1
        else:
            flat += [c, 1]
    return flat


def added_tokens():
    """A trained tokenizer with added tokens that overlap, strip and are normalized."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(REAL["Llama 3"]), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    for content, flags in [("<a>", {}), ("<a><b>", {}), ("a><", {}), ("<<", {}), ("<<<<!", {}), ("<l>", {"lstrip": True}),
                           ("<r>", {"rstrip": True}), ("<lr>", {"lstrip": True, "rstrip": True}), ("  ", {}), ("\n \n", {}),
                           ("<e\u0301>", {}), ("<n\u0303>", {"normalized": True}), ("Straße", {"normalized": True})]:
        tokenizer.add_tokens([AddedToken(content, special=not flags.get("normalized"), normalized=flags.get("normalized", False),
                                         **{k: v for k, v in flags.items() if k != "normalized"})])
    parts = ["<a>", "<b>", "<", "<<", "!", "<l>", "<r>", "<lr>", " ", "  ", "\n", "\u3000", "a", "><", "<e\u0301>", "<é>", "<ñ>", "<n\u0303>", "Straße", "x"]
    drawn = random.Random(11)
    texts = ["".join(drawn.choice(parts) for _ in range(drawn.randint(1, 12))) for _ in range(300)]
    return {"file": json.loads(tokenizer.to_str()), "cases": [[t, tokenizer.encode(t).ids] for t in texts]}


def gemma():
    """A trained tokenizer built as Gemma's: spaces are marked by a normalizer, so what cuts at spaces finds none; bytes for the rest."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=260, limit_alphabet=80, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"], show_progress=False))
    file = json.loads(tokenizer.to_str())
    vocabulary = file["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    file["model"] |= {"byte_fallback": True, "fuse_unk": True}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    texts = TEXTS + ["<bos>a <eos> b", " <unk>  x", "two  spaces ", "\u2581marked \u2581 already"]
    return {"file": json.loads(tokenizer.to_str()),
            "cases": [[t, tokenizer.encode(t).ids, tokenizer.decode(tokenizer.encode(t).ids)] for t in texts]}


def main():
    same_since_14 = assigned()
    found = {
        "made_by": f"beside_tokenizers.py, tokenizers {tokenizers.__version__}",
        "texts": TEXTS,
        "splits": [{"pattern": p, "pieces": [pieces(p, t) for t in TEXTS]} for p in list(REAL.values()) + ODD],
        "assigned": ranges(same_since_14),
        "sets": [set_figures(s, same_since_14) for s in SETS],
        "added_tokens": added_tokens(),
        "merged": [[piece for piece, _ in pre_tokenizers.Split(" ", "merged_with_previous").pre_tokenize_str(t)] for t in TEXTS],
        "gemma": gemma(),
    }
    print(json.dumps(found, ensure_ascii=True, separators=(",", ":")).replace('{"pattern"', '\n{"pattern"')
          .replace('{"set"', '\n{"set"').replace('"assigned"', '\n"assigned"').replace('"added_tokens"', '\n"added_tokens"')
          .replace('"merged"', '\n"merged"').replace('"gemma"', '\n"gemma"'))


main()
