"""Published parts and the bound that their memory puts on decoding one token at a time.

At batch 1 every weight is read once a token, so tokens/s cannot exceed bandwidth / bytes a token.
The list is benchmarks/hardware.toml; nothing here is measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UnpausedError

HARDWARE_PATH = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True, slots=True)
class Part:
    """A device and its memory. `status`: "claimed" by its vendor, or "measured" by a benchmark."""

    name: str
    bandwidth_bytes_per_s: float
    capacity_bytes: float | None  # None: not known
    status: str
    source: str
    note: str = ""
    read_at: str = ""

    def tokens_per_s(self, bytes_per_token: float) -> float:
        """The most tokens/s that reading `bytes_per_token` a token allows."""
        return self.bandwidth_bytes_per_s / bytes_per_token

    def fits(self, model_bytes: float) -> bool:
        """Whether its memory can hold the model at all."""
        return self.capacity_bytes is None or model_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Reference:
    """A published speed of some other system, and why it is not comparable."""

    name: str
    tokens_per_s: float
    status: str
    source: str
    caveat: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """Everything that benchmarks/hardware.toml says."""

    parts: Sequence[Part]
    references: Sequence[Reference]


def load_hardware(path: Path = HARDWARE_PATH) -> Hardware:
    """Read the list; raises `UnpausedError` naming the file when it is not one."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
        parts = [
            Part(
                name=entry["name"],
                bandwidth_bytes_per_s=entry["bandwidth_gb_per_s"] * 1e9,
                capacity_bytes=entry["capacity_gb"] * 1e9,
                status=entry["status"],
                source=entry["source"],
                note=entry.get("note", ""),
                read_at=entry.get("read_at", ""),
            )
            for entry in data["part"]
        ]
        references = [Reference(**entry) for entry in data["reference"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnpausedError(
            f"the list of hardware {path} cannot be read ({error}): restore it from the project"
        ) from error
    return Hardware(parts, references)
