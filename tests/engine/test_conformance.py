"""What every engine in the registry must do. A new engine is covered without a new test here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.base import DecodeEngine, DecodeRun
from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.registry import DEFAULT_ENGINE, ENGINES, engine_entry
from engine.sampling import SamplingParams
from tests.engine.conformance import DTYPES, SLACK, Subject, Workshop, subjects, unavailable
from tests.engine.conftest import TinyFactory
from tests.engine.tiny import CONTEXT, FAMILIES, VOCAB, poison, random_ids, reference_logits

REPLY = 40
LENGTHS = (1, 2, 63, 64, 65, CONTEXT - REPLY + 1)  # the last fills the context
SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1},
]
Make = Callable[[str, str], Subject]


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    made = Workshop()
    yield made
    made.close()


@pytest.fixture(params=subjects())
def make(request: pytest.FixtureRequest, workshop: Workshop, tiny_of: TinyFactory) -> Make:
    """`make(family, dtype)`: the engine on that tiny model; skips what it says it cannot do."""
    name = request.param
    reason = unavailable(name)
    if reason:
        pytest.skip(f"{name}: {reason}")

    def get(family: str, dtype: str = "float32") -> Subject:
        tiny = tiny_of(family)
        built = workshop.build(name, tiny.folder, dtype)
        if isinstance(built, str):
            pytest.skip(built)
        engine, model = built

        def logits(ids: list[int]) -> torch.Tensor:
            return reference_logits(tiny.reference, ids)

        return Subject(engine, model, logits, SLACK[model.dtype])

    return get


@pytest.fixture(params=DTYPES)
def subject(request: pytest.FixtureRequest, make: Make) -> Subject:
    """The engine on the awkward tiny model: 9 heads over 3, tied, no size a power of two."""
    return make("smollm2", request.param)


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **options)


# --- the contract ---


def test_the_registry_tells_what_there_is() -> None:
    assert DEFAULT_ENGINE in ENGINES
    for name, entry in ENGINES.items():
        assert entry.name == name and engine_entry(name) is entry
        assert entry.label and entry.summary and "\n" not in entry.label + entry.summary
        reason = entry.unavailable()
        assert reason is None or (reason and "\n" not in reason)
    with pytest.raises(
        UnpausedError, match=rf"unknown engine 'warp'; known: {DEFAULT_ENGINE}, .*, persistent$"
    ):
        engine_entry("warp")


def test_what_is_unavailable_cannot_be_built(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EagerEngine, "unavailable", staticmethod(lambda: "it is tired"))
    with pytest.raises(UnpausedError, match="engine eager is unavailable: it is tired"):
        ENGINES["eager"].build(llama)


def test_every_available_engine_runs_smollm2s_shape(make: Make) -> None:
    """Refusing some dtype is fine, refusing every one is not."""
    assert any(runs(make, dtype) for dtype in DTYPES)


def runs(make: Make, dtype: str) -> bool:
    try:
        return bool(make("smollm2", dtype))
    except pytest.skip.Exception:
        return False


def test_contract(subject: Subject) -> None:
    engine = subject.engine
    assert isinstance(engine, DecodeEngine) and engine.model is subject.model
    assert ENGINES[engine.name].name == engine.name
    run = engine.decode(subject.cache(), [1, 2, 3], greedy(5))
    assert isinstance(run, DecodeRun) and run.finish_reason is None
    tokens = list(run)
    times = [token.time_ns for token in tokens]
    assert run.prefill_end_ns is not None
    assert run.start_ns <= run.prefill_end_ns <= times[0] and times == sorted(times)
    assert all(type(t.id) is int and type(t.time_ns) is int for t in tokens)
    assert all(type(t.logprob) is float and t.logprob <= 1e-6 for t in tokens)
    assert run.launches >= 0 and run.finish_reason == "length" and list(run) == []


def test_closing_twice(make: Make) -> None:
    subject = make("llama", "float32")
    engine = ENGINES[subject.engine.name].build(subject.model, 1)
    assert list(engine.decode(subject.cache(), [1], greedy(2)))
    engine.close()
    engine.close()


# --- the same text ---


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text(make: Make, family: str, length: int) -> None:
    subject, prompt, params = make(family, "float32"), random_ids(length, length), greedy(REPLY)
    cache = subject.cache()
    tokens, why = subject.reply(cache, prompt, params)
    assert len(tokens) == REPLY and why == "length"
    subject.judge(prompt, tokens, params)
    assert cache.token_ids == [*prompt, *(token.id for token in tokens[:-1])]


@pytest.mark.parametrize("length", [1, 65])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_in_bfloat16(make: Make, family: str, length: int) -> None:
    subject, prompt, params = make(family, "bfloat16"), random_ids(length, length), greedy(REPLY)
    tokens, _ = subject.reply(subject.cache(), prompt, params)
    subject.judge(prompt, tokens, params)


@pytest.mark.parametrize("options", SAMPLERS)
@pytest.mark.parametrize("family", ["smollm2", "qwen2"])
def test_sampled_text(make: Make, family: str, options: dict[str, Any]) -> None:
    subject, prompt = make(family, "float32"), random_ids(70)
    for seed in (0, 2**63 + 11):
        params = SamplingParams(max_tokens=REPLY, seed=seed, **options)
        tokens, _ = subject.reply(subject.cache(), prompt, params)
        subject.judge(prompt, tokens, params)


def test_sampled_text_in_bfloat16(make: Make) -> None:
    subject, prompt = make("smollm2", "bfloat16"), random_ids(70)
    params = SamplingParams(max_tokens=REPLY, seed=3, temperature=0.8)
    tokens, _ = subject.reply(subject.cache(), prompt, params)
    subject.judge(prompt, tokens, params)


def test_same_seed_same_text_and_other_seeds_other_text(subject: Subject) -> None:
    def ids(seed: int) -> list[int]:
        params = SamplingParams(max_tokens=REPLY, seed=seed, temperature=1.0)
        return [token.id for token in subject.reply(subject.cache(), [5, 6, 7], params)[0]]

    assert ids(1) == ids(1) != ids(2)


# --- how a reply ends ---


def test_stop_ids(subject: Subject) -> None:
    prompt = random_ids(10)
    ids = [token.id for token in subject.reply(subject.cache(), prompt, greedy(REPLY))[0]]
    stop = next(token_id for token_id in ids[5:] if token_id not in ids[:5])
    cache = subject.cache()
    tokens, why = subject.reply(cache, prompt, greedy(REPLY, stop_ids=[VOCAB - 1, stop]))
    assert [token.id for token in tokens] == ids[: ids.index(stop) + 1] and why == "eos"
    assert cache.token_ids == [*prompt, *ids[: ids.index(stop)]]


@pytest.mark.parametrize("positions", [1, 2, 63, 64, 65, 128, CONTEXT])
def test_a_full_cache(subject: Subject, positions: int) -> None:
    """Also contexts of one position, and on both sides of a block's edge."""
    for length in {positions, max(1, positions - 3)}:
        prompt, cache = random_ids(length), subject.cache(positions)
        tokens, why = subject.reply(cache, prompt, greedy(500))
        assert len(tokens) == positions - length + 1 and why == "context" and cache.free == 0
        subject.judge(prompt, tokens, greedy(500))


def test_one_token(subject: Subject) -> None:
    cache = subject.cache()
    tokens, why = subject.reply(cache, [1, 2], greedy(1))
    assert len(tokens) == 1 and why == "length" and cache.token_ids == [1, 2]


def test_stopping_before_the_first_token(subject: Subject) -> None:
    cache, prompt = subject.cache(), [1, 2, 3]
    run = subject.engine.decode(cache, prompt, greedy(REPLY))
    run.stop()
    assert list(run) == [] and run.finish_reason == "stopped"
    assert cache.token_ids == prompt[: cache.length]


def test_stopping_from_another_thread_takes_effect_within_one_token(subject: Subject) -> None:
    cache, prompt = subject.cache(), [1, 2, 3]
    run = subject.engine.decode(cache, prompt, greedy(150))
    third, stopped = threading.Event(), threading.Event()

    def stop_after_third() -> None:
        if third.wait(60):
            run.stop()
            stopped.set()

    stopper = threading.Thread(target=stop_after_third)
    stopper.start()
    tokens = []
    for token in run:
        tokens.append(token)
        if len(tokens) == 3:
            third.set()
            assert stopped.wait(60)
    stopper.join(60)
    assert 3 <= len(tokens) <= 4 and run.finish_reason == "stopped"
    assert cache.token_ids == [*prompt, *(token.id for token in tokens[:-1])]
    rest, _ = subject.reply(cache, [tokens[-1].id], greedy(10))  # and on, as if nothing had been
    subject.judge(prompt, [*tokens, *rest], greedy(150))


def test_a_run_that_is_abandoned(subject: Subject) -> None:
    cache = subject.cache()
    run = subject.engine.decode(cache, [1, 2, 3], greedy(150))
    first = next(iter(run))
    run.stop()
    assert cache.token_ids == [1, 2, 3]
    tokens, _ = subject.reply(cache, [first.id], greedy(10))
    subject.judge([1, 2, 3], [first, *tokens], greedy(10))


# --- one cache, used again and by others ---


def test_prefill_then_decode(subject: Subject) -> None:
    prompt = random_ids(100)
    for cuts in ((64,), (1, 63, 65), (99,), (50, 50)):
        cache, start = subject.cache(), 0
        for cut in cuts:
            subject.engine.prefill(cache, prompt[start:cut])  # the last of (50, 50) is empty
            start = cut
        assert cache.token_ids == prompt[: cuts[-1]]
        tokens, _ = subject.reply(cache, prompt[cuts[-1] :], greedy(10))
        subject.judge(prompt, tokens, greedy(10))


def test_a_prefix_is_kept_and_the_rest_replaced(subject: Subject) -> None:
    cache, prompt = subject.cache(), random_ids(90)
    subject.reply(cache, prompt, greedy(20))
    kept = [tensor[:, :, :64].clone() for tensor in (cache.k, cache.v)]
    cache.truncate(64)
    other = [*prompt[:64], *random_ids(30, seed=9)]
    tokens, _ = subject.reply(cache, other[64:], greedy(20))
    subject.judge(other, tokens, greedy(20))
    for before, tensor in zip(kept, (cache.k, cache.v), strict=True):
        assert torch.equal(before, tensor[:, :, :64])


def test_what_lies_beyond_the_context_does_not_matter(subject: Subject) -> None:
    """NaN, loud noise, or what an earlier turn left: the very same tokens."""
    prompt, replies = random_ids(66), []
    params = SamplingParams(max_tokens=REPLY, seed=4, temperature=0.7, top_p=0.9)
    for fill in ("nan", "noise", "stale"):
        cache = subject.cache()
        if fill == "noise":
            poison(cache, seed=7)
        if fill == "stale":
            subject.reply(cache, random_ids(120, seed=8), greedy(20))
            cache.truncate(0)
        replies.append([token.id for token in subject.reply(cache, prompt, params)[0]])
    assert replies[0] == replies[1] == replies[2]


def test_the_size_of_the_cache_does_not_matter(subject: Subject) -> None:
    prompt, params = random_ids(50), SamplingParams(max_tokens=14, seed=4, temperature=0.7)
    replies = [
        [token.id for token in subject.reply(subject.cache(positions), prompt, params)[0]]
        for positions in (63, 64, 65, CONTEXT)
    ]
    assert all(reply == replies[0] for reply in replies)


@pytest.mark.parametrize("family", ["smollm2", "qwen3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_changing_the_engine_between_turns(make: Make, family: str, dtype: str) -> None:
    """The conversation goes on with eager and comes back, over the same cache."""
    subject = make(family, dtype)
    other = Subject(
        EagerEngine(subject.model), subject.model, subject.reference_logits, subject.slack
    )
    cache, context, total = subject.cache(), list[int](), 0
    for turn, speaker in enumerate((subject, other, subject, other)):
        new = random_ids(20 + turn, seed=turn)
        unfed = context[cache.length :]
        tokens, _ = speaker.reply(cache, [*unfed, *new], greedy(15))
        subject.judge([*context, *new], tokens, greedy(15))
        context += [*new, *(token.id for token in tokens)]
        total += len(new) + len(tokens)
        assert cache.token_ids == context[:-1] and cache.length == total - 1


# --- what is refused ---


def test_refusals_before_any_work(subject: Subject) -> None:
    engine, cache = subject.engine, subject.cache(10)
    engine.prefill(cache, [1, 2, 3])
    held = cache.k.clone()
    for prompt in ([], [-1], [VOCAB], [1, 2, VOCAB + 5], [1] * 8):
        with pytest.raises(UnpausedError) as caught:
            engine.decode(cache, prompt, greedy(5))
        assert "\n" not in str(caught.value)
    with pytest.raises(UnpausedError, match="needs 11 positions but the context holds 10"):
        engine.prefill(cache, [1] * 8)
    assert cache.token_ids == [1, 2, 3]
    assert torch.equal(held.nan_to_num(), cache.k.nan_to_num())
    tokens, _ = subject.reply(cache, [4], greedy(5))
    subject.judge([1, 2, 3, 4], tokens, greedy(5))


# --- real weights ---


@pytest.mark.real
@pytest.mark.parametrize("name", subjects())
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9, "seed": 5}])
def test_smollm2(
    name: str,
    options: dict[str, Any],
    workshop: Workshop,
    smollm2: Model,
    smollm2_path: Path,
) -> None:
    """Against float32 logits that test_exactness has shown to be transformers'."""
    reason = unavailable(name)
    built = reason or workshop.build(name, smollm2_path, "float32")
    if isinstance(built, str):
        pytest.skip(f"{name}: {built}")
    engine, model = built
    eager = EagerEngine(smollm2)

    def logits(ids: list[int]) -> torch.Tensor:
        return eager.logits(smollm2.new_cache(len(ids)), ids)

    # Engines may compute on the file's integer blocks with activations in 16-bit integers.
    subject = Subject(engine, model, logits, slack=0.01)
    params = SamplingParams(max_tokens=24, **options)
    stream = Conversation(model, 256).reply(engine, "Name three colours of the sea.", params)
    ids = stream.prompt_ids
    tokens = [delta.token for delta in stream if delta.token]
    subject.judge(ids, tokens, params)
