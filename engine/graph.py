"""The same kernels captured once in a CUDA graph and replayed per token, overlapping.

Programmatic dependent launch lets a kernel's programs start, and ask for their weights, while the
kernel before it still runs. This is the conventional engine at its best.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch

from engine.base import DecodeRun
from engine.errors import UnpausedError
from engine.gpu import launches_dependently
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import Speculation
from engine.taking_turns import TurnTakingRun
from engine.triton_engine import TritonEngine

if TYPE_CHECKING:
    from kernels.tuning import Tuning


class StrictGraph:
    """A captured step. Grids, shapes and buffers are frozen: other ones are refused, not run.

    What may change from replay to replay is read on the device: token, position, sampling
    values, and the address and length of the KV cache.
    """

    def __init__(self, work: Callable[[], None], key: tuple[object, ...], remedy: str) -> None:
        self._key, self._remedy = key, remedy
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            work()

    def replay(self, key: tuple[object, ...]) -> None:
        """Launch the whole step. `UnpausedError` when `key` is not the one captured."""
        if key != self._key:
            raise UnpausedError(
                f"the CUDA graph was captured for {self._key} and asked for {key}: {self._remedy}"
            )
        self._graph.replay()


class GraphEngine(TritonEngine):
    """One graph launch per token or pass; a graph for each width and set of sampling filters, made
    when needed.

    A pass that may verify drafts has a few launches more. So with n-grams and `turns` a second
    engine without drafts decodes wherever they do not hold (engine/taking_turns.py).
    """

    name = "graph"
    steps_ahead = 4

    def __init__(
        self,
        model: Model,
        threads: int | None = None,
        tuning: Tuning | None = None,
        speculation: Speculation | None = None,
        turns: bool = True,
    ) -> None:
        super().__init__(model, threads, tuning, speculation)
        takes_turns = turns and speculation is not None and speculation.method == "ngram"
        self._alone = GraphEngine(model, threads, tuning) if takes_turns else None

    def decode(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> DecodeRun:
        drafting = super().decode
        if self._alone is None:
            return drafting(cache, token_ids, params)
        return TurnTakingRun(self._alone.decode, drafting, cache, token_ids, params)

    def _dependent(self) -> bool:
        return launches_dependently(self.model.device)

    def _warm_up(self) -> None:
        super()._warm_up()
        from kernels.filters import Filters

        self._graphs: dict[Hashable, StrictGraph] = {}
        c = self.model.config
        shape = (c.layers, c.kv_heads, 1, c.head_dim)
        like = torch.empty(shape, dtype=self.model.dtype, device="meta")
        self._captured_for = self._key(like, self.model.device)
        for filters in (Filters(), Filters(top_p=True)):
            if self._passes is None:
                self._capture(filters, functools.partial(self.kernels.step, filters))
            else:
                for width in self._passes.widths:
                    work = functools.partial(self._passes.launch_kernels, width, filters)
                    self._capture((width, filters), work)

    def play(self, name: Hashable, keys: torch.Tensor, work: Callable[[], None]) -> bool:
        new = name not in self._graphs
        if new:
            self._capture(name, work)
        self._graphs[name].replay(self._key(keys))
        return new

    def _capture(self, name: Hashable, work: Callable[[], None]) -> None:
        remedy = "make the cache with this model's new_cache(), or build a new engine"
        captured = functools.partial(self.count, name, work)
        self._graphs[name] = StrictGraph(captured, self._captured_for, remedy)

    @staticmethod
    def _key(keys: torch.Tensor, device: torch.device | None = None) -> tuple[object, ...]:
        """What a cache's keys must have in common with those captured: all but their length."""
        layers, kv_heads, _, head_dim = keys.shape
        return layers, kv_heads, head_dim, str(keys.dtype), str(device or keys.device)
