"""What Gradio keeps of pages that were closed, and nobody needs: forgotten a moment later.

Of each page it has a copy of all components' settings until as many others have come as it may
remember, a queue for messages until two thousand others have, and a set of events for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradio.routes import App

LOOK_S = 5.0
CLOSED_S = 5.0  # without use: what ended with the page may look at it once more


@contextlib.asynccontextmanager
async def forgetting(app: App) -> AsyncIterator[None]:
    """For the lifespan of Gradio's application: forget every few seconds, in its event loop, where
    nothing of Gradio's moves meanwhile.
    """
    task = asyncio.create_task(_keep_forgetting(app))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _keep_forgetting(app: App) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        forget_closed(app, CLOSED_S)


def forget_closed(app: App, unused_s: float) -> None:
    """Drop what `app` holds of pages that were closed, have no event under way and have not been
    used for `unused_s`; and the events of pages whose settings it has dropped by itself.
    """
    holder, queue = app.state_holder, app.get_blocks()._queue
    busy = {event.session_hash for event in queue.event_ids_to_events.values()}
    since = datetime.now() - timedelta(seconds=unused_s)
    for page, state in list(holder.session_data.items()):
        used = holder.time_last_used.get(page, since)
        if state.is_closed and page not in busy and used <= since:
            holder.session_data.pop(page, None)
            holder.time_last_used.pop(page, None)
    for kept in (queue.pending_messages_per_session, queue.pending_event_ids_session):
        for page in [page for page in kept if page not in holder and page not in busy]:
            kept.pop(page, None)
    app.iterators_to_reset.intersection_update(queue.event_ids_to_events)
