"""Replay of a record: the calls of all its processes, made in the order of time on the driver of a machine.

On real GPUs, each of several processes is a process with a driver of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from operator import attrgetter
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from memtopo.common.errors import Failed, UsageError, system_errors
from memtopo.common.processes import Broken, python_command
from memtopo.common.text import ending
from memtopo.driver.handles import Handle
from memtopo.drivers.target import Target, open_in_worker
from memtopo.machine import MachineLine
from memtopo.plans.trace import CONTEXT, MARK, TracedCall
from memtopo.records import Record, RecordedCall
from memtopo.records.calls import Exported, Memory, paired
from memtopo.records.live import ProcessMemory
from memtopo.records.player import IMPORTS, Played, Player
from memtopo.sharing.channel import Channel, Child, work_for_parent

MOST_PROCESSES = 256

_COMMAND = python_command("memtopo.records.replay:main")
_LIMIT = 60.0
"""Seconds that a call may take, and the start of a process."""

_EXIT = 5.0

TIMEOUT, PROCESS_ENDED = "TIMEOUT", "PROCESS_ENDED"
"""Ends of calls that are no errors of a driver: the process makes no others."""


class ReplayDifference(Struct, frozen=True):
    """First call that ends otherwise than in the record: with `error` where the record has none, or the other way.

    `reason` is the simulator's. `before` are the calls before it in its process.
    """

    call: TracedCall
    error: str | None
    reason: str | None
    before: tuple[TracedCall, ...]


class LeftOutCalls(Struct, frozen=True):
    """Calls of a function that were not made, with the reason."""

    function: str
    calls: int
    reason: str


class Replay(Struct, frozen=True):
    """Result of a replay: the calls that were made, those left out, and the first difference.

    `other_errors` counts calls that fail here and in the record, by the two errors.
    """

    machine: MachineLine
    record: str
    processes: int
    calls: int
    made: int
    left_out: tuple[LeftOutCalls, ...]
    other_errors: dict[str, int]
    difference: ReplayDifference | None


def replay(record: Record, target: Target) -> Replay:
    """Make the calls of a record on a machine, up to the first that ends otherwise. Raises `MemtopoError`."""
    left_out: Counter[tuple[str, str]] = Counter()
    errors: Counter[str] = Counter()
    made, difference = 0, None
    with _players(record, target) as players, closing(_Shares(record)) as shares:
        for index, each in enumerate(record.calls):
            if each.call.method == MARK or each.call.seconds is None:
                continue
            played = _play(players[each.process], each, shares)
            if played.left_out:
                left_out[each.call.call, played.left_out] += 1
                continue
            made += 1
            ended = played.error in (TIMEOUT, PROCESS_ENDED)
            if ended or (played.error is None) != (each.call.error is None):
                before = [one.call for one in record.calls[:index] if one.process == each.process]
                difference = ReplayDifference(each.call, played.error, played.reason, tuple(before[-CONTEXT:]))
                break
            if played.error != each.call.error:
                errors[f"{each.call.call}: {played.error} for {each.call.error}"] += 1
    found = tuple(LeftOutCalls(name, number, reason) for (name, reason), number in left_out.most_common())
    name = next((head.layout for head in record.heads if head.layout), "")
    return Replay(target.line, name, len(record.heads), record.made, made, found, dict(errors), difference)


def _play(player: Player | PlayerProcess, each: RecordedCall, shares: _Shares) -> Played:
    """Make one call, with the handle that another process has shared."""
    shared = shares.imported(each)
    try:
        played = player.play(each.call, shared)
    finally:
        if shared:
            with suppress(OSError):
                shared.close()
    if played.shared:
        shares.keep(each, played.shared)
    return played._replace(shared=None)


@contextmanager
def _players(record: Record, target: Target) -> Iterator[Sequence[Player | PlayerProcess]]:
    """Players of all processes: on real GPUs each of several is a process; simulators of one machine are all here."""
    gpus = record.gpus
    if len(gpus) > MOST_PROCESSES:
        raise UsageError(f"the record has {len(gpus):,} processes, and a replay at most {MOST_PROCESSES}")
    with ExitStack() as opened:
        if target.simulated or len(gpus) == 1:
            players = []
            for each in gpus:
                driver: Any = target.open()
                if target.simulated:
                    opened.callback(driver.close)
                players.append(Player(driver, each))
            yield players
        else:
            started = []
            for each in gpus:
                started.append(PlayerProcess(each))
                opened.callback(started[-1].end)
            for process in started:
                process.ready()
            yield started


_Share = tuple[int, str]
"""Object that is shared, by its identity, and the transport."""


class _Shares:
    """Handles that calls of a record share, for as long as calls import them: an open descriptor pins memory (fact 29).

    A call that imports is matched with an export of the record: by the digest of the handle, or by the object that a
    descriptor is most likely of.
    """

    def __init__(self, record: Record) -> None:
        self._exports: dict[tuple[int, int], _Share] = {}
        self._imports: dict[tuple[int, int], _Share] = {}
        self._handles: dict[_Share, Handle] = {}
        self._follow(record)
        self._left = Counter(self._imports.values())

    def imported(self, each: RecordedCall) -> Handle | None:
        """Return the handle that a call imports, which is the caller's; None if it imports none that was shared."""
        share = self._imports.get((each.process, each.call.number))
        if share is None or share not in self._handles:
            return None
        self._left[share] -= 1
        if not self._left[share]:
            return self._handles.pop(share)
        handle = self._handles[share]
        return handle if handle.fd is None else replace(handle, fd=os.dup(handle.fd))

    def keep(self, each: RecordedCall, handle: Handle) -> None:
        """Keep the handle that a call has made, if a later call imports it."""
        share = self._exports.get((each.process, each.call.number))
        if share is None or not self._left[share] or share in self._handles:
            handle.close()
        else:
            self._handles[share] = handle

    def close(self) -> None:
        """Close what was not imported."""
        for handle in self._handles.values():
            handle.close()

    def _follow(self, record: Record) -> None:
        """Find the object that each call exports or imports."""
        processes = record.processes()
        imports: list[tuple[tuple[int, int], Memory]] = []
        pools: list[Exported] = []
        for each in record.calls:
            process, key = processes[each.process], (each.process, each.call.number)
            number = len(process.exports)
            process.apply(each.call, each.time)
            if each.call.method == "mem_pool_export_to_shareable_handle":
                if pool := process.handles.get(("pools", each.call.arguments.get("pool", 0))):
                    # A spec has the export of a pool with that of its allocations.
                    pools.append(Exported(pool, "fd", None, each.time))
                    self._exports[key] = _share(pools[-1])
            elif len(process.exports) > number:
                self._exports[key] = _share(process.exports[-1])
            elif each.call.method in IMPORTS and (memory := _made(process, each.call)):
                imports.append((key, memory))
        exports = sorted([*pools, *(each for process in processes for each in process.exports)], key=attrgetter("time"))
        found = paired([(process, memory) for (process, _), memory in imports], exports)
        self._imports.update((key, _share(own)) for (key, _), own in zip(imports, found, strict=True) if own)


def _share(exported: Exported) -> _Share:
    return id(exported.memory), exported.via


def _made(process: ProcessMemory, call: TracedCall) -> Memory | None:
    """Return the object that a call has imported; None if it failed."""
    if not isinstance(call.result, int):
        return None
    kind = IMPORTS[call.method]
    return process.handles.get((kind, call.result)) if kind else process.addressed.at(call.result)


# Processes on real GPUs


class Begin(Struct, frozen=True):
    """First message to a process: the ordinals of its GPUs."""

    gpus: tuple[int, ...]


class Play(Struct, frozen=True):
    """Request to make a call; the handle that it imports is beside it."""

    call: dict[str, Any]


class Answer(Struct, frozen=True):
    """End of a call; what it shares is beside it."""

    error: str | None = None
    reason: str | None = None
    left_out: str | None = None


ToPlayer = Begin | Play
FromPlayer = Answer | Broken


class ReplayFailed(Failed):
    """A process of a replay could not be started, or ended."""


def main(descriptor: str) -> None:
    """Make the calls that come through a socket, until it is closed."""
    work_for_parent(descriptor, get_args(ToPlayer), _answer)


def _answer(channel: Channel[ToPlayer]) -> None:
    player: Player | None = None
    for received in channel:
        match received.message:
            case Begin(gpus):
                player = Player(open_in_worker(None, simulated=False, visible=()), gpus)
                channel.send(Answer())
            case Play(call):
                assert player
                played = player.play(TracedCall(**call), next(iter(received.handles), None))
                received.close()
                shared = [played.shared] if played.shared else []
                channel.send(Answer(played.error, played.reason, played.left_out), shared)


class PlayerProcess:
    """A child with the methods of a `Player`."""

    def __init__(self, gpus: Sequence[int]) -> None:
        """Start it; `ready` waits for its driver. Raises `ReplayFailed`."""
        with system_errors(ReplayFailed, "a process of the replay cannot be started"):
            self._child: Child[FromPlayer] = Child(_COMMAND, get_args(FromPlayer), Begin(tuple(gpus)))
        self.end = self._child.end

    def ready(self) -> None:
        """Wait until the driver is open. Raises `ReplayFailed`."""
        self._receive()

    def play(self, call: TracedCall, shared: Handle | None = None) -> Played:
        """Make a call there; the handle is closed here. Raises `ReplayFailed`."""
        self._child.channel.send(Play(asdict(call)), [shared] if shared else [])
        return self._receive()

    def _receive(self) -> Played:
        if not self._child.channel.wait(_LIMIT):
            return Played(TIMEOUT, f"the call has not returned after {_LIMIT:.0f} s")
        received = self._child.channel.receive()
        if received is None:
            return Played(PROCESS_ENDED, f"the process {ending(self._child.end(_EXIT))}")
        match received.message:
            case Broken(error, hint, status):
                raise ReplayFailed(f"a process of the replay failed: {error}", hint=hint, exit_code=status)
            case Answer(error, reason, left_out):
                return Played(error, reason, left_out, next(iter(received.handles), None))
