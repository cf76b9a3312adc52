"""Tokenizers built from GGUF metadata against independent ones, and the way back to text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from gguf import GGUFWriter, TokenType
from transformers import AutoTokenizer, Qwen2Tokenizer

from engine.checkpoint import open_checkpoint
from engine.errors import UnpausedError
from engine.tokenizer import Message, Tokenizer, load_tokenizer
from tests.engine import gguf_files, tiny
from tests.engine.conftest import TinyFactory

TEXTS = [
    "",
    " ",
    "hello",
    " hello world  ",
    "in 1999   42  7",
    "    5",
    "a\n\n  1\t\t2",
    "x=12345678.90",
    "don't we'll I'VE they're",
    "tabs\tand\r\nlines\n\n\n end",
    "naïve café, 日本語です — «ok»",
    "👩‍👩‍👧 🇩🇪 𝄞 \u200b\u00a0.",
    "def f(x):\n    return x**2  # 3",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>",
]


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_path))


# --- an independent byte-level BPE, by GPT-2's published rules ---

GPT2_WORDS = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


@cache
def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(256 + i) for i, byte in enumerate(others)}


def bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Join the pair of the lowest rank, leftmost first, until none is left."""
    parts = list(word)
    while True:
        pairs = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            return parts
        _, i = min(pairs)
        parts[i : i + 2] = ["".join(parts[i : i + 2])]


def reference_ids(
    text: str, vocabulary: dict[str, int], merges: list[str], special: list[str]
) -> list[int]:
    """SmolLM2's rule: special tokens whole, each digit alone, then GPT-2's words, then BPE."""
    ranks = {tuple(merge.split(" ", 1)): rank for rank, merge in enumerate(merges)}
    ids: list[int] = []
    for part in regex.split("(" + "|".join(map(regex.escape, special)) + ")", text):
        if part in special:
            ids.append(vocabulary[part])
            continue
        for piece in regex.findall(r"\p{Nd}|[^\p{Nd}]+", part):
            for word in GPT2_WORDS.findall(piece):
                spelled = "".join(byte_characters()[byte] for byte in word.encode())
                ids += [vocabulary[token] for token in bpe(spelled, ranks)]  # type: ignore[arg-type]
    return ids


@pytest.mark.real
def test_smollm2_ids_by_its_published_rule(
    smollm2_path: Path, smollm2_tokenizer: Tokenizer
) -> None:
    checkpoint: Any = open_checkpoint(smollm2_path)
    tokens = checkpoint.field("tokenizer.ggml.tokens")
    types = checkpoint.field("tokenizer.ggml.token_type")
    merges = checkpoint.field("tokenizer.ggml.merges")
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    for text in TEXTS:
        expected = reference_ids(text, vocabulary, merges, special)
        assert smollm2_tokenizer.encode(text) == expected, text
    assert smollm2_tokenizer.encode("a   42") == [vocabulary[t] for t in ("a", "ĠĠĠ", "4", "2")]


@pytest.mark.real
def test_smollm2_ids_of_transformers_where_it_is_right(
    smollm2_path: Path, smollm2_tokenizer: Tokenizer
) -> None:
    """Its conversion drops the digit rule, which shows where several spaces precede a digit."""
    theirs = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    for text in TEXTS:
        if not regex.search(r"\s{2}\d", text):
            expected = theirs.encode(text, add_special_tokens=False)
            assert smollm2_tokenizer.encode(text) == expected, text


@pytest.mark.real
def test_smollm2_specials_and_template(smollm2_tokenizer: Tokenizer) -> None:
    tokenizer = smollm2_tokenizer
    ends = tokenizer.encode("<|im_end|><|endoftext|>")
    assert len(ends) == 2 and tokenizer.stop_ids == frozenset(ends)
    assert tokenizer.has_chat_template
    chat: list[Message] = [{"role": "user", "content": "hi"}]
    assert tokenizer.render(chat) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    own: list[Message] = [{"role": "system", "content": "Be brief."}, *chat]
    assert tokenizer.render(own).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert tokenizer.encode_prompt("hi") == tokenizer.encode("hi")  # it has no BOS
    assert tokenizer.decode(tokenizer.encode(tokenizer.render(chat))).endswith(
        "user\nhi\nassistant\n"
    )


# --- the way back ---


@pytest.mark.real
def test_smollm2_round_trips(smollm2_tokenizer: Tokenizer) -> None:
    every_plane = "".join(chr(c) for c in range(32, 0x2FFFF, 397) if not 0xD800 <= c < 0xE000)
    for text in (*TEXTS[:-1], every_plane):
        assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.decode_stream()
    return [tokenizer.step(stream, token_id) for token_id in ids]


@pytest.mark.real
def test_streaming_says_what_decoding_says(smollm2_tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = smollm2_tokenizer.encode(text)
        pieces = streamed(smollm2_tokenizer, ids)
        assert "".join(pieces) == smollm2_tokenizer.decode(ids)
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.real
@pytest.mark.parametrize("seed", range(20))
def test_streaming_random_ids(smollm2_tokenizer: Tokenizer, seed: int) -> None:
    """Any ids at all, broken characters too: only an unfinished end may be held back."""
    ids = tiny.random_ids(60, seed, vocab=smollm2_tokenizer._fast.get_vocab_size())
    text = "".join(streamed(smollm2_tokenizer, ids))
    whole = smollm2_tokenizer.decode(ids)
    assert whole.startswith(text) and len(text) > 20
    assert not whole[len(text) :].strip("\ufffd")


# --- other vocabularies ---


def test_a_gguf_and_a_folder_give_the_same_tokenizer(tiny_of: TinyFactory, tmp_path: Path) -> None:
    path = gguf_files.write_gguf(tiny_of("llama").reference, tmp_path / "m.gguf")
    from_gguf = load_tokenizer(open_checkpoint(path))
    from_folder = load_tokenizer(open_checkpoint(tiny_of("llama").folder))
    thinking = "<think>why  12</think> so"
    for text in (*TEXTS, thinking):
        ids = from_folder.encode(text)
        assert from_gguf.encode(text) == ids and from_gguf.decode(ids) == from_folder.decode(ids)
    assert from_gguf.decode(from_gguf.encode(thinking)) == thinking  # tags are seen
    assert from_gguf.stop_ids == from_folder.stop_ids and len(from_gguf.stop_ids) == 2
    chat: list[Message] = [{"role": "user", "content": "hello"}]
    assert from_gguf.render(chat) == from_folder.render(chat)


def gguf_tokenizer(path: Path, write: Callable[[GGUFWriter], None]) -> Tokenizer:
    writer = GGUFWriter(path, "llama")
    writer.add_head_count(1)
    write(writer)
    gguf_files.finish(writer)
    return load_tokenizer(open_checkpoint(path))


def byte_level(pre: str, extra: list[str], **ids: str) -> Callable[[GGUFWriter], None]:
    """The tiny vocabulary under another pre-tokenizer; `ids`: roles of some tokens."""
    model = json.loads(tiny.tokenizer().backend_tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *extra]

    def write(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        kind = TokenType.NORMAL
        writer.add_token_types([TokenType.CONTROL if t.startswith("<|") else kind for t in tokens])
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        for role, token in ids.items():
            writer.add_uint32(f"tokenizer.ggml.{role}_token_id", tokens.index(token))

    return write


def test_qwen2_rule(tmp_path: Path) -> None:
    model = json.loads(tiny.tokenizer().backend_tokenizer.to_str())["model"]
    theirs = Qwen2Tokenizer(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], unk_token=None
    )
    ours = gguf_tokenizer(tmp_path / "q.gguf", byte_level("qwen2", []))
    decomposed = unicodedata.normalize("NFD", "é ü Å")
    for text in (*TEXTS[:-1], decomposed, "the  quick\n\n  brown 12 fox"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert ours.decode(ours.encode(decomposed)) == "é ü Å"


def test_llama3_rule(tmp_path: Path) -> None:
    begin = "<|begin_of_text|>"
    write = byte_level("llama-bpe", ["zebras", "123", begin], bos=begin)
    tokenizer = gguf_tokenizer(tmp_path / "l.gguf", write)
    names = tokenizer._fast.id_to_token
    # A word of the vocabulary is one token, merges or not; others are merged.
    assert [names(i) for i in tokenizer.encode("zebras the")] == ["zebras", "Ġthe"]
    # Digits go in groups of three from the left.
    assert [names(i) for i in tokenizer.encode("12345")] == ["123", "4", "5"]
    assert names(tokenizer.encode_prompt("the")[0]) == begin
    assert begin not in [names(i) for i in tokenizer.encode("the")]
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode_prompt(text)) == text


@pytest.mark.parametrize("pre", ["gpt-2", "default", "smollm", "starcoder", "llama-bpe", "qwen2"])
def test_every_pre_tokenizer_round_trips(tmp_path: Path, pre: str) -> None:
    tokenizer = gguf_tokenizer(tmp_path / "m.gguf", byte_level(pre, []))
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


PIECES = ["▁", *"theclok", "▁t", "he", "▁the", "ck", "lo", "▁c", "▁clock", "lock", "▁▁"]


def sentencepiece(writer: GGUFWriter) -> None:
    """A SentencePiece vocabulary as Llama 2 has it: specials, bytes, pieces with scores."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(PIECES)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(PIECES))])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_uint32("tokenizer.ggml.unknown_token_id", 0)


def sentencepiece_of(text: str) -> list[str]:
    """SentencePiece's BPE: a space in front, the best-scored pair first, bytes for the rest."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(PIECES.index(a + b), i) for i, (a, b) in enumerate(pairwise(parts))
                 if a + b in PIECES]  # fmt: skip
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = ["".join(parts[i : i + 2])]
    spelled = [[p] if p in PIECES else [f"<0x{byte:02X}>" for byte in p.encode()] for p in parts]
    return [piece for pieces in spelled for piece in pieces]


def test_sentencepiece(tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(tmp_path / "s.gguf", sentencepiece)
    names = tokenizer._fast.id_to_token
    assert [names(i) for i in tokenizer.encode("the clock")] == ["▁the", "▁clock"]
    for text in (
        "the clock",
        "the  clock the",
        "tick tock: café 日本 👩‍👩‍👧",
        "a\nb",
        "lockthe cl",
    ):
        ids = tokenizer.encode(text)
        assert [names(i) for i in ids] == sentencepiece_of(text)
        assert tokenizer.decode(ids) == text
        assert "".join(streamed(tokenizer, ids)) == text
    assert tokenizer.encode_prompt("the") == [1, *tokenizer.encode("the")]
    # The space in front belongs to the text's beginning, not to what follows a special token.
    assert [names(i) for i in tokenizer.encode("<s>the</s>")] == ["<s>", "t", "he", "</s>"]
    assert tokenizer.stop_ids == frozenset([2])


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    def other(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("bert")
        writer.add_token_list(["a"])

    with pytest.raises(UnpausedError, match="'bert' tokenizer; supported: gpt2 and llama"):
        gguf_tokenizer(tmp_path / "b.gguf", other)
    with pytest.raises(UnpausedError, match="pre-tokenizer 'tekken' is not supported; supported"):
        gguf_tokenizer(tmp_path / "t.gguf", byte_level("tekken", []))


# --- models without a chat template ---


def test_a_base_model_gets_a_plain_dialogue() -> None:
    inner = tiny.tokenizer()
    inner.chat_template = None
    tokenizer = Tokenizer(inner)
    assert not tokenizer.has_chat_template
    chat: list[Message] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": " hi"},
        {"role": "user", "content": "bye"},
    ]
    assert tokenizer.render(chat[:1]) == "User: hello\nAssistant:"
    # What the model said follows its cue as it was said, so that the cache can be kept.
    assert tokenizer.render(chat) == "User: hello\nAssistant: hi\nUser: bye\nAssistant:"
