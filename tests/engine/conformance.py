"""What the conformance suite needs: each engine where it runs, and the judgement of a reply.

Replies are judged by teacher forcing. The reference gives logits for the prompt and the reply in
one go; every token must then be the one that the one sampler draws from the logits before it.
By induction that is equality of the whole text. In bfloat16 logits are rounded, so that a token
counts as right if its score is within the rounding of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.base import DecodeEngine, Token
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.registry import ENGINES
from engine.sampling import SamplingParams, gumbel_noise, sample
from engine.setup import best_device
from engine.speculation import Speculation
from engine.weights import load_model
from tests.engine.tiny import poison

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# How far rounding may move a logit whose spread is about 3: several standard deviations of what
# transformers' own bfloat16 is off by (test_exactness). float32 may only turn a tie.
SLACK = {torch.float32: 1e-3, torch.bfloat16: 0.4}


@dataclass
class Subject:
    """One engine on one model, and an independent float32 view of that model."""

    engine: DecodeEngine
    model: Model
    reference_logits: Callable[[list[int]], torch.Tensor]  # ids -> float32 [len(ids), vocab], CPU
    slack: float  # in logits

    def cache(self, positions: int | None = None) -> KVCache:
        """An empty cache full of NaN: nothing beyond the context may be read."""
        return poison(self.model.new_cache(positions))

    def reply(
        self, cache: KVCache, prompt: Sequence[int], params: SamplingParams
    ) -> tuple[list[Token], str | None]:
        """The tokens of a whole run, and why it ended."""
        run = self.engine.decode(cache, prompt, params)
        tokens = list(run)
        return tokens, run.finish_reason

    def judge(self, context: list[int], tokens: list[Token], params: SamplingParams) -> None:
        """Assert that `tokens` are what `params` draw after `context`."""
        ids = [token.id for token in tokens]
        whole = [*context, *ids]
        logits = self.reference_logits(whole[:-1])[len(context) - 1 :]
        for i, (row, token) in enumerate(zip(logits, tokens, strict=True)):
            position = len(context) + i
            expected, _ = sample(row, params, position, whole[:position])
            if token.id != expected:
                behind = lag(row, token.id, params, position)
                assert behind <= 2 * self.slack, f"token {i} of {ids}: {expected} was to come"
            logprob = row.log_softmax(-1)[token.id].item()
            assert abs(token.logprob - logprob) <= 2 * self.slack, f"logprob of token {i}"


def lag(row: torch.Tensor, token_id: int, params: SamplingParams, position: int) -> float:
    """How far `token_id` is behind the best score, in logits; filters are not looked at."""
    if params.greedy:
        return (row.max() - row[token_id]).item()
    scores = row / params.temperature + gumbel_noise(params.seed, position, torch.arange(len(row)))
    return (scores.max() - scores[token_id]).item() * params.temperature


def subjects() -> list[str]:
    """The engines, and once more, as "name+ngram", those that can draft n-grams."""
    drafting = [name for name, entry in ENGINES.items() if "ngram" in entry.speculates()]
    return [*ENGINES, *(f"{name}+ngram" for name in drafting)]


def unavailable(subject: str) -> str | None:
    """Why this machine cannot run one of `subjects`, or None when it can."""
    return ENGINES[subject.partition("+")[0]].unavailable()


@dataclass
class Workshop:
    """Builds engines once for each model and dtype, and closes them in the end."""

    _built: dict[tuple[str, Path, str], tuple[DecodeEngine, Model] | str] = field(
        default_factory=dict
    )

    def build(self, name: str, path: Path, dtype: str) -> tuple[DecodeEngine, Model] | str:
        """`name` of `subjects` and its model from `path`, or why it does not run that."""
        key = (name, path, dtype)
        if key not in self._built:
            self._built[key] = self._try(name, path, DTYPES[dtype])
        return self._built[key]

    def close(self) -> None:
        """Close every engine."""
        for built in self._built.values():
            if not isinstance(built, str):
                built[0].close()

    def _try(self, name: str, path: Path, dtype: torch.dtype) -> tuple[DecodeEngine, Model] | str:
        """On the best device this machine has, else on the CPU."""
        engine, _, drafts = name.partition("+")
        entry, reason = ENGINES[engine], ""
        for device in dict.fromkeys((best_device(), torch.device("cpu"))):
            model = self._model(path, device, dtype)
            try:
                speculation = Speculation("ngram") if drafts else None
                return entry.build(model, threads=2, speculation=speculation), model
            except UnpausedError as error:
                reason = reason or str(error)
        return reason

    def _model(self, path: Path, device: torch.device, dtype: torch.dtype) -> Model:
        for built in self._built.values():  # engines can share it
            if not isinstance(built, str):
                model = built[1]
                if (model.name, model.dtype, model.device.type) == (path.name, dtype, device.type):
                    return model
        return load_model(path, device, dtype, path.name)
