"""Saved plans: a plan with the text of its spec and its machine, to be applied later if it is still valid.

The plan of a change has the generation and a digest of the held layout instead of the machine.

The saved steps are not executed: the text is validated and planned again, and the two plans are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic_core import from_json

from memtopo.common.decoding import Mismatch, convert
from memtopo.common.errors import Exit, MemtopoError
from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry import Geometry
from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds.views import all_mapped_memory
from memtopo.language import Document, SpecText
from memtopo.language.names import AWAKE
from memtopo.machine import Cluster, Device, Machine, MachineLine, Machines, dump
from memtopo.planner import Plan
from memtopo.plans.report import PlanDifference, PlanSummary, Row
from memtopo.rules import validate
from memtopo.spec import MACHINES

MARKER = b'"memtopo_plan"'
CHANGE_MARKER = b'"memtopo_change_plan"'
LARGEST_FILE = 256 << 20
_START = 256
"""Bytes at the beginning of a file among which a saved plan has its marker."""

MAX_CHANGES = 20
"""Number of changes that a message lists."""

_REMAKE = "create it again with 'memtopo plan SPEC -o FILE'"
_PLAN_CHANGE = "plan it again with 'memtopo plan NAME SPEC -o FILE'"

Saved = TypeVar("Saved")


class StalePlan(MemtopoError):
    """A saved plan differs from the plan that its spec gives now."""

    exit_code = Exit.STALE


class UnreadablePlan(MemtopoError):
    """A saved plan is damaged or of another version."""

    exit_code = Exit.INVALID


class SavedPlan(Struct, frozen=True):
    """Content of a saved plan: the plan, the machine in short and in full, and the spec that the plan was made from."""

    memtopo_plan: Literal[1]
    machine: MachineLine
    plan: PlanSummary
    spec: SpecText
    facts: Machine
    digest: str | None = None
    """Digest of the spec, as of `spec_digest`; None in a file."""
    nodes: dict[str, Machine] = {}
    """Machine of each node, if they were named for each; `facts` is then that of the first one."""

    @property
    def machines(self) -> Machines:
        """The machine, or those of the nodes."""
        return Cluster(self.nodes) if self.nodes else self.facts

    def is_of(self, machines: Machines) -> bool:
        """Return true for the machine, or those of the nodes, that it was made on, or for equal ones."""
        return _compared(self.machines) == _compared(machines)


class AwaitedImporter(Struct, frozen=True):
    """Importer of exports whose memory a change releases, with the bytes that it has of them.

    The process and its command are None for one of another pid namespace.
    """

    pid: int | None
    command: str | None
    bytes: int
    exports: tuple[str, ...]


class SavedChange(Struct, frozen=True):
    """Content of a saved plan of a change: what it does to a held layout, and the spec that the layout is to have.

    The layout had this `generation`, `digest` as of `digest_of`, and importers `awaited` by the change, when that was
    planned.
    """

    memtopo_change_plan: Literal[1]
    layout: str
    generation: int
    digest: str
    machine: MachineLine
    plan: PlanDifference
    spec: SpecText
    awaited: tuple[AwaitedImporter, ...] = ()

    def compare(self, name: str, now: SavedChange, state: str | None) -> None:
        """Raise `StalePlan` unless the plan of the same change is equal `now`, with the layout awake.

        `name` is that of the file, `state` the present state of the layout; None if it has no states.
        """
        if state not in (None, AWAKE):
            message = f"the saved plan {name!r} is for a layout that is awake, and {now.layout!r} is in state {state!r}"
            raise StalePlan(message, hint=f"'memtopo switch {now.layout} awake', and {_PLAN_CHANGE}")
        for what, then, found in (
            ("layout", repr(self.layout), repr(now.layout)),
            ("generation", self.generation, now.generation),
        ):
            if then != found:
                message = f"the saved plan {name!r} is for {what} {then}, but the held layout is {found}"
                raise StalePlan(message, hint=_PLAN_CHANGE)
        if self.digest != now.digest:
            message = f"the saved plan {name!r} is for a layout other than the one that is held now"
            raise StalePlan(message, hint=_PLAN_CHANGE)
        if self.plan != now.plan:
            raise StalePlan(f"the saved plan {name!r} would be different now", hint=_PLAN_CHANGE)


def spec_digest(document: Document) -> str:
    """Return the SHA-256 of a spec's values, `sha256:…`: the same on every machine, whatever comments it has.

    The machines that it is for do not count.

    A layout that is changed to another spec has another digest; a switch keeps it.
    """
    values = {key: value for key, value in document.root.items() if key != MACHINES}
    return f"sha256:{sha256(dumps(values, sort_keys=True).encode()).hexdigest()}"


def digest_of(source: str, state: str | None) -> str:
    """Return the SHA-256 of a held layout: its source, and the state that it is in."""
    return sha256(f"{state or ''}\0{source}".encode()).hexdigest()


def saved_nodes(machines: Machines, geometry: Geometry) -> dict[str, Machine]:
    """Machines of the nodes as a saved plan has them; none if one machine is that of all nodes."""
    if not isinstance(machines, Cluster):
        return {}
    uuids = {each.fabric.cluster for machine in machines.nodes.values() for each in machine.devices if each.fabric}
    clusters = {uuid: f"cluster {number}" for number, uuid in enumerate(sorted(filter(None, uuids)))}
    return {node: saved_facts(machine, geometry, clusters) for node, machine in machines.nodes.items()}


def saved_facts(machine: Machine, geometry: Geometry, clusters: Mapping[str, str] | None = None) -> Machine:
    """Machine as a saved plan has it: without what identifies it, and with its free memory only if shares are of it.

    Clusters have the names of `clusters` in place of their UUIDs; by default all are one.
    """
    from memtopo.machine.queries import anonymous, changed  # noqa: PLC0415 imported where it is used

    found, devices = anonymous(machine), list[Device]()
    shares = any(group.share for member in geometry.members.values() for group in member.of(ChunkGroup).values())
    for device, live in zip(found.devices, machine.devices, strict=True):
        kept: dict[str, object] = {"free_bytes": live.free_bytes} if shares else {}
        if live.fabric and live.fabric.cluster:
            name = clusters[live.fabric.cluster] if clusters else "cluster 0"
            kept["fabric"] = live.fabric.model_copy(update={"cluster": name})
        devices.append(device.model_copy(update=kept))
    return changed(found, devices=devices)


def _compared(machines: Machines) -> dict[str, str]:
    """Text of each machine without what identifies it."""
    from memtopo.machine.queries import anonymous  # noqa: PLC0415 imported where it is used

    nodes = machines.nodes if isinstance(machines, Cluster) else {"": machines}
    return {node: dump(anonymous(machine)) for node, machine in nodes.items()}


def open_saved_change(name: str) -> SavedChange | None:
    """Read the saved plan of a change in a file; return None if the file is something else or cannot be read.

    Raises `UnreadablePlan` if it is damaged or of another version.
    """
    text = _marked_text(name, CHANGE_MARKER)
    return None if text is None else _validated(SavedChange, text, name, _PLAN_CHANGE)


def open_saved(name: str) -> SavedPlan | None:
    """Read the saved plan in a file; return None if the file is something else or cannot be read.

    Raises `UnreadablePlan` if it is damaged or of another version.
    """
    text = _marked_text(name, MARKER)
    return None if text is None else read(text, name)


def is_saved(name: str) -> bool:
    """Return true for a file that begins as a saved plan, which may be damaged."""
    return _marked_text(name, MARKER) is not None


def spec_in(document: Document) -> Document:
    """Return the spec in a saved plan, whose positions have its own name; a document that is no saved plan itself."""
    start = document.text[:_START].encode()
    if not _has_marker(start, MARKER):
        return document
    try:
        spec = read(document.text.encode(), document.name).spec
    except UnreadablePlan as error:
        return Document(document.name, diagnostics=(Diagnostic("MT001", error.message, help=error.hint),))
    return replace(spec.read(), plan=document.name)


def read(text: bytes, name: str) -> SavedPlan:
    """Read a saved plan from JSON. Raises `UnreadablePlan` if it is damaged or of another version."""
    return _validated(SavedPlan, text, name, _REMAKE)


def compare(saved: SavedPlan, name: str, geometry: Geometry, now: Plan) -> None:
    """Raise `StalePlan`, with the changes, unless `now` is equal to the saved plan.

    The rows are compared as they were saved, since another version of memtopo may have written them. The offsets of
    chunks are compared with the geometry of the saved text on the saved machine. That is not possible if the spec names
    a GPU by its UUID or bus id, which are not saved.
    """
    validated = validate(saved.spec.read(), saved.machines)
    then = validated.geometry or geometry
    old, new = list(_lines(saved.plan)), list(_lines(now.summary()))
    if old == new and all_mapped_memory(then) == all_mapped_memory(geometry):
        return
    changed = list(unified_diff(old, new, n=0, lineterm=""))[2:]
    lines = [line for line in changed if line[:1] in "+-"] or ["the same calls, at other offsets"]
    more = [f"… and {len(lines) - MAX_CHANGES} more"] if len(lines) > MAX_CHANGES else []
    message = f"the saved plan {name!r} does not hold on this machine"
    raise StalePlan(message, hint=_REMAKE, details=[*lines[:MAX_CHANGES], *more])


def _validated(kind: type[Saved], text: bytes, name: str, hint: str) -> Saved:
    try:
        document = from_json(text)
        if isinstance(document, dict):
            document["spec"] = _joined(document.get("spec"))
        return convert(document, kind, _machine)
    except Mismatch as error:
        raise UnreadablePlan(f"saved plan {name!r} is damaged: {error}", hint=hint) from error
    except ValueError as error:
        raise UnreadablePlan(f"saved plan {name!r} is damaged: invalid JSON: {error}", hint=hint) from error


def _joined(spec: object) -> object:
    """Spec of a saved plan with its lines as one text."""
    if (
        isinstance(spec, dict)
        and isinstance(lines := spec.get("text"), list)
        and all(type(each) is str for each in lines)
    ):
        return spec | {"text": "".join(lines)}
    return spec


def _machine(_: type, facts: object) -> Machine:
    return Machine.model_validate_json(dumps(facts))


def _marked_text(name: str, marker: bytes) -> bytes | None:
    """Content of a file that begins as a saved plan; None if it is something else or cannot be read."""
    try:
        if not Path(name).is_file():
            return None
        with open(name, "rb") as file:  # noqa: PTH123 as everywhere: a name that is no path is no error here
            start = file.read(_START)
            return start + file.read(LARGEST_FILE) if _has_marker(start, marker) else None
    except (OSError, ValueError):
        return None


def _has_marker(start: bytes, marker: bytes) -> bool:
    return start.lstrip().startswith(b"{") and marker in start


def _lines(plan: PlanSummary) -> Iterator[str]:
    """Lines of a plan for the comparison: its calls and memory, without the picture."""
    yield from map(_line, plan.rows)
    for process in plan.processes:
        name = process.first if process.count == 1 else f"{process.first} … {process.last}"
        yield from (f"{name}: {_line(row)}" for row in process.rows)
    for location, amount in plan.memory.items():
        yield f"memory on {location}: {exact(amount)}"
    yield f"{plan.calls} calls to build, {plan.teardown_calls} to take down"


def _line(row: Row) -> str:
    subjects = row.first if row.calls == 1 else f"{row.first} … {row.last} ({row.calls} calls)"
    size = f", {exact(row.bytes_each)} each" if row.bytes_each else ""
    where = f", {', '.join(row.where)}" if row.where else ""
    return f"{row.verb} {subjects}{size}{where}{f' ({row.note})' if row.note else ''}"
