"""Parts of OpenAI's requests that this server knows and does not do: refused in words, by name.

Their neutral values are taken, since clients send them out of habit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, PlainValidator


@dataclass(frozen=True)
class Only:
    """For `Annotated[Any, Only(...)]`: null and `values` are taken, all else is told `why` not."""

    values: tuple[Any, ...]
    why: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Annotated[Any, PlainValidator(self._check)])

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, *self.values], "description": self.why}

    def _check(self, value: Any) -> Any:
        if value is None or any(_same(value, known) for known in self.values):
            return value
        raise ValueError(self.why)


def _same(value: Any, known: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, and true is neither."""
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)
