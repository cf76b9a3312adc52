"""The gate before any speed: does an engine compute what the model says?

The reference is the eager engine in float32: on the file's own numbers where there is a file, else
on the same weights widened. An engine is green when
1. its greedy replies, after its own prefill and from the shared cache, choose the reference's
   token wherever the reference's best two logits differ by more than a margin: `MARGIN` times the
   RMS error that native bfloat16 logits have here;
2. the mean KL divergence of its distributions from the reference's is no worse than that of
   native bfloat16 over the same text;
3. it says the same when asked again.
NaN is never green. The native engine is judged too, but PyTorch's sums on a GPU are not the same
twice: rule 3 is not asked of it, and its KL may differ by `_NATIVE_NOISE` from what it was before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from engine.base import DecodeEngine
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.quality import quality
from engine.sampling import SamplingParams
from engine.weights import as_weights, check_memory, load_model

MARGIN = 4.0
NATIVE_KL_LIMIT = 0.2  # nats; no real or random model here comes near, damaged weights pass it
_NATIVE_NOISE = 0.05  # two runs of the native engine on an H200 were 0.7 % apart


@runtime_checkable
class GivesLogits(Protocol):
    """What the gate asks beyond the engines' contract."""

    def logits(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids` through the decode step; float32 [len(token_ids), vocab]."""
        ...


@dataclass
class Verdict:
    """What the gate found. `reason` is "" when green."""

    reason: str = ""
    mean_kl: float | None = None
    other_token: int = 0  # positions where a reply's token is not the reference's
    wrong_beyond_margin: int = 0
    repeatable: bool | None = None
    positions: int = 0

    @property
    def green(self) -> bool:
        return not self.reason

    def as_dict(self) -> dict[str, Any]:
        kl = None if self.mean_kl is None else float(f"{self.mean_kl:.3g}")
        return {
            "green": self.green, "reason": self.reason, "mean_kl": kl,
            "other_token": self.other_token, "wrong_beyond_margin": self.wrong_beyond_margin,
            "repeatable": self.repeatable, "positions": self.positions,
        }  # fmt: skip


@dataclass
class Gate:
    """The reference's answers for one model and prompt, and what native bfloat16 makes of them."""

    prompt: list[int]
    positions: int
    cache: KVCache  # holds the prompt but for its last token; shared with the timing
    native: EagerEngine
    margin: float = 0.0
    native_kl: float = 0.0
    _reference: EagerEngine | None = None
    _reference_cache: KVCache | None = None
    _text: list[int] = field(default_factory=list)  # the last prompt token, then greedy tokens
    _expected: torch.Tensor | None = None  # [positions, vocab]

    @classmethod
    def open(
        cls, model: Model, prompt: list[int], positions: int, room: int, threads: int | None = None
    ) -> Gate:
        """Compute the reference. `room`: positions that the shared cache has after the prompt.

        Raises `UnpausedError` when the reference does not fit into memory.
        """
        native = EagerEngine(model, threads)
        cache = model.new_cache(len(prompt) + max(room, positions))
        native.prefill(cache, prompt[:-1])
        gate = cls(prompt, positions, cache, native)
        gate._ask_reference(reference_model(model))
        gate._ask_native()
        return gate

    def judge(self, engine: DecodeEngine) -> Verdict:
        """Run `engine` through everything above."""
        verdict = Verdict(positions=self.positions)
        if not isinstance(engine, GivesLogits):
            verdict.reason = "it gives no logits, so it cannot be judged"
            return verdict
        self._judge_replies(engine, verdict)
        if verdict.green:
            self._judge_logits(engine, verdict)
        return verdict

    @torch.inference_mode()
    def judge_reply(self, tokens: list[int], verdict: Verdict) -> None:
        """Compare one greedy reply with what the reference would have said at each position."""
        assert self._reference is not None and self._reference_cache is not None
        self._reference_cache.truncate(len(self.prompt) - 1)
        fed = [self.prompt[-1], *tokens[:-1]]
        expected = self._reference.logits(self._reference_cache, fed)
        top = expected.topk(2).values
        other = expected.argmax(-1).cpu() != torch.tensor(tokens)
        clear = ((top[:, 0] - top[:, 1]) > self.margin).cpu()
        verdict.other_token = max(verdict.other_token, int(other.sum()))
        verdict.wrong_beyond_margin += int((other & clear).sum())
        if verdict.wrong_beyond_margin:
            verdict.reason = (
                f"{verdict.wrong_beyond_margin} greedy tokens differ from the float32 reference's "
                f"where its margin exceeds {self.margin:.3g}"
            )

    @torch.inference_mode()
    def judge_fork(self, prompt: Sequence[int], tokens: list[int], verdict: Verdict) -> None:
        """Judge the last of `tokens`, a greedy reply to `prompt`, which is not what was said
        before: it is right only where the reference sees a tie within the margin.
        """
        assert self._reference is not None
        cache = self._reference.model.new_cache(len(prompt) + len(tokens))
        expected = self._reference.step(cache, [*prompt, *tokens[:-1]])
        behind = float(expected.max() - expected[tokens[-1]])
        verdict.other_token += 1
        if not behind <= self.margin:
            verdict.wrong_beyond_margin += 1
            verdict.reason = (
                f"token {len(tokens)} of a reply is not the one without drafts, and the float32 "
                f"reference has it {behind:.3g} behind, beyond the margin of {self.margin:.3g}"
            )

    def release(self) -> None:
        """Drop the reference: timing needs the memory, and nobody is judged any more."""
        self._reference = self._reference_cache = self._expected = None

    def as_dict(self) -> dict[str, Any]:
        """The gate's own figures."""
        return {
            "positions": self.positions,
            "margin": float(f"{self.margin:.4g}"),
            "margin_rule": f"{MARGIN:g} x RMS error of native bfloat16 logits",
            "native_mean_kl": float(f"{self.native_kl:.3g}"),
        }

    def _ask_reference(self, model: Model) -> None:
        reference = EagerEngine(model)
        cache = model.new_cache(len(self.prompt) + self.positions)
        reference.prefill(cache, self.prompt[:-1])
        text, rows = [self.prompt[-1]], []
        for _ in range(self.positions):
            rows.append(reference.step(cache, text[-1:]))
            text.append(int(rows[-1].argmax()))
        self._text, self._expected = text[:-1], torch.stack(rows)
        self._reference, self._reference_cache = reference, cache

    def _ask_native(self) -> None:
        assert self._expected is not None
        self.cache.truncate(len(self.prompt) - 1)
        logits = torch.stack([self.native.step(self.cache, [token]) for token in self._text])
        self.margin = MARGIN * float((logits - self._expected).square().mean().sqrt())
        self.native_kl = quality(self._expected, logits).mean_kl
        if not self.native_kl <= NATIVE_KL_LIMIT:
            raise UnpausedError(
                f"native bfloat16 itself is {self.native_kl:.3g} nats from the float32 reference: "
                "the loaded weights are damaged, so nothing can be judged; load the model again"
            )

    def _judge_replies(self, engine: DecodeEngine, verdict: Verdict) -> None:
        params = SamplingParams(max_tokens=self.positions)
        own = engine.model.new_cache(len(self.prompt) + self.positions)
        replies = [[token.id for token in engine.decode(own, self.prompt, params)]]
        for _ in range(2):
            self.cache.truncate(len(self.prompt) - 1)
            run = engine.decode(self.cache, self.prompt[-1:], params)
            replies.append([token.id for token in run])
        if any(len(reply) != self.positions for reply in replies):
            verdict.reason = f"a greedy reply came out shorter than {self.positions} tokens"
            return
        for reply in {tuple(reply) for reply in replies}:
            self.judge_reply(list(reply), verdict)
        verdict.repeatable = replies[1] == replies[2]
        if verdict.green and not verdict.repeatable and not isinstance(engine, EagerEngine):
            verdict.reason = "the same prompt and cache gave two different greedy replies"

    @torch.inference_mode()
    def _judge_logits(self, engine: GivesLogits, verdict: Verdict) -> None:
        assert self._expected is not None
        self.cache.truncate(len(self.prompt) - 1)
        if isinstance(engine, EagerEngine):  # its `logits` takes many rows at once; decode does not
            rows = [engine.step(self.cache, [token]) for token in self._text]
            logits = torch.stack(rows)
        else:
            logits = engine.logits(self.cache, self._text)
        native = isinstance(engine, EagerEngine)
        limit = self.native_kl * (1 + _NATIVE_NOISE if native else 1)
        verdict.mean_kl = quality(self._expected, logits.to(self._expected.device)).mean_kl
        if not math.isfinite(verdict.mean_kl):
            verdict.reason = "its logits are not numbers"
        elif verdict.mean_kl > limit:
            verdict.reason = (
                f"mean KL {verdict.mean_kl:.3g} nats is worse than native bfloat16's "
                f"{self.native_kl:.3g}"
            )


def reference_model(model: Model) -> Model:
    """`model` in float32 on its device: the file's numbers, or the weights widened."""
    name = f"the float32 reference of {model.name}"
    check_memory(model.config, model.device, torch.float32, name)
    if model.checkpoint is not None:
        return load_model(model.checkpoint.path, model.device, torch.float32, name)
    tensors = {kind: tensor.float() for kind, tensor in model.weights.tensors().items()}
    return Model(name, model.config, as_weights(tensors))
