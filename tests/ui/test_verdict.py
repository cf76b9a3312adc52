"""What the page says in words: verdicts, silences, labels, settings."""

from __future__ import annotations

from typing import Any

import pytest

from engine.metrics import ReplyMetrics
from ui.lab_panels import silence
from ui.settings import Settings, read_settings, rivals
from ui.verdict import engine_share, sentence, silence_after, silence_before, with_thinking
from ui.words import answer_label, figure

ENGINES = ["eager", "cpu", "graph"]


def stages(**ms: float) -> list[dict[str, Any]]:
    return [{"name": name, "ms": value} for name, value in ms.items()]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            stages(endpointing=250, prefill=20, first_clause=18, synthesis=124),
            "The engine was 38 of 412 ms; here it does not matter.",
        ),
        (stages(endpointing=250, prefill=100), "The engine was 100 of 350 ms; it is a part of the "
         "wait, not most of it."),
        (stages(prefill=200, thinking=2000, synthesis=90), "The engine was 2,200 of 2,290 ms; here "
         "it matters."),
        (stages(), ""),
        (stages(prefill=0), ""),
    ],
)  # fmt: skip
def test_one_plain_sentence(made: list[dict[str, Any]], expected: str) -> None:
    assert sentence(made) == expected


def test_hidden_tokens_become_a_stage_and_the_sum_stays() -> None:
    before = stages(prefill=50, first_clause=900, synthesis=100)
    after = with_thinking(before, 700)
    assert after == stages(prefill=50, thinking=700, first_clause=200, synthesis=100)
    assert engine_share(after) == engine_share(before) == (950, 1050)
    assert with_thinking(before, 0) == before
    assert with_thinking(before, 5000)[2]["ms"] == 0  # never less than nothing


def test_silence_before_is_what_was_measured_here_or_says_that_nothing_was() -> None:
    told = silence_before(300, {"Eager": 18.0, "Resident": 0.6, "Graph": None})
    assert told == [
        ("Eager", "about 5.40 s"),
        ("Resident", "about 0.18 s"),
        ("Graph", "not measured yet"),
    ]


def test_silence_after_is_the_turns_own() -> None:
    metrics = {"hidden_tokens": 300, "hidden_ms": 1290.0}
    assert (
        silence_after(metrics, "Resident") == "Resident: 300 hidden tokens were 1.29 s of silence."
    )
    assert silence_after({"hidden_tokens": 0, "hidden_ms": 0.0}, "Resident") == ""


def test_the_panel_says_whose_thinking_it_is() -> None:
    assert "forgets it" in silence(100, [("<b>", "about 1 s")], [], thinks=False)
    assert "<b>" not in silence(100, [("<b>", "<b>")], ["<b>"], thinks=None)
    assert "own thinking" in silence(100, [], [], thinks=True)
    assert "audible" in silence(0, [], [], thinks=False)


def test_an_answer_names_its_engine_model_rate_and_first_token() -> None:
    metrics = ReplyMetrics(
        engine="eager",
        model="smol",
        token_times_ns=[42_000_000 + 18_400_000 * n for n in range(5)],
        finish_reason="eos",
    )
    label = answer_label(metrics.as_dict(), "Kernel per op")
    assert label == "Kernel per op · smol · 54.3 tokens/s · TTFT 42.0 ms"
    metrics.finish_reason = "length"
    assert answer_label(metrics.as_dict(), "E").endswith(" · cut at the limit of 5 tokens")
    metrics.hidden_tokens = 2
    label = answer_label(metrics.as_dict(), "E")
    assert label.endswith(" · after 2 hidden tokens · cut at the limit of 3 tokens")
    metrics.finish_reason = "context"
    assert answer_label(metrics.as_dict(), "E").endswith("cut because the context is full")
    assert answer_label(ReplyMetrics(model="m").as_dict(), "E") == "E · m"


def test_figures_have_about_three_digits() -> None:
    assert [figure(value) for value in (0.607, 12.34, 412.4, 3047)] == [
        "0.61", "12.3", "412", "3,047",
    ]  # fmt: skip


# --- the page's address ---


def test_an_address_opens_the_same_view() -> None:
    query = {
        "view": "dial",
        "engine": "cpu",
        "hidden": "300",
        "speed": "170",
        "a": "cpu",
        "b": "eager",
    }
    assert read_settings(query, ENGINES) == Settings("dial", "cpu", 300, 170.0, "cpu", "eager")
    assert read_settings({}, ENGINES) == Settings()
    assert read_settings({"utm": "x"}, ENGINES).ignored == ()


def test_an_engine_may_be_named_as_on_the_command_line() -> None:
    query = {"engine": "persistent", "a": "persistent", "b": "eager"}
    named = Settings(engine="cpu", a="cpu", b="eager")
    settings = read_settings(query, ENGINES, {"persistent": "cpu"})
    assert settings == named and not settings.ignored
    elsewhere = read_settings({"engine": "persistent"}, ENGINES, {"persistent": "tape"})
    assert elsewhere.engine is None and len(elsewhere.ignored) == 1


@pytest.mark.parametrize(
    "query",
    [
        {"view": "nowhere"},
        {"engine": "warp"},
        {"hidden": "-1"},
        {"hidden": "501"},
        {"hidden": "many"},
        {"speed": "nan"},
        {"speed": "inf"},
        {"speed": ""},
        {"a": "<script>" * 40},
    ],
)
def test_what_an_address_says_wrongly_is_left_out_and_told(query: dict[str, str]) -> None:
    settings = read_settings(query, ENGINES)
    assert settings == Settings() and len(settings.ignored) == 1
    assert len(settings.ignored[0]) < 120


def test_the_race_is_always_between_two_engines_where_there_are_two() -> None:
    assert rivals(ENGINES, Settings()) == ("eager", "cpu")
    assert rivals(ENGINES, Settings(a="cpu")) == ("cpu", "eager")
    assert rivals(ENGINES, Settings(b="eager")) == ("cpu", "eager")
    assert rivals(ENGINES, Settings(a="cpu", b="cpu")) == ("cpu", "eager")
    assert rivals(["eager"], Settings()) == ("eager", None)
