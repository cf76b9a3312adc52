"""Results as figures. No pyplot, so that a server's threads can draw; units and n on every one.

Each `*_figure` takes entries of `benchmarks.results` and returns a `matplotlib.figure.Figure`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from benchmarks.anatomy_parts import PARTS, anatomy_parts
from benchmarks.hardware import Hardware, load_hardware
from benchmarks.plot_style import PART_COLOURS, logarithmic, look, patch
from benchmarks.results import load_file
from benchmarks.table import heading
from engine.errors import UnpausedError
from engine.files import check_writable

Entry = Mapping[str, Any]
Canvas = Figure | SubFigure
SUFFIXES = (".png", ".svg", ".pdf")
_REFERENCE_COLOUR = "#AA3377"
_STATUS_COLOURS = {"claimed": "#999999", "measured": "#0072B2"}


def anatomy_figure(entry: Entry) -> Figure:
    """One stacked bar an engine: where one token's time goes."""
    return _alone(lambda canvas: _anatomy(canvas, entry), 9.0, 5.6)


def growth_figure(entry: Entry) -> Figure:
    """TPOT against context, and greedy beside sampled."""
    return _alone(lambda canvas: _growth(canvas, entry), 9.0, 4.0)


def hardware_figure(entry: Entry, hardware: Hardware | None = None) -> Figure:
    """The model's bound on published parts, beside what was measured here."""
    return _alone(lambda canvas: _hardware(canvas, entry, hardware or load_hardware()), 9.0, 5.6)


def size_figure(entries: Sequence[Entry]) -> Figure:
    """TPOT against the bytes of the model, of entries measured on one device."""
    return _alone(lambda canvas: _sizes(canvas, entries), 9.0, 4.4)


def check_plot_path(path: Path) -> None:
    """Raise `UnpausedError` for a path that no figure can be saved to."""
    if path.suffix.lower() not in SUFFIXES:
        raise UnpausedError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    check_writable(path)


def save_all(results: Path, path: Path) -> list[Path]:
    """Draw every model of a results file: into `path`, or one file a model beside it."""
    entries = [entry for entry in load_file(results) if entry.get("engines")]
    paths = []
    for entry in entries:
        one = path.with_stem(f"{path.stem}_{slug(entry['model'])}") if len(entries) > 1 else path
        save(whole_figure(entry), one)
        paths.append(one)
    return paths


def whole_figure(entry: Entry) -> Figure:
    """Anatomy, growth where it was measured, and hardware, one above the other."""
    drawn: list[tuple[float, Callable[[Canvas], None]]] = [
        (5.6, lambda canvas: _anatomy(canvas, entry)),
        (5.6, lambda canvas: _hardware(canvas, entry, load_hardware())),
    ]
    if entry.get("growth"):
        drawn.insert(1, (4.0, lambda canvas: _growth(canvas, entry)))
    heights = [height for height, _ in drawn]
    figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
    parts: Any = figure.subfigures(len(drawn), 1, height_ratios=heights)
    for part, (_, draw) in zip(parts, drawn, strict=True):
        draw(part)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same file."""
    from matplotlib import rc_context

    metadata = {"Date": None} if path.suffix == ".svg" else None
    with rc_context({"svg.hashsalt": "unpaused", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=150, metadata=metadata)


def slug(name: str) -> str:
    """`name` as part of a file name."""
    kept = "".join(char if char.isalnum() or char in ".-" else "-" for char in name.lower())
    return "-".join(filter(None, kept.split("-")))


def _alone(draw: Callable[[Canvas], None], width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    draw(figure)
    return figure


def _anatomy(canvas: Canvas, entry: Entry) -> None:
    bars = list(anatomy_parts(entry).values())
    canvas.suptitle(f"Where one token's time goes\n{heading(entry)}", fontsize=11)
    absolute, shares = canvas.subplots(2, 1)
    for axes, of in ((absolute, lambda bar: 1.0), (shares, lambda bar: bar.total_us / 100)):
        for row, bar in enumerate(reversed(bars)):
            left = 0.0
            for part, us in bar.parts:
                width = us / of(bar)
                axes.barh(row, width, left=left, color=PART_COLOURS[part], height=0.7)
                left += width
            if axes is absolute:
                axes.text(left, row, f" {bar.total_us:,.0f}", va="center", fontsize=9)
        axes.set_yticks(range(len(bars)), [bar.engine for bar in reversed(bars)])
        axes.spines[["top", "right"]].set_visible(False)
    absolute.margins(x=0.1)
    absolute.set_xlabel(f"microseconds a token, median ({_counted(entry)})")
    shares.set_xlabel("share of that engine's own token [%]")
    shares.set_xlim(0, 100)
    used = {part for bar in bars for part, _ in bar.parts}
    handles = [patch(PART_COLOURS[part], part) for part in PARTS if part in used]
    canvas.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def _growth(canvas: Canvas, entry: Entry) -> None:
    grown = entry.get("growth", {})
    canvas.suptitle("How time per token grows", fontsize=11)
    by_context, by_sampling = canvas.subplots(1, 2)
    for name, points in grown.get("context", {}).items():
        by_context.plot(
            [point["context"] for point in points],
            [point["tpot_p50_ms"] for point in points],
            label=name, **look(name),
        )  # fmt: skip
    contexts = {
        point["context"] for points in grown.get("context", {}).values() for point in points
    }
    logarithmic(by_context, "x", "tokens of context", sorted(contexts))
    logarithmic(by_context, "y", "TPOT p50 [ms]")
    if contexts:
        by_context.legend(fontsize=9, frameon=False)
    for axes, measured in ((by_context, contexts), (by_sampling, grown.get("sampling"))):
        if not measured:
            axes.text(0.5, 0.5, "not measured in this run", ha="center", va="center",
                      transform=axes.transAxes, fontsize=10)  # fmt: skip
    for row, (name, kinds) in enumerate(reversed(grown.get("sampling", {}).items())):
        for offset, kind, colour in ((0.2, "greedy", "#0072B2"), (-0.2, "sampled", "#E69F00")):
            value = kinds[f"{kind}_tpot_p50_ms"]
            by_sampling.barh(row + offset, value, 0.38, color=colour)
            by_sampling.text(value, row + offset, f" {value:.3g}", va="center", fontsize=8)
        by_sampling.text(0, row, f"{name} ", ha="right", va="center", fontsize=9)
    by_sampling.set_yticks([])
    by_sampling.margins(x=0.15)
    by_sampling.set_xlabel(f"TPOT p50 [ms], {_sampled_with(grown)}")
    by_sampling.spines[["top", "right"]].set_visible(False)
    handles = [patch("#0072B2", "greedy"), patch("#E69F00", "sampled")]
    by_sampling.legend(handles=handles, fontsize=9, frameon=False)
    note = f"n = {grown.get('rounds', 0)} rounds of {grown.get('tokens', 0)} tokens a point"
    by_context.set_title(note, fontsize=9)


def _hardware(canvas: Canvas, entry: Entry, hardware: Hardware) -> None:
    """Bounds as bars, measured engines as points on this device's own bar."""
    read = least_read(entry)
    canvas.suptitle(f"Batch-1 bound of {entry['model']} by memory bandwidth", fontsize=11)
    axes = canvas.subplots(1, 1)
    here = f"{entry['machine']['device']} (measured ceiling)"
    bounds = [
        (f"{part.name} ({part.status})", part.tokens_per_s(read), part.status)
        for part in hardware.parts
        if part.fits(read)
    ]
    bounds.append((here, entry["read_ceiling_bytes_per_s"] / read, "measured"))
    bounds.sort(key=lambda bound: bound[1])
    for row, (name, rate, status) in enumerate(bounds):
        axes.barh(row, rate, color=_STATUS_COLOURS[status], height=0.6)
        axes.text(rate, row, f" {rate:,.0f}", va="center", fontsize=8)
        if name == here:
            _measured_points(axes, entry, row)
    for reference in hardware.references:
        axes.axvline(reference.tokens_per_s, color=_REFERENCE_COLOUR, linestyle=":", zorder=3)
        axes.text(reference.tokens_per_s, len(bounds) - 0.55, f"{reference.tokens_per_s:,.0f}",
                  ha="center", va="bottom", fontsize=8, color=_REFERENCE_COLOUR)  # fmt: skip
    axes.set_yticks(range(len(bounds)), [name for name, _, _ in bounds])
    axes.margins(y=0.08)
    logarithmic(axes, "x", f"tokens/s; bound = bandwidth / {read / 1e6:,.0f} MB read a token")
    axes.plot([], [], color=_REFERENCE_COLOUR, linestyle=":",
              label="GLM-5 as published: another model, not comparable")  # fmt: skip
    canvas.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def _measured_points(axes: Axes, entry: Entry, row: int) -> None:
    for name, figures in entry.get("engines", {}).items():
        axes.plot(
            figures["tokens_per_s"], row, label=f"{name}, measured", linestyle="none",
            markeredgecolor="white", zorder=4, **look(name),
        )  # fmt: skip


def least_read(entry: Entry) -> int:
    """Weight bytes a token of the measured engine that needs the fewest: its format's, not ours."""
    read = [f["weight_bytes_per_token"] for f in entry["engines"].values() if "floor_us" in f]
    return min(read, default=entry["weight_bytes"])


def _sizes(canvas: Canvas, entries: Sequence[Entry]) -> None:
    """Lines over models; the floor is the largest ceiling measured in these runs."""
    axes = canvas.subplots(1, 1)
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in sorted(entries, key=lambda entry: entry["weight_bytes"]):
        for name, figures in entry.get("engines", {}).items():
            points.setdefault(name, []).append((entry["weight_bytes"], figures["tpot_p50_ms"]))
    for name, found in points.items():
        axes.plot([x / 1e9 for x, _ in found], [y for _, y in found], label=name, **look(name))
    ceiling = max(entry["read_ceiling_bytes_per_s"] for entry in entries)
    sizes = sorted(entry["weight_bytes"] for entry in entries)
    axes.plot([size / 1e9 for size in sizes], [size / ceiling * 1e3 for size in sizes],
              color="#999999", linestyle="--", label="weights at the read ceiling")  # fmt: skip
    canvas.suptitle(f"Time per token against model size, {entries[0]['machine']['device']}",
                    fontsize=11)  # fmt: skip
    logarithmic(axes, "x", "weights read a token [GB]", [size / 1e9 for size in sizes])
    logarithmic(axes, "y", f"TPOT p50 [ms] ({_counted(entries[0])})")
    axes.legend(fontsize=9, frameon=False)


def _counted(entry: Entry) -> str:
    first = next(iter(entry["engines"].values()))
    return f"n = {first['rounds']} rounds of {first['tokens_a_round']} tokens"


def _sampled_with(grown: Mapping[str, Any]) -> str:
    used = grown.get("sampled_with", {})
    return f"temperature {used.get('temperature', '?')}, top-p {used.get('top_p', '?')}"
