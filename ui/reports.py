"""What the socket is told of a turn: figures while it runs, and how it ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ui.verdict import sentence

if TYPE_CHECKING:
    from engine.metrics import ReplyMetrics
    from ui.turn_worker import TurnWorker


def figures(
    turn: int, running: bool, metrics: ReplyMetrics, told: int, label: str, bandwidth: float | None
) -> dict[str, Any]:
    """{"turn", "running", "engine_label", "bandwidth_share", "latencies", and every figure}.

    "latencies" are {"from", "ms"}: each token's own, without the first `told`. `bandwidth` is the
    device's measured ceiling in bytes/s, None while it is not known.
    """
    share = metrics.bandwidth_share(bandwidth) if bandwidth else None
    return {
        "turn": turn,
        "running": running,
        "engine_label": label,
        "bandwidth_share": None if share is None else round(share, 4),
        "latencies": {"from": told, "ms": metrics.latencies_ms()[told:].round(3).tolist()},
        **metrics.as_dict(),
    }


def ended(worker: TurnWorker, label: str) -> dict[str, Any]:
    """The "done" event; `label` names the engine, "" when none was asked."""
    return {
        "type": "done",
        "turn": worker.number,
        "finish": worker.finish,
        "stages": worker.stages,
        "verdict": sentence(worker.stages),
        "engine_label": label,
        "message": worker.error,
    }


def measured(worker: TurnWorker, label: str) -> dict[str, Any]:
    """The "measured" event: the whole way to the first audible sound."""
    return {
        "type": "measured",
        "turn": worker.number,
        "stages": worker.stages,
        "total_ms": round(sum(stage["ms"] for stage in worker.stages), 3),
        "verdict": sentence(worker.stages),
        "engine_label": label,
    }
