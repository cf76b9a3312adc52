"""Of pages that were closed Gradio keeps nothing, of open ones everything."""

from __future__ import annotations

import asyncio
import secrets
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from benchmarks.visitor import Visitor
from tests.ui.api.conftest import kept, wait_empty, wait_forgotten
from ui.leftovers import forget_closed
from ui.page import Page


async def visit(page: Page) -> None:
    async with Visitor(page.url, fast=True) as visitor:
        assert (await visitor.type_("Why?")).finish == "complete"
    await wait_empty(page)


def test_closed_pages_are_forgotten(page: Page) -> None:
    for _ in range(3):
        asyncio.run(visit(page))
    wait_forgotten(page)


def test_an_open_page_goes_on_while_others_are_forgotten(page: Page) -> None:
    async def stay() -> None:
        async with Visitor(page.url, fast=True) as visitor:
            assert (await visitor.type_("Why?")).finish == "complete"
            async with Visitor(page.url, fast=True) as other:
                assert (await other.type_("Why?")).finish == "complete"
            await asyncio.to_thread(wait_forgotten, page, 1)
            assert (await visitor.type_("And why?")).finish == "complete"
            assert not visitor.faults

    asyncio.run(stay())


def test_events_of_pages_that_never_were_are_no_more_than_gradio_remembers_pages(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_forgotten(page)
    monkeypatch.setattr(page.blocks.app.state_holder, "capacity", 2)
    config = httpx.get(f"{page.url}config", timeout=60).json()
    function = next(
        made["id"] for made in config["dependencies"] if made["api_name"] == "begin_anew"
    )
    for _ in range(6):
        body = {"data": [""], "fn_index": function, "session_hash": secrets.token_hex(6)}
        httpx.post(f"{page.url}gradio_api/queue/join", json=body, timeout=60).raise_for_status()
    wait_forgotten(page, 2)
    assert len(page.blocks.app.state_holder.session_data) == 2


def closed_app(**events: str) -> Any:
    """Gradio's parts with the pages "open", "used", "busy" and "left"; `events` are {id: page}."""
    long_ago, now = datetime.now() - timedelta(hours=1), datetime.now()
    pages = dict.fromkeys(("open", "used", "busy", "left"), long_ago) | {"used": now}

    class Holder(SimpleNamespace):
        def __contains__(self, page: str) -> bool:
            return page in self.session_data

    queue = SimpleNamespace(
        event_ids_to_events={
            event: SimpleNamespace(session_hash=page) for event, page in events.items()
        },
        pending_messages_per_session=dict.fromkeys(pages),
        pending_event_ids_session=dict.fromkeys([*pages, "evicted"]),
    )
    return SimpleNamespace(
        state_holder=Holder(
            session_data={page: SimpleNamespace(is_closed=page != "open") for page in pages},
            time_last_used=pages,
        ),
        iterators_to_reset={"over", *events},
        get_blocks=lambda: SimpleNamespace(_queue=queue),
    )


def test_what_is_still_used_stays() -> None:
    app = closed_app(event="busy")
    forget_closed(app, unused_s=5.0)
    assert kept(cast(Any, app)) == {"open", "used", "busy"}
    assert set(app.state_holder.time_last_used) == {"open", "used", "busy"}
    assert app.iterators_to_reset == {"event"}
