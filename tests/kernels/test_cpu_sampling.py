"""The compiled sampler draws the very token that `engine.sampling` draws, filter by filter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.sampling import SamplingParams, gumbel_noise, philox4x32, sample
from kernels import cpu_filters, cpu_sampling
from kernels.cpu_sampling import BEST, BEST_ID, LOGIT_MAX, LOGIT_SUM, SCORE_SUM
from kernels.cpu_state import PARTIALS

VOCAB = 3001
ITEMS = 7


def choose(
    logits: np.ndarray, params: SamplingParams, position: int, context: list[int]
) -> tuple[int, float]:
    """As the LM head's items and the sample stage do it, on one thread."""
    seen = np.zeros(VOCAB, dtype=np.uint8)
    seen[context] = 1
    scores, words = np.empty_like(logits), np.zeros(4, dtype=np.uint64)
    seed = np.uint64(params.seed).astype(np.int64)
    filtered = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    penalty, temperature = np.float32(params.repetition_penalty), np.float32(params.temperature)
    partials = np.zeros((ITEMS, PARTIALS))
    for item, part in enumerate(partials):
        first, last = VOCAB * item // ITEMS, VOCAB * (item + 1) // ITEMS
        cpu_sampling.make_scores(logits, scores, seen, 0, penalty, temperature, first, last)
        part[LOGIT_MAX] = logits[first:last].max()
        part[LOGIT_SUM] = np.exp(logits[first:last] - part[LOGIT_MAX]).sum()
        part[BEST] = scores[first:last].max()
        part[SCORE_SUM] = np.exp(scores[first:last] - part[BEST]).sum()
        part[BEST_ID] = first + scores[first:last].argmax()
        if params.temperature > 0 and not filtered:
            drawn = cpu_sampling.noisiest(scores, seed, position, first, last, words)
            part[BEST], part[BEST_ID] = drawn
    if params.temperature > 0 and filtered:
        scratch = np.empty_like(logits), np.empty_like(logits), np.empty(VOCAB, dtype=np.int64)
        token = cpu_filters.choose_filtered(
            scores, VOCAB, partials, ITEMS, seed, position, params.top_k, params.top_p,
            params.min_p, *scratch, words,
        )  # fmt: skip
    else:
        token = cpu_sampling.combine_best(partials, ITEMS)
    return token, logits[token] - cpu_sampling.combine_logsumexp(partials, ITEMS)


def case(seed: int) -> tuple[np.ndarray, SamplingParams, int, list[int]]:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(VOCAB) * rng.choice([0.1, 1, 3, 8])
    if seed % 3 == 0:
        logits = np.round(logits * 4) / 4  # many ties, also with the last one kept
    params = SamplingParams(
        temperature=float(rng.choice([0, 0.2, 0.7, 1.0, 2.0])),
        top_k=int(rng.choice([0, 0, 1, 5, 40, VOCAB - 1, VOCAB, VOCAB + 9])),
        top_p=float(rng.choice([1, 1, 0.9, 0.5, 0.999, 1e-6])),
        min_p=float(rng.choice([0, 0, 0.05, 0.5, 1e-9])),
        repetition_penalty=float(rng.choice([1, 1.3, 0.7])),
        seed=int(rng.integers(2**64, dtype=np.uint64)),
    )
    context = rng.integers(0, VOCAB, 50).tolist()
    return logits.astype(np.float32), params, int(rng.integers(3000)), context


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_same_token_as_the_one_sampler(start: int) -> None:
    for seed in range(start, start + 100):
        logits, params, position, context = case(seed)
        expected = sample(torch.from_numpy(logits), params, position, context)
        token, logprob = choose(logits, params, position, context)
        assert token == expected[0], f"case {seed}: {params}"
        assert logprob == pytest.approx(expected[1], abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_philox(seed: int) -> None:
    block, position = torch.tensor([12_345]), torch.tensor([678])
    zero = torch.zeros_like(block)
    expected = [int(word) for word in philox4x32((block, position, zero, zero), seed)]
    words = np.zeros(4, dtype=np.uint64)
    cpu_sampling.philox(12_345, 678, np.uint64(seed).astype(np.int64), words)
    assert words.tolist() == expected


def test_noise_at_the_ends_of_the_range() -> None:
    for word in (0, 1, 2**31, 2**32 - 1):
        value = cpu_sampling.gumbel_of(cpu_sampling.uniform_of(np.uint64(word)))
        assert np.isfinite(value)
        assert -3 < value < cpu_sampling._LARGEST_NOISE
    ids = torch.arange(64)
    words = np.zeros(4, dtype=np.uint64)
    mine = []
    for block in range(16):
        cpu_sampling.philox(block, 9, 7, words)
        mine += [cpu_sampling.gumbel_of(cpu_sampling.uniform_of(word)) for word in words]
    torch.testing.assert_close(torch.tensor(mine), gumbel_noise(7, 9, ids), rtol=1e-6, atol=1e-6)
