"""One worker as the coordinator sees it: its process, its end of the conversation, and what has become of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any

from memtopo.common.text import signal_name
from memtopo.plans.report import Checks, Report
from memtopo.run.processes.link import Link
from memtopo.run.processes.messages import Briefing, unpack
from memtopo.sharing import Offer
from memtopo.sharing.wire import Packet

_EXIT = 10.0
"""Seconds that a worker's interpreter and driver have to shut down after its last word."""

_GLANCE = 0.01

# The package is found where this process found it; the working directory is not searched for one.
_ROOT = str(Path(__file__).parents[3])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from memtopo.run.processes.worker import main; main(sys.argv[1:])"
_COMMAND = (sys.executable, "-P", "-c", _START)


class Wait(Enum):
    """What a worker owes."""

    NOTHING = auto()
    READY = auto()
    DONE = auto()


class Member:
    """A worker. `lost` says how it came to an end that was not its own, `failed` what it said went wrong.

    `turns` is how many the proof has, which every worker reckons for itself, and all alike; `offers` are its exports
    once it is held, and `checks` what it found when it was last asked to look, or `unlooked` why it could not.
    `volume` is how many bytes it goes through in the turns, and `safe` whether it may have kernels do so.
    """

    def __init__(self, label: str, process: subprocess.Popen[bytes], link: Link) -> None:
        self.label, self.process, self.link = label, process, link
        self.wait = Wait.READY
        self.as_declared = True
        self.turns = self.volume = 0
        self.safe = True
        self.offers: tuple[Offer, ...] = ()
        self.report: Report | None = None
        self.checks: Checks | None = None
        self.unlooked: str | None = None
        self.failed: str | None = None
        self.hint: str | None = None
        self.exit_code = 4
        self.lost: str | None = None
        self.gone = False
        self.doing = "starting"
        self.asking = False
        self.owing = 0
        self._heard = self._told = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether it is this one that the others wait for: it has something to do, and does not itself wait for one."""
        return not self.over and (self.owing > 0 or (self.wait is not Wait.NOTHING and not self.asking))

    @property
    def over(self) -> bool:
        """Whether it is not at work any more."""
        return self.gone or self.failed is not None or self.lost is not None or self.report is not None

    def waits_for(self, what: Wait) -> bool:
        """Whether the coordinator waits for it to be ready, or done."""
        return self.wait is what and not self.over

    def brief(self, briefing: Briefing) -> None:
        """Tell it who it is."""
        self.link.send({"do": "begin"}, [briefing.pack()])

    def tell(self, do: str, **fields: Any) -> None:
        """Tell it to do something, and wait for it from now on."""
        self.wait, self._heard = Wait.DONE, time.monotonic()
        self.checks = self.unlooked = None
        self.doing = str(fields.get("phase", do))
        self.link.send({"do": do, **fields})

    def tell_down(self) -> None:
        """Tell it to take down; the signal is for one that is in the middle of many steps."""
        self._heard = time.monotonic()
        self.link.send({"do": "down"})
        if self.wait is not Wait.NOTHING and not self.gone:
            self._signal(signal.SIGTERM)

    def reassure(self, seconds: float) -> None:
        """Show it that the coordinator is alive, if it was not spoken to for so long."""
        now = time.monotonic()
        if not self.gone and not self.link.waiting and now - self._told > seconds:
            self._told = now
            self.link.send({"do": "alive"})

    def take(self, packet: Packet | None) -> int:
        """Note what it says of itself; gives the number of steps that it has done meanwhile."""
        self._heard = time.monotonic()
        if packet is None:
            self._ended()
            return 0
        message = packet.message
        if "ready" in message or "done" in message:
            self.wait = Wait.NOTHING
            self.turns, self.volume = message.get("turns", self.turns), message.get("volume", self.volume)
            self.safe = self.safe and bool(message.get("safe", True))
            self.as_declared = self.as_declared and bool(message.get("same", True))
        elif "failed" in message:
            self.failed = str(message["failed"])
        elif "broken" in message:
            self.failed, self.hint, self.exit_code = str(message["broken"]), message["hint"], int(message["exit"])
        elif "offers" in message and packet.fds:
            self.offers = unpack(tuple[Offer, ...], packet.fds.pop())
        elif "checks" in message:
            self.wait, self.unlooked = Wait.NOTHING, message.get("error")
            self.checks = unpack(Checks, packet.fds.pop()) if packet.fds else None
        elif "report" in message and packet.fds:
            self.report = unpack(Report, packet.fds.pop())
        packet.close()
        return int(message.get("progress", 0))

    def asked(self) -> None:
        """It asks a sibling for something, and cannot go on until it has it."""
        self.asking = True

    def owes(self) -> None:
        """A sibling waits for an answer of this one."""
        self.owing += 1
        self._heard = time.monotonic()

    def answered(self) -> None:
        """One answer less that it owes."""
        self.owing -= 1

    def served(self) -> None:
        """It has what it asked for."""
        self.asking, self._heard = False, time.monotonic()

    def silent(self, seconds: float) -> bool:
        """Whether nothing has been heard of it for so long."""
        return time.monotonic() - self._heard > seconds

    def kill(self, why: str) -> None:
        """Put an end to it: SIGKILL ends a stopped process too."""
        self.lost = self.lost or why
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing of it behind, whatever state it is in."""
        self.link.close()
        if not self.gone:
            self._reap(0.0)

    def _ended(self) -> None:
        self.gone = True
        status = self._reap(_EXIT)
        if self.report is None and (self.failed is None or status):
            how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
            self.lost = f"{self.lost} and {how}" if self.lost else how

    def _signal(self, number: signal.Signals) -> None:
        # Not by Popen, which may look for its end first: from then on its number may be another's.
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def _reap(self, seconds: float) -> int:
        """Its status, once it has ended; it has so many seconds for that, and is killed then."""
        self._await_exit(seconds)
        _sweep(self.process.pid)
        return self.process.wait()

    def _await_exit(self, seconds: float) -> None:
        """Wait for its end without taking note of it."""
        until = time.monotonic() + seconds
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= until:
                self._signal(signal.SIGKILL)
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
                return
            time.sleep(_GLANCE)


def _sweep(pid: int) -> None:
    """Remove what the driver leaves of a process that was killed while it had events for others (fact 49).

    Nobody has waited for the process yet, so that its number is not another's.
    """
    for file in Path("/dev/shm").glob(f"cuda.shm.{os.geteuid():x}.{pid:x}.*"):  # noqa: S108 the driver's choice
        file.unlink(missing_ok=True)


def launch(label: str, gates: Sequence[int], environment: Mapping[str, str], command: Sequence[str]) -> Member:
    """Start a worker: spawned, never forked from a process that has a driver (fact 33)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    arguments = [*(command or _COMMAND), *map(str, (theirs.fileno(), *gates))]
    # Ctrl-C reaches the workers too, and before they have said that they leave it to the coordinator.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(  # noqa: S603 the interpreter that runs this, and no shell
            arguments,
            pass_fds=(theirs.fileno(), *gates),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return Member(label, process, Link(ours))
