"""From timed replies with and without drafts to figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.timing import Reply

OFF = "off"
COPY_AT_LEAST, CHAT_AT_LEAST = 1.8, 0.97  # times the speed without drafts
PASS_AT_MOST = {4: 1.10, 8: 1.25}  # times a pass of one token, of the tape kernel
TAPE = "persistent-tape"


def prompt_figures(
    kind: str, name: str, replies: Mapping[str, Sequence[Reply]], same: Mapping[str, bool]
) -> dict[str, Any]:
    """One prompt: each way's tokens/s of every round, what became of its drafts, and whether its
    text is the one without drafts."""
    ways = {}
    for way, found in replies.items():
        drafts = found[0].drafts
        ways[way] = {
            "tokens": len(found[0].tokens),
            "tokens_per_s": [round(reply.tokens_per_s, 2) for reply in found],
            "same_text": same[way],
            "passes": drafts.passes if drafts else len(found[0].tokens) - 1,
            "drafted": drafts.drafted if drafts else 0,
            "accepted": drafts.accepted if drafts else 0,
        }
    return {"kind": kind, "prompt": name, "ways": ways}


def ratio(prompt: Mapping[str, Any], way: str) -> float:
    """Tokens/s over those without drafts in the same round: the median of the rounds."""
    with_drafts, without = (prompt["ways"][name]["tokens_per_s"] for name in (way, OFF))
    return statistics.median(a / b for a, b in zip(with_drafts, without, strict=True))


def rows(prompts: Sequence[Mapping[str, Any]], ways: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each kind of prompt and way. Speeds and ratios are medians over prompts, with the
    lowest and highest prompt's; counts are sums."""
    kinds = dict.fromkeys(prompt["kind"] for prompt in prompts)
    return [
        _row(kind, way, [prompt for prompt in prompts if prompt["kind"] == kind])
        for kind in kinds
        for way in ways
    ]


def _row(kind: str, way: str, prompts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [prompt["ways"][way] for prompt in prompts]
    ratios = sorted(ratio(prompt, way) for prompt in prompts)
    rates = [statistics.median(one["tokens_per_s"]) for one in found]
    passes, drafted, accepted = (
        sum(one[name] for one in found) for name in ("passes", "drafted", "accepted")
    )
    return {
        "kind": kind,
        "way": way,
        "prompts": len(prompts),
        "rounds": len(found[0]["tokens_per_s"]),
        "tokens_per_s": round(statistics.median(rates), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(ratios[0], 3),
        "ratio_highest": round(ratios[-1], 3),
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "tokens_per_pass": round((passes + accepted) / passes, 3) if passes else None,
        "same_texts": sum(one["same_text"] for one in found),
    }


def held(entry: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """(whether it held, in words) of each thing that speculation has to keep."""
    lines = []
    for name, figures in entry.get("engines", {}).items():
        for row in figures["rows"]:
            if row["way"] == OFF or entry["trace_driven"]:
                continue
            if row["kind"] == "copy" and row["way"] == "ngram":
                lines.append(_at_least(name, row, figures["prompts"], COPY_AT_LEAST))
            if row["kind"] == "chat":
                lines.append(_at_least(name, row, figures["prompts"], CHAT_AT_LEAST))
        for cost in figures.get("pass_cost", []) if name == TAPE else []:
            limit = PASS_AT_MOST.get(cost["width"])
            if limit and cost["relative"]:
                words = f"{name}: a pass of {cost['width']} at most {limit:.2f}x of one token"
                good = cost["relative"] <= limit
                lines.append((good, f"{words}: {_verdict(good)}, {cost['relative']:.2f}x"))
    return lines


def _at_least(
    engine: str, row: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]], least: float
) -> tuple[bool, str]:
    ratios = [ratio(prompt, row["way"]) for prompt in prompts if prompt["kind"] == row["kind"]]
    reached = sum(value >= least for value in ratios)
    good = reached == len(ratios)
    words = f"{engine} {row['way']}, every {row['kind']} prompt at least {least:g}x"
    return good, f"{words}: {_verdict(good)}, {reached} of {len(ratios)}, lowest {min(ratios):.2f}x"


def _verdict(good: bool) -> str:
    return "held" if good else "NOT held"
