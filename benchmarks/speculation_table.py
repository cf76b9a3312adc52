"""The speculation benchmark's results as text: for the terminal, the README, and one JSON line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.speculation_rows import held
from benchmarks.table import heading

COLUMNS = ("engine", "drafts", "prompts", "tokens/s", "of off", "lowest to highest", "acceptance",
           "tokens/pass", "same text", "n")  # fmt: skip
_KINDS = {"copy": "copy-heavy", "chat": "chat"}


def title(entry: Mapping[str, Any]) -> str:
    """Model, weights and device; of random weights also that the acceptance is a replay."""
    replayed = ", trace-driven acceptance" if entry.get("trace_driven") else ""
    return heading(entry) + replayed


def table_rows(entry: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row for each engine, kind of prompt and way, under `COLUMNS`."""
    return [_row(name, r) for name, f in entry.get("engines", {}).items() for r in f["rows"]]


def _row(engine: str, r: Mapping[str, Any]) -> tuple[str, ...]:
    off = r["way"] == "off"
    acceptance = r["acceptance"]
    return (
        engine, r["way"], _KINDS[r["kind"]], f"{r['tokens_per_s']:,.0f}",
        "1" if off else f"{r['ratio']:.2f}x",
        "" if off else f"{r['ratio_lowest']:.2f}x to {r['ratio_highest']:.2f}x",
        "" if off else "nothing drafted" if acceptance is None else f"{acceptance:.0%}",
        f"{r['tokens_per_pass']:.2f}", f"{r['same_texts']} of {r['prompts']}",
        f"{r['prompts']} x {r['rounds']}",
    )  # fmt: skip


def notes(entry: Mapping[str, Any]) -> list[str]:
    """What held, what a pass costs, what was not measured and why."""
    if "error" in entry:
        return [entry["error"]]
    lines = [words for _, words in held(entry)]
    for name, figures in entry.get("engines", {}).items():
        costs = [_cost(cost) for cost in figures.get("pass_cost", [])]
        if costs:
            lines.append(f"{name}, a pass by its tokens, of one token's time: {', '.join(costs)}")
    lines += [f"{way} drafts with {name}" for way, name in entry.get("drafts", {}).items()]
    for name, ways in entry.get("gate", {}).get("engines", {}).items():
        reds = {way: verdict for way, verdict in ways.items() if not verdict["green"]}
        lines += [f"{name} {way}: RED, no speed: {v['reason']}" for way, v in reds.items()]
    lines += [f"{name}: not measured: {why}" for name, why in entry.get("failed", {}).items()]
    if entry.get("partial"):
        lines.append("partial: the run was interrupted before it was complete")
    return lines


def _cost(cost: Mapping[str, Any]) -> str:
    width, relative = cost["width"], cost["relative"]
    return f"{width} never chosen" if relative is None else f"{width} {relative:.2f}x"


def as_text(entry: Mapping[str, Any]) -> str:
    """For a terminal."""
    lines, body = [title(entry)], table_rows(entry)
    if body:
        table = [COLUMNS, *body]
        widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
    return "\n".join([*lines, *notes(entry), ""])


def as_markdown(entries: Iterable[Mapping[str, Any]]) -> str:
    """For the README: a table for each entry, with where it comes from."""
    blocks = []
    for entry in entries:
        body, m, s = table_rows(entry), entry["machine"], entry["settings"]
        if not body:
            continue
        lines = [f"**{title(entry)}**", "", f"Replies of at most {s['tokens']} tokens, greedy.", ""]
        if entry["trace_driven"]:
            lines[2] = f"Replies of {s['tokens']} tokens, drafts as right as in recorded replies."
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| `{row[0]}` | " + " | ".join(row[1:]) + " |" for row in body]
        lines += ["", *[f"- {note}" for note in notes(entry)]]
        lines += [f"- torch {m['torch']}, commit {m['commit']}, {m['date']} (`{entry['source']}`)"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "Nothing has been measured yet."


def summary(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    """One line of JSON: where the results are, every row, and what held."""
    return {
        "benchmark": content["benchmark"],
        "partial": content["partial"],
        "json": path,
        "models": [_summarised(entry) for entry in content["models"]],
    }


def _summarised(entry: Mapping[str, Any]) -> dict[str, Any]:
    keys: Sequence[str] = ("kind", "way", "tokens_per_s", "ratio", "acceptance", "tokens_per_pass")
    return {
        "model": entry["model"],
        "trace_driven": entry.get("trace_driven"),
        "held": [{"held": good, "what": words} for good, words in held(entry)],
        "engines": {
            name: [{key: row[key] for key in keys} for row in figures["rows"]]
            for name, figures in entry.get("engines", {}).items()
        },
    }
