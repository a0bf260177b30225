"""Processes of a replay on real GPUs: each has a driver of its own, and makes the calls of one of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import asdict

from memtopo.common.errors import Failed, system_errors
from memtopo.common.processes import Broken, python_command
from memtopo.common.text import ending
from memtopo.driver.handles import Handle
from memtopo.drivers import target
from memtopo.plans.trace import TracedCall
from memtopo.records.player import Played, Player
from memtopo.sharing.channel import Channel, Child, work_for_parent

_COMMAND = python_command("memtopo.records.replay_process:main")
_LIMIT = 60.0
"""Seconds that a call may take, and the start of a process."""

_EXIT = 5.0

TIMEOUT, PROCESS_ENDED = "TIMEOUT", "PROCESS_ENDED"
"""Ends of calls that are no errors of a driver: the process makes no others."""


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
                player = Player(target.open_in_worker(None, simulated=False, visible=()), gpus)
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
