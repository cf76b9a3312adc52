"""Sampling on the device beside the one sampler: noise, filters, ties, log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine.sampling import SamplingParams, gumbel_noise, sample
from kernels.tuning import Tile, Tuning
from tests.kernels.triton_workspace import DEVICE, config, model_of, needs_triton

if TYPE_CHECKING:
    from kernels.ops import StepKernels

pytestmark = needs_triton
VOCAB = 2500  # three blocks of the filters, the last one short
CONTEXT = [3, 5, 5, 8]
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.7},
    {"temperature": 0.8},
    {"temperature": 0.8, "repetition_penalty": 0.6},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.2, "top_p": 0.05},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.1, "top_k": 90, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.2},
    {"temperature": 5.0, "top_p": 0.999},
    {"temperature": 1.0, "top_k": VOCAB - 1},
]


@pytest.fixture(scope="module")
def kernels() -> StepKernels:
    from kernels.ops import StepKernels

    model = model_of(
        config(vocab=VOCAB, hidden=16, intermediate=16, heads=1, kv_heads=1, head_dim=16)
    )
    tile = Tile(512, 16, 4)
    return StepKernels(model, Tuning(tile, tile, tile, tile, tile, 4, 16, 4, 0, 1))


def draw(kernels: StepKernels, logits: torch.Tensor, params: SamplingParams) -> tuple[int, float]:
    """What the kernels choose after `CONTEXT`, for exactly these logits."""
    from engine.triton_engine import filters_of

    cache = kernels.model.new_cache()
    cache.token_ids = list(CONTEXT)
    # The token in `control` is fed before the draw, so it is the last of the context.
    cache.token_ids.pop()
    kernels.bind(cache, CONTEXT[-1], params)
    kernels.model.weights.lm_head.zero_()
    kernels.model.weights.lm_head[:, 0] = logits
    kernels.x.zero_()
    kernels.x[0] = 1.0
    kernels.model.weights.norm.fill_(1.0 / kernels.model.config.hidden**0.5)
    kernels._head()
    filters = filters_of(params, VOCAB)
    if filters.any:
        kernels._filter(filters)
        kernels._finish(kernels.kept_best, kernels.kept_best_id)
    else:
        kernels._finish(kernels.best, kernels.best_id)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    step = int(kernels.control[2])
    token, _, bits, sequence = kernels.ring[(step - 1) % len(kernels.ring)].tolist()
    assert sequence == step, "the ring was written"
    assert kernels.control[:2].tolist() == [token, len(CONTEXT)], "the next step feeds the token"
    assert kernels.seen[token] == 1
    return token, torch.tensor(bits).view(torch.float64).item()


@pytest.mark.parametrize("values", SAMPLERS, ids=str)
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_draws_what_the_one_sampler_draws(
    kernels: StepKernels, values: dict[str, Any], seed: int
) -> None:
    params = SamplingParams(**values, seed=seed)
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed % 97)) * 3
    logits[torch.tensor(CONTEXT)] += 6  # the penalty has something to bite on
    token, logprob = draw(kernels, logits.to(DEVICE), params)
    # The head computes with rms_eps; the reference gets the very logits it made.
    made = kernels.logits.cpu()
    assert torch.allclose(made, logits, rtol=1e-3)
    expected, expected_logprob = sample(made, params, len(CONTEXT), CONTEXT)
    assert token == expected
    assert logprob == pytest.approx(expected_logprob, abs=2e-5)


@pytest.mark.parametrize("values", [{}, {"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.9}], ids=str)
def test_ties(kernels: StepKernels, values: dict[str, Any]) -> None:
    """All that tie with the last one kept are kept; greedy takes the lowest id."""
    logits = torch.zeros(VOCAB)
    logits[[11, 700, 2499]] = 4.0
    assert draw(kernels, logits.to(DEVICE), SamplingParams())[0] == 11
    for seed in range(6):
        params = SamplingParams(temperature=1.0, seed=seed, **values)
        token, _ = draw(kernels, logits.to(DEVICE), params)
        assert token == sample(kernels.logits.cpu(), params, len(CONTEXT), CONTEXT)[0]


def test_noise_is_the_one_noise() -> None:
    from tests.kernels.noise_kernel import noise_kernel

    for seed, position in ((0, 0), (2**63 + 12345, 77)):
        out = torch.full((4096,), float("nan"), device=DEVICE)
        signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed], device=DEVICE)
        noise_kernel[(1,)](out, signed, position, N=4096)
        expected = gumbel_noise(seed, position, torch.arange(4096))
        assert (out.cpu() - expected).abs().max() < 4e-6
