"""What a resident engine can tell of its own time. Nobody outside sees into a kernel that stays.

Launched engines need none of this: a profiler sees each kernel and each gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from engine.kv_cache import KVCache
    from engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of the decode step, summed over the layers: means per token and per worker.

    A worker is what waits for others: an SM, a program or a thread. `work_us` and `wait_us` are
    microseconds of the engine's clock in which a worker worked on the stage, and waited for the
    others at its end. Over all stages the two add up to about one token's time.
    """

    stage: str  # a name from `kernels.stages.STAGES`, or the engine's own for what it adds
    work_us: float
    wait_us: float


@dataclass(frozen=True, slots=True)
class StageProfile:
    """What `SelfMeasuring.measure_stages` found."""

    tokens: int  # decode steps behind the means, those of the prompt left out
    token_us: float  # microseconds a token took while it was measured, by the engine's clock
    stages: Sequence[StageTime]
    method: str  # one sentence: what was read, and what reading it costs


@runtime_checkable
class SelfMeasuring(Protocol):
    """An engine with counters of its own."""

    def measure_stages(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> StageProfile:
        """Decode a whole reply as `decode` does, with the counters on; same arguments and faults.

        The figures of `decode` are never taken from such a reply: counting may cost time.
        """
        ...
