"""Results as files: written whole or not at all, marked partial until they are complete.

A file holds one run: the machine, the settings, and an entry for each model. `load_results` hands
out entries, each with its run's machine and settings, so that nobody else needs to know files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import UnpausedError
from engine.files import check_writable, whole_file

RESULTS = Path(__file__).with_name("results")
LOCAL = Path("bench.json")  # where `app.py bench` writes unless told otherwise
KIND = "bench"
Entry = dict[str, Any]


class Report:
    """A results file under way. Saved after every step, so that an interruption loses little."""

    def __init__(
        self, path: Path, machine: dict[str, Any], settings: dict[str, Any], kind: str = KIND
    ) -> None:
        """Raises `UnpausedError` when `path` cannot be written, before anything is measured."""
        self.path = path
        self.content: dict[str, Any] = {
            "benchmark": kind,
            "partial": True,
            "machine": machine,
            "settings": settings,
            "models": [],
        }
        check_writable(path)
        self._free = not path.exists()  # nothing is lost by writing

    def begin(self, entry: Entry) -> None:
        """Add a model's entry, to be filled in place."""
        entry["complete"] = False
        self.content["models"].append(entry)

    def save(self) -> None:
        """Write the file anew. An earlier one stays until there is a figure."""
        if self._free or self._has_figures() or not self.content["partial"]:
            write_json(self.path, self.content)
            self._free = True

    def _has_figures(self) -> bool:
        return any(entry.get("engines") for entry in self.content["models"])

    def finish(self) -> None:
        """Everything asked for was measured."""
        self.content["partial"] = False
        self.save()

    def interrupted(self) -> str:
        """Ctrl+C: save what was measured; the line that says so. Verdicts of the gate count where
        they replace nothing."""
        judged = any(entry.get("gate", {}).get("engines") for entry in self.content["models"])
        if not self._has_figures() and not (judged and self._free):
            return nothing_measured()
        self.save()
        partial = ", marked as partial" if self.content["partial"] else ""
        return f"interrupted: what was measured is in {self.path}{partial}"


def nothing_measured() -> str:
    """The line for a Ctrl+C that comes before any result."""
    return "interrupted: nothing was measured"


def result_file(text: str) -> Path:
    """The `type` of an option for a file of results: refused before anything is measured."""
    try:
        check_writable(Path(text))
    except UnpausedError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def write_json(path: Path, content: Any) -> None:
    """Replace `path` in one step. Raises `UnpausedError`."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def load_results(folder: Path = RESULTS, kind: str = KIND) -> list[Entry]:
    """Entries of every `<kind>*.json` in `folder`, newest first, largest model first in a run.

    An entry is what the bench measured of one model, with "machine", "settings", "partial" and
    "source" (the file's name) added. Raises `UnpausedError` naming a file that is no result.
    """
    paths = sorted(folder.glob(f"{kind}*.json"))
    entries = [entry for path in paths for entry in load_file(path, kind)]
    return sorted(entries, key=lambda entry: entry["machine"]["date"], reverse=True)


def load_file(path: Path, kind: str = KIND) -> list[Entry]:
    """The entries of one file; see `load_results`."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return list(_entries(content, path.name, kind))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnpausedError(f"{path} is not a result of the benchmark ({error!r})") from error


def _entries(content: dict[str, Any], source: str, kind: str) -> Iterator[Entry]:
    if content["benchmark"] != kind:
        raise ValueError(f"it was written by {content['benchmark']}")
    for model in content["models"]:
        yield {
            **model,
            "machine": content["machine"],
            "settings": content["settings"],
            "partial": not model["complete"],
            "source": source,
        }
