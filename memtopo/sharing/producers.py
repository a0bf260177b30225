"""Producers: the holders from which a spec imports, by the sockets or commands that their names are bound to.

A spec only names its holders; `--with` or `bind` gives a socket or a command for each. On a simulated machine, holders
of external objects that are bound to nothing are simulated.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.decoding import decode, encode
from memtopo.common.errors import ExchangeError, MemtopoError, NoLayout, Unavailable, UsageError, reason
from memtopo.common.processes import python_command
from memtopo.common.signals import received_signal
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, did_you_mean, known_names
from memtopo.driver.handles import Handle
from memtopo.drivers import target
from memtopo.drivers.sim import external_api
from memtopo.geometry import Geometry
from memtopo.geometry.groups import from_outside
from memtopo.kinds.external import ExternalObject
from memtopo.kinds.external.semaphores import ImportedSemaphore
from memtopo.kinds.pinned import PinnedGroup
from memtopo.machine import Machine, MachineLine
from memtopo.plans.report import Report
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import NAME, endpoint, is_folder
from memtopo.sharing.external import ExternalExports, ExternalMemory, HostMemory, Semaphore, Serving
from memtopo.sharing.programs import ProducerProgram

Bound = str | tuple[str, ...]
"""The path of a socket, or the words of a command."""

PATIENCE = 30.0
"""Seconds that a program has until it serves."""

_DYING = 0.2
"""Seconds by which the end of a connection precedes the end of its process."""

_COMMAND = python_command("memtopo.sharing.producers:main")
_SIMULATED = (ExternalObject, ImportedSemaphore, PinnedGroup)
"""Groups whose holders are simulated, in the order in which these are started."""


def resolve(name: str, text: str) -> Bound:
    """Resolve `--with NAME=TEXT`: an existing socket, a folder with NAME.sock, else a command.

    A command is split as by a shell, and run without one.

    Raises `Unavailable` if it is neither, `UsageError` if the text cannot be split.
    """
    if _is_socket(text):
        return text
    if is_folder(text):
        return endpoint(name, text).path
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        message = f"--with {name}: {text!r} cannot be split into words: {str(error).lower()}"
        raise UsageError(message) from error
    if not words or shutil.which(words[0]) is None:
        message = f"--with {name}: there is neither a socket {text!r} nor a program {words[0] if words else ''!r}"
        try:
            os.stat(text)  # noqa: PTH116 the text may not be a valid path
        except PermissionError:
            message = f"--with {name}: {text!r} is in a folder that this user may not enter"
            hint = "hold the layout in a folder that others may enter, with --allow-uid UID"
            raise Unavailable(message, hint=hint) from None
        except (OSError, ValueError):
            pass
        raise Unavailable(message, hint="a producer that is not running yet is started by its command")
    return words


def in_folder(folder: str, names: Iterable[str]) -> dict[str, Bound]:
    """Return the sockets of holders that are in a folder, by name."""
    paths = {name: endpoint(name, folder).path for name in names if NAME.fullmatch(name)}
    return {name: path for name, path in paths.items() if _is_socket(path)}


def holders(geometry: Geometry) -> set[str]:
    """Return the names of all holders outside of a spec from which it imports."""
    every = (group for member in geometry.members.values() for group in member.every if from_outside(group))
    return {holder for group in every if group.origin for holder in group.origin.holders}


def unused(names: Iterable[str], geometry: Geometry) -> tuple[str, str] | None:
    """Return an error and its hint for the first name from which a spec imports nothing; None if it uses all."""
    known = sorted(holders(geometry))
    for name in names:
        if name not in known:
            meant = nearest(name, known[:COMPARED])
            hint = did_you_mean(meant) if meant else known_names(known, "it imports nothing from outside")
            return f"the spec imports nothing from {shorten(name)!r}", hint
    return None


PERIOD = 251
"""Byte `n` of simulated memory is `n` modulo this."""

FILLED = 16 << 20
"""Leading bytes of an object that are filled; the others are mostly 0."""

_BLOCK_PERIODS = 4096


class SimulatedMemory(Struct, frozen=True, tag=True):
    """External memory of `size` bytes on the GPU with this UUID, in hexadecimal digits."""

    name: str
    size: int
    gpu: str
    dedicated: bool

    def make(self) -> ExternalMemory:
        """Allocate and fill it."""
        fd = external_api.allocate(bytes.fromhex(self.gpu), self.size)
        for offset, block in _content(self.size):
            external_api.write(fd, offset, block)
        return ExternalMemory(fd, self.size, self.gpu, self.dedicated)


class SimulatedSemaphore(Struct, frozen=True, tag=True):
    """A semaphore, and the values that importers wait for and signal, if they do."""

    name: str
    timeline: bool
    gpu: str
    wait: int | None
    signal: int | None

    def make(self) -> Semaphore:
        """Create it, unsignalled."""
        return Semaphore(external_api.make_semaphore(timeline=self.timeline), self.timeline, self.gpu)

    def prepare(self, fd: int) -> None:
        """Signal the value that an importer waits for; reset a binary one that it signals from the importer before."""
        if self.wait is not None:
            if external_api.counter(fd) < (self.wait if self.timeline else 1):  # a timeline only increases
                external_api.signal(fd, self.wait)
        elif self.signal is not None and not self.timeline:
            external_api.wait(fd, timeout=0)


class SimulatedFile(Struct, frozen=True, tag=True):
    """Memory of the host of `size` bytes in a file."""

    name: str
    size: int

    def make(self) -> HostMemory:
        """Make a memfd that cannot shrink."""
        fd = os.memfd_create(f"memtopo-{self.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, self.size)
        for offset, block in _content(self.size):
            os.pwrite(fd, block, offset)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return HostMemory(fd, self.size)


Simulated = SimulatedMemory | SimulatedSemaphore | SimulatedFile


def _content(size: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of the bytes that are filled, by their offsets."""
    block = bytes(range(PERIOD)) * _BLOCK_PERIODS
    return ((offset, block[: size - offset]) for offset in range(0, min(size, FILLED), len(block)))


class ProducerSpec(Struct, frozen=True):
    """The exports of one holder on a simulated machine."""

    machine: str
    objects: tuple[Simulated, ...]


class SimulatedExports(ExternalExports):
    """External exports whose semaphores are prepared for each importer."""

    def __init__(self, simulated: Sequence[Simulated]) -> None:
        super().__init__({each.name: each.make() for each in simulated})
        self._semaphores = {each.name: each for each in simulated if isinstance(each, SimulatedSemaphore)}

    def handle(self, export: str, index: int) -> Handle:
        handle = super().handle(export, index)
        if semaphore := self._semaphores.get(export):
            semaphore.prepare(self.objects[export].fd)
        return handle


def simulated_serving(spec: ProducerSpec, socket: str) -> Serving:
    """Make the objects of a producer, to be served at a socket."""
    line = MachineLine(spec.machine, simulated=True, devices=(), driver="simulated")
    return Serving(endpoint(socket=socket), SimulatedExports(spec.objects), line)


def main() -> None:
    """Serve the producer of the specification on standard input at the socket in MEMTOPO_SOCKET.

    It ends at SIGTERM, and with its parent: at the end of standard input.
    """
    stopped = received_signal(signal.SIGTERM)
    spec = decode(sys.stdin.buffer.readline(), ProducerSpec)

    def stop() -> int:
        parent_died = select.select([sys.stdin], [], [], 0)[0]
        return stopped() or (signal.SIGTERM if parent_died else 0)

    try:
        simulated_serving(spec, os.environ["MEMTOPO_SOCKET"]).run(stop)
    except (MemtopoError, OSError) as error:
        sys.exit(f"memtopo: simulated producer: {reason(error) if isinstance(error, OSError) else error.message}")


def producer_specs(members: Iterable[Geometry], machine: str, gpus: Sequence[str]) -> dict[str, ProducerSpec]:
    """Return what each holder with a name must export to be simulated.

    `gpus` are UUIDs by ordinal, in hexadecimal digits. The first of several declarations counts, except for the values
    that are waited for and signalled: the highest count.
    """
    found: dict[str, dict[str, Simulated]] = {}
    produced = [group for member in members for group in member.every if group.produced and group.origin]
    for each in (group for kind in _SIMULATED for group in produced if isinstance(group, kind)):
        assert each.origin
        (holder,), name = each.origin.holders, each.origin.export
        if "/" in holder:
            continue
        objects = found.setdefault(holder, {})
        match each:
            case ExternalObject():
                objects.setdefault(name, SimulatedMemory(name, each.size, gpus[each.location.id], each.dedicated))
            case PinnedGroup():
                objects.setdefault(name, SimulatedFile(name, each.size))
            case ImportedSemaphore():
                declared = SimulatedSemaphore(name, each.timeline, gpus[each.location.id], each.wait, each.signal)
                first = objects.setdefault(name, declared)
                if isinstance(first, SimulatedSemaphore):
                    wait, signalled = _highest(first.wait, each.wait), _highest(first.signal, each.signal)
                    objects[name] = replace(first, wait=wait, signal=signalled)
    return {holder: ProducerSpec(machine, tuple(objects.values())) for holder, objects in found.items()}


class Producers(Struct, frozen=True):
    """Sockets of holders by name, and the programs that were started; those of `simulated` are memtopo's own."""

    sockets: Mapping[str, str]
    programs: Sequence[ProducerProgram] = ()
    simulated: Sequence[str] = ()

    def with_notes(self, report: Report) -> Report:
        """Return a report with notes of the simulated holders, and of programs that ended before the layout did."""
        notes = [f"{name} is simulated by a built-in producer: this machine is simulated" for name in self.simulated]
        # The end of a program may be the cause of a failure, and become visible after it.
        within = _DYING if report.exit_code else 0.0
        programs = [program for program in self.programs if program.name not in self.simulated]
        ends = [(program.name, program.end(within)) for program in programs]
        notes += [f"the program of {name} {end} while its layout was in use" for name, end in ends if end]
        return replace(report, notes=(*notes, *report.notes)) if notes else report

    def with_survivors(self, report: Report) -> Report:
        """Return a report with notes of the programs that did not end, after all were ended."""
        left = [(program.name, program.survivor) for program in self.programs]
        notes = [
            f"the program of {name} did not end when it was killed: process {pid} is left" for name, pid in left if pid
        ]
        return replace(report, notes=(*report.notes, *notes)) if notes else report


@contextmanager
def start_producers(
    geometry: Geometry,
    bound: Mapping[str, Bound],
    machine: Machine | None,
    *,
    name: str = "",
    stop: Callable[[], int] = lambda: 0,
    patience: float = PATIENCE,
) -> Iterator[Producers]:
    """Start the programs that a layout needs, and end them with the `with`; holders that it does not use are ignored.

    `machine` is the simulated machine, called `name`, if there is one: there, external objects that no process offers
    are simulated. Elsewhere a producer that is neither bound nor running is a `UsageError`. Raises `ProducerFailed` if
    a program does not serve within `patience` seconds, `Stopped`.
    """
    used = {holder: bound[holder] for holder in sorted(holders(geometry)) if holder in bound}
    sockets = {holder: path for holder, path in used.items() if isinstance(path, str)}
    programs = [ProducerProgram(holder, words) for holder, words in used.items() if not isinstance(words, str)]
    simulated: list[ProducerProgram] = []
    members = geometry.members.values()
    if machine is None:
        _require_holders(geometry, used)
    elif any(member.produced for member in members):
        specs = producer_specs(members, name, target.uuids(machine))
        missing = [holder for holder in specs if holder not in used and not _is_held(holder)]
        simulated = [simulated_program(holder, specs[holder]) for holder in missing]
    started = [*programs, *simulated]
    with ExitStack() as stack:
        try:
            for program in started:
                stack.enter_context(program)
            for program in started:
                program.wait_until_serving(stop, patience)
            sockets |= {program.name: program.socket for program in started}
            yield Producers(sockets, started, [program.name for program in simulated])
        finally:
            for program in started:  # before one is waited for: their grace periods run at the same time
                program.terminate()


def simulated_program(holder: str, spec: ProducerSpec) -> ProducerProgram:
    """Return the program of a simulated producer, which is not started yet."""
    return ProducerProgram(holder, _COMMAND, encode(spec) + b"\n")


def _require_holders(geometry: Geometry, bound: Mapping[str, Bound]) -> None:
    """Require a process for each external object, before anything is built. Raises `UsageError`."""
    for member in geometry.members.values():
        for each in (group for group in member.every if group.produced and group.origin):
            (holder,) = each.origin.holders if each.origin else ()
            if holder not in bound and "/" not in holder and not _is_held(holder):
                message = f"{each.name!r} comes from {holder!r}, which is neither bound nor running"
                hint = f"--with {holder}=/path/to/its/socket, or --with '{holder}=COMMAND'; in Python, bind="
                raise UsageError(message, hint=hint)


def _is_held(name: str) -> bool:
    """Return whether a process holds a layout of this name, even if it refuses a connection."""
    try:
        connect(endpoint(name)).close()
    except NoLayout:
        return False
    except ExchangeError:
        return True
    return True


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 the text may not be a valid path
    except (OSError, ValueError):
        return False


def _highest(*values: int | None) -> int | None:
    """Return the highest value: a timeline that has reached it has passed all others."""
    return max((value for value in values if value is not None), default=None)
