"""Drafting and judging on the device beside the host's: look-up, every draw, what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine.sampling import SamplingParams, sample
from engine.speculation import MAX_CONTEXT, look_up
from kernels.tuning import Tile, Tuning
from tests.kernels.triton_workspace import DEVICE, config, model_of, needs_triton

if TYPE_CHECKING:
    from kernels.column_ops import ColumnKernels

pytestmark = needs_triton
VOCAB, POSITIONS = 1100, MAX_CONTEXT + 900
COLUMNS = 4
CONTEXT = [3, 5, 5, 8, 700]
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.9},
    {"temperature": 0.9, "repetition_penalty": 1.4},
    {"temperature": 1.2, "min_p": 0.02},
    {"temperature": 1.1, "top_k": 40, "top_p": 0.9, "repetition_penalty": 0.7},
]


@pytest.fixture(scope="module")
def kernels() -> ColumnKernels:
    return kernels_of(COLUMNS)


def kernels_of(widest: int) -> ColumnKernels:
    from kernels.column_ops import ColumnKernels

    shape = config(
        vocab=VOCAB, hidden=16, intermediate=16, heads=1, kv_heads=1, head_dim=16,
        max_positions=POSITIONS,
    )  # fmt: skip
    tile = Tile(512, 16, 4)
    tuning = Tuning(tile, tile, tile, tile, tile, 4, 16, 4, 0, 1)
    return ColumnKernels(model_of(shape), tuning, widest=widest, ngram=True)


def begin(kernels: ColumnKernels, context: list[int], **values: Any) -> None:
    cache = kernels.model.new_cache(1)
    cache.token_ids = list(context[:-1])
    kernels.begin(cache, context[-1], SamplingParams(**values))


def drafted(kernels: ColumnKernels) -> list[int]:
    count = int(kernels.control[3])
    return kernels.drafts[1 : count + 1].tolist()


def test_looks_up_what_the_host_looks_up() -> None:
    kernels = kernels_of(8)
    contexts = [[4], [4, 4], [4, 4, 4], [9, 4, 9, 4], [1, 2, 3, 4, 1, 2, 5, 6, 1, 2],
                [7, 1, 2, 3, 8, 1, 2, 5, 7, 1, 2]]  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for alphabet, length in ((2, 30), (3, 40), (4, 90), (9, 300), (30, 2500), (40, POSITIONS - 1)):
        ids = torch.randint(0, alphabet, (length,), generator=generator)
        contexts.append(ids.tolist())
    far = list(range(2000)) * 5  # what lies too far back is not looked at
    contexts += [far[: MAX_CONTEXT + 400], [1, 2, 3, *range(4, 4 + 2000), *far[:6500], 1, 2]]
    for context in contexts:
        begin(kernels, context[: POSITIONS - 1])
        assert drafted(kernels) == look_up(context[: POSITIONS - 1], 7), context[-8:]


@pytest.mark.parametrize(
    ("values", "right"),
    # The threshold search takes 16 launches: once is enough.
    [
        (values, right)
        for values in SAMPLERS
        for right in (0, 1, 3)
        if right == 1 or "top_k" not in values
    ],
    ids=str,
)
def test_judges_every_column_as_the_one_sampler(
    kernels: ColumnKernels, values: dict[str, Any], right: int
) -> None:
    params = SamplingParams(**values, seed=2**63 + 5)
    begin(kernels, CONTEXT, **values, seed=params.seed)
    logits = torch.randn(COLUMNS, VOCAB, generator=torch.Generator().manual_seed(right)) * 3
    logits[:, CONTEXT] += 5  # the penalty has something to bite on, drafts included
    expected: list[tuple[int, float]] = []
    context = list(CONTEXT)
    for row in logits:
        row[context[len(CONTEXT) :]] += 4
        expected.append(sample(row, params, len(context), context))
        context.append(expected[-1][0])
    drafts = [token_id for token_id, _ in expected[: COLUMNS - 1]]
    if right < COLUMNS - 1:
        drafts[right] = (drafts[right] + 1) % VOCAB
    tokens = judge(kernels, logits, drafts, params)
    wanted = expected[: right + 1]
    assert [token_id for token_id, _ in tokens] == [token_id for token_id, _ in wanted]
    assert [p for _, p in tokens] == pytest.approx([p for _, p in wanted], abs=2e-5)
    # What the next pass begins from: token, position, text, what has been seen in each column.
    text = [*CONTEXT, *(token_id for token_id, _ in wanted)]
    assert kernels.control[:2].tolist() == [text[-1], len(text) - 1]
    assert kernels.history[len(CONTEXT) : len(text)].tolist() == text[len(CONTEXT) :]
    assert drafted(kernels) == look_up(text, COLUMNS - 1)
    counted = CONTEXT if params.repetition_penalty != 1 else CONTEXT[-1:]
    for column, row in enumerate(kernels.all_seen):
        seen = {*counted, *text[len(CONTEXT) :], *drafted(kernels)[:column]}
        assert set(row.nonzero().flatten().tolist()) == seen


def judge(
    kernels: ColumnKernels, logits: torch.Tensor, drafts: list[int], params: SamplingParams
) -> list[tuple[int, float]]:
    """What a pass that fed `drafts` and computed `logits` publishes."""
    from engine.triton_engine import filters_of

    # As the end of the pass before would have left them.
    count = int(kernels.control[3])
    kernels.all_seen[1:] = kernels.all_seen[:1]
    assert count == 0, "this context repeats nothing"
    kernels.drafts[1:COLUMNS] = torch.tensor(drafts, dtype=torch.int32)
    kernels.control[3] = len(drafts)
    for column in range(1, COLUMNS):
        kernels.all_seen[column, drafts[:column]] = 1
    kernels.all_logits.copy_(logits)
    kernels._score(COLUMNS)
    filters = filters_of(params, VOCAB)
    if filters.any:
        kernels._filter_all(COLUMNS, filters)
    kernels._settle(COLUMNS, kernels.bests, kernels.best_ids, kernels.exp_maxes, kernels.exp_sums)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    step = int(kernels.control[2])
    entry = kernels.passes[(step - 1) % len(kernels.passes)]
    assert entry[0] == step and entry[3] == len(drafts) and entry[4] == 0
    number = int(entry[2])
    logprobs = entry.view(torch.float64)[16 : 16 + number].tolist()
    return list(zip(entry[8 : 8 + number].tolist(), logprobs, strict=True))


def test_a_pass_feeds_no_more_than_it_was_launched_for() -> None:
    """Three columns of four: the last draft's column exists, and is not believed."""
    kernels = kernels_of(3)
    begin(kernels, [1, 2, 3, 4, 1, 2])
    assert drafted(kernels) == look_up([1, 2, 3, 4, 1, 2], 2) == [3, 4]
    logits = torch.zeros(4, VOCAB)
    for column, token in enumerate((3, 4, 1, 2)):
        logits[column, token] = 5.0
    kernels.all_logits.copy_(logits)
    kernels._score(4)
    kernels._settle(3, kernels.bests, kernels.best_ids, kernels.exp_maxes, kernels.exp_sums)
    assert kernels.control[:2].tolist() == [1, 8], "two drafts were right, and one token more"


def test_a_pass_of_one_token_tells_whether_the_draft_would_have_been_right(
    kernels: ColumnKernels,
) -> None:
    for token, told in ((3, 2), (9, 1)):
        begin(kernels, [1, 2, 3, 4, 1, 2])
        kernels.all_logits.zero_()
        kernels.all_logits[0, token] = 5.0
        kernels._score(1)
        kernels._settle(1, kernels.bests, kernels.best_ids, kernels.exp_maxes, kernels.exp_sums)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        entry = kernels.passes[(int(kernels.control[2]) - 1) % len(kernels.passes)]
        assert entry[2:5].tolist() == [1, 0, told] and entry[8] == token
