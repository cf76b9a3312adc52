"""Faults in the shape that OpenAI's clients know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from engine.errors import UnpausedError
from ui.api.schemas import ONE, SEVERAL
from ui.gate import QueueFull

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_NOT_NAMES = ("body", "query", "path", ONE, SEVERAL)  # in the place of a fault
_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    error: ErrorDetail


# Every answer but the good one, for the schema.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody}
    for status in (400, 401, 403, 404, 405, 408, 413, 415, 421, 429, 500, 503)
}


class APIError(Exception):
    """A fault with its place in HTTP. `param` names the part of the request that is at fault."""

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error answer."""
    kind = "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")
    code = code or _CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def as_api_error(error: Exception) -> APIError:
    """What the client is told of `error`; a defect keeps its details for the log."""
    match error:
        case APIError():
            return error
        case QueueFull():
            return APIError(str(error), 429)
        case UnpausedError():
            return APIError(str(error), 400)
    return APIError("Something went wrong inside; the server's log has the details.", 500)


def install_handlers(api: FastAPI) -> None:
    """Let every fault of `api` leave it in OpenAI's shape."""

    def answer(error: APIError, headers: dict[str, str] | None = None) -> JSONResponse:
        body = error_body(error.status, error.message, error.param, error.code)
        return JSONResponse(body, error.status, headers)

    @api.exception_handler(APIError)
    async def known(request: Request, error: APIError) -> JSONResponse:
        return answer(error)

    @api.exception_handler(UnpausedError)
    async def refused(request: Request, error: UnpausedError) -> JSONResponse:
        retry_s = error.retry_s if isinstance(error, QueueFull) else None
        headers = None if retry_s is None else {"Retry-After": str(max(1, round(retry_s)))}
        return answer(as_api_error(error), headers)

    @api.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else None
        return answer(APIError(str(error.detail), error.status_code), headers)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(_first_fault(error))

    @api.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        return answer(as_api_error(error))


def _first_fault(error: RequestValidationError) -> APIError:
    """The first thing that is wrong, by its name in the request. Says nothing of its value."""
    fault = error.errors()[0]
    place = [str(part) for part in fault["loc"] if part not in _NOT_NAMES]
    name = ".".join(place) or None
    if fault["type"] == "extra_forbidden":
        return APIError(f"Unrecognized request argument supplied: {name}", param=name)
    if fault["type"] == "json_invalid":
        return APIError("The body is not valid JSON.")
    if fault["type"] in ("model_attributes_type", "missing") and name is None:
        return APIError("The body must be a JSON object.")
    said = fault["msg"].removeprefix("Value error, ")
    if said.startswith("Expected UploadFile"):  # FastAPI's, which says it in Python
        said = "must be a file"
    return APIError(f"{name}: {said}" if name else said, param=name)
