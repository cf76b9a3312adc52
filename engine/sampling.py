"""One sampler for every engine: the same seed draws the same token wherever no logits tie.

Sampling is the Gumbel-max trick (Gumbel 1954; Maddison et al., "A* Sampling", 2014): the argmax
of `logit / temperature + Gumbel noise` is an exact draw from the softmax. The noise is a pure
function of (seed, position, token id) through Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), so a kernel can compute it for its own part of the
vocabulary without any shared state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from engine.errors import UnpausedError

_MASK32 = 0xFFFFFFFF
_PHILOX_M0, _PHILOX_M1 = 0xD2511F53, 0xCD9E8D57  # multipliers of Philox4x32
_PHILOX_W0, _PHILOX_W1 = 0x9E3779B9, 0xBB67AE85  # Weyl increments of the key
_GREEDY_BELOW = 1e-30  # no noise can overturn a difference here, and the division would overflow
_TOP_P_PROBE = 1024  # nearly every nucleus is smaller than this; a full sort is the fallback


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop. Checked when made; raises `UnpausedError`.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch
    the filter off. Filters act in the order: repetition penalty (Keskar et al., CTRL, 2019, over
    every token in the context), temperature, top-k, top-p (Holtzman et al., 2020), min-p
    (Nguyen et al., 2024). Tokens that tie with the last one kept are kept.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    max_tokens: int = 256
    stop_ids: Collection[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        checks = [
            (0 <= self.temperature < math.inf, "temperature", "0 (greedy) or more"),
            (self.top_k >= 0, "top_k", "0 (off) or more"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (off)"),
            (0 <= self.min_p < 1, "min_p", "0 (off) or more, below 1"),
            (0 < self.repetition_penalty < math.inf, "repetition_penalty", "above 0; 1 is off"),
            (0 <= self.seed < 2**64, "seed", "between 0 and 2**64 - 1"),
            (self.max_tokens >= 1, "max_tokens", "1 or more"),
        ]
        for good, name, rule in checks:
            if not good:
                raise UnpausedError(f"{name} must be {rule}; got {getattr(self, name)}")

    @property
    def greedy(self) -> bool:
        """Whether the best token is simply taken: at temperature 0 and next to it."""
        return self.temperature < _GREEDY_BELOW


def philox4x32(counter: Sequence[torch.Tensor], seed: int) -> tuple[torch.Tensor, ...]:
    """Ten rounds of Philox4x32.

    `counter`: four int64 tensors of one shape, each holding a 32-bit word. Returns four int64
    tensors of that shape, each a 32-bit word. The key is `seed` as (low word, high word).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _MASK32, seed >> 32
    for _ in range(10):
        # A 32x32 product may wrap a signed int64; its bits, all that is read here, stay right.
        p0, p1 = c0 * _PHILOX_M0, c2 * _PHILOX_M1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK32) ^ c1 ^ k0,
            p1 & _MASK32,
            ((p0 >> 32) & _MASK32) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0, k1 = (k0 + _PHILOX_W0) & _MASK32, (k1 + _PHILOX_W1) & _MASK32
    return c0, c1, c2, c3


def gumbel_noise(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise for each of `token_ids` (int64, any shape) at `position`.

    The counter is (token id // 4, position, 0, 0) and token id % 4 picks the word, so one Philox
    block serves four neighbouring tokens. Returns float32 of the same shape.
    """
    zero = torch.zeros_like(token_ids)
    words = torch.stack(philox4x32((token_ids >> 2, zero + position, zero, zero), seed), dim=-1)
    word = words.gather(-1, (token_ids & 3).unsqueeze(-1)).squeeze(-1)
    # Uniform in (0, 1). Small values keep full relative precision, which is where the winners of
    # the exponential race are; the clamp keeps a rounding to 1.0 away from log(0).
    uniform = ((word.float() + 0.5) * 2.0**-32).clamp_max(1 - 2.0**-24)
    return -torch.log(-torch.log1p(-uniform))


def sample(
    logits: torch.Tensor, params: SamplingParams, position: int, context: Sequence[int] = ()
) -> tuple[int, float]:
    """Choose the token that goes to `position`.

    `logits`: [vocab], any float dtype, on any device; not modified. `context`: the token ids
    before `position`, used by the repetition penalty only. Returns (token id, log-probability
    under the unmodified logits).
    """
    logits = logits.float()
    scores = logits
    if params.repetition_penalty != 1.0 and len(context):
        scores = _penalise(logits, params.repetition_penalty, context)
    if params.greedy:
        chosen = scores.argmax()
    else:
        kept, ids = _filter(scores / params.temperature, params)
        noise = gumbel_noise(params.seed, position, ids)
        chosen = ids[(kept + noise).argmax()]
    logprob = logits[chosen] - logits.logsumexp(-1)
    token_id, logprob_value = torch.stack((chosen.double(), logprob.double())).tolist()
    return int(token_id), logprob_value


def _penalise(logits: torch.Tensor, penalty: float, context: Sequence[int]) -> torch.Tensor:
    seen = torch.tensor(sorted(set(context)), device=logits.device)
    values = logits[seen]
    penalised = torch.where(values < 0, values * penalty, values / penalty)
    return logits.index_copy(0, seen, penalised)


def _filter(scores: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates that survive top-k, top-p and min-p: (scores [n], token ids [n])."""
    ids = torch.arange(scores.numel(), device=scores.device)
    if 0 < params.top_k < scores.numel():
        threshold = scores.topk(params.top_k).values[-1]
        keep = scores >= threshold
        scores, ids = scores[keep], ids[keep]
    if params.top_p < 1:
        keep = scores >= _nucleus_threshold(scores, params.top_p)
        scores, ids = scores[keep], ids[keep]
    if params.min_p > 0:
        keep = scores >= scores.max() + math.log(params.min_p)
        scores, ids = scores[keep], ids[keep]
    return scores, ids


def _nucleus_threshold(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The lowest score in the smallest set of top tokens whose mass reaches `top_p`."""
    total = scores.logsumexp(-1)
    for size in (min(_TOP_P_PROBE, scores.numel()), scores.numel()):
        top = scores.topk(size).values
        mass_before = (top - total).exp().cumsum(-1) - (top - total).exp()
        inside = mass_before < top_p
        inside[0] = True  # a top_p too small for float32 still keeps the likeliest token
        if size == scores.numel() or not bool(inside[-1]):
            return top[inside][-1]
    raise AssertionError("unreachable: the last size is the whole vocabulary")
