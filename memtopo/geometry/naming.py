"""Devices by name: the spec's own names, and gpu0, gpu1, host and host:N, which exist anyway."""

from __future__ import annotations

import re
from itertools import islice

from memtopo import complaints
from memtopo.diagnostics import At, Diagnostic, Path
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.machine import Machine
from memtopo.spec import Spec
from memtopo.units import shorten

_GPU = re.compile(r"(?:gpu)?(0|[1-9][0-9]{0,5})")
_NODE = re.compile(r"host:(0|[1-9][0-9]{0,5})")
_BUS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9])?")
_BUILT_IN = re.compile(r"gpu[0-9]+|host")


class Devices:
    """Turns device names into locations; every fault is told once, where the name is first used."""

    def __init__(self, spec: Spec, machine: Machine, faults: list[Diagnostic]) -> None:
        self._spec, self._machine = spec, machine
        self._faults = faults
        self._known: dict[str, Location | None] = {}
        self.used: set[str] = set()
        for name, value in spec.devices.items():
            self._known[name] = self._declare(name, value)
        self.declared = {name: place for name, place in self._known.items() if place is not None}

    def resolve(self, name: str, path: Path, at: At = "value") -> Location | None:
        """The location that a name stands for; None, and one diagnostic, where there is none."""
        self.used.add(name)
        if name not in self._known:
            self._known[name] = self._built_in(name, path, at)
        return self._known[name]

    def _declare(self, name: str, value: str) -> Location | None:
        path = ("devices", name)
        if _BUILT_IN.fullmatch(name):
            told = f"{name!r} always names the machine's own {'host' if name == 'host' else 'GPU'}"
            self._faults.append(Diagnostic("MT203", told, path, "key", help="choose another name"))
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
        known = dict.fromkeys([*islice(self.declared, complaints.COMPARED), *map(str, self._machine.locations)])
        complaints.undeclared(self._faults, "device", name, path, known, at)
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


def _bus(text: str) -> tuple[int, ...]:
    """A bus id as numbers, so that `1b:00.0`, `0000:1b:00.0` and `00000000:1B:00.0` are one."""
    if not _BUS.fullmatch(text):
        return ()
    parts = [int(part, 16) for part in re.split(r"[:.]", text if "." in text else text + ".0")]
    return tuple([0] * (4 - len(parts)) + parts)
