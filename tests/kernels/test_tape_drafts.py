"""Drafts inside the tape kernel, emulated: the text is the one without, steered as by the host.

Drafts come from what the kernel looks up in, which is planted here: the cache holds other tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import mailbox as mb
from engine.base import DraftCounts
from engine.drafted_run import DraftedRun, Drawn, NgramDrafter
from engine.eager import EagerEngine
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.persistent_tape import TapeResident
from engine.resident import Ownership, ResidentRun
from engine.sampling import SamplingParams
from engine.speculation import Pace
from engine.weights import as_weights
from tests.kernels.tape_emulator import EmulatedTape, reason
from tests.kernels.test_tape_emulated import CONFIGS, ONE_KEY_HEAD, filled, prompt_of

pytestmark = pytest.mark.skipif(reason() is not None, reason=str(reason()))

HISTORY, REPLY, ROOM = 60, 20, 90
FLAT = [1000] * 9
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 0.8, "repetition_penalty": 1.4},  # counts drafted tokens as seen
    {"temperature": 1.0, "top_k": 12, "repetition_penalty": 1.3},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def plain(folder: Path) -> EmulatedTape:
    return EmulatedTape(ONE_KEY_HEAD, folder)


@pytest.fixture(scope="module")
def drafting(folder: Path) -> EmulatedTape:
    return EmulatedTape(ONE_KEY_HEAD, folder, width=8, speculate=True)


def history_of(tape: EmulatedTape, positions: int = ROOM) -> tuple[KVCache, list[int]]:
    ids = prompt_of(tape.model.config, HISTORY)
    return filled(EagerEngine(tape.model), ids[:-1], positions), ids[-1:]


def planted(text: Sequence[int], wrong_every: int = 0) -> list[int]:
    """`HISTORY` tokens in which looking up finds `text`, and every so often something else."""
    last = prompt_of(ONE_KEY_HEAD, HISTORY)[-1]
    copied = list(text)
    if wrong_every:
        for at in range(2, len(copied), wrong_every):
            copied[at] = (copied[at] + 1) % 300
    filler = [301 + i for i in range(HISTORY - len(copied) - 2)]
    return [*filler, last, *copied, last]


class Script:
    """A verifier that says a text known beforehand, and whose passes take what a table says."""

    launches_per_step = 1

    def __init__(self, text: Sequence[int], before: int) -> None:
        self.text, self.before, self.widths = text, before, list[int]()

    def verify(
        self, cache: KVCache, token_ids: Sequence[int], draft: Sequence[int], params: SamplingParams
    ) -> list[Drawn]:
        cache.token_ids.extend(token_ids)
        self.widths.append(len(draft) + 1)
        at, drawn = cache.length - self.before, list[Drawn]()
        for token_id in (*draft, None):
            drawn.append((self.text[at + len(drawn)], 0.0))
            if drawn[-1][0] != token_id:
                break
        return drawn


class TimedPace(Pace):
    """Told the widths' own times, whatever the clock says."""

    def __init__(self, costs_ns: Sequence[int]) -> None:
        super().__init__(8)
        self.costs_ns = costs_ns

    def took(self, width: int, cost: float) -> None:
        super().took(width, self.costs_ns[width])


def steered_by_the_host(
    text: Sequence[int], context: list[int], model: Model, costs_ns: Sequence[int]
) -> tuple[list[int], DraftCounts]:
    """(text, counts) of engine/drafted_run.py where the model says `text`."""
    cache = model.new_cache(ROOM)
    cache.token_ids.extend(context[:-1])
    params = SamplingParams(max_tokens=len(text))
    script, pace = Script(text, len(context)), TimedPace(costs_ns)
    run = DraftedRun(script, NgramDrafter(), pace, 8, cache, context[-1:], params)
    tokens = [token.id for token in run]
    assert run.drafts is not None
    return tokens, run.drafts


def counts_of(tape: EmulatedTape) -> DraftCounts:
    return DraftCounts(*tape.words[[mb.PASSES, mb.DRAFTED, mb.ACCEPTED]].tolist())


@pytest.mark.parametrize("options", SAMPLERS)
def test_the_text_is_the_one_without_and_widths_are_the_hosts(
    plain: EmulatedTape, drafting: EmulatedTape, options: dict[str, Any]
) -> None:
    """Drafts all right, all wrong, partly right; passes that cost alike, and wide ones dear."""
    params = SamplingParams(max_tokens=REPLY, seed=5, **options)
    text, why = plain.run(*history_of(plain), params)
    rising = [1000 + 180 * width for width in range(9)]
    for wrong_every, costs_ns in ((0, FLAT), (3, FLAT), (7, FLAT), (5, rising)):
        context = planted(text, wrong_every)
        drafting.costs_ns = costs_ns
        drafting.kernel.buffer("costs").zero_()
        got = drafting.run(*history_of(drafting), params, context=context, seed=wrong_every)
        assert got == (text, why)
        counts = counts_of(drafting)
        expected = steered_by_the_host(text, context, drafting.model, costs_ns)
        assert (text, counts) == expected
        assert counts.passes + counts.accepted == REPLY - 1
        if wrong_every == 0:
            assert counts.accepted > REPLY / 2 and counts.passes < REPLY / 2
        if wrong_every == 3:  # a draft begins with what is wrong, but for what the reply repeats
            assert counts.accepted < counts.drafted
    assert drafting.kernel.buffer("costs")[1:].max() <= rising[8]


def test_log_probabilities_and_moments_are_a_passs(
    plain: EmulatedTape, drafting: EmulatedTape
) -> None:
    params = SamplingParams(max_tokens=REPLY)
    text, _ = plain.run(*history_of(plain), params)
    expected = plain.slots[:REPLY].clone()
    drafting.costs_ns = FLAT
    drafting.run(*history_of(drafting), params, context=planted(text))
    slots = drafting.slots[:REPLY]
    got, wanted = (held[:, 2].contiguous().view(torch.float64) for held in (slots, expected))
    assert float((got - wanted).abs().max()) < 1e-2  # a key may round to bfloat16's neighbour
    counts = counts_of(drafting)
    assert len(set(slots[:, 1].tolist())) == counts.passes + 1


@pytest.mark.parametrize("name", ["nine heads", "normed"])
def test_other_shapes_say_what_float32_says(folder: Path, name: str) -> None:
    """Against the eager engine on float32 weights, with one draft wrong."""
    single = EmulatedTape(CONFIGS[name], folder)
    tape = EmulatedTape(CONFIGS[name], folder, width=4, speculate=True)
    ids, params = prompt_of(tape.model.config, HISTORY), SamplingParams(max_tokens=10)
    text, why = single.run(*history_of(single), params)
    copied = [*text[:5], (text[5] + 1) % 300, *text[6:]]
    context = [*range(HISTORY - 2 - len(text)), ids[-1], *copied, ids[-1]]
    assert tape.run(*history_of(tape), params, context=context) == (text, why)
    assert counts_of(tape).accepted > 3
    tensors = {name: tensor.float() for name, tensor in tape.model.weights.tensors().items()}
    eager = EagerEngine(Model("float32", tape.model.config, as_weights(tensors)))
    rows = eager.logits(eager.model.new_cache(ROOM), [*ids, *text[:-1]])[HISTORY - 1 :]
    for row, token in zip(rows, text, strict=True):  # the cache rounds to bfloat16
        assert float(row.max() - row[token]) < 0.2


def test_ends_in_the_middle_of_a_pass(plain: EmulatedTape, drafting: EmulatedTape) -> None:
    """Stop ids, the token limit, a full cache and a stop word, as without drafts."""
    drafting.costs_ns = FLAT
    params = SamplingParams(max_tokens=REPLY, temperature=0.8, seed=5)
    text, _ = plain.run(*history_of(plain), params)
    context, ahead = planted(text), 0
    for at in [at for at in range(3, 12) if text.index(text[at]) == at][::2]:
        stops = dataclasses.replace(params, stop_ids=[383, text[at]])
        got = drafting.run(*history_of(drafting), stops, context=context)
        assert got == (text[: at + 1], mb.EOS)
        ahead = max(ahead, at - counts_of(drafting).passes)
        cache, prompt = history_of(drafting, HISTORY + at)
        got = drafting.run(cache, prompt, params, context=context)
        assert got == (text[: at + 1], mb.CONTEXT)
        limited = dataclasses.replace(params, max_tokens=at + 1)
        got = drafting.run(*history_of(drafting), limited, context=context)
        assert got == (text[: at + 1], mb.LENGTH)
    assert ahead > 3
    stopped, why = drafting.run(*history_of(drafting), params, context=context, stop=True)
    assert 1 <= len(stopped) <= 2 and stopped == text[: len(stopped)] and why == mb.STOPPED


def test_a_prompt_of_several_passes_is_followed_by_drafts(
    plain: EmulatedTape, drafting: EmulatedTape
) -> None:
    ids, params = prompt_of(ONE_KEY_HEAD, HISTORY), SamplingParams(max_tokens=10)
    text, _ = plain.run(*history_of(plain), params)
    cache = filled(EagerEngine(drafting.model), ids[:-11], ROOM)
    got, why = drafting.run(cache, ids[-11:], params, context=planted(text))
    assert (got, why) == (text, mb.LENGTH) and counts_of(drafting).accepted > 0
    assert int(drafting.words[mb.FED]) == 11 + len(text) - 1


def test_words_of_columns_left_alone_are_not_taken_for_new_ones(
    folder: Path, plain: EmulatedTape
) -> None:
    """With so few epochs one comes round again between two wide passes."""
    tape = EmulatedTape(ONE_KEY_HEAD, folder, width=8, speculate=True, epochs=7)
    params = SamplingParams(max_tokens=REPLY + 8)
    text, why = plain.run(*history_of(plain), params)
    context = planted([*text[:4], 299, 298, 297, 296, *text[8:14], 295, 294, *text[16:]])
    for seed in range(2):
        got = tape.run(*history_of(tape), params, context=context, seed=seed)
        assert got == (text, why) and counts_of(tape).accepted > 3


class EmulatedResident(TapeResident):
    """What the engine drives, on an emulated kernel."""

    def __init__(self, tape: EmulatedTape) -> None:
        tape.kernel.launch = tape.launch  # type: ignore[method-assign]
        super().__init__(tape.model, tape.kernel)
        self.words[mb.TIMEOUT_NS] = 60 * 10**9  # fibers on a busy machine


def test_two_replies_on_one_cache_through_the_engines_host_side(
    folder: Path, plain: EmulatedTape, drafting: EmulatedTape
) -> None:
    """What drafts that were wrong have left behind is never read; the counts reach the run."""
    drafting.costs_ns = FLAT
    params = SamplingParams(max_tokens=9, temperature=0.8, seed=5)
    text, _ = plain.run(*history_of(plain), params)
    replies, counts = [], []
    for tape in (plain, drafting):
        cache, prompt = history_of(tape)
        cache.token_ids[:] = planted([*text[:6], 299, *text[7:]])[:-1]
        resident, ownership = EmulatedResident(tape), Ownership("persistent-tape")
        for tokens in (prompt, [7, 9]):
            run = ResidentRun(resident, ownership, cache, tokens, params)
            replies.append([token.id for token in run])
            counts.append(run.drafts)
        assert cache.length == HISTORY + 8 + 2 + 8
    assert replies[:2] == replies[2:] and replies[0] == text and counts[:2] == [None, None]
    for found in counts[2:]:
        assert found is not None and found.passes + found.accepted == 8
    assert counts[2] is not None and counts[2].drafted > counts[2].accepted > 2
