"""Devices by name: the spec's own names, and gpu0, gpu1, host and host:N, which exist anyway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.machine import Machine
from memtopo.spec import Spec

_GPU = re.compile(r"(?:gpu)?(0|[1-9][0-9]{0,5})")
_NODE = re.compile(r"host:(0|[1-9][0-9]{0,5})")
_BUS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9])?")
_BUILT_IN = re.compile(r"gpu[0-9]+|host")


class Devices:
    """Turns device names into locations; every fault is told once, where the name is first used."""

    def __init__(self, spec: Spec, machine: Machine, faults: list[Diagnostic], turn: int = 0) -> None:
        """Of a counted process's names for several devices it is the one of that `turn`."""
        self._spec, self._machine = spec, machine
        self._faults = faults
        self._known: dict[str, Location | None] = {}
        self.used: set[str] = set()
        for name, values in spec.devices.items():
            if len(values) > 1 and spec.instances is None:
                if not spec.countless:
                    faults.append(_several(spec, name))
                self._known[name] = None
            else:
                self._known[name] = self._dealt(name, values, turn)
        self.visible: tuple[Location, ...] = ()
        self.declared = {name: place for name, place in self._known.items() if place is not None}

    def see(self, names: Sequence[str]) -> None:
        """From now on, only the GPUs of these names are seen; none means all, and so does one with a fault."""
        path = self._spec.at("visible")
        paths = [path] if len(names) == 1 else [(*path, index) for index in range(len(names))]
        found = [self._visible(name, path) for name, path in zip(names, paths, strict=True)]
        places = [place for place in found if place is not None]
        if len(places) == len(found):
            self.visible = tuple(dict.fromkeys(places))

    def _visible(self, name: str, path: Path) -> Location | None:
        place = self.resolve(name, path)
        if place is None or place.kind is LocationKind.GPU:
            return place
        told = f"{name!r} is {'the host' if name in ('host', str(place)) else place}, and 'visible' is of GPUs"
        self._faults.append(Diagnostic("MT103", told, path, help="leave it out: host memory is seen by every process"))
        return None

    def resolve(self, name: str, path: Path, at: At = "value", *, anywhere: bool = False) -> Location | None:
        """The location that a name stands for; None, and one diagnostic, where there is none.

        It must be one that the process sees, if it may not be `anywhere`.
        """
        self.used.add(name)
        if name not in self._known:
            self._known[name] = self._built_in(name, path, at)
        place = self._known[name]
        if place and not anywhere and not self.sees(place):
            self.unseen(name, place, path, at)
            return None
        return place

    def sees(self, place: Location) -> bool:
        """Whether the process is to see a GPU; host memory it always does."""
        return not self.visible or place.kind is not LocationKind.GPU or place in self.visible

    def unseen(self, name: str, place: Location, path: Path, at: At = "value", notes: Sequence[str] = ()) -> None:
        """Say that the process does not see a GPU that it would need."""
        seen = ", ".join(map(str, self.visible))
        told = f"process {self._spec.name!r} does not see {name!r}" + (f", {place}" if name != str(place) else "")
        label = Label("what it is to see", self._spec.at("visible"))
        notes = (f"it is to see {seen} alone", *notes)
        help = f"add {place} to 'visible', or use a GPU that is there"
        self._faults.append(Diagnostic("MT606", told, path, at, labels=(label,), notes=notes, help=help))

    def _dealt(self, name: str, values: Sequence[str], turn: int) -> Location | None:
        """Which device a name is in this turn. The first one looks at them all, so that no fault is told too late."""
        path = self._spec.at("devices", name)
        turns = range(len(values)) if turn == 0 else [turn % len(values)]
        found = [self._declare(name, values[each], (*path, each) if len(values) > 1 else path) for each in turns]
        return found[0]

    def _declare(self, name: str, value: str, path: Path) -> Location | None:
        if _BUILT_IN.fullmatch(name):
            told = f"{name!r} always names the machine's own {'host' if name == 'host' else 'GPU'}"
            where = self._spec.at("devices", name)
            self._faults.append(Diagnostic("MT203", told, where, "key", help="choose another name"))
            return None
        if match := _GPU.fullmatch(value):
            return self._gpu(int(match[1]), path, "value")
        if _NODE.fullmatch(value) or value == "host":
            return self._host(value, path, "value")
        if value.startswith("GPU-") or _BUS.fullmatch(value):
            return self._identified(value, path)
        told = f"{shorten(value)!r} names no device"
        help = "write a GPU's ordinal, its UUID (GPU-…) or its bus id (0000:1b:00.0)"
        self._faults.append(Diagnostic("MT201", told, path, help=help))
        return None

    def _built_in(self, name: str, path: Path, at: At) -> Location | None:
        if name.startswith("gpu") and (match := _GPU.fullmatch(name)):
            return self._gpu(int(match[1]), path, at)
        if name == "host" or _NODE.fullmatch(name):
            return self._host(name, path, at)
        if self._spec.may_have("devices", name):
            return None
        known = dict.fromkeys([*islice(self.declared, messages.COMPARED), *map(str, self._machine.locations)])
        messages.undeclared(self._faults, "device", name, path, known, at)
        return None

    def _gpu(self, ordinal: int, path: Path, at: At) -> Location | None:
        count = len(self._machine.devices)
        if ordinal < count:
            return gpu(ordinal)
        has = f": {'only gpu0' if count == 1 else f'gpu0 to gpu{count - 1}'}" if count else ""
        told = f"the machine has no gpu{ordinal}"
        self._faults.append(
            Diagnostic("MT401", told, path, at, notes=(f"it has {count} GPU{'s' * (count != 1)}{has}",))
        )
        return None

    def _host(self, name: str, path: Path, at: At) -> Location | None:
        place = Location(LocationKind.HOST_NUMA, int(name[5:])) if ":" in name else Location(LocationKind.HOST)
        if place in self._machine.locations:
            return place
        nodes = ", ".join(self._machine.host) or "no host memory"
        self._faults.append(Diagnostic("MT401", f"the machine has no {name}", path, at, notes=(f"it has {nodes}",)))
        return None

    def _identified(self, value: str, path: Path) -> Location | None:
        wanted = _bus(value)
        for ordinal, device in enumerate(self._machine.devices):
            if value == device.uuid or (wanted and device.bus_id and wanted == _bus(device.bus_id)):
                return gpu(ordinal)
        known = any(device.uuid for device in self._machine.devices)
        note = "the machine was recorded without identities" if not known else "no GPU of the machine has that identity"
        help = "record it with 'memtopo probe --identify', or use an ordinal" if not known else None
        self._faults.append(Diagnostic("MT401", f"the machine has no GPU {value}", path, notes=(note,), help=help))
        return None


def _several(spec: Spec, name: str) -> Diagnostic:
    told = f"device name {name!r} stands for several devices"
    help = "a list is dealt to the processes of a counted process; elsewhere, give each device a name of its own"
    return Diagnostic("MT103", told, spec.at("devices", name), help=help)


def _bus(text: str) -> tuple[int, ...]:
    """A bus id as numbers, so that `1b:00.0`, `0000:1b:00.0` and `00000000:1B:00.0` are one."""
    if not _BUS.fullmatch(text):
        return ()
    parts = [int(part, 16) for part in re.split(r"[:.]", text if "." in text else text + ".0")]
    return tuple([0] * (4 - len(parts)) + parts)
