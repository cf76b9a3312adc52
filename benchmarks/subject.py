"""What is measured: a model, real or of random weights, and a prompt of exactly so many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.shapes import SHAPES, random_model
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.setup import DTYPE, locate_model
from engine.weights import check_memory, load_model

SHAPE_PREFIX = "shape:"
WIDE_PREFIX, WIDENED = "bf16:", " widened to bfloat16"
_TAIL = 5  # tokens that close the question and open the answer
_PASSAGE = (
    "Explain how a lighthouse works, why it was useful to sailors, how its light was made before "
    "there was electricity, who looked after it during long winter storms, and why so many of "
    "them stand empty today. Begin with the oldest one that is known, and then go on to those "
    "that were built on rocks far out at sea, where everything had to be brought by boat. "
)


@dataclass(frozen=True)
class Subject:
    """A loaded model; `real` is False for random weights, which are for speed only."""

    model: Model
    real: bool

    def prompt(self, tokens: int) -> list[int]:
        """Exactly `tokens` ids: a chat prompt cut to length, or seeded ids for random weights."""
        if not self.real:
            generator = torch.Generator().manual_seed(1)
            vocab = self.model.config.vocab
            return torch.randint(0, vocab, (tokens,), generator=generator).tolist()
        ids = self.question(_PASSAGE)
        if len(ids) < tokens:
            ids = self.question(_PASSAGE * (1 + tokens * 2 // len(ids)))
        return [*ids[: tokens - _TAIL], *ids[-_TAIL:]]

    def question(self, text: str) -> list[int]:
        """`text` as a chat prompt; of a real model only."""
        tokenizer = self.model.tokenizer
        return tokenizer.encode(tokenizer.render([{"role": "user", "content": text}]))


def check_subject(spec: str) -> None:
    """Raise `UnpausedError` for a model that cannot be had, before anything is measured."""
    if spec.startswith(SHAPE_PREFIX):
        _shape_name(spec)
    else:
        locate_model(spec.removeprefix(WIDE_PREFIX))


def load_subject(spec: str, device: torch.device) -> Subject:
    """Load what `spec` names: `shape:NAME` for random weights, else as `--model` does.

    `bf16:NAME` is that model with its blocks widened to bfloat16, which no engine reads as blocks.
    """
    if spec.startswith(SHAPE_PREFIX):
        name = _shape_name(spec)
        check_memory(SHAPES[name], device, DTYPE, spec)
        return Subject(random_model(name, device, DTYPE), real=False)
    name, path = locate_model(spec.removeprefix(WIDE_PREFIX))
    model = load_model(path, device, DTYPE, name)
    if spec.startswith(WIDE_PREFIX):
        model = Model(name + WIDENED, model.config, model.weights, model.tokenizer)
    return Subject(model, real=True)


def _shape_name(spec: str) -> str:
    name = spec.removeprefix(SHAPE_PREFIX)
    if name not in SHAPES:
        raise UnpausedError(f"unknown shape {name!r}; known: {', '.join(SHAPES)}")
    return name
