"""How one field is read from its text, and what an editor's schema says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import InvalidValue


class Read:
    """A field's way from text to value, and its schema.

    pydantic's own PlainValidator also looks at the type that comes out, for a schema that nobody asks for.
    """

    def __init__(self, read: Callable[[object], Any], schema: dict[str, Any]) -> None:
        self._read, self._schema = read, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        del source, handler
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        del schema, handler
        return {**self._schema}  # pydantic adds each field's description to it


def text(value: object, wanted: str) -> str:
    """A value that is text; anything else, or nothing, is an `InvalidValue` that says what was wanted."""
    if isinstance(value, str):
        if value:
            return value
        raise InvalidValue("MT103", f"expected {wanted}, found nothing")
    raise InvalidValue("MT103", f"expected {wanted}, found a {'list' if isinstance(value, list) else 'mapping'}")


def word(words: Mapping[str, Any], what: str) -> Callable[[object], Any]:
    """Reads one of a few words, each of which stands for a value."""

    def read(value: object) -> Any:
        found = text(value, what)
        if found not in words:
            raise InvalidValue("MT107", f"{shorten(found)!r} is not {what}", help=messages.choose(found, list(words)))
        return words[found]

    return read


def one_or_more(value: object) -> object:
    """A list of at least one; what stands alone is a list of one."""
    if not value:
        raise InvalidValue("MT103", "expected at least one, found none")
    return value if isinstance(value, list) else [value]


def text_like(pattern: str) -> dict[str, Any]:
    """The schema of text that all of a pattern matches."""
    return {"type": "string", "pattern": f"^(?:{pattern})$"}
