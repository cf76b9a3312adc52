"""The measured parts of the README, written from benchmarks/results and from nothing else.

`python -m benchmarks.readme` writes it and draws the figures beside the results; `--check` only
says whether it is up to date. No figure between the markers is typed by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks import speculation_table
from benchmarks.hardware import Hardware, load_hardware
from benchmarks.plots import save, size_figure, slug, whole_figure
from benchmarks.results import RESULTS, Entry, load_results
from benchmarks.table import as_markdown, heading
from engine.errors import UnpausedError

README = Path(__file__).resolve().parent.parent / "README.md"
MEASURED, SPECULATION = "measured", "speculation"  # the parts, by what their markers say


def shown(folder: Path = RESULTS) -> list[Entry]:
    """Entries with figures: GPUs first, then by device and size."""
    found = [entry for entry in load_results(folder) if entry.get("engines")]
    return sorted(
        found,
        key=lambda e: (e["machine"]["kind"] == "cpu", e["machine"]["device"], e["weight_bytes"]),
    )


def measured_text(entries: Sequence[Entry], folder: Path = RESULTS) -> str:
    """Markdown: a table for each entry, links to the figures, published parts and claims."""
    place = folder.relative_to(README.parent).as_posix()
    blocks = [as_markdown(entries)] if entries else ["Nothing has been measured yet."]
    for device, several in by_device(entries):
        if len(several) > 1:
            image = f"{place}/{size_name(device)}"
            blocks.append(f"![Time per token against model size on {device}]({image})")
    links = [f"[{heading(entry)}]({place}/{figure_name(entry)})" for entry in entries]
    if links:
        about = "Figures (anatomy of a token, growth with context and sampling, hardware bounds)"
        blocks.append(f"{about}: {'; '.join(links)}.")
    return "\n\n".join([*blocks, claims(load_hardware())])


def claims(hardware: Hardware) -> str:
    """What others publish, each with its source and its caveat."""
    parts = ", ".join(
        f"{part.name} {part.bandwidth_bytes_per_s / 1e12:,.5g} TB/s" for part in hardware.parts
    )
    lines = [f"Published, not measured here ({len(hardware.parts)} parts' memory bandwidth as "
             f"claimed, sources in `benchmarks/hardware.toml`): {parts}."]  # fmt: skip
    lines += [
        f"- {r.name}: {r.tokens_per_s:,.0f} tokens/s, {r.status}. Source: {r.source}. "
        f"Caveat: {r.caveat}."
        for r in hardware.references
    ]
    return "\n".join([lines[0], "", *lines[1:]])


def by_device(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """Entries grouped by the device they were measured on."""
    grouped = groupby(entries, key=lambda entry: str(entry["machine"]["device"]))
    return [(device, list(several)) for device, several in grouped]


def figure_name(entry: Entry) -> str:
    """The file that `draw` writes for an entry."""
    return f"{Path(entry['source']).stem}_{slug(entry['model'])}.svg"


def size_name(device: str) -> str:
    """The file that `draw` writes for several models on one device."""
    return f"sizes_{slug(device)}.svg"


def draw(entries: Sequence[Entry], folder: Path = RESULTS) -> None:
    """Every figure that `measured_text` links to."""
    for entry in entries:
        save(whole_figure(entry), folder / figure_name(entry))
    for device, several in by_device(entries):
        if len(several) > 1:
            save(size_figure(several), folder / size_name(device))


def replaced(readme: str, text: str, part: str = MEASURED) -> str:
    """`readme` with `text` between the markers of `part`."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, begun, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise UnpausedError(f"README.md lacks the markers {begin} and {end}: put them back")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def speculation_text(folder: Path = RESULTS) -> str:
    """Markdown: what speculative decoding was measured to be worth."""
    return speculation_table.as_markdown(load_results(folder, SPECULATION))


def main() -> None:
    """Write, or with --check exit with 1 when there is something to write."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="write nothing")
    options = arguments.parse_args()
    entries = shown()
    old = README.read_text("utf-8")
    new = replaced(old, measured_text(entries))
    new = replaced(new, speculation_text(), SPECULATION)
    if options.check:
        raise SystemExit("README.md is out of date" if new != old else 0)
    draw(entries)
    README.write_text(new, encoding="utf-8")
    print(f"README.md and {len(entries)} figures are written")


if __name__ == "__main__":
    main()
