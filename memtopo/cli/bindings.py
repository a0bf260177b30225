"""What the flags of `memtopo apply` say of others: who the holders are that a spec names, and who is trusted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from memtopo.cli.signals import Interrupted
from memtopo.common.errors import UsageError
from memtopo.executor import Stopped
from memtopo.geometry import Geometry
from memtopo.machine.target import Target
from memtopo.sharing import producers
from memtopo.sharing.producers import Producers


@dataclass(frozen=True, slots=True)
class Outside:
    """Texts of `--with` by name, users that are trusted, and how many seconds others may be silent.

    A name that the spec does not use is a fault where it was `typed`, not where it is from the variable, which may be
    set for many specs.
    """

    named: Mapping[str, str]
    allow_uids: tuple[int, ...]
    silence: float
    typed: bool = False

    @contextmanager
    def producers(self, geometry: Geometry, target: Target, stop: Callable[[], int]) -> Iterator[Producers]:
        """Have everybody there that a layout takes something from. Raises `MemtopoError`, `Interrupted`."""
        if self.typed and (wrong := producers.unused(self.named, geometry)):
            raise UsageError(f"--with: {wrong[0]}", hint=wrong[1])
        used = producers.holders(geometry)
        bound = {name: producers.resolve(name, text) for name, text in self.named.items() if name in used}
        machine = target.machine if target.simulated else None
        try:
            with producers.start_producers(
                geometry, bound, machine, name=target.name, stop=stop, patience=self.silence
            ) as found:
                yield found
        except Stopped as error:
            raise Interrupted(stop()) from error


def typed(given: list[str]) -> bool:
    """Whether `--with` was written, and its values are not from the variable."""
    return given != os.environ.get("MEMTOPO_WITH", "").split()


def named(given: list[str]) -> dict[str, str]:
    """What `--with` says, by name. Raises `UsageError`."""
    found = {}
    for each in _words(given):
        name, equals, text = each.partition("=")
        if not (name and equals and text):
            hint = "write --with NAME=/path/to/socket, or --with 'NAME=COMMAND'"
            raise UsageError(f"--with {each!r} names neither a socket nor a program", hint=hint)
        found[name] = text
    return found


def _words(given: list[str]) -> list[str]:
    """The values; of MEMTOPO_WITH those that a shell would see, since the parser splits a variable at every blank."""
    if typed(given):
        return given
    try:
        return shlex.split(os.environ.get("MEMTOPO_WITH", ""))
    except ValueError as error:
        raise UsageError(f"MEMTOPO_WITH cannot be split into words: {str(error).lower()}") from error
