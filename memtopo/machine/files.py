"""Files of recorded machines: shipped ones by name, others by path."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memtopo.common.errors import Unavailable
from memtopo.common.files import TooLarge, read_file
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.machine.records import Machine

VERSION = 1
LARGEST_FILE = 8 << 20

_SHIPPED = Path(__file__).parent.parent / "machines"


def shipped() -> list[str]:
    """Names of the machines that are part of memtopo, each recorded on hardware."""
    return sorted(file.stem for file in _SHIPPED.glob("*.json"))


def load(name: str) -> Machine:
    """Load a shipped machine by name, or a recorded one by path.

    Raises `Unavailable` if there is no such machine, or if the file is not a machine of this version.
    """
    if "/" not in name and not name.endswith(".json"):
        if name not in shipped():
            raise Unavailable(f"machine {shorten(name)!r} is not known", hint=_hint(name))
        return parse((_SHIPPED / f"{name}.json").read_bytes(), name)
    return parse(_read(Path(name)), name)


def parse(text: bytes, origin: str) -> Machine:
    """Parse a recorded machine from JSON; `origin` is its name in errors. Raises `Unavailable`."""
    hint = "record it again with 'memtopo probe -o FILE'"
    try:
        facts: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"machine file {origin!r} is not JSON", hint=hint) from error
    if not isinstance(facts, dict) or "memtopo_machine" not in facts:
        raise Unavailable(f"{origin!r} is not a machine file", hint=hint)
    if (version := facts["memtopo_machine"]) != VERSION:
        shown = json.dumps(version)[:20]
        raise Unavailable(
            f"machine file {origin!r} has version {shown}; this memtopo reads version {VERSION}", hint=hint
        )
    try:
        machine = Machine.model_validate_json(text)
    except ValidationError as error:
        raise Unavailable(f"machine file {origin!r} is damaged: {_first_error(error)}", hint=hint) from error
    _check_peers(machine, origin, hint)
    return machine


def dump(machine: Machine) -> str:
    """Return the machine as the text of a file: JSON in a stable order, with one value per line.

    It contains no `##`, so that no name in it is a command to a CI runner.
    """
    text = json.dumps(machine.model_dump(mode="json", exclude_none=True), indent=1)
    return text.replace("##", r"#\u0023") + "\n"


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(shorten(str(part)) for part in first["loc"] if part != "[key]")
    what = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{where}: {what[:1].lower()}{what[1:]}" if where else what


def _check_peers(machine: Machine, origin: str, hint: str) -> None:
    count = len(machine.devices)
    if len(machine.peers) != count or any(len(row) != count for row in machine.peers):
        raise Unavailable(f"machine file {origin!r} is damaged: peers is not {count} by {count}", hint=hint)


def _read(path: Path) -> bytes:
    try:
        return read_file(path, LARGEST_FILE)
    except TooLarge as error:
        raise Unavailable(f"machine file {str(path)!r} has more than {LARGEST_FILE >> 20} MiB") from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        hint = f"the machines that are part of memtopo are {', '.join(shipped())}"
        raise Unavailable(f"machine file {str(path)!r} cannot be read: {reason}", hint=hint) from error


def _hint(name: str) -> str:
    if os.path.isfile(name):  # noqa: PTH113 a Path raises for a name that cannot be a path
        return f"to read the file of that name, write ./{name}"
    known = shipped()
    near = nearest(name, known)
    suggestion = f"did you mean {near!r}? " if near else ""
    return f"{suggestion}use local, {', '.join(known)}, or the path of a file made by 'memtopo probe -o FILE'"
