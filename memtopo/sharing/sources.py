"""Sources of held layouts: the spec and the machine of a layout as one text, which its holder sends to clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from memtopo.common.errors import MemtopoError
from memtopo.machine import Machine, dump, parse
from memtopo.sharing.client import Client
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.messages import LONGEST_SOURCE

if TYPE_CHECKING:
    from memtopo.language import Document

_ORIGIN = "the holder"
_MALFORMED = (ValueError, RecursionError, TypeError, KeyError, AttributeError)


def layout_source(document: Document, machine: Machine) -> str:
    """Encode a spec and its machine as one text; empty if it is longer than `LONGEST_SOURCE`."""
    source = {"spec": document.text, "name": document.name, "machine": dump(machine)}
    text = json.dumps(source | ({"settings": dict(document.settings)} if document.settings else {}))
    return text if len(text) <= LONGEST_SOURCE else ""


def parsed_source(text: str) -> tuple[Document, str]:
    """Spec in a source, and the text of its machine, empty if it has none. Raises `ExchangeError`."""
    from memtopo.language import read_text  # noqa: PLC0415 most clients read no spec

    with suppress(*_MALFORMED):
        source = json.loads(text)
        name, machine = source.get("name", _ORIGIN), source.get("machine", "")
        if isinstance(name, str) and isinstance(machine, str):
            return read_text(source["spec"].encode(), name, source_settings(source)), machine
    raise ExchangeError("invalid", "the source is not a JSON object with a spec")


def source_settings(source: Mapping[str, object]) -> dict[str, str]:
    """Settings in a source, which is decoded JSON. Raises `TypeError` if they are not texts by name."""
    settings = source.get("settings", {})
    if isinstance(settings, dict) and all(isinstance(value, str) for value in settings.values()):
        return settings
    raise TypeError("settings are texts by name")


def held_source(client: Client) -> tuple[Document, Machine] | None:
    """Spec of a held layout and its machine; None if the holder sends none that can be read."""
    from memtopo.language import read_text  # noqa: PLC0415 likewise

    text = _requested(client)
    with suppress(*_MALFORMED, MemtopoError):
        source = json.loads(text)
        document = read_text(source["spec"].encode(), _ORIGIN, source_settings(source))
        return document, parse(source["machine"].encode(), _ORIGIN)
    return None


def held_machine(client: Client) -> Machine | None:
    """Recorded machine of a held layout; None if the holder sends none that can be read."""
    text = _requested(client)
    with suppress(*_MALFORMED, MemtopoError):
        return parse(json.loads(text)["machine"].encode(), _ORIGIN)
    return None


def _requested(client: Client) -> str:
    """Source of a held layout; empty from a holder of an older version, which has then ended the connection."""
    try:
        return client.source()
    except ExchangeError as error:
        if error.code == "request":
            return ""
        raise
