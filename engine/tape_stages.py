"""Where the tape kernel spends a token: marks that a measuring build of it leaves.

Each block notes, stage by stage of one pass, when it began, when it had what other blocks owed it,
and when it had published (`kernels.tape.TapeKernel.timeline`). The marks cost time, so they are in
a build of their own, on a second copy of the tapes that lives as long as the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.anatomy import StageProfile, StageTime
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams
from kernels.stages import SAMPLE, STAGES

if TYPE_CHECKING:
    from engine.persistent_tape import PersistentTapeEngine

_PASSES = 4  # one a reply
_BEGUN, _EXCHANGED, _PUBLISHED, _STAGE = 0, 1, 3, 4  # columns of the timeline
METHOD = (
    "marks on the device's clock in a measuring build of the kernel, by one thread a block, in "
    f"{_PASSES} passes; waiting is the time until a block has what other blocks owe it, and "
    "waiting for its own tape counts as work"
)


def measure(
    engine: PersistentTapeEngine, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
) -> StageProfile:
    """`SelfMeasuring.measure_stages` of the tape engine."""
    kernel = engine.kernel
    twin = type(engine)(engine.model, choices=kernel.choices, measure=True)
    try:
        if len(token_ids) > 1:
            twin.prefill(cache, token_ids[:-1])
        start, timelines, gaps_ns = cache.length, [], []
        for number in range(_PASSES):
            cache.truncate(start)
            # From the middle on: what comes first is still filling caches.
            twin.kernel.trace_pass = max(0, params.max_tokens // 2 - number)
            tokens = list(twin.decode(cache, token_ids[-1:], params))
            gaps_ns += np.diff(np.array([token.time_ns for token in tokens])).tolist()
            timelines.append(twin.kernel.timeline())
    finally:
        twin.close()
    token_us = float(np.median(gaps_ns)) / 1e3
    stages = stage_times(np.stack(timelines), token_us)
    return StageProfile(len(gaps_ns), token_us, stages, METHOD)


def stage_times(timelines: np.ndarray, token_us: float) -> list[StageTime]:
    """`timelines`: int64 [passes, blocks, stages, marks] in nanoseconds.

    A block that has no part in a stage passes it by: its time there is work of next to nothing.
    What is left of the token after the last mark is the draw.
    """
    begun = timelines[..., _BEGUN]
    end = np.concatenate([begun[..., 1:], timelines[..., -1:, _PUBLISHED]], axis=-1)
    whole_ns = (end - begun).clip(min=0)
    exchanged = timelines[..., _EXCHANGED]
    waited_ns = np.where(
        (exchanged >= begun) & (exchanged <= end), (exchanged - begun).clip(min=0), 0
    )
    stage_of = timelines[0, 0, :, _STAGE] & 0xFF
    found = []
    for stage in np.unique(stage_of):
        mine = stage_of == stage
        wait_us = float(waited_ns[..., mine].sum(-1).mean()) / 1e3
        whole_us = float(whole_ns[..., mine].sum(-1).mean()) / 1e3
        found.append(StageTime(STAGES[int(stage)], whole_us - wait_us, wait_us))
    rest_us = token_us - sum(stage.work_us + stage.wait_us for stage in found)
    return [*found, StageTime(STAGES[SAMPLE], max(0.0, rest_us), 0.0)]
