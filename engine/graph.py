"""The same kernels captured once in a CUDA graph and replayed per token, overlapping.

Programmatic dependent launch lets a kernel's programs start, and ask for their weights, while the
kernel before it still runs. This is the conventional engine at its best.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from engine.errors import UnpausedError
from engine.gpu import launches_dependently
from engine.kv_cache import KVCache
from engine.triton_engine import TritonEngine

if TYPE_CHECKING:
    from kernels.ops import Filters


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
    """One graph launch per token; a graph for each set of sampling filters, made when needed."""

    name = "graph"
    steps_ahead = 4

    def _dependent(self) -> bool:
        return launches_dependently(self.model.device)

    def _warm_up(self) -> None:
        super()._warm_up()
        from kernels.ops import Filters

        self._graphs: dict[Filters, StrictGraph] = {}
        for filters in (Filters(), Filters(top_p=True)):
            self._graph_of(filters)

    def _step(self, cache: KVCache, filters: Filters) -> None:
        self._graph_of(filters).replay(self._key(cache.k))

    def _graph_of(self, filters: Filters) -> StrictGraph:
        if filters not in self._graphs:
            c = self.model.config
            like = torch.empty(
                (c.layers, c.kv_heads, 1, c.head_dim), dtype=self.model.dtype, device="meta"
            )
            self._graphs[filters] = StrictGraph(
                lambda: self._launch_kernels(filters),
                self._key(like, self.model.device),
                "make the cache with this model's new_cache(), or build a new engine",
            )
        return self._graphs[filters]

    @staticmethod
    def _key(keys: torch.Tensor, device: torch.device | None = None) -> tuple[object, ...]:
        """What a cache's keys must have in common with those captured: all but their length."""
        layers, kv_heads, _, head_dim = keys.shape
        return layers, kv_heads, head_dim, str(keys.dtype), str(device or keys.device)
