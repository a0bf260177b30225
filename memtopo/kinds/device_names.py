"""Device names: names that a spec declares, and the built-in gpu0, gpu1, ..., host and host:N."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain

from memtopo.common.text import enumerated, plural
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import did_you_mean
from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.types import PROPERTY_FLAGS, WHOLE_HOST, Attribute, Location, LocationKind, gpu
from memtopo.kinds.resolution import NameErrors, Refused, attempt, together
from memtopo.language.entries import Spec, rank
from memtopo.language.names import GPUS, PEERS, NamedDevice, Near
from memtopo.machine import Machine, Machines

SETS = (GPUS, PEERS)
"""Names that stand for several devices."""

_PLACES = {GPUS: "in 'location', 'accessed_by', 'access', 'visible' and 'devices'", PEERS: "in 'access'"}


def has_set(names: Sequence[NamedDevice]) -> bool:
    """Return true if one of some names stands for several devices: `gpus`, or the nodes near them."""
    return GPUS in names or Near(GPUS) in names


def expanded(names: Sequence[NamedDevice], gpus: Sequence[Location]) -> list[tuple[NamedDevice, int]]:
    """Names with `gpus` replaced by its members, each with its index in `names`; `{near: gpus}` is their nodes."""
    if not has_set(names):
        return [(name, index) for index, name in enumerate(names)]
    found: list[tuple[NamedDevice, int]] = []
    for index, name in enumerate(names):
        if name == GPUS:
            found += ((str(each), index) for each in gpus)
        elif isinstance(name, Near) and name.gpu == GPUS:
            found += ((Near(str(each)), index) for each in gpus)
        else:
            found.append((name, index))
    return found


def all_gpus(machine: Machine) -> tuple[Location, ...]:
    """GPUs of a machine by ordinal."""
    return tuple(Location(LocationKind.GPU, ordinal) for ordinal in range(len(machine.devices)))


def assigned(names: Sequence[NamedDevice], machine: Machine, index: int) -> NamedDevice | None:
    """Device of one process among those of a name under `devices`, round-robin; None if there is none."""
    members = expanded(names, all_gpus(machine)) if has_set(names) else [(name, 0) for name in names]
    return members[index % len(members)][0] if members else None


def empty(path: Path, at: At = "value", name: str = GPUS) -> Diagnostic:
    """Return MT401 for `gpus` or `peers` on a machine without GPUs."""
    help = "use a machine with GPUs, or memory of the host: location: host"
    return Diagnostic("MT401", f"{name!r} is empty: the machine has no GPUs", path, at, help=help)


def misplaced(name: str, path: Path, at: At) -> Diagnostic:
    """Return MT103 for a set where one device is named, or where another set would be right."""
    message = f"{name!r} is a set of devices, and one device is expected here"
    if name == PEERS:
        message = f"{name!r} are the GPUs with access to the memory of a range, which only 'access' has"
    return Diagnostic("MT103", message, path, at, help=f"name one device; {name!r} can be used {_PLACES[name]}")


def near_node(machine: Machine, ordinal: int, path: Path) -> Location:
    """NUMA node of a GPU's host memory: the advertised one, or the only one. Raises `Refused` with MT401 for none."""
    node = machine.devices[ordinal].attributes.get(Attribute.HOST_NUMA_ID.name, -1)
    nodes = [location for location in machine.locations if location.kind is LocationKind.HOST_NUMA]
    found = nodes[0] if node < 0 and len(nodes) == 1 else Location(LocationKind.HOST_NUMA, node)
    if found in nodes:
        return found
    has = ", ".join(map(str, nodes)) or "no NUMA nodes"
    message, note = f"the machine has no {found}, which is the NUMA node of gpu{ordinal}", f"it has {has}"
    if node < 0:
        message, note = f"the NUMA node of gpu{ordinal} is not known", f"HOST_NUMA_ID is not reported; there are {has}"
    raise Refused(Diagnostic("MT401", message, path, notes=(note,), help=f"write {nodes[0] if nodes else 'host'}"))


_GPU = re.compile(r"(?:gpu)?(0|[1-9][0-9]{0,5})")
_NODE = r"host:(0|[1-9][0-9]{0,5})"
_BUS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9])?"
_ORDINAL = r"(?:(?:cuda|gpu|device|nvidia)[:_ -]?)?(0|[1-9][0-9]{0,5})"
_RANGE = r"gpu\[?(0|[1-9][0-9]{0,5}) ?(?:-|\.\.) ?(?:gpu)?(0|[1-9][0-9]{0,5})\]?"
_CPU = r"(?:cpu|dram|ram|system)(?::0)?"
_ALL = r"(?:(?:cuda|gpu)s?:?)?(?:\*|\[\*?\])|all|cuda"
_MISSING = "the machine has no "
_LISTED = 8
"""GPUs that a message lists."""
_BUILT_IN = re.compile(r"gpu[0-9]+|host|gpus|peers")


def built_in(name: str) -> str:
    """Return what a built-in name denotes, in words; empty for other names."""
    if not _BUILT_IN.fullmatch(name):
        return ""
    return "a set of GPUs" if name in SETS else f"the machine's {'host' if name == 'host' else 'GPU'}"


class DeviceNames:
    """Locations of one process by device name. Each error is reported once, at the first use of the name."""

    def __init__(self, spec: Spec, machines: Machines, errors: NameErrors, index: int = 0) -> None:
        """`index` is the number of the process within a counted process.

        Its number among the instances on its node selects from names for several devices.
        """
        self.node, self._index = rank(spec, index)
        self._spec, self._errors, self._machines, self._machine = spec, errors, machines, machines.of(self.node)
        self._known: dict[NamedDevice, Location | None] = {}
        self._used: set[NamedDevice] = set()
        self.visible: tuple[Location, ...] = ()

    @property
    def declared(self) -> dict[str, Location]:
        """Locations of the declared names without errors."""
        return {
            name: location for name in self._spec.section("devices") if (location := self._known.get(name)) is not None
        }

    @property
    def gpus(self) -> tuple[Location, ...]:
        """GPUs that are visible to the process, in order."""
        return self.visible or self._every_gpu

    @cached_property
    def _every_gpu(self) -> tuple[Location, ...]:
        return all_gpus(self._machine)

    def declare(self) -> Iterator[Diagnostic]:
        """Resolve the declared names and the key `visible`; nodes near GPUs last, since they refer to other names."""
        declared = self._spec.section("devices")
        near = [name for name, values in declared.items() if any(isinstance(value, Near) for value in values)]
        for name in [*(name for name in declared if name not in near), *near] if near else declared:
            self._known[name] = yield from attempt(self._selected, name, declared[name])
        if self._spec.visible:
            yield from attempt(self._restrict, self._spec.visible)

    def unused(self) -> Iterator[Diagnostic]:
        """Yield MT504 for declared names that are not used."""
        declared = self.declared
        if self._used.issuperset(declared):
            return
        used = self._used | {name.gpu for name in self._used if isinstance(name, Near)}
        for name in declared:
            if name not in used:
                yield Diagnostic("MT504", f"device name {name!r} is not used", self._spec.at("devices", name), "key")

    def use(self, names: Iterable[NamedDevice]) -> None:
        """Mark names as used without resolving them."""
        self._used.update(names)

    def resolve(
        self, name: NamedDevice, path: Path, at: At = "value", *, anywhere: bool = False, also: Sequence[str] = ()
    ) -> Location:
        """Location of a name; it must be visible to the process unless `anywhere` is true. Raises `Refused`.

        `also` are words that the key takes besides devices, for the help about a name that is not declared.
        """
        self._used.add(name)
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self._built_in(name, path, at, also)
        location = self._known[name]
        if location is None:
            raise Refused
        if not anywhere and not self.sees(location):
            raise Refused(self.unseen(str(name), location, path, at))
        return location

    def resolve_all(
        self, names: Sequence[NamedDevice], path: Path, key: str = "location", *, anywhere: bool = False
    ) -> list[Location]:
        """Locations of the names under one key of an entry, of each member of a set. Raises `Refused`."""
        where = (*path, key)
        if len(names) == 1 and not has_set(names):
            return [self.resolve(names[0], where, anywhere=anywhere)]
        members = expanded(names, self.gpus)
        if names and not members:
            raise Refused(empty(where))
        places = ((name, where if len(names) == 1 else (*where, index)) for name, index in members)
        try:
            return together(*(partial(self.resolve, name, place, anywhere=anywhere) for name, place in places))
        except Refused as refused:
            raise Refused(*_folded(refused.diagnostics)) from None

    def everywhere(self, names: Sequence[NamedDevice]) -> list[Location]:
        """Locations of some names in all instances of a counted process, without those with errors.

        They have their nodes if the spec has nodes.
        """
        found: dict[Location, None] = {}
        for each in self._instances:
            with suppress(Refused):
                found |= dict.fromkeys(at.on(each.node) for at in each.resolve_all(names, (), anywhere=True))
        return list(found)

    @cached_property
    def _instances(self) -> list[DeviceNames]:
        """Device names of the instances of the process, once for those with the same devices."""
        declared = self._spec.section("devices").values()
        distinct: dict[tuple[object, ...], int] = {}
        for index in range(self._spec.instances or 1):
            node, local = rank(self._spec, index)
            machine = self._machines.of(node)
            distinct[node, *(assigned(each, machine, local) for each in declared)] = index
        found = [DeviceNames(self._spec, self._machines, NameErrors(), index) for index in distinct.values()]
        for each in found:
            list(each.declare())
        return found

    def distributed(
        self, locations: Sequence[Location], count: int, path: Path, key: str = "location"
    ) -> tuple[Location, ...]:
        """Locations of a round-robin distribution of `count` objects. Raises `Refused` with MT506 for unused ones."""
        if len(locations) <= count:
            return tuple(locations)
        instances, where = self._spec.instances, (*path, key, count)
        lists = f"{path[-1]!r} lists {len(locations):,} locations for a count of {count:,}"
        message = f"{lists}: the others would not be used"
        if instances is None:
            help = f"for one at each location, write 'count: {len(locations)}', or omit the others"
            raise Refused(Diagnostic("MT506", message, where, help=help))
        each = f"each of its {instances:,} processes has" if instances > 1 else "the process has"
        note = f"the count of a process does not distribute the list: {each} {count:,}, on {locations[0]}"
        listed = f"[{', '.join(map(str, locations[:_LISTED]))}{', …' * (len(locations) > _LISTED)}]"
        help = (
            f"for one location in each process, write 'devices: {{mine: {listed}}}' in the process, and '{key}: mine'"
        )
        raise Refused(Diagnostic("MT506", message, where, notes=(note,), help=help))

    def sees(self, location: Location) -> bool:
        """Return true if a location is visible to the process; host memory always is."""
        return not self.visible or location.kind is not LocationKind.GPU or location in self.visible

    def unseen(
        self, name: str, location: Location, path: Path, at: At = "value", notes: Sequence[str] = ()
    ) -> Diagnostic:
        """Return MT606 for a GPU that is not visible to the process."""
        which = f", {location}" if name != str(location) else ""
        message = f"process {self._spec.name!r} does not see {name!r}{which}"
        label = Label("visible GPUs", self._spec.at("visible"))
        notes = (f"visible to it: {', '.join(map(str, self.visible))}", *notes)
        help = f"add {location} to 'visible', or use a visible GPU"
        return Diagnostic("MT606", message, path, at, labels=(label,), notes=notes, help=help)

    def _restrict(self, names: Sequence[NamedDevice]) -> None:
        """Make only these GPUs visible; all if one of the names has an error."""
        path = self._spec.at("visible")
        members = expanded(names, self.gpus)
        if not members:
            raise Refused(empty(path))
        places = ((name, path if len(names) == 1 else (*path, index)) for name, index in members)
        self.visible = tuple(dict.fromkeys(together(*(partial(self._visible, *each) for each in places))))

    def _visible(self, name: NamedDevice, path: Path) -> Location:
        location = self.resolve(name, path)
        if location.kind is LocationKind.GPU:
            return location
        what = "the host" if name in ("host", str(location)) else location
        message = f"{str(name)!r} is {what}, but 'visible' accepts only GPUs"
        raise Refused(Diagnostic("MT103", message, path, help="omit it: host memory is visible to every process"))

    def _selected(self, name: str, values: Sequence[NamedDevice]) -> Location:
        """Device of this process; process 0 checks all of them, so that errors in unused ones are reported as well."""
        path = self._spec.at("devices", name)
        if (len(values) > 1 or has_set(values)) and self._spec.instances is None:
            if self._spec.countless:
                raise Refused
            message = f"device name {name!r} has several devices"
            help = "a list is distributed over the processes of a counted process; "
            help += "elsewhere, give each device its own name"
            if len(values) == 1:
                help = "an instance of a counted process gets its own device of a set; "
                help += f"elsewhere, write {values[0]} where they are used"
            raise Refused(Diagnostic("MT103", message, path, help=help))
        members = expanded(values, self._every_gpu if has_set(values) else ())
        if what := built_in(name):
            message = f"{name!r} is the built-in name of {what}"
            raise Refused(Diagnostic("MT203", message, path, "key", help="choose another name"))
        if not members:
            raise Refused(empty(path))
        own = members if self._index == 0 else [members[self._index % len(members)]]
        places = ((member, (*path, index) if len(values) > 1 else path) for member, index in own)
        location: Location = together(*(partial(self._declare, *each) for each in places))[0]
        return location

    def _declare(self, value: NamedDevice, path: Path) -> Location:
        if isinstance(value, Near):
            return self._near_declared(value, path)
        if value in SETS:
            raise Refused(misplaced(value, path, "value"))
        if match := _GPU.fullmatch(value):
            return self._gpu(int(match[1]), path, "value")
        if re.fullmatch(_NODE, value) or value == "host":
            return self._host(value, path, "value")
        if value.startswith("GPU-") or re.fullmatch(_BUS, value):
            return self._identified(value, path)
        help = "write a GPU's ordinal, its UUID (GPU-…) or its bus id (0000:1b:00.0)"
        raise Refused(Diagnostic("MT201", f"{shorten(value)!r} is not a device", path, help=help))

    def _near_declared(self, value: Near, path: Path) -> Location:
        """NUMA node near another declared name, or near a GPU that is identified like one."""
        declared = self._spec.section("devices")
        if value.gpu not in declared:
            return self._node(value.gpu, self._declare(value.gpu, (*path, "near")), path)
        if any(isinstance(each, Near) for each in declared[value.gpu]):
            raise Refused(_near_host(value.gpu, (*path, "near")))
        self._used.add(value.gpu)
        return self._node(value.gpu, self._known[value.gpu], path)

    def _node(self, name: str, location: Location | None, path: Path) -> Location:
        """NUMA node of a GPU at a location, which is None if it has an error."""
        if location is None:
            raise Refused
        if location.kind is not LocationKind.GPU:
            raise Refused(_near_host(name, (*path, "near")))
        return near_node(self._machine, location.id, path)

    def _built_in(self, name: NamedDevice, path: Path, at: At, also: Sequence[str]) -> Location:
        if isinstance(name, Near):
            return self._node(name.gpu, self.resolve(name.gpu, (*path, "near"), anywhere=True), path)
        if name in SETS:
            raise Refused(misplaced(name, path, at))
        if name.startswith("gpu") and (match := _GPU.fullmatch(name)):
            return self._gpu(int(match[1]), path, at)
        if name == "host" or re.fullmatch(_NODE, name):
            return self._host(name, path, at)
        reported, help = self._spec.may_have("devices", name), self._meant(name)
        known = chain(self._spec.names("devices"), map(str, self._machine.locations), also)
        refused = self._errors.undeclared("device", name, path, known, at, reported=reported)
        if help:
            refused = Refused(*(each._replace(help=help, edit=None) for each in refused.diagnostics))
        raise refused

    def _meant(self, name: str) -> str | None:
        """Help for a name as other tools write it: an ordinal, `cuda:0`, or a pattern for all GPUs."""
        if match := re.fullmatch(_ORDINAL, name, re.IGNORECASE):
            count = len(self._machine.devices)
            return f"did you mean 'gpu{match[1]}'?" if int(match[1]) < count else f"the machine has {_gpus(count)}"
        if re.fullmatch(_CPU, name, re.IGNORECASE) and WHOLE_HOST in self._machine.locations:
            return did_you_mean("host")
        if re.fullmatch(_ALL, name, re.IGNORECASE):
            return f"write {GPUS}, which is every GPU"
        if match := re.fullmatch(_RANGE, name, re.IGNORECASE):
            first, last = int(match[1]), int(match[2])
            listed = [f"gpu{number}" for number in range(first, min(last, first + _LISTED) + 1)]
            names = f", {', '.join(listed)}" if 1 < len(listed) <= _LISTED else ""
            return f"name each GPU by itself{names}, or write {GPUS} for every GPU"
        if " else " in name:
            fields = enumerated(map(repr, ("handles", *PROPERTY_FLAGS, "via")), "and")
            return f"name one device: only {fields} have alternatives"
        return None

    def _gpu(self, ordinal: int, path: Path, at: At) -> Location:
        count = len(self._machine.devices)
        if ordinal < count:
            return gpu(ordinal)
        note = f"it has {_gpus(count)}"
        help = "'gpus' is every GPU of a machine; 'memtopo machines' lists other machines"
        raise Refused(Diagnostic("MT401", f"{_MISSING}gpu{ordinal}", path, at, notes=(note,), help=help))

    def _host(self, name: str, path: Path, at: At) -> Location:
        location = Location(LocationKind.HOST_NUMA, int(name[5:])) if ":" in name else WHOLE_HOST
        if location in self._machine.locations:
            return location
        nodes = ", ".join(self._machine.host) or "no host memory"
        help = f"write {(*self._machine.host, GPUS)[0]}"
        raise Refused(Diagnostic("MT401", f"{_MISSING}{name}", path, at, notes=(f"it has {nodes}",), help=help))

    def _identified(self, value: str, path: Path) -> Location:
        expected = _bus(value)
        for ordinal, device in enumerate(self._machine.devices):
            if value == device.uuid or (expected and device.bus_id and expected == _bus(device.bus_id)):
                return gpu(ordinal)
        known = any(device.uuid for device in self._machine.devices)
        note = "the machine was recorded without identities" if not known else "no GPU of the machine has that identity"
        help = "record it with 'memtopo probe --identify', or use an ordinal" if not known else None
        raise Refused(Diagnostic("MT401", f"{_MISSING}GPU {value}", path, notes=(note,), help=help))


def _gpus(count: int) -> str:
    """The GPUs of a machine that has `count` of them, in words."""
    has = f": {'only gpu0' if count == 1 else f'gpu0 to gpu{count - 1}'}" if count else ""
    return f"{plural(count, 'GPU')}{has}"


def _folded(found: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    """Diagnostics of one list; several GPUs that the machine does not have become one diagnostic."""
    missing = [each for each in found if each.code == "MT401"]
    yield from (each for each in found if each.code != "MT401")
    if missing:
        first, *others = missing
        names = [each.message.removeprefix(_MISSING) for each in others]
        more = f", {', '.join(names[:_LISTED])}{' …' * (len(names) > _LISTED)}" if names else ""
        yield first._replace(message=f"{first.message}{more}")


def _near_host(name: str, path: Path) -> Diagnostic:
    message = f"'near' names a GPU, and {name!r} is memory of the host"
    return Diagnostic("MT103", message, path, help="write {near: gpu0}, or the node itself: host:0")


def _bus(text: str) -> tuple[int, ...]:
    """Bus id as numbers, by which `1b:00.0`, `0000:1b:00.0` and `00000000:1B:00.0` are equal; empty for other text."""
    if not re.fullmatch(_BUS, text):
        return ()
    parts = [int(part, 16) for part in re.split(r"[:.]", text if "." in text else text + ".0")]
    return tuple([0] * (4 - len(parts)) + parts)
