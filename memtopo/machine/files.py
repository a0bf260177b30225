"""Files of recorded machines: shipped ones by name, others by path; and the machines that stand for an unknown one."""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import compress, product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memtopo.common.errors import Unavailable
from memtopo.common.files import TooLarge, read_file
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.driver.types import PROPERTY_FLAGS, Attribute, HandleType, Location, LocationKind, Properties
from memtopo.machine.records import (
    Device,
    DriverFacts,
    Fabric,
    Granularity,
    HostMemory,
    Machine,
    Memory,
    Peer,
    Trial,
)

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
    count = len(machine.devices)
    if len(machine.peers) != count or any(len(row) != count for row in machine.peers):
        raise Unavailable(f"machine file {origin!r} is damaged: peers is not {count} by {count}", hint=hint)
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


_WORKS, _FAILS = Trial.model_construct(works=True), Trial.model_construct(works=False)
_NODES = 16
_ABSENT = (Attribute.INTEGRATED, Attribute.HOST_NUMA_ID)


@cache
def large_machine() -> Machine:
    """Return a machine with more GPUs than a spec names, large granularities and much memory; fabric works."""
    return _machine(gpus=72, granule=2 << 20, gpu_bytes=1 << 40, host_bytes=1 << 46, fabric=_WORKS)


@cache
def small_machine(gpus: int) -> Machine:
    """Return a machine with some GPUs, small granularities and little memory; fabric does not work."""
    return _machine(gpus=gpus, granule=64 << 10, gpu_bytes=24 << 30, host_bytes=1 << 43, fabric=_FAILS)


def _machine(*, gpus: int, granule: int, gpu_bytes: int, host_bytes: int, fabric: Trial) -> Machine:
    granularities = list(_granularities(granule))
    trials = {"multicast": _WORKS, "fd": _WORKS, "fabric": fabric}
    device = Device.model_construct(
        name="GPU",
        compute_capability=(9, 0),
        memory_bytes=gpu_bytes,
        attributes={each.name: int(each not in _ABSENT) for each in Attribute} | {"MEMPOOL_SUPPORTED_HANDLE_TYPES": 9},
        memory=Memory.model_construct(granularity=granularities, trials=trials),
        fabric=Fabric.model_construct(cluster="assumed", clique=0),
    )
    peer = Peer.model_construct(access=True, native_atomics=True)
    node = HostMemory.model_construct(granularity=granularities, trials=trials, memory_bytes=host_bytes // _NODES)
    host = HostMemory.model_construct(granularity=granularities, trials=trials, memory_bytes=None)
    return Machine.model_construct(
        driver=DriverFacts.model_construct(cuda="13.0"),
        devices=[device] * gpus,
        peers=[[None if a == b else peer for b in range(gpus)] for a in range(gpus)],
        host={"host": host} | {f"host:{number}": node for number in range(_NODES)},
        host_bytes=host_bytes,
    )


def _granularities(granule: int) -> list[Granularity]:
    handles = [HandleType(value) for value in range(2 * max(HandleType))]
    flags = [[*compress(PROPERTY_FLAGS, each)] for each in product((False, True), repeat=len(PROPERTY_FLAGS))]
    anywhere = Location(LocationKind.HOST)
    sets = (Properties.with_flags(anywhere, *each) for each in product(handles, flags))
    return [Granularity.of(properties, granule, granule) for properties in sets]
