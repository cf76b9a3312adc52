"""Which filters a step has, and their kernels launched in order: a threshold, then the draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import draw_kernels as draw
from kernels.tuning import EARLY

SHIFTS = (28, 24, 20, 16, 12, 8, 4, 0)  # of the digits of a threshold, four bits each
SCORES = 1024  # vocabulary entries a program of the filters owns


@dataclass(frozen=True)
class Filters:
    """Which filters a step contains; their values are read on the device."""

    top_k: bool = False
    top_p: bool = False
    min_p: bool = False

    @property
    def any(self) -> bool:
        """Whether the draw is not from all tokens."""
        return self.top_k or self.top_p or self.min_p

    @property
    def passes(self) -> list[tuple[bool, int]]:
        """The threshold search as (count?, shift), in order."""
        kinds = [True] * self.top_k + [False] * self.top_p
        return [(kind, shift) for kind in kinds for shift in SHIFTS]


NO_FILTERS = Filters()


@dataclass(frozen=True)
class Filtered:
    """What is drawn from, and with: buffers of one column or, with an axis in front, of several.

    N tokens lie in BLOCKS blocks. `control`, `settings`, `reals`: see `kernels.decode_kernels`.
    `top`: float32 [HEADS], parts of the largest score. Between passes: `lows`, `floors` int32
    [PASSES], `above` float32 [2, BLOCKS, DIGITS], `mass` float32 [2, BLOCKS]. Left behind: `best`
    float32 [BLOCKS] and its token, `best_id` int32.
    """

    control: torch.Tensor
    settings: torch.Tensor
    reals: torch.Tensor
    logits: torch.Tensor
    seen: torch.Tensor
    top: torch.Tensor
    lows: torch.Tensor
    floors: torch.Tensor
    above: torch.Tensor
    mass: torch.Tensor
    best: torch.Tensor
    best_id: torch.Tensor


def draw_filtered(
    launch: Callable[..., None], filters: Filters, of: Filtered, programs: int | tuple[int, int],
    **constants: int,
) -> None:  # fmt: skip
    """Find the thresholds, a digit a launch; then draw in each block among what they keep.

    `launch` as `StepKernels._launch`; `programs`: the blocks, or (blocks, columns).
    """
    passes = filters.passes
    for number, (count, shift) in enumerate(passes):
        count_before, shift_before = passes[number - 1] if number else (count, 0)
        launch(
            draw.narrow_kernel, programs, 4, EARLY,
            of.logits, of.seen, of.settings, of.reals, of.top,
            of.lows, of.floors, of.above, of.mass, number, shift, shift_before,
            **constants, FIRST=number == 0,
            OPENS=number == 0 or count != count_before, COUNT=count,
            COUNT_BEFORE=count_before,
        )  # fmt: skip
    count, shift = passes[-1] if passes else (False, 0)
    launch(
        draw.pick_kernel, programs, 4, EARLY,
        of.logits, of.seen, of.control, of.settings, of.reals, of.top,
        of.lows, of.above, of.mass, of.best, of.best_id, len(passes), shift,
        **constants, SEARCHED=bool(passes), COUNT_BEFORE=count,
    )  # fmt: skip
