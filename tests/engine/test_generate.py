"""From tokens to text: whole characters, stop strings, thinking, and the ends of a reply."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise, product

import pytest

from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.generate import StopScanner, TextDelta, ThinkSplitter, stream_text
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer
from tests.engine.scripted import ScriptedRun
from tests.engine.tiny import CONTEXT, EOS, IM_END, random_ids, tokenizer

TOKENIZER = Tokenizer(tokenizer())
STOP_IDS = TOKENIZER.stop_ids


def pieces_of(text: str) -> list[list[str]]:
    """`text` cut in every way, or in every way into three where those are too many."""
    if len(text) <= 10:
        cuts = [[i + 1 for i, cut in enumerate(bits) if cut] for bits in _bits(len(text) - 1)]
    else:
        cuts = [[a, b] for a in range(1, len(text)) for b in range(a, len(text))]
    return [[text[a:b] for a, b in pairwise([0, *cut, len(text)])] for cut in cuts]


def _bits(count: int) -> Iterable[tuple[int, ...]]:
    return product((0, 1), repeat=max(count, 0))


def stream(text_or_ids: str | Sequence[int], stops: Sequence[str] = ()) -> list[TextDelta]:
    """Deltas of a run that says this, one token a byte where it is text."""
    ids = list(text_or_ids) if not isinstance(text_or_ids, str) else bytewise(text_or_ids)
    return list(stream_text(ScriptedRun(ids), TOKENIZER, STOP_IDS, stops))


def bytewise(text: str) -> list[int]:
    """Ids of `text`, one a byte: characters of several bytes come in several tokens."""
    alphabet = {chr(b): b for b in (*range(33, 127), *range(161, 173), *range(174, 256))}
    rest = [b for b in range(256) if b not in alphabet.values()]
    table = {b: c for c, b in alphabet.items()} | {b: chr(256 + i) for i, b in enumerate(rest)}
    vocabulary = tokenizer().get_vocab()
    return [vocabulary[table[byte]] for byte in text.encode()]


def said(deltas: Iterable[TextDelta], thinking: bool = False) -> str:
    return "".join(delta.text for delta in deltas if delta.thinking == thinking)


# --- stop strings ---


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("abcdef", ["cd"], "ab"),
        ("abcdef", ["zz"], "abcdef"),
        ("abcdef", ["abcdef"], ""),
        ("abcdef", ["f"], "abcde"),
        ("aaab", ["aab"], "a"),
        ("abab!", ["abab?"], "abab!"),
        ("ab\nUser:", ["\nUser:"], "ab"),
        ("xabcx", ["bc", "abc"], "x"),  # the first to begin
        ("cdab", ["ab", "d"], "c"),
        ("abcdef", [""], "abcdef"),
    ],
)
def test_stop_strings_across_every_border(text: str, stops: list[str], kept: str) -> None:
    for pieces in pieces_of(text):
        scanner = StopScanner(stops)
        out = "".join([*map(scanner.push, pieces), scanner.flush()])
        assert out == kept, pieces
        assert scanner.hit == (kept != text)


def test_what_cannot_be_part_of_a_stop_string_is_not_held_back() -> None:
    scanner = StopScanner(["stop!"])
    assert [scanner.push(piece) for piece in ("go on", " st", "ill", " sto", "p", "!x")] == [
        *("go on", " ", "still", " ", "", ""),
    ]
    assert scanner.hit and scanner.rest == "x" and scanner.push("more") == ""


def test_a_stop_string_ends_the_run_and_is_left_out() -> None:
    text = "one two STOP three"
    run = ScriptedRun(bytewise(text))
    deltas = list(stream_text(run, TOKENIZER, STOP_IDS, ["STOP"]))
    assert said(deltas) == "one two "
    assert run.stopped and run.yielded == len("one two STOP")
    assert sum(delta.token is not None for delta in deltas) == run.yielded


def test_a_stop_string_within_one_token_and_after_the_last() -> None:
    ids = TOKENIZER.encode("thing thing question thing")
    assert said(stream(ids, ["ing th"])) == "th"
    assert said(stream("a sto", ["stop"])) == "a sto"  # held back, then released at the end


def test_what_a_tag_might_begin_with_is_said_when_a_stop_string_follows() -> None:
    assert said(stream("1 <STOP", ["STOP"])) == "1 <"
    assert said(stream("a <thiSTOP", ["STOP"])) == "a <thi"


# --- characters ---


@pytest.mark.parametrize(
    "text", ["naïve café", "日本語です", "👩‍👩‍👧 und 🇩🇪", "𝄞", "mixed 12 ñandú — ok"]
)
def test_broken_utf_8_across_tokens_is_held(text: str) -> None:
    deltas = stream(text)
    assert said(deltas) == text
    assert all("\ufffd" not in delta.text for delta in deltas)
    assert len(deltas) == len(text.encode())  # one a token, also where nothing is certain yet


def test_an_incomplete_character_at_the_end_is_left_out() -> None:
    assert said(stream(bytewise("oké")[:-1])) == "ok"


def test_leading_spaces() -> None:
    ids = TOKENIZER.encode(" the quick  brown\n fox")
    assert said(stream(ids)) == " the quick  brown\n fox"


def test_special_tokens_add_no_text() -> None:
    end, eos = TOKENIZER.encode(IM_END)[0], TOKENIZER.encode(EOS)[0]
    deltas = stream([*TOKENIZER.encode("hello"), end])
    assert said(deltas) == "hello" and deltas[-1].token and deltas[-1].token.id == end
    assert {end, eos} <= STOP_IDS


def test_every_token_is_in_exactly_one_delta() -> None:
    for seed in range(5):
        ids = random_ids(200, seed)
        deltas = stream(ids, ["qu"] if seed % 2 else [])
        tokens = [delta.token.id for delta in deltas if delta.token]
        assert tokens == ids[: len(tokens)] and tokens


# --- thinking ---


@pytest.mark.parametrize(
    ("text", "spoken", "thought"),
    [
        ("<think>a</think>b", "b", "a"),
        ("x<think>\n\n</think>y", "xy", "\n\n"),
        ("<think>never ends", "", "never ends"),
        ("a < b <th> </think> c", "a < b <th> </think> c", ""),
        ("<think>a<b</thin</think>c", "c", "a<b</thin"),
        ("<think>1</think>2<think>3</think>4", "24", "13"),
        ("ends with <thi", "ends with <thi", ""),
    ],
)
def test_thinking_across_every_border(text: str, spoken: str, thought: str) -> None:
    for pieces in pieces_of(text):
        splitter = ThinkSplitter()
        parts = [part for piece in pieces for part in splitter.push(piece)] + [splitter.flush()]
        assert "".join(t for t, thinking in parts if not thinking) == spoken, pieces
        assert "".join(t for t, thinking in parts if thinking) == thought, pieces


def test_thinking_in_a_stream() -> None:
    for ids in (
        TOKENIZER.encode("<think>the weather</think>fine"),  # tags that are single tokens
        bytewise("<think>the weather</think>fine"),
    ):
        deltas = stream(ids)
        assert said(deltas) == "fine" and said(deltas, thinking=True) == "the weather"
        assert sum(delta.token is not None for delta in deltas) == len(ids)


# --- the ends of a reply, on a real engine ---


def test_max_tokens(llama: Model) -> None:
    run = EagerEngine(llama).decode(llama.new_cache(), [1, 2], SamplingParams(max_tokens=7))
    deltas = list(stream_text(run, llama.tokenizer, STOP_IDS))
    assert sum(delta.token is not None for delta in deltas) == 7
    assert run.finish_reason == "length"


def test_eos_ends_the_reply_and_is_no_text(llama: Model) -> None:
    engine = EagerEngine(llama)
    ids = [t.id for t in engine.decode(llama.new_cache(), [1], SamplingParams(max_tokens=20))]
    end = next(token_id for token_id in ids if token_id != ids[0])
    params = SamplingParams(max_tokens=20, stop_ids=[end])
    run = engine.decode(llama.new_cache(), [1], params)
    deltas = list(stream_text(run, llama.tokenizer, frozenset([end])))
    count = ids.index(end)
    assert [delta.token.id for delta in deltas if delta.token] == ids[: count + 1]
    assert said(deltas) == llama.tokenizer.decode(ids[:count])
    assert run.finish_reason == "eos"


def test_stopping_from_another_thread_takes_effect_within_one_token(llama: Model) -> None:
    run = EagerEngine(llama).decode(llama.new_cache(), [1], SamplingParams(max_tokens=150))
    third, stopped = threading.Event(), threading.Event()

    def stop_after_third() -> None:
        assert third.wait(60)
        run.stop()
        stopped.set()

    stopper = threading.Thread(target=stop_after_third)
    stopper.start()
    count = 0
    for delta in stream_text(run, llama.tokenizer, STOP_IDS):
        count += delta.token is not None
        if count == 3 and not third.is_set():
            third.set()
            assert stopped.wait(60)
    stopper.join(60)
    assert count <= 4 and run.finish_reason == "stopped"


def test_stopping_before_the_first_token(llama: Model) -> None:
    cache = llama.new_cache()
    run = EagerEngine(llama).decode(cache, [1, 2, 3], SamplingParams())
    run.stop()
    assert list(stream_text(run, llama.tokenizer, STOP_IDS)) == []
    assert run.finish_reason == "stopped" and cache.length == 0


def test_closing_early_stops_the_run() -> None:
    run = ScriptedRun(bytewise("a long reply"))
    deltas = stream_text(run, TOKENIZER, STOP_IDS)
    next(deltas)
    deltas.close()
    assert run.stopped and run.yielded == 1


def test_the_context_is_never_overrun(llama: Model) -> None:
    engine, cache = EagerEngine(llama), llama.new_cache(20)
    run = engine.decode(cache, random_ids(15), SamplingParams(max_tokens=100))
    assert len(list(run)) == 6 and run.finish_reason == "context" and cache.free == 0
    with pytest.raises(UnpausedError, match="needs 21 positions but the context holds 20"):
        engine.decode(llama.new_cache(20), random_ids(21), SamplingParams())
    with pytest.raises(UnpausedError, match="needs 201 positions"):
        engine.prefill(llama.new_cache(), random_ids(CONTEXT + 1))


@pytest.mark.real
def test_smollm2_streams_what_it_says(smollm2: Model) -> None:
    """Real text, real special tokens, and the end that the model itself chooses."""
    chat = Conversation(smollm2, 256)
    params = SamplingParams(max_tokens=40)
    stream = chat.reply(EagerEngine(smollm2), "What is the capital of France?", params)
    deltas = list(stream)
    assert "Paris" in stream.text and stream.text == said(deltas)
    assert stream.text == smollm2.tokenizer.decode(stream.generated_ids)
    assert stream.text[0].isalpha() and "<|im_end|>" not in stream.text
    assert stream.metrics().finish_reason == "eos"
