"""What the routers share: the runtime, who asks, and the conversations of API clients."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request
from starlette.datastructures import Headers

from ui.access import client_of
from ui.services import Runtime

if TYPE_CHECKING:
    from engine.conversation import Conversation

MAX_CLIENTS = 16


class APIState:
    """One per server. A client's conversation keeps its KV cache, so that a chat that goes on
    prefills only what is new; clients never share one.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._lock = threading.Lock()
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()

    def conversation(self, visitor: str) -> Conversation:
        """The visitor's own; to be called with the gate held. Seconds where it is the first."""
        with self._lock:
            conversation = self._conversations.get(visitor)
            if conversation is None:
                conversation = self.runtime.services.make_conversation()
                self._conversations[visitor] = conversation
            self._conversations.move_to_end(visitor)
            if len(self._conversations) > MAX_CLIENTS:
                self._conversations.popitem(last=False)
        self.runtime.kv.use(conversation)
        return conversation


def state_of(request: Request) -> APIState:
    return cast(APIState, request.app.state.api)


def visitor_of(request: Request) -> str:
    """Who asks: the address, as limits and the queue know it."""
    peer = request.client.host if request.client else ""
    return f"api {client_of(peer, Headers(scope=request.scope))}"


State = Annotated[APIState, Depends(state_of)]
Visitor = Annotated[str, Depends(visitor_of)]
