import pytest

from engine.base import DraftCounts
from engine.metrics import ReplyMetrics
from tests.ui.conftest import until
from tests.ui.fakes import FakePipeline
from ui.outbox import MAX_EVENTS
from ui.session import Session
from ui.telemetry import Telemetry
from ui.visitors import Visitors


def value(telemetry: Telemetry, name: str, **labels: str) -> float:
    found = telemetry.registry.get_sample_value(f"unpaused_{name}", labels)
    return 0.0 if found is None else found


def test_every_token_counts_with_its_own_latency() -> None:
    telemetry = Telemetry()
    metrics = ReplyMetrics(
        engine="e", start_ns=0, token_times_ns=[50_000_000, 51_000_000, 71_000_000]
    )
    telemetry.reply(metrics)
    telemetry.reply(ReplyMetrics(engine="e"))  # stopped before its first token
    assert value(telemetry, "tokens_total", engine="e") == 3
    assert value(telemetry, "ttft_seconds_count", engine="e") == 1
    assert value(telemetry, "ttft_seconds_sum", engine="e") == 0.05
    assert value(telemetry, "tpot_seconds_count", engine="e") == 2
    assert value(telemetry, "tpot_seconds_bucket", engine="e", le="0.001") == 1


def test_drafts_are_counted_where_there_are_any() -> None:
    telemetry = Telemetry()
    times = [50_000_000, 51_000_000, 51_000_000]
    telemetry.reply(ReplyMetrics(engine="e", token_times_ns=times, drafts=DraftCounts(1, 3, 1)))
    telemetry.reply(ReplyMetrics(engine="plain", token_times_ns=times))
    names = ("passes_total", "drafted_tokens_total", "accepted_tokens_total")
    assert [value(telemetry, name, engine="e") for name in names] == [1, 3, 1]
    assert b'passes_total{engine="plain"}' not in telemetry.exposition()


def test_a_visitors_turns_are_counted(
    visitors: Visitors, session: Session, pipeline: FakePipeline
) -> None:
    telemetry = visitors.runtime.telemetry
    session.start_text("Why?")
    assert session.wait_idle(10)
    assert value(telemetry, "turns_total", kind="text", finish="complete") == 1
    assert value(telemetry, "tokens_total", engine="eager") == len(pipeline.reply.split())
    assert value(telemetry, "stage_seconds_count", stage="prefill") == 1
    until(session, lambda: value(telemetry, "queue_wait_seconds_count") == 1)
    pipeline.fails = "broken"
    session.start_text("Why?")
    assert session.wait_idle(10)
    assert value(telemetry, "turns_total", kind="text", finish="failed") == 1
    assert value(telemetry, "errors_total", where="text") == 1
    assert (value(telemetry, "sessions"), value(telemetry, "queue_length")) == (1, 0)


def test_what_is_read_is_prometheus_text_without_words(
    visitors: Visitors, session: Session
) -> None:
    session.start_text("a secret")
    assert session.wait_idle(10)
    text = visitors.runtime.telemetry.exposition().decode()
    assert "# TYPE unpaused_tpot_seconds histogram" in text
    assert "process_resident_memory_bytes" in text
    assert "secret" not in text and session.id not in text


def test_what_a_slow_client_loses_is_counted(
    visitors: Visitors, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = visitors.runtime.telemetry
    session.attach(lambda: None)  # and takes nothing
    for number in range(MAX_EVENTS + 7):
        session.tell({"type": "heard", "number": number})
    lost = 1 + 7  # "ready" was the oldest
    assert value(telemetry, "dropped_total", queue="events") == lost
    left = [message for message in session.outgoing() if isinstance(message, dict)]
    assert (left[0]["number"], left[-1]["number"]) == (lost - 1, MAX_EVENTS + 6)
    monkeypatch.setattr("ui.outbox.STALL_S", 0.0)
    session.set_sound(True)
    session.start_text("Why?")

    def lost_speech() -> bool:
        session.outgoing()  # and plays none of it
        return value(telemetry, "dropped_total", queue="speech") > 0

    until(session, lost_speech)
    assert session.wait_idle(10)
