"""Results as text: for the terminal, for the README, and as one line of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.anatomy_parts import anatomy_parts, overhead_removed

_COLUMNS = ("engine", "TPOT p50", "p99", "rounds", "tokens/s", "TTFT", "launches/token",
            "of read ceiling", "mJ/token")  # fmt: skip


def all_green(entry: Mapping[str, Any]) -> bool:
    """Whether every engine that was judged passed, and any was."""
    verdicts = entry.get("gate", {}).get("engines", {})
    return bool(verdicts) and all(verdict["green"] for verdict in verdicts.values())


def heading(entry: Mapping[str, Any]) -> str:
    """Model, weights and device in one line."""
    device = entry["machine"]["device"]
    if "weights" not in entry:
        return f"{entry['model']} on {device}"
    purpose = "" if entry["weights"] == "real" else ", for speed only"
    return f"{entry['model']}, {entry['dtype']}{purpose}, on {device}"


def rows(entry: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row a measured engine, under `_COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for name, f in entry.get("engines", {}).items():
        share = f.get("share_of_ceiling", {}).get("p50")
        spread = [f"{duration(p50)}" for p50 in sorted(f["tpot_p50_of_rounds_ms"])]
        launches, energy = f["launches_per_token"], f.get("energy_mj_per_token")
        no_energy = "not offered" if "energy" in entry else "not measured"
        found.append((
            name, duration(f["tpot_p50_ms"]), duration(f["tpot_p99_ms"]),
            f"{spread[0]} to {spread[-1]}", f"{f['tokens_per_s']:,.0f}",
            duration(f["ttft_ms"]), "not counted" if launches is None else f"{launches:g}",
            "not known" if share is None else f"{share:.1%}",
            no_energy if energy is None else f"{energy:,.0f}",
        ))  # fmt: skip
    return found


def duration(ms: float) -> str:
    """Milliseconds, or microseconds below one."""
    return f"{ms * 1e3:,.0f} us" if ms < 1 else f"{ms:,.2f} ms"


def notes(entry: Mapping[str, Any]) -> list[str]:
    """What the figures rest on, then what did not get one and why."""
    lines = []
    if "error" in entry:
        return [entry["error"]]
    if "gate" in entry:
        lines.append(_gate_line(entry))
    lines += [
        f"{name}: RED, no speed: {verdict['reason']}"
        for name, verdict in entry.get("gate", {}).get("engines", {}).items()
        if not verdict["green"]
    ]
    for name, why in entry.get("failed", {}).items():
        when = "failed after these figures" if name in entry["engines"] else "not measured"
        lines.append(f"{name}: {when}: {why}")
    lines += [_overhead_line(name, rivals) for name, rivals in overhead_removed(entry).items()]
    if entry.get("partial"):
        lines.append("partial: the run was interrupted before it was complete")
    return lines


def _overhead_line(name: str, rivals: Mapping[str, float]) -> str:
    """The question of the debate, answered for one resident engine."""
    told = ", ".join(
        f"{share:.0%} less than {rival}" if share >= 0 else f"{-share:.0%} more than {rival}"
        for rival, share in rivals.items()
    )
    return f"overhead of {name}, which is its time above the read floor: {told}"


def _gate_line(entry: Mapping[str, Any]) -> str:
    gate = entry["gate"]
    kls = ", ".join(
        f"{name} {verdict['mean_kl']:.2g}"
        for name, verdict in gate["engines"].items()
        if verdict["green"] and verdict["mean_kl"] is not None
    )
    return (
        f"gate: {gate['positions']} positions against float32, margin {gate['margin']:g} "
        f"({gate['margin_rule']}); mean KL in nats: native {gate['native_mean_kl']:.2g}; "
        f"{kls or 'nobody passed'}"
    )


def as_text(entry: Mapping[str, Any]) -> str:
    """For a terminal."""
    body = rows(entry)
    lines = [heading(entry)]
    if body:
        settings = _conditions(entry)
        table = [_COLUMNS, *body]
        widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
        lines += [settings] + [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        lines += [f"{name}: {_divided(bar)}" for name, bar in anatomy_parts(entry).items()]
    return "\n".join([*lines, *notes(entry), ""])


def _divided(bar: Any) -> str:
    parts = ", ".join(f"{part} {us / bar.total_us:.0%}" for part, us in bar.parts)
    return parts or bar.note


def _conditions(entry: Mapping[str, Any]) -> str:
    ceiling = entry["read_ceiling_bytes_per_s"] / 1e9
    weights = entry["weight_bytes"] / 1e6
    first = next(iter(entry["engines"].values()))
    return (
        f"prompt {entry['prompt_tokens']} tokens, {first['tokens_a_round']} tokens a reply, "
        f"{first['rounds']} rounds in turn; weights {weights:,.0f} MB; "
        f"read ceiling measured in the same run {ceiling:,.1f} GB/s"
    )


def as_markdown(entries: Iterable[Mapping[str, Any]]) -> str:
    """For the README: a table for each entry, with where it comes from."""
    blocks = []
    for entry in entries:
        m, body = entry["machine"], rows(entry)
        if not body:
            continue
        versions = [f"torch {m['torch']}", m["triton"] and f"Triton {m['triton']}",
                    m["driver"] and f"driver {m['driver']}"]  # fmt: skip
        lines = [f"**{heading(entry)}**", "", _conditions(entry) + ".", ""]
        lines += ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
        lines += [f"| `{row[0]}` | " + " | ".join(row[1:]) + " |" for row in body]
        lines += ["", *[f"- {note}" for note in notes(entry)]]
        where = ", ".join(version for version in versions if version)
        lines += [f"- {where}, commit {m['commit']}, {m['date']} (`{entry['source']}`)"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def summary(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    """One line of JSON: where the results are and the figures people ask for."""
    keys = ("tpot_p50_ms", "tpot_p99_ms", "tokens_per_s", "ttft_ms", "launches_per_token")
    return {
        "benchmark": content["benchmark"],
        "partial": content["partial"],
        "json": path,
        "models": [
            {
                "model": entry["model"],
                "green": all_green(entry),
                "engines": {
                    name: {key: figures[key] for key in keys}
                    for name, figures in entry.get("engines", {}).items()
                },
            }
            for entry in content["models"]
        ],
    }
