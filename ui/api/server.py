"""The API as one application, and the routes that go beside the page's."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from ui.api import audio, chat, models
from ui.api.errors import RESPONSES, install_handlers
from ui.api.state import APIState
from ui.services import Runtime
from ui.telemetry import CONTENT_TYPE


def build_api(runtime: Runtime) -> FastAPI:
    """The OpenAI-compatible API; its schema is at /v1/openapi.json."""
    api = FastAPI(
        title="Unpaused",
        description="OpenAI's chat and audio endpoints on one decode engine, batch 1.",
        version="1",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        responses=RESPONSES,
    )
    api.state.api = APIState(runtime)
    for router in (models.router, chat.router, audio.router):
        api.include_router(router)
    install_handlers(api)
    return api


def routes(runtime: Runtime) -> list[BaseRoute]:
    """/v1, /healthz and /metrics."""

    async def healthz(request: Request) -> Response:
        """The server is up; `ready` once a turn would start without loading anything."""
        return JSONResponse({"status": "ok", "ready": runtime.ready})

    async def metrics(request: Request) -> Response:
        return Response(runtime.telemetry.exposition(), headers={"content-type": CONTENT_TYPE})

    return [
        Mount("/v1", app=build_api(runtime), name="api"),
        Route("/healthz", healthz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
