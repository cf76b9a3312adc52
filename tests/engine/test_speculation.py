"""Drafts change how fast a text comes, never the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from engine.base import Token
from engine.drafted_run import DraftedRun, ModelDrafter
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import MAX_WIDTH, Pace, Speculation, look_up, read_choice

REPLY = 60
LOOP = [5, 6, 7, 8] * 8
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5, "repetition_penalty": 1.2},
    {"temperature": 0.9, "top_p": 0.8, "min_p": 0.02},
]


class SteadyPace(Pace):
    """Passes of every width are told to cost the same: the clock of a test says nothing."""

    def took(self, width: int, cost: float) -> None:
        super().took(width, 1.0)


class Oracle:
    """Drafts from a text given beforehand, and every so often something else."""

    free = True
    behind_ns = 0

    def __init__(self, text: Sequence[int], wrong_every: int = 0) -> None:
        self.text, self.wrong_every = list(text), wrong_every

    def draft(self, context: Sequence[int], count: int, params: SamplingParams) -> list[int]:
        draft = self.text[len(context) : len(context) + count]
        if self.wrong_every:
            for at, token_id in enumerate(draft):
                if (len(context) + at) % self.wrong_every == 0:
                    draft[at] = (token_id + 1) % 300
        return draft

    def close(self) -> None:
        pass


def test_look_up_takes_the_longest_match_and_then_the_latest() -> None:
    assert look_up([1, 2, 3, 9, 1, 2], 2) == [3, 9]
    assert look_up([1, 2, 3, 4, 1, 2, 5, 6, 1, 2], 2) == [5, 6]  # the latest of equals
    assert look_up([7, 1, 2, 3, 8, 1, 2, 5, 7, 1, 2], 1) == [3]  # 7 1 2 is longer than 1 2
    assert look_up([1, 2, 3], 4) == [] == look_up([1], 4) == look_up([], 4)
    assert look_up([9, 4, 9, 4], 3) == [9, 4, 9]  # a loop goes on with itself
    assert look_up([1, 1, 1], 5) == [1] * 5


def test_pace_drafts_where_it_pays_only() -> None:
    pace = Pace(8)
    assert pace.width(0) == 1
    for width, cost in ((1, 10.0), (8, 12.0)):
        pace.took(width, cost)
    for _ in range(40):
        pace.saw(0, rejected=True)
    assert pace.width(7) == 1
    for _ in range(40):
        pace.saw(7, rejected=False)
    assert pace.width(7) == 8 and pace.width(2) == 3
    for _ in range(40):  # passes so wide are dear here
        for width in range(2, 9):
            pace.took(width, 10.0 * width)
    assert pace.width(7) == 1


def test_pace_tries_again_what_was_held_up() -> None:
    """Another program held the cores when a width was first tried: it costs no more than others."""
    pace, tried = Pace(4), 0
    pace.took(1, 10.0)
    pace.took(2, 400.0)
    pace.took(3, 900.0)
    for _ in range(12):
        pace.new_reply()
        for _ in range(20):
            pace.saw(3, rejected=False)
            width = pace.width(3)
            tried += width > 1
            pace.took(width, 10.0 + width)
    assert tried > 100 and pace.width(3) == 4


def test_choices_of_the_command_line() -> None:
    assert read_choice("off") == (None, "") and read_choice("ngram") == ("ngram", "")
    assert read_choice("draft:some/model") == ("draft", "some/model")
    for wrong in ("", "on", "draft", "draft:", "draft: ", "NGRAM"):
        with pytest.raises(UnpausedError, match="--speculate is off, ngram or draft:MODEL"):
            read_choice(wrong)


def test_a_draft_model_of_another_vocabulary_is_refused(llama: Model, smollm2: Model) -> None:
    with pytest.raises(UnpausedError, match="its vocabulary has 49,152 tokens, not 384"):
        Speculation("draft", draft_model=smollm2).check(llama)
    for method, width in (("ngram", 1), ("ngram", MAX_WIDTH + 1), ("draft", 4)):
        with pytest.raises(UnpausedError):
            Speculation(method, width)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", SAMPLERS)
@pytest.mark.parametrize("wrong_every", [0, 1, 3, 7])
def test_the_text_is_the_one_without_drafts(
    llama: Model, options: dict[str, Any], wrong_every: int
) -> None:
    params = SamplingParams(max_tokens=REPLY, seed=11, **options)
    plain, _ = _plain(llama, LOOP, params)
    drafter = Oracle([*LOOP, *(token.id for token in plain)], wrong_every)
    cache = llama.new_cache()
    run = _drafted(llama, drafter, cache, LOOP, params)
    tokens = list(run)
    assert [token.id for token in tokens] == [token.id for token in plain]
    assert [token.logprob for token in tokens] == pytest.approx(
        [t.logprob for t in plain], abs=1e-4
    )
    assert cache.token_ids == [*LOOP, *(token.id for token in plain[:-1])]
    counts = run.drafts
    assert counts is not None and counts.passes + counts.accepted == REPLY - 1
    if wrong_every == 0:
        assert counts.accepted == counts.drafted > 0 and counts.passes < REPLY / 2
    if wrong_every == 1:
        assert counts.accepted == 0


@pytest.mark.parametrize("options", SAMPLERS[:3])
def test_the_same_model_drafts_what_it_would_say(llama: Model, options: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=REPLY, seed=3, **options)
    plain, _ = _plain(llama, LOOP, params)
    run = _drafted(llama, ModelDrafter(EagerEngine(llama)), llama.new_cache(), LOOP, params)
    assert [token.id for token in run] == [token.id for token in plain]
    assert run.drafts is not None and run.drafts.accepted == run.drafts.drafted > 0


def test_what_a_draft_model_missed_is_no_part_of_a_pass(llama: Model) -> None:
    drafter, params = ModelDrafter(EagerEngine(llama)), SamplingParams()
    drafter.draft(LOOP, 2, params)
    assert drafter.behind_ns > 0
    drafter.draft([*LOOP, 9], 2, params)
    assert drafter.behind_ns == 0


def test_sampled_tokens_keep_their_distribution(llama: Model) -> None:
    """Chi-square over many seeds, of a token that was drafted; a draft that is certain is accepted
    as often as the rejection rule accepts it, which is with the token's own probability."""
    prompt, temperature, kept = [1, 2, 3], 1.5, 6
    first = int(EagerEngine(llama).step(llama.new_cache(), prompt).argmax())
    logits = EagerEngine(llama).step(llama.new_cache(), [*prompt, first])
    top = (logits / temperature).topk(kept)
    expected = dict(zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True))
    likeliest = int(top.indices[0])
    drafter, drawn = Oracle([*prompt, first, likeliest]), Counter[int]()
    engine, seed = EagerEngine(llama), 0
    while drawn.total() < 500:
        seed += 1
        params = SamplingParams(max_tokens=3, seed=seed, temperature=temperature, top_k=kept)
        run = DraftedRun(engine, drafter, SteadyPace(8), 8, llama.new_cache(), prompt, params)
        ids = [token.id for token in run]
        if ids[0] == first:
            assert run.drafts is not None and run.drafts.drafted == 1
            assert run.drafts.accepted == (ids[1] == likeliest)
            drawn[ids[1]] += 1
    assert set(drawn) <= set(expected)
    total = drawn.total()
    assert (
        sum((drawn[i] - total * p) ** 2 / (total * p) for i, p in expected.items()) < 20.5
    )  # 0.999 quantile, 5 degrees


@pytest.mark.parametrize("at", range(1, 9))
def test_ends_in_the_middle_of_a_pass(llama: Model, at: int) -> None:
    """Stop ids, a token limit and a full cache end a reply at the same token as without drafts."""
    plain, _ = _plain(llama, LOOP, SamplingParams(max_tokens=40))
    ids = [token.id for token in plain]
    oracle = Oracle([*LOOP, *ids])
    for params, positions in (
        (SamplingParams(max_tokens=40, stop_ids=[ids[at]]), None),
        (SamplingParams(max_tokens=10 + at), None),
        (SamplingParams(max_tokens=40), len(LOOP) + 10 + at),
    ):
        expected, why = _plain(llama, LOOP, params, positions)
        cache = llama.new_cache(positions)
        run = _drafted(llama, oracle, cache, LOOP, params)
        assert [token.id for token in run] == [token.id for token in expected]
        assert run.finish_reason == why
        assert cache.token_ids == [*LOOP, *(token.id for token in expected[:-1])]


def test_stopped_in_the_middle_of_a_pass(llama: Model) -> None:
    plain, _ = _plain(llama, LOOP, SamplingParams(max_tokens=40))
    ids = [token.id for token in plain]
    cache = llama.new_cache()
    run = _drafted(llama, Oracle([*LOOP, *ids]), cache, LOOP, SamplingParams(max_tokens=40))
    got = []
    for token in run:
        got.append(token.id)
        if len(got) == 12:
            run.stop()
    assert got == ids[:12] and run.finish_reason == "stopped"
    assert cache.token_ids == [*LOOP, *ids[:11]]
    again, _ = _plain(llama, [ids[11]], SamplingParams(max_tokens=5), cache=cache)
    assert [token.id for token in again] == ids[12:17]  # the cache goes on where it was left


def test_the_engine_counts_what_it_drafted(llama: Model) -> None:
    engine = EagerEngine(llama, speculation=Speculation("ngram", 4))
    params = SamplingParams(max_tokens=REPLY)
    run = engine.decode(llama.new_cache(), LOOP, params)
    plain, _ = _plain(llama, LOOP, params)
    assert [token.id for token in run] == [token.id for token in plain]
    assert run.drafts is not None and run.drafts.passes <= REPLY
    assert run.launches == (run.drafts.passes + 1) * engine.launches_per_step
    engine.close()


def _plain(
    model: Model,
    prompt: Sequence[int],
    params: SamplingParams,
    positions: int | None = None,
    cache: KVCache | None = None,
) -> tuple[list[Token], str | None]:
    run = EagerEngine(model).decode(cache or model.new_cache(positions), prompt, params)
    return list(run), run.finish_reason


def _drafted(
    model: Model, drafter: Any, cache: KVCache, prompt: Sequence[int], params: SamplingParams
) -> DraftedRun:
    return DraftedRun(EagerEngine(model), drafter, SteadyPace(8), 8, cache, prompt, params)
