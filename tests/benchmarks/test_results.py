"""Files of results, the hardware list, the README made of both, and the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.text import Text

from benchmarks import exit_time, readme, table
from benchmarks.hardware import load_hardware
from benchmarks.plots import (
    anatomy_figure,
    growth_figure,
    hardware_figure,
    save,
    save_all,
    size_figure,
)
from benchmarks.results import RESULTS, Entry, Report, load_file, load_results
from engine.errors import UnpausedError


def test_a_report_is_partial_until_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    report = Report(path, {"date": "2026-01-01"}, {})
    entry: Entry = {"model": "m"}
    report.begin(entry)
    report.save()
    assert json.loads(path.read_text("utf-8"))["partial"] is True
    assert load_file(path)[0]["partial"]
    entry["complete"] = True
    report.finish()
    assert json.loads(path.read_text("utf-8"))["partial"] is False
    assert not load_file(path)[0]["partial"]
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_where_results_cannot_go_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["exit_time", "--json", "/no/such/folder/a.json"])
    with pytest.raises(SystemExit, match="2"):
        exit_time.main()
    assert "cannot write /no/such/folder/a.json" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"benchmark": "other", "models": []}'])
def test_what_is_no_result_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bench_x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UnpausedError, match="is not a result of the benchmark"):
        load_results(tmp_path)


def test_committed_results_passed_their_gate_and_say_when_they_are_partial() -> None:
    for entry in load_results():
        assert not entry["partial"] or "- partial: " in table.as_markdown([entry])
        for name in entry["engines"]:
            assert entry["gate"]["engines"][name]["green"], (entry["source"], name)


def test_the_readme_holds_what_the_committed_results_say() -> None:
    text = readme.README.read_text("utf-8")
    assert readme.replaced(text, readme.measured_text(readme.shown())) == text, (
        "run: python -m benchmarks.readme"
    )
    for entry in readme.shown():
        assert (RESULTS / readme.figure_name(entry)).exists()


def test_a_readme_without_markers_is_refused() -> None:
    with pytest.raises(UnpausedError, match="lacks the markers"):
        readme.replaced("# Unpaused", "text")


def test_no_figure_in_a_table_is_typed_by_hand(entry: Entry) -> None:
    text = table.as_markdown([entry])
    for name, figures in entry["engines"].items():
        assert f"| `{name}` | {table.duration(figures['tpot_p50_ms'])} |" in text
    assert entry["machine"]["commit"] in text and entry["source"] in text


def test_every_published_part_names_its_source_and_status() -> None:
    hardware = load_hardware()
    assert {"H100 SXM", "H200 SXM", "B200", "RTX 4090", "RTX 5090", "WSE-3"} <= {
        part.name for part in hardware.parts
    }
    assert any(part.name.startswith("GB300 NVL72") for part in hardware.parts)
    for part in hardware.parts:
        assert part.source and part.read_at and part.status in ("claimed", "measured")
        assert part.tokens_per_s(1e9) == pytest.approx(part.bandwidth_bytes_per_s / 1e9)
    assert not next(part for part in hardware.parts if part.name == "RTX 4090").fits(25e9)


def test_published_speeds_carry_provenance_and_caveat() -> None:
    references = load_hardware().references
    assert [reference.tokens_per_s for reference in references] == [170, 500, 3047]
    assert all(r.source and r.caveat for r in references)
    assert [r.status for r in references] == ["claimed", "claimed", "calculated"]
    assert references[2].tokens_per_s == int(64e12 / 21e9)
    assert "unspecified" in references[0].caveat


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hardware.toml"
    path.write_text('[[part]]\nname = "nothing else"\n', encoding="utf-8")
    with pytest.raises(UnpausedError, match=r"hardware.toml cannot be read"):
        load_hardware(path)


def test_figures_have_units_counts_and_every_engine(entry: Entry) -> None:
    for figure, words in (
        (anatomy_figure(entry), ("microseconds", "n = 2 rounds")),
        (growth_figure(entry), ("[ms]", "tokens of context", "n = ")),
        (hardware_figure(entry), ("tokens/s", "claimed", "measured", "GLM-5")),
        (size_figure([entry, entry]), ("[GB]", "[ms]", "read ceiling")),
    ):
        figure.draw_without_rendering()
        text = " ".join(str(found.get_text()) for found in figure.findobj(Text))
        for word in (*words, *entry["engines"]):
            assert word in text, (word, text)


def test_the_same_results_draw_the_same_file(entry: Entry, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(anatomy_figure(entry), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_plot_of_a_run_is_one_file_a_model(result_path: Path, tmp_path: Path) -> None:
    content = json.loads(result_path.read_text("utf-8"))
    content["models"].append({**content["models"][0], "model": "Other/Model"})
    several = tmp_path / "bench.json"
    several.write_text(json.dumps(content), encoding="utf-8")
    assert [path.name for path in save_all(result_path, tmp_path / "one.png")] == ["one.png"]
    names = [path.name for path in save_all(several, tmp_path / "two.png")]
    assert names == ["two_tiny.png", "two_other-model.png"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ["one.png", *names])
