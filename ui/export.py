"""Downloads of what a session measured, made from memory for whoever knows the session's id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from engine.errors import UnpausedError
from ui.ledger import Ledger, to_json
from ui.replay import replay
from ui.words import sentence

if TYPE_CHECKING:
    from ui.session import Session
    from ui.visitors import Visitors

JSON, WAV = "application/json", "audio/wav"


class Exports:
    """The endpoint of /export/{session}/{name}."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors

    def route(self) -> Route:
        return Route("/export/{session}/{name}", self.handle, methods=["GET"])

    def handle(self, request: Request) -> Response:
        """Runs on a worker thread: it is no coroutine."""
        session = self._visitors.get(request.path_params["session"])
        if session is None:
            return PlainTextResponse("This session has ended.", 404)
        name = request.path_params["name"]
        try:
            with session.changed:
                content = _content(session, name, request.query_params.get("tokens_per_s", ""))
        except UnpausedError as error:
            return PlainTextResponse(sentence(str(error)), 404)
        media = WAV if name.endswith(".wav") else JSON
        headers = {
            "content-disposition": f'attachment; filename="unpaused-{name}"',
            "cache-control": "no-store",
        }
        return Response(content, media_type=media, headers=headers)


def _content(session: Session, name: str, tokens_per_s: str) -> bytes:
    ledger = session.ledger
    match name:
        case "session.json":
            return ledger.session_json()
        case "session.wav":
            return ledger.wav()
        case "turn.json":
            return ledger.turn_json(_latest(ledger))
        case "turn.wav":
            return ledger.turn_wav(_latest(ledger))
        case "blind.json":
            return to_json(session.lab.blind.as_dict())
        case "replay.json":
            return to_json(_replay(ledger, tokens_per_s))
    raise UnpausedError(f"there is nothing called {name[:40]}")


def _latest(ledger: Ledger) -> int:
    if not ledger.turns:
        raise UnpausedError("there is no turn yet: ask something first")
    return ledger.turns[-1].number


def _replay(ledger: Ledger, tokens_per_s: str) -> dict[str, object]:
    trace = ledger.trace
    if trace is None:
        raise UnpausedError("there is nothing to replay yet: ask something first")
    try:
        speed = float(tokens_per_s)
    except ValueError:
        raise UnpausedError("tokens_per_s is a number") from None
    return replay(trace, speed)
