"""The command as a whole, on a tiny model: what it measures, what it refuses, what it keeps."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import app
from benchmarks import bench, gate, growth, match
from benchmarks.results import Entry, load_file
from benchmarks.timing import EngineSide
from engine.errors import UnpausedError
from tests.benchmarks.conftest import SMALL

ROOT = Path(app.__file__).resolve().parent
Capture = pytest.CaptureFixture[str]


def run(path: Path, *arguments: str | Path) -> int:
    """The command with small settings, writing to `path`."""
    return app.main(["bench", "--json", str(path), *SMALL, *map(str, arguments)])


def test_every_engine_is_gated_then_measured(entry: Entry) -> None:
    verdicts = entry["gate"]["engines"]
    assert {"eager", "persistent-cpu"} <= set(verdicts)
    for name, figures in entry["engines"].items():
        assert verdicts[name]["green"]
        assert figures["rounds"] == 2 and figures["tokens_a_round"] == 8
        assert 0 < figures["tpot_p50_ms"] <= figures["tpot_p99_ms"]
        assert figures["ttft_ms"] > 0 and figures["launches_per_token"] > 0
        assert set(figures["share_of_ceiling"]) == {"p50", "p99", "tokens_per_s"}
    assert entry["engines"]["persistent-cpu"]["launches_per_token"] < 1
    assert not entry["partial"]


def test_growth_and_anatomy_cover_every_engine(entry: Entry) -> None:
    for name in entry["engines"]:
        assert [point["context"] for point in entry["growth"]["context"][name]] == [32, 64]
        assert set(entry["growth"]["sampling"][name]) == {
            "greedy_tpot_p50_ms", "sampled_tpot_p50_ms",
        }  # fmt: skip
    assert entry["anatomy"]["eager"]["busy_us"] > 0
    told = entry["anatomy"]["persistent-cpu"]  # a tiny model may be over before it is seen
    assert told.get("stages") or told["reason"]


def test_results_say_what_they_were_measured_on_and_with(entry: Entry) -> None:
    machine = entry["machine"]
    assert machine["kind"] == "cpu" and machine["device"] and machine["threads"] >= 1
    assert all(machine[key] for key in ("torch", "python", "commit", "date"))
    assert {"driver", "triton"} <= set(machine)
    assert entry["read_ceiling_bytes_per_s"] > 1e8


def test_a_flipped_bit_turns_the_gate_red_and_gets_no_speed(
    folder: Path, tmp_path: Path, flipped: str, capsys: Capture
) -> None:
    path = tmp_path / "bench.json"
    assert run(path, "--models", folder, "--engines", "persistent-cpu", flipped) == bench.GATE_RED
    (entry,) = load_file(path)
    assert not entry["gate"]["engines"][flipped]["green"]
    assert entry["gate"]["engines"]["persistent-cpu"]["green"]
    for measured in (entry["engines"], entry["anatomy"], *entry["growth"]["context"]):
        assert flipped not in measured
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(flipped)]
    assert len(told) == 1 and "RED, no speed" in told[0]


def test_only_a_broken_engine_means_no_figures_at_all(
    folder: Path, tmp_path: Path, flipped: str, capsys: Capture
) -> None:
    path = tmp_path / "bench.json"
    assert run(path, "--models", folder, "--engines", flipped) == bench.GATE_RED
    assert load_file(path)[0]["engines"] == {}
    assert "tokens/s" not in capsys.readouterr().out


def test_interrupted_the_results_so_far_are_kept_and_marked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(growth, "by_context", interrupted)
    path = tmp_path / "bench.json"
    with pytest.raises(KeyboardInterrupt):
        bench.run(app.parser().parse_args(["bench", "--models", str(folder), "--json", str(path),
                                           *SMALL]))  # fmt: skip
    assert json.loads(path.read_text("utf-8"))["partial"] is True
    (entry,) = load_file(path)
    assert entry["partial"] and set(entry["engines"]) >= {"eager", "persistent-cpu"}
    assert "context" not in entry["growth"]


@pytest.mark.parametrize("where", ["loading", "gate", "an engine's gate", "timing", "growth"])
def test_an_interrupt_says_what_is_kept(
    where: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    owner, name = {
        "loading": (bench, "load_subject"), "gate": (gate.Gate, "open"),
        "an engine's gate": (gate.Gate, "judge"), "timing": (match.Match, "_time"),
        "growth": (match.Match, "_growth"),
    }[where]  # fmt: skip
    monkeypatch.setattr(owner, name, interrupted)
    path = tmp_path / "bench.json"
    path.write_text("an earlier result")
    assert run(path, "--models", folder) == 130
    line = capfd.readouterr().err.splitlines()[-1]
    if where == "growth":  # there are figures
        assert line == f"interrupted: what was measured is in {path}, marked as partial"
        assert load_file(path)[0]["partial"]
    else:
        assert line == "interrupted: nothing was measured"
        assert path.read_text() == "an earlier result"


def test_an_engine_that_fails_is_left_out_and_the_others_are_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EngineSide.reply

    def reply(self: EngineSide, params: Any) -> Any:
        if self.name == "eager":
            raise UnpausedError("it has had enough")
        return whole(self, params)

    monkeypatch.setattr(EngineSide, "reply", reply)
    path = tmp_path / "bench.json"
    assert run(path, "--models", folder, "--skip", "growth", "anatomy", "energy") == 0
    (entry,) = load_file(path)
    assert entry["failed"]["eager"] == "it has had enough"
    assert set(entry["engines"]) == {"persistent-cpu"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engines", "warp-drive"], ["unknown engine", "persistent-cpu"]),
        (["--models", "no-such-model"], ["no-such-model", "smollm2"]),
        (["--models", "shape:no-such-shape"], ["no-such-shape", "llama-3.2-1b"]),
        (["--models", "nowhere/model.gguf"], ["nowhere/model.gguf"]),
        (["--tokens", "1"], ["--tokens", "2 or more"]),
        (["--rounds", "0"], ["--rounds"]),
        (["--gate", "0"], ["no speed without a gate"]),
        (["--context", "3"], ["--context"]),
        (["--json", "/no/such/folder/bench.json"], ["/no/such/folder"]),
        (["--json", "/"], ["cannot write /:", "no plain file"]),
        (["--plot", "bench.jpeg"], [".png"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    arguments: list[str], words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # some engines are left out
    for command in (["bench"], ["bench", "--speculate", "ngram"]):
        if "--plot" in arguments and len(command) > 1:
            continue  # it has none
        assert app.main([*command, *arguments]) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith("unpaused: ") and captured.out == ""
        assert all(word in line for word in words), line


def test_engines_left_out_are_told_where_nothing_is_refused(
    folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None:
        raise UnpausedError("enough")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(bench, "load_subject", nothing)
    for named, told in (((), True), (("--engines", "eager"), False)):
        assert run(tmp_path / "bench.json", "--models", folder, *named) == 2
        assert ("graph: left out: " in capsys.readouterr().err) == told


def test_the_readme_names_every_option(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        app.main(["bench", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help", "--model"}
    text = (ROOT / "README.md").read_text("utf-8").partition("## Measured")[2]
    assert len(options) > 10
    assert options <= set(re.findall(r"--[a-z]+", text.partition("<!--")[0]))


def test_without_a_gpu_that_is_said(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert app.main(["bench", "--device", "cuda"]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert app.main(["bench", "--engines", "graph"]) == 2
    assert "engine graph is unavailable" in capsys.readouterr().err


def test_too_little_memory_is_said_with_figures(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Little:
        available = 10**9

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    assert run(tmp_path / "bench.json", "--models", "shape:llama-3.1-8b") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "shape:llama-3.1-8b needs" in error and "GB are free" in error


def test_a_model_that_fails_does_not_stop_the_next(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = folder.parent / "broken"
    broken.mkdir(exist_ok=True)
    whole = bench.load_subject

    def load(spec: str, device: Any) -> Any:
        if spec == str(broken):
            raise UnpausedError("it is broken")
        return whole(spec, device)

    monkeypatch.setattr(bench, "load_subject", load)
    monkeypatch.setattr(bench, "check_subject", lambda spec: None)
    path = tmp_path / "bench.json"
    skip = ("--skip", "growth", "anatomy", "energy")
    code = run(path, "--models", broken, folder, "--engines", "persistent-cpu", *skip)
    first, second = load_file(path)
    assert code == bench.GATE_RED and first["error"] == "it is broken" and first["partial"]
    assert second["engines"]


def test_ctrl_c_in_a_real_process_keeps_a_file_marked_partial(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    command = [sys.executable, str(ROOT / "app.py"), "bench", "--models", str(folder), "--json",
               str(path), *SMALL, "--rounds", "100000"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "timing" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130, rest
    finally:
        process.kill()
    assert "marked as partial" in rest
    (entry,) = load_file(path)
    assert entry["partial"] and entry["gate"]["engines"]["eager"]["green"]
    assert entry["engines"] == {}
