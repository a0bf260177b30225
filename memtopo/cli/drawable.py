"""What a holder tells of its layout so that others can draw it: the spec and the machine, and never a drawing.

Whoever asks reads them as if they came from a file, so that nothing a holder says is trusted.
"""

from __future__ import annotations

import json
from contextlib import suppress

from memtopo.common.errors import MemtopoError
from memtopo.language import Document, read_text
from memtopo.machine import Machine, dump, parse
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.model import Diagram
from memtopo.rules.validation import validate
from memtopo.sharing import LONGEST_SOURCE, Client, ExchangeError

_FROM = "the holder"


def drawable(document: Document, machine: Machine) -> str:
    """A spec and its machine as one text; nothing where it is longer than a holder may tell."""
    text = json.dumps({"spec": document.text, "machine": dump(machine)})
    return text if len(text) <= LONGEST_SOURCE else ""


def drawn(client: Client) -> Diagram | None:
    """The picture of a held layout; None where its holder does not tell it, or tells something else."""
    try:
        text = client.source()
    except ExchangeError as error:
        if error.code == "request":
            return None  # a holder of an older version, which ended the connection
        raise
    with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError, MemtopoError):
        told = json.loads(text)
        machine = parse(told["machine"].encode(), _FROM)
        geometry = validate(read_text(told["spec"].encode(), _FROM), machine).geometry
        return build_diagram(geometry, machine) if geometry else None
    return None
