"""Sources of held layouts: the spec and the machine of a layout as one text, which its holder sends to clients."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memtopo.common.errors import MemtopoError
from memtopo.machine import Machine, dump, parse
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.wire import LONGEST_SOURCE, read

if TYPE_CHECKING:
    from memtopo.language import Document
    from memtopo.sharing.client import Client

_ORIGIN = "the holder"


@dataclass(frozen=True, slots=True)
class Source:
    """Spec of a layout with the name of its file, the text of its machine, empty if it is not known, and settings."""

    spec: str
    name: str = _ORIGIN
    machine: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Document:
        """The spec."""
        from memtopo.language import read_text  # noqa: PLC0415 most clients read no spec

        return read_text(self.spec.encode(), self.name, self.settings)


def layout_source(document: Document, machine: Machine) -> str:
    """Encode a spec and its machine as one text; empty if it is longer than `LONGEST_SOURCE`."""
    source = {"spec": document.text, "name": document.name, "machine": dump(machine)}
    text = json.dumps(source | ({"settings": dict(document.settings)} if document.settings else {}))
    return text if len(text) <= LONGEST_SOURCE else ""


def parsed_source(text: str) -> Source:
    """Read the text of a source. Raises `ExchangeError`."""
    with suppress(ValueError, RecursionError, BadPacket):
        return read(Source, json.loads(text), "the source")
    raise ExchangeError("invalid", "the source is not a JSON object with a spec")


def held_source(client: Client) -> tuple[Document, Machine] | None:
    """Spec of a held layout and its machine; None if the holder sends none that can be read."""
    text = _requested(client)
    with suppress(MemtopoError):
        source = parsed_source(text)
        return replace(source, name=_ORIGIN).document, parse(source.machine.encode(), _ORIGIN)
    return None


def held_machine(client: Client) -> Machine | None:
    """Recorded machine of a held layout; None if the holder sends none that can be read."""
    text = _requested(client)
    with suppress(MemtopoError):
        return parse(parsed_source(text).machine.encode(), _ORIGIN)
    return None


def _requested(client: Client) -> str:
    """Source of a held layout; empty from a holder of an older version, which has then ended the connection."""
    try:
        return client.source()
    except ExchangeError as error:
        if error.code == "request":
            return ""
        raise
