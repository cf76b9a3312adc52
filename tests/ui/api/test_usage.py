"""What `usage` says of a reply, as its schema has it."""

from __future__ import annotations

import pytest

from engine.base import DraftCounts
from engine.metrics import ReplyMetrics
from ui.api.chat import Answered
from ui.api.schemas import Usage

TIMES = [10_000_000, 30_000_000, 30_000_000, 30_000_000, 50_000_000]


@pytest.mark.parametrize(
    ("drafts", "told"),
    [
        (None, None),
        (
            DraftCounts(passes=2, drafted=4, accepted=2),
            {"passes": 2, "drafted": 4, "accepted": 2, "acceptance": 0.5, "tokens_per_pass": 2.0},
        ),
    ],
)
def test_usage_tells_what_drafts_did_where_there_were_any(
    drafts: DraftCounts | None, told: dict[str, float] | None
) -> None:
    metrics = ReplyMetrics(engine="e", token_times_ns=TIMES, prompt_tokens=3, drafts=drafts)
    usage = Answered(metrics, "stop", 1.5).usage()
    assert usage["unpaused"]["speculation"] == told
    assert Usage.model_validate(usage).model_dump() == usage
    assert (usage["completion_tokens"], usage["unpaused"]["tokens_per_s"]) == (5, 100.0)
