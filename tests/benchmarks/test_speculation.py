"""What drafts are worth: arithmetic worked out by hand, planted texts, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import app
from benchmarks import readme, speculation, speculation_contest, speculation_table
from benchmarks.pass_cost import durations
from benchmarks.planted import CONTEXT, planted, trace
from benchmarks.results import RESULTS, Entry, load_file, load_results
from benchmarks.shapes import SHAPES
from benchmarks.speculation_contest import first_difference, recorded_traces
from benchmarks.speculation_prompts import PROMPTS
from benchmarks.speculation_rows import held, prompt_figures, rows
from benchmarks.timing import Reply
from engine.base import DraftCounts
from engine.errors import UnpausedError
from engine.models.base import ModelConfig
from engine.speculation import look_up
from tests.engine import tiny

Capture = pytest.CaptureFixture[str]
SMALL = ("--device", "cpu", "--rounds", "2", "--tokens", "12", "--gate", "8", "--engines", "eager")
TINY_SHAPE = ModelConfig(
    family="llama", layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16,
    vocab=2000, max_positions=1024, rms_eps=1e-5, rope_theta=1e4, tied=True,
)  # fmt: skip


def reply(
    ms: list[float], drafts: DraftCounts | None = None, tokens: list[int] | None = None
) -> Reply:
    return Reply(tokens or list(range(len(ms) + 1)), np.array(ms), 1.0, drafts)


# --- arithmetic ---


def test_figures_of_a_prompt_and_a_kind() -> None:
    plain = [reply([10.0] * 4), reply([20.0] * 4)]  # 100 and 50 tokens/s
    fast = [reply([10.0, 0.0, 0.0, 10.0], DraftCounts(2, 4, 2))] * 2  # 200 tokens/s
    slow = [reply([12.5] * 4, DraftCounts(4, 2, 0))] * 2  # 80 tokens/s
    prompts = [
        prompt_figures("copy", "a", {"off": plain, "ngram": fast}, {"off": True, "ngram": True}),
        prompt_figures("copy", "b", {"off": plain, "ngram": slow}, {"off": True, "ngram": False}),
    ]
    off, ngram = rows(prompts, ["off", "ngram"])
    assert (off["tokens_per_s"], off["ratio"], off["tokens_per_pass"]) == (75.0, 1.0, 1.0)
    assert off["acceptance"] is None and off["same_texts"] == 2
    # Ratios by round: 200/100 and 200/50, so 3; 80/100 and 80/50, so 1.2.
    assert (ngram["ratio_lowest"], ngram["ratio"], ngram["ratio_highest"]) == (1.2, 2.1, 3.0)
    assert ngram["acceptance"] == pytest.approx(2 / 6, abs=1e-3)
    assert ngram["tokens_per_pass"] == pytest.approx(8 / 6, abs=1e-3)
    assert ngram["same_texts"] == 1 and ngram["prompts"] == 2 and ngram["rounds"] == 2


def entry_of(kind: str, ratios: list[float], trace_driven: bool = False) -> Entry:
    prompts = []
    for number, ratio in enumerate(ratios):
        replies = {
            "off": [reply([10.0] * 4)],
            "ngram": [reply([10.0 / ratio] * 4, DraftCounts(4, 0, 0))],
        }
        same = {"off": True, "ngram": True}
        prompts.append(prompt_figures(kind, str(number), replies, same))
    figures = {"prompts": prompts, "rows": rows(prompts, ["off", "ngram"])}
    return {"trace_driven": trace_driven, "engines": {"eager": figures}}


@pytest.mark.parametrize(
    ("kind", "ratios", "expected"),
    [
        ("copy", [1.8, 2.5], "at least 1.8x: held, 2 of 2, lowest 1.80x"),
        ("copy", [1.7, 2.5], "at least 1.8x: NOT held, 1 of 2, lowest 1.70x"),
        ("chat", [0.97, 1.0], "at least 0.97x: held, 2 of 2, lowest 0.97x"),
        ("chat", [0.96, 1.0], "at least 0.97x: NOT held, 1 of 2, lowest 0.96x"),
    ],
)
def test_whether_it_held_is_said_of_every_prompt(
    kind: str, ratios: list[float], expected: str
) -> None:
    ((good, words),) = held(entry_of(kind, ratios))
    assert words.endswith(expected) and good == ("NOT" not in expected)
    assert held(entry_of(kind, ratios, trace_driven=True)) == []


def test_the_tape_is_held_to_what_a_pass_may_cost() -> None:
    costs = [{"width": w, "ms": 1.0, "relative": r, "passes": 9}
             for w, r in ((1, 1.0), (4, 1.08), (8, 1.3))]  # fmt: skip
    figures = {"rows": [], "prompts": [], "pass_cost": costs}
    found = held({"trace_driven": True, "engines": {"persistent-tape": figures}})
    assert [good for good, _ in found] == [True, False]
    assert held({"trace_driven": True, "engines": {"graph": figures}}) == []


def test_passes_are_told_by_how_many_tokens_they_gave() -> None:
    one = reply([5.0, 7.0, 0.0, 0.0, 6.0, 8.0, 0.0, 0.0])
    assert durations(one, 1) == [5.0, 6.0]
    assert durations(one, 3) == [7.0, 8.0]
    assert durations(one, 2) == []


def test_texts_part_where_they_first_differ() -> None:
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) is None


# --- planted texts ---


def test_a_trace_says_what_looking_up_did() -> None:
    assert trace([1, 2, 3], [1, 2, 3, 9]) == "nnrw"
    assert trace([1, 2, 3], [1, 2, 4]) == "nnw" and trace([1, 2], [7, 8, 9]) == "nnn"


@pytest.mark.parametrize("recorded", ["nnnnnnnn", "nnrrrrrr", "nnrrrnrr", "nnwnnwnn", "nrrrrrrr"])
def test_what_is_planted_is_found_as_recorded(recorded: str) -> None:
    text = [40, 41, 42, 43, 44, 45, 46, 47]
    before = [*planted(text, recorded, 200, 500), 0]
    assert len(before) == 201
    got = trace(before, text)
    wanted = recorded
    if recorded == "nnrrrnrr":  # after the run that ends there something is drafted, and wrong
        wanted = "nnrrrwrr"
    assert got == wanted


def test_what_does_not_fit_is_left_out() -> None:
    before = planted(list(range(40, 60)), "nn" + "wn" * 9, 25, 500)
    assert len(before) == 25
    assert trace([*before, 0], list(range(40, 60))).count("w") == 2


def test_nothing_is_found_where_nothing_was_planted() -> None:
    before = planted([], "", CONTEXT, 300)
    assert len(before) == CONTEXT and look_up([*before, 0, 7], 7) == []


# --- the command ---


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reference = tiny.make_reference("smollm2", max_position_embeddings=1024)
    return tiny.save(reference, tmp_path_factory.mktemp("speculation") / "tiny")


@pytest.fixture(scope="module")
def result(long_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results on a tiny model, with one prompt of each kind."""
    path = tmp_path_factory.mktemp("results") / "speculation_tiny.json"
    few = {kind: dict(list(prompts.items())[:1]) for kind, prompts in PROMPTS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation_contest, "PROMPTS", few)
        arguments = ["bench", "--speculate", "ngram,draft:smollm2-135m-instruct", "--skip", "width"]
        app.main([*arguments, "--models", str(long_folder), "--json", str(path), *SMALL])
    return path


def test_every_way_is_gated_and_measured(result: Path, smollm2_path: Path) -> None:
    (entry,) = load_file(result, speculation.KIND)
    assert not entry["partial"] and not entry["trace_driven"]
    assert set(entry["gate"]["engines"]["eager"]) == {"off", "ngram"}
    figures = entry["engines"]["eager"]
    assert [(r["kind"], r["way"]) for r in figures["rows"]] == [
        ("copy", "off"), ("copy", "ngram"), ("chat", "off"), ("chat", "ngram"),
    ]  # fmt: skip
    for prompt in figures["prompts"]:
        assert all(len(way["tokens_per_s"]) == 2 for way in prompt["ways"].values())
        assert set(entry["traces"][prompt["kind"]][prompt["prompt"]]) <= set("rwn")
    assert (
        "its vocabulary has 49,152 tokens, not 384"
        in (entry["failed"]["draft:smollm2-135m-instruct"])
    )


def test_no_figure_of_the_table_is_typed_by_hand(result: Path, smollm2_path: Path) -> None:
    (entry,) = load_file(result, speculation.KIND)
    text = speculation_table.as_markdown([entry])
    for row in entry["engines"]["eager"]["rows"]:
        assert f"{row['tokens_per_s']:,.0f}" in text
    for words in ("copy-heavy", "tokens/pass", "held", result.name, "not measured"):
        assert words in text
    assert speculation_table.as_text(entry).startswith("tiny, bfloat16, on ")


def test_random_weights_replay_what_was_recorded_and_say_so(
    result: Path, smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)
    traces = recorded_traces(result.parent)
    monkeypatch.setattr(speculation_contest, "recorded_traces", lambda: traces)
    monkeypatch.setattr("benchmarks.pass_cost.ROUNDS", 1)
    path = tmp_path / "speculation.json"
    arguments = ["bench", "--speculate", "off,ngram", "--models", "shape:tiny"]
    app.main([*arguments, "--json", str(path), *SMALL])
    (entry,) = load_file(path, speculation.KIND)
    assert entry["trace_driven"] and "trace-driven" in speculation_table.title(entry)
    figures = entry["engines"]["eager"]
    assert [prompt["prompt"] for prompt in figures["prompts"]] == [
        name for kind in traces.values() for name in kind
    ]
    assert [cost["width"] for cost in figures["pass_cost"]] == list(range(1, 9))


def test_random_weights_need_recorded_replies(tmp_path: Path) -> None:
    with pytest.raises(UnpausedError, match="measure a real model first"):
        recorded_traces(tmp_path)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("off", ["names what to compare"]),
        (",", ["names what to compare"]),
        ("off,on", ["--speculate is off, ngram or draft:MODEL, not 'on'"]),
        ("off,draft:nobody", ["nobody", "smollm2"]),
        ("off,draft:", ["draft:MODEL"]),
    ],
)
def test_bad_choices_are_one_line(choice: str, words: list[str], capsys: Capture) -> None:
    assert app.main(["bench", "--speculate", choice]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("unpaused: ") and captured.out == ""
    assert all(word in line for word in words), line


@pytest.mark.parametrize("options", [["--rivals"], ["--plot", "drafts.png"]])
def test_what_only_the_other_bench_has_is_refused(options: list[str], capsys: Capture) -> None:
    assert app.main(["bench", "--speculate", "ngram", *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_off_comes_first_and_each_once() -> None:
    assert speculation.read_choices("ngram, off,ngram") == ["off", "ngram"]


def test_the_readme_holds_what_the_committed_results_say() -> None:
    text = readme.README.read_text("utf-8")
    written = readme.replaced(text, readme.speculation_text(), readme.SPECULATION)
    assert written == text, "run: python -m benchmarks.readme"


def test_committed_results_passed_their_gate() -> None:
    for entry in load_results(RESULTS, speculation.KIND):
        for name, figures in entry["engines"].items():
            ways: Any = entry["gate"]["engines"][name]
            assert all(ways[row["way"]]["green"] for row in figures["rows"])
