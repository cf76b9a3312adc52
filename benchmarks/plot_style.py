"""What figures share: colours, markers and axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.anatomy_parts import PARTS
from benchmarks.options import RIVALS
from engine.registry import ENGINES

# Okabe and Ito's colours, told apart by people who see fewer of them.
PART_COLOURS = dict(zip(PARTS, (
    "#0072B2", "#56B4E9", "#999999", "#009E73", "#E69F00", "#D55E00", "#CCCCCC",
), strict=True))  # fmt: skip
_LINES = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP*X"
_FEW_DECADES = 1e4


def look(name: str) -> dict[str, Any]:
    """Colour and marker of an engine or a rival, the same in every figure."""
    names = [*ENGINES, *RIVALS]
    number = names.index(name) if name in names else len(names)
    return {"color": _LINES[number % len(_LINES)], "marker": _MARKERS[number % len(_MARKERS)]}


def logarithmic(
    axes: Axes, which: Literal["x", "y"], label: str, ticks: Sequence[float] = ()
) -> None:
    """Make an axis logarithmic with plain numbers, at `ticks` if there are any."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_label_text(label)
    if ticks:
        axis.set_major_locator(FixedLocator(list(ticks)))
        axis.set_minor_locator(NullLocator())
    else:
        low, high = axis.get_view_interval()
        subs = (1.0, 2.0, 5.0) if high / low < _FEW_DECADES else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=15))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,g}M"
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def patch(colour: str, label: str) -> Patch:
    """An entry of a legend."""
    return Patch(color=colour, label=label)
