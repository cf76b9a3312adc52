"""What the page's server gets besides the page: its other routes, its guard, and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute

from ui.access import Access
from ui.api.server import routes
from ui.export import Exports
from ui.guard import MAX_MESSAGE_BYTES, Guard
from ui.leftovers import forgetting
from ui.socket import PATH, VoiceSocket
from ui.visitors import Visitors

if TYPE_CHECKING:
    from gradio.http_server import Server

MAX_CONNECTIONS = 512
MAX_QUEUED = 128  # events of the page that wait in Gradio's queue


def app_arguments(visitors: Visitors, access: Access) -> dict[str, Any]:
    """For the FastAPI application that Gradio makes."""
    runtime = visitors.runtime
    return {
        "routes": [
            WebSocketRoute(PATH, VoiceSocket(visitors).handle),
            Exports(visitors).route(),
            *routes(runtime),
        ],
        "lifespan": forgetting,
        "middleware": [Middleware(Guard, access=access, telemetry=runtime.telemetry)],
    }


def tighten(server: Server) -> None:
    """Limits that Gradio leaves at uvicorn's defaults; they are read with each new connection."""
    server.config.ws_max_size = MAX_MESSAGE_BYTES
    server.config.limit_concurrency = MAX_CONNECTIONS
