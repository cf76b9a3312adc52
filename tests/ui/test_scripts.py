"""The page's scripts: their logic under node, and what holds for each file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ui.panels import STATIC, readings_script, voice_script

TESTS = sorted(str(path) for path in (Path(__file__).parent / "js").glob("*.test.cjs"))


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        message = "no node: install nodejs to test the page's scripts"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return found


def test_the_logic_of_the_scripts(node: str) -> None:
    result = subprocess.run([node, "--test", *TESTS], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


@pytest.mark.parametrize("script", [voice_script(), readings_script()])
def test_what_gradio_runs_is_valid(node: str, tmp_path: Path, script: str) -> None:
    whole = tmp_path / "script.js"
    whole.write_text(f"function run(element, trigger, props, watch) {{{script}}}")
    subprocess.run([node, "--check", whole], check=True, timeout=60)


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_scripts_are_small_and_fetch_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    assert "http:" not in text and "https:" not in text and "import(" not in text


def test_the_style_fetches_nothing() -> None:
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    assert "url(" not in style and "@import" not in style and "@font-face" not in style


def test_no_selector_has_a_comma_in_brackets() -> None:
    """Gradio splits selectors at every comma, and would tear such a rule apart."""
    for line in (STATIC / "page.css").read_text(encoding="utf-8").splitlines():
        for bracketed in (":is(", ":not(", ":where(", ":has("):
            after = line.partition(bracketed)[2].partition(")")[0]
            assert "," not in after, line
