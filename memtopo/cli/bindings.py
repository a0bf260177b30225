"""`--with`: holders that a spec imports from, bound to sockets or to programs to start."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memtopo.cli.process import Interrupted
from memtopo.common.errors import Stopped, UsageError
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.sharing.endpoints import is_folder

if TYPE_CHECKING:  # imported where it is used: most layouts import nothing from outside
    from memtopo.sharing.producers import Producers

_VARIABLE = "MEMTOPO_WITH"


@dataclass(frozen=True, slots=True)
class Bindings:
    """Values of `--with` by name, users that are trusted, and the seconds that a holder may be silent.

    A name that the spec does not use is an error if it was `typed` on the command line; the variable may be set for
    several specs.
    """

    values: Mapping[str, str]
    allow_uids: tuple[int, ...]
    silence: float
    typed: bool = False
    folder: str | None = None
    """Folder with the sockets of holders that have no value."""

    @contextmanager
    def producers(self, geometry: Geometry, target: Target, stop: Callable[[], int]) -> Iterator[Producers]:
        """Start the producers that a layout imports from. Raises `MemtopoError`, `Interrupted`."""
        from memtopo.sharing import producers

        if self.typed and (unused := producers.unused(self.values, geometry)):
            raise UsageError(f"--with: {unused[0]}", hint=unused[1])
        used = producers.holders(geometry)
        bound = {name: producers.resolve(name, value) for name, value in self.values.items() if name in used}
        if self.folder:
            bound = producers.in_folder(self.folder, used) | bound
        machine = target.machine if target.simulated else None
        try:
            with producers.start_producers(
                geometry, bound, machine, name=target.name, stop=stop, patience=self.silence
            ) as started:
                yield started
        except Stopped as error:
            raise Interrupted(stop()) from error


def bindings(given: list[str], allow_uids: Sequence[int], silence: float, socket: str | None = None) -> Bindings:
    """The bindings of the values of `--with`, and of `--socket` if it is a folder. Raises `UsageError`."""
    typed = given != os.environ.get(_VARIABLE, "").split()
    values = dict(map(_name_and_value, given if typed else _variable()))
    return Bindings(values, tuple(allow_uids), silence, typed, socket if socket and is_folder(socket) else None)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        hint = "write --with NAME=/path/to/socket, or --with 'NAME=COMMAND'"
        raise UsageError(f"--with {text!r} names neither a socket nor a program", hint=hint)
    return name, value


def _variable() -> list[str]:
    """The values in MEMTOPO_WITH, split as by a shell; the option parser splits variables at every blank."""
    try:
        return shlex.split(os.environ.get(_VARIABLE, ""))
    except ValueError as error:
        raise UsageError(f"{_VARIABLE} cannot be split into words: {str(error).lower()}") from error
