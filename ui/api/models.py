"""/v1/models: the language model, once for each engine that runs here, and the two voices' ends."""

from __future__ import annotations

import time

from fastapi import APIRouter

from engine.errors import UnpausedError
from engine.registry import PERSISTENT
from ui.api.errors import APIError
from ui.api.schemas import ModelCard, ModelList
from ui.api.state import State
from ui.services import Runtime

TRANSCRIBER, SPEAKER = "whisper-1", "tts-1"  # the names that OpenAI's clients use

router = APIRouter()
_STARTED = int(time.time())


def model_ids(runtime: Runtime) -> list[str]:
    """Every name that a request may give as its model."""
    services = runtime.services
    engines = [entry.name for entry in services.engines if entry.unavailable() is None]
    name = services.model_name
    return [name, *(f"{name}:{engine}" for engine in engines), TRANSCRIBER, SPEAKER]


def engine_of(runtime: Runtime, model: str, header: str | None) -> str:
    """The engine that a request asks for, by "model:engine" or by the header.

    Raises `APIError` (404) for a model or an engine that there is none of here.
    """
    services = runtime.services
    name = services.model_name
    if model != name and not model.startswith(f"{name}:"):
        raise APIError(
            f"The model `{_shown(model)}` does not exist here; there is `{name}`.",
            404,
            "model",
            "model_not_found",
        )
    suffix = model[len(name) + 1 :]
    if suffix and header and suffix != header:
        raise APIError(
            "The model's suffix and the header X-Unpaused-Engine name different engines.",
            param="model",
        )
    engine = suffix or header or services.default_engine
    try:
        if engine == PERSISTENT.name:
            engine = PERSISTENT.choose()
        runtime.check_engine(engine)
    except UnpausedError as error:
        raise APIError(str(error), 404, "model", "model_not_found") from None
    return engine


def require_model(model: str, wanted: str) -> None:
    """Raises `APIError` (404) unless `model` is `wanted`."""
    if model != wanted:
        raise APIError(
            f"The model `{_shown(model)}` does not exist here; there is `{wanted}`.",
            404,
            "model",
            "model_not_found",
        )


def _shown(model: str) -> str:
    return "".join(char for char in model[:80] if char.isprintable())


@router.get("/models")
def list_models(state: State) -> ModelList:
    """What there is to ask for."""
    return ModelList(object="list", data=[_card(name) for name in model_ids(state.runtime)])


@router.get("/models/{model:path}")
def get_model(model: str, state: State) -> ModelCard:
    """One of them, by its name."""
    if model not in model_ids(state.runtime):
        raise APIError(
            f"The model `{_shown(model)}` does not exist here.", 404, "model", "model_not_found"
        )
    return _card(model)


def _card(name: str) -> ModelCard:
    return ModelCard(id=name, object="model", created=_STARTED, owned_by="unpaused")
