"""Connections to held layouts, and the source that a holder sends for drawing."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.machine import Machine, dump, parse
from memtopo.output.diagram.model import Diagram
from memtopo.sharing import LONGEST_SOURCE, Client, ExchangeError, NoLayout, connect, endpoint

if TYPE_CHECKING:
    from memtopo.language import Document

_ORIGIN = "the holder"


def connect_to(name: str | None, socket: str | None, allow_uids: Collection[int]) -> Client:
    """Connect to the holder of a layout; if both are given, the layout at the socket must have the name.

    Raises `UsageError` where nothing is named, `NoLayout`, `ExchangeError`.
    """
    if name is None and socket is None:
        raise UsageError("missing argument 'NAME'", hint="name a layout, or --socket PATH; 'memtopo ls' lists them")
    client = connect(endpoint(name if socket is None else None, socket), allow_uids=allow_uids)
    if name is not None and socket is not None:
        _require_name(client, name, socket)
    return client


def _require_name(client: Client, name: str, socket: str) -> None:
    with ExitStack() as stack:
        stack.push(client)
        found = client.status().name
        if found != name:
            raise NoLayout(f"the layout at {socket!r} is {found!r}, not {name!r}", hint="leave one of the two out")
        stack.pop_all()


def layout_source(document: Document, machine: Machine) -> str:
    """Encode a spec and its machine as one text; empty if it is longer than `LONGEST_SOURCE`."""
    text = json.dumps({"spec": document.text, "machine": dump(machine)})
    return text if len(text) <= LONGEST_SOURCE else ""


def held_picture(client: Client) -> Diagram | None:
    """Diagram of a held layout; None if the holder sends no source, or one that is not valid.

    A holder sends the spec and the machine and never a drawing. They are read as if they came from a file, so that
    nothing in them is trusted.
    """
    from memtopo.language import read_text  # check and release do not need these
    from memtopo.output.diagram.build import build_diagram
    from memtopo.rules.validation import validate

    try:
        text = client.source()
    except ExchangeError as error:
        if error.code == "request":
            return None  # a holder of an older version, which ended the connection
        raise
    with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError, MemtopoError):
        source = json.loads(text)
        machine = parse(source["machine"].encode(), _ORIGIN)
        geometry = validate(read_text(source["spec"].encode(), _ORIGIN), machine).geometry
        return build_diagram(geometry, machine) if geometry else None
    return None
