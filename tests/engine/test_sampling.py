"""The sampler: published vectors, exact distributions, transformers' filters, its promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine import sampling
from engine.errors import UnpausedError
from engine.sampling import SamplingParams, gumbel_noise, philox4x32, sample

# Random123's kat_vectors, "philox4x32 10": counter, key, result.
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
DRAWS = 3000
COMBINATIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "repetition_penalty": 1.5},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.8, "repetition_penalty": 0.8},
]
CONTEXT = [3, 7, 7, 20, 1, 3]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def logits_of(vocab: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return spread * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


def exact_distribution(
    logits: torch.Tensor, params: SamplingParams, context: list[int]
) -> torch.Tensor:
    """What transformers' logits processors leave, in generate's order, as float64."""
    steps = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(MinPLogitsWarper(params.min_p))
    scores = steps(torch.tensor([context]), logits[None].clone())[0]
    return scores.double().softmax(-1)


# --- random numbers ---


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, result: str) -> None:
    low, high = words(key)
    tensors = [torch.tensor([word]) for word in words(counter)]
    assert [int(word) for word in philox4x32(tensors, high << 32 | low)] == words(result)


def test_philox_is_elementwise() -> None:
    counters = [torch.tensor(column) for column in zip(*(words(k[0]) for k in KNOWN_ANSWERS))]  # noqa: B905
    together = torch.stack(philox4x32(counters, 2**63 + 5), dim=-1)
    for row, (counter, _, _) in zip(together, KNOWN_ANSWERS, strict=True):
        alone = philox4x32([torch.tensor(word) for word in words(counter)], 2**63 + 5)
        assert row.tolist() == [int(word) for word in alone]


def test_gumbel_noise_is_a_function_of_seed_position_and_token() -> None:
    ids = torch.arange(50)
    noise = gumbel_noise(5, 9, ids)
    assert torch.equal(noise, gumbel_noise(5, 9, ids))
    assert torch.equal(noise[[31, 2]], gumbel_noise(5, 9, torch.tensor([31, 2])))
    assert len(set(noise.tolist())) == 50
    for other in (
        gumbel_noise(6, 9, ids),
        gumbel_noise(5, 10, ids),
        gumbel_noise(5 + 2**32, 9, ids),
    ):
        assert bool((noise != other).all())


def test_gumbel_noise_by_its_formula() -> None:
    """Token 4b + w at a position takes word w of the block with counter (b, position, 0, 0)."""
    seed, position = 2**40 + 12345, 77
    for token in (0, 1, 6, 11, 49151, 151935):
        counter = [torch.tensor(c) for c in (token // 4, position, 0, 0)]
        word = int(philox4x32(counter, seed)[token % 4])
        expected = -math.log(-math.log1p(-(word + 0.5) / 2**32))
        noise = gumbel_noise(seed, position, torch.tensor([token])).item()
        assert noise == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_gumbel_noise_is_gumbel() -> None:
    noise = gumbel_noise(1, 0, torch.arange(200_000)).double().sort().values
    assert bool(noise.isfinite().all())
    # Kolmogorov-Smirnov against exp(-exp(-x)); 1.95 / sqrt(n) is passed by 99.9 %.
    expected = torch.exp(-torch.exp(-noise))
    empirical = (torch.arange(len(noise)) + 0.5) / len(noise)
    assert (expected - empirical).abs().max() < 1.95 / len(noise) ** 0.5


def test_extreme_words_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in (0, 2**32 - 1):
        result = tuple(torch.tensor([word]) for _ in range(4))
        monkeypatch.setattr(sampling, "philox4x32", lambda counter, seed, r=result: r)
        noise = gumbel_noise(0, 0, torch.tensor([0])).item()
        assert math.isfinite(noise) and abs(noise) < 25


# --- distributions ---


@pytest.mark.parametrize("options", COMBINATIONS)
def test_draws_follow_the_exact_distribution(options: dict[str, Any]) -> None:
    """Pearson's chi-square over positions, at fixed seeds; 1 in 1000 good samplers would fail."""
    params = SamplingParams(seed=11, **options)
    logits = logits_of(32)
    exact = exact_distribution(logits, params, CONTEXT)
    counts = torch.zeros(32, dtype=torch.float64)
    for position in range(DRAWS):
        counts[sample(logits, params, position, CONTEXT)[0]] += 1
    assert counts[exact == 0].sum() == 0
    assert p_value(counts, exact * DRAWS) > 1e-3


def test_draws_over_seeds_follow_the_exact_distribution() -> None:
    logits = logits_of(16, seed=4)
    counts = torch.zeros(16, dtype=torch.float64)
    for seed in range(DRAWS):
        params = SamplingParams(temperature=0.9, seed=seed * 2**29 + seed)
        counts[sample(logits, params, 40)[0]] += 1
    exact = (logits.double() / 0.9).softmax(-1)
    assert p_value(counts, exact * DRAWS) > 1e-3


def p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Of Pearson's chi-square; categories expected fewer than 5 times are pooled."""
    rare = expected < 5
    if rare.any():
        counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
        expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
        counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor(len(counts) - 1, dtype=torch.float64)
    return torch.special.gammaincc(degrees / 2, statistic / 2).item()


@pytest.mark.parametrize("vocab", [40, 5000])
@pytest.mark.parametrize("options", COMBINATIONS[3:])
def test_filters_keep_what_transformers_keep(options: dict[str, Any], vocab: int) -> None:
    params = SamplingParams(**options)
    logits = logits_of(vocab, seed=vocab)
    scores = logits
    if params.repetition_penalty != 1.0:
        scores = sampling._penalise(logits, params.repetition_penalty, CONTEXT)
    kept, ids = sampling._filter(scores / params.temperature, params)
    ours = torch.zeros(vocab, dtype=torch.float64)
    ours[ids] = kept.double().softmax(-1)
    torch.testing.assert_close(
        ours, exact_distribution(logits, params, CONTEXT), rtol=1e-4, atol=1e-9
    )


def test_nucleus_wider_than_the_probe() -> None:
    """A flat distribution: nearly all of 5000 tokens belong to the nucleus."""
    params = SamplingParams(temperature=1.0, top_p=0.95)
    logits = logits_of(5000, spread=0.1)
    _, ids = sampling._filter(logits, params)
    assert ids.tolist() == exact_distribution(logits, params, []).nonzero()[:, 0].tolist()
    assert len(ids) > 4000 > sampling._TOP_P_PROBE


def test_ties_with_the_last_one_kept_are_kept() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    for options in ({"top_k": 2}, {"top_p": 0.5}):
        _, ids = sampling._filter(logits, SamplingParams(temperature=1.0, **options))
        assert ids.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.999999}])
def test_the_tightest_filters_leave_the_best(options: dict[str, Any]) -> None:
    logits = logits_of(300)
    params = SamplingParams(temperature=1.5, seed=3, **options)
    assert all(sample(logits, params, p)[0] == logits.argmax() for p in range(20))


# --- promises ---


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-6])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 3}])
def test_greedy_and_temperatures_towards_it(temperature: float, options: dict[str, Any]) -> None:
    logits = logits_of(3000, seed=2)
    params = SamplingParams(temperature=temperature, **options)
    assert all(sample(logits, params, p)[0] == logits.argmax() for p in range(5))


def test_greedy_with_a_repetition_penalty() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0, -1.1])
    params = SamplingParams(repetition_penalty=1.5)
    assert sample(logits, params, 1, [0])[0] == 1
    assert sample(logits, params, 1, [0, 1])[0] == 0
    assert sample(logits, params, 1, [])[0] == 0
    assert sample(torch.tensor([-1.0, -1.1]), params, 1, [0])[0] == 1  # negative: multiplied
    assert logits.tolist() == pytest.approx([2.0, 1.9, -1.0, -1.1])


def test_same_seed_same_tokens_and_otherwise_not() -> None:
    logits = logits_of(1000, spread=0.5)

    def reply(seed: int, start: int = 0) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed)
        return [sample(logits, params, start + i)[0] for i in range(64)]

    assert reply(1) == reply(1)
    assert len({tuple(reply(seed)) for seed in (0, 1, 2, 2**32, 2**63, 2**64 - 1)}) == 6
    assert reply(1, start=1)[:-1] == reply(1)[1:]  # a matter of the position, not of the order
    assert len(set(reply(1))) > 32


def test_logprob_is_of_the_unmodified_logits() -> None:
    logits = logits_of(100)
    expected = logits.double().log_softmax(-1)
    for options in COMBINATIONS:
        token, logprob = sample(logits, SamplingParams(**options), 5, CONTEXT)
        assert logprob == pytest.approx(expected[token].item(), abs=1e-5)
    token, logprob = sample(logits, SamplingParams(), 5)
    assert logprob == pytest.approx(expected.max().item(), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_logits_of_any_dtype_stay_as_they_are(dtype: torch.dtype) -> None:
    logits = logits_of(100).to(dtype)
    before = logits.clone()
    for options in COMBINATIONS:
        sample(logits, SamplingParams(**options), 5, CONTEXT)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, -1e-9, math.inf, math.nan]),
        ("top_k", [-1]),
        ("top_p", [0.0, -0.5, 1.0001, math.nan]),
        ("min_p", [-0.1, 1.0, math.nan]),
        ("repetition_penalty", [0.0, -1.0, math.inf, math.nan]),
        ("seed", [-1, 2**64]),
        ("max_tokens", [0, -5]),
    ],
)
def test_values_out_of_range_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UnpausedError, match=rf"^{name} must be .*; got {value}$"):
            SamplingParams(**{name: value})


def test_values_at_the_ends_of_their_ranges_are_taken() -> None:
    SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, max_tokens=1)
    SamplingParams(temperature=100.0, top_k=10**6, top_p=1e-9, min_p=0.99, seed=2**64 - 1)
