"""Processes of a replay on real GPUs: each has a driver of its own, and makes the calls of one of the record."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, get_args

from msgspec import Struct
from msgspec.structs import asdict

from memtopo.common.errors import Exit, MemtopoError, system_errors
from memtopo.common.processes import inherited_socket, python_command, signal_on_parent_death, spawn_connected
from memtopo.common.text import printable, signal_name
from memtopo.driver.handles import Handle
from memtopo.drivers import target
from memtopo.plans.trace import TracedCall
from memtopo.records.player import Played, Player
from memtopo.sharing.channel import Channel

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


class Broken(Struct, frozen=True):
    """The process ends by an exception, of memtopo if it has an exit status."""

    error: str
    hint: str | None = None
    status: int = Exit.BUG


ToPlayer = Begin | Play
FromPlayer = Answer | Broken


class ReplayFailed(MemtopoError):
    """A process of a replay could not be started, or ended."""

    def __init__(self, message: str, *, hint: str | None = None, status: int = Exit.FAILED) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = status


def main(descriptor: str) -> None:
    """Make the calls that come through a socket, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the other end
    signal_on_parent_death(signal.SIGKILL)
    channel: Channel[ToPlayer] = Channel(inherited_socket(descriptor), get_args(ToPlayer))
    try:
        _answer(channel)
    except MemtopoError as error:
        channel.send(Broken(error.message, error.hint, error.exit_code))
    except Exception as error:  # noqa: BLE001 reported by the replay; a traceback here would be lost
        channel.send(Broken(printable(f"{type(error).__name__}: {error}")))
    channel.drain(_EXIT)


def _answer(channel: Channel[ToPlayer]) -> None:
    player: Player | None = None
    while channel.wait() and (received := channel.receive()):
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
    """A process at the other end of a channel, with the methods of a `Player`."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel[FromPlayer]) -> None:
        self._process, self._channel = process, channel

    @classmethod
    def launch(cls, gpus: Sequence[int]) -> Self:
        """Start a process; `ready` waits for its driver. Raises `ReplayFailed`."""
        with system_errors(ReplayFailed, "a process of the replay cannot be started"):
            process, sock = spawn_connected(_COMMAND)
        channel: Channel[FromPlayer] = Channel(sock, get_args(FromPlayer))
        channel.send(Begin(tuple(gpus)))
        return cls(process, channel)

    def ready(self) -> None:
        """Wait until the driver is open. Raises `ReplayFailed`."""
        self._receive()

    def play(self, call: TracedCall, shared: Handle | None = None) -> Played:
        """Make a call there; the handle is closed here. Raises `ReplayFailed`."""
        self._channel.send(Play(asdict(call)), [shared] if shared else [])
        return self._receive()

    def end(self) -> None:
        """End the process, and with it all that it has."""
        self._channel.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT)

    def _receive(self) -> Played:
        if not self._channel.wait(_LIMIT):
            return Played(TIMEOUT, f"the call has not returned after {_LIMIT:.0f} s")
        received = self._channel.receive()
        if received is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT)
            status = self._process.poll()
            ended = signal_name(-status) if status is not None and status < 0 else f"status {status}"
            return Played(PROCESS_ENDED, f"the process ended with {ended}")
        match received.message:
            case Broken(error, hint, status):
                raise ReplayFailed(f"a process of the replay failed: {error}", hint=hint, status=status)
            case Answer(error, reason, left_out):
                return Played(error, reason, left_out, next(iter(received.handles), None))
