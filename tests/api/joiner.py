"""A process of a layout that executes the requests of a test: one line of JSON each, a method with its arguments."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

import memtopo
from memtopo.common.errors import MemtopoError
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.target import resolve
from memtopo.kinds.layout import current
from memtopo.output import json as output
from memtopo.run.processes.member import Member
from tests.helpers.holders import until
from tests.helpers.processes import print_json


def main(arguments: dict[str, Any]) -> None:
    """Join, as the launcher's rank if no process is named; answer each line of the standard input; leave at its end."""
    lost: list[str] = []
    seen: list[list[Any]] = []
    if arguments.pop("callback", False):
        arguments["on_lost"] = lost.append
    if kill := arguments.pop("kill", None):
        Member.wrap = staticmethod(lambda _process, driver: Killing(driver, *kill))
    if beside_held := arguments.pop("kill_beside_held", None):
        machine = resolve(arguments["machine"])
        arguments["machine"] = replace(machine, _opener=lambda: Killing(machine.open(), *beside_held))
    began = time.monotonic()
    arguments["process"] = arguments["process"] or memtopo.rank()
    if uid := arguments.pop("uid", 0):
        become(uid)
    try:
        with memtopo.join(**arguments) as layout:
            layout.on_change = lambda notice: seen.append([notice.kind, notice.state, layout.state])
            say(ranges={name: each.address for name, each in layout.ranges.items()})
            while line := sys.stdin.readline():
                method, *given = json.loads(line)
                try:
                    answer = ACTIONS.get(method, call)(layout, method, given)
                    now = {"state": layout.state, "generation": layout.generation, "over": layout.over}
                    say(answer=answer, **now, lost=lost, seen=seen)
                except MemtopoError as error:
                    process = {name: getattr(error, name) for name in ("role", "pid") if hasattr(error, name)}
                    say(error=type(error).__name__, message=str(error), over=layout.over, **process)
        say(report=report(layout.report))
    except MemtopoError as error:
        found = getattr(error, "report", None)
        took = time.monotonic() - began
        say(error=type(error).__name__, message=str(error), report=found and report(found), took=took)


class Killing(Forwarder):
    """A driver whose `at`-th call kills a process: this one, or the coordinator or holder of its layout."""

    def __init__(self, driver: Any, lock: str, at: int) -> None:
        self._lock, self._at, self._calls = lock, at, 0
        self.close, self.lend = getattr(driver, "close", None), getattr(driver, "lend", None)
        super().__init__(driver)

    def _wrap(self, _method: str, call: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            self._calls += 1
            if self._calls == self._at:
                lock = Path(self._lock)
                os.kill(int(re.findall("process ([0-9]+)", lock.read_text())[0]) if self._lock else os.getpid(), 9)
            return call(*given, **named)

        return counted


def become(uid: int) -> None:
    """Become another user, which may not read the modules that joining loads."""
    rank = {"count": "1", "ranges": {"r": {"size": "2MiB"}}}
    with memtopo.join({"memtopo": 1, "name": "alone", "processes": {"rank": rank}}, "rank.0", "h200x2"):
        pass
    os.setresuid(uid, uid, uid)


def report(found: Any) -> Any:
    return json.loads(output.dumps(asdict(found)))


def call(layout: Any, method: str, given: list[Any]) -> Any:
    found = getattr(layout, method)(*given)
    return getattr(found, "different", getattr(found, "state", None))


def idle(layout: Any, _method: str, _given: list[Any]) -> None:
    """Wait within `idle` for a line of standard input."""
    with layout.idle():
        say(idle=True)
        sys.stdin.readline()


def idle_until_over(layout: Any, _method: str, _given: list[Any]) -> None:
    """Wait within `idle` until the layout can only be taken down."""
    with layout.idle():
        say(idle=True)
        until(lambda: layout.over)


def pending(layout: Any, _method: str, given: list[Any]) -> None:
    """Wait for a message, by default that another process has requested something, without receiving it."""
    member, kind = layout._member, "".join(given or ["Attend"]).encode()
    with socket.socket(fileno=os.dup(member._channel.fileno())) as messages:

        def requested() -> bool:
            peeked = messages.recv(1 << 16, socket.MSG_PEEK) if member.wait(1.0) else b""
            if peeked and kind not in peeked:
                assert member._receive_command() is None, "this is no heartbeat"
            return kind in peeked

        until(requested)


def refuse(layout: Any, _method: str, given: list[Any]) -> Any:
    """Poll with a function that raises when it is called with a notice."""

    def refuse_notice(_notice: object) -> None:
        raise MemtopoError("not now")

    before, layout.on_change = layout.on_change, refuse_notice
    try:
        return call(layout, "poll", given)
    finally:
        layout.on_change = before


def keep(layout: Any, _method: str, given: list[Any]) -> None:
    """Keep a view of a range, or of an allocation in a heap."""
    name, *address = given
    layout.kept = layout.heap(name).view(*address) if address else layout.range(name)


def kept(layout: Any, _method: str, _given: list[Any]) -> str:
    """Return why the view that was kept is invalid; nothing if it is valid."""
    view, layout.kept = layout.kept, None
    try:
        view.__dlpack__()
    except BufferError as error:
        return str(error)
    return ""


def write(layout: Any, _method: str, given: list[Any]) -> None:
    name, value = given
    set_bytes(layout, layout.range(name), layout.address(name), value)


def read(layout: Any, _method: str, given: list[Any]) -> list[int]:
    (name,) = given
    return bytes_of(layout, layout.range(name), layout.address(name))


def set_bytes(layout: Any, view: Any, address: int, value: int) -> None:
    """Write a byte to the memory of a view, by the driver, which can on a GPU, too."""
    session = layout._session
    with current(session.driver, session.layout.contexts[int(view.device.removeprefix("gpu"))]):
        session.driver.memset_d8(address, value, view.size)


def bytes_of(layout: Any, view: Any, address: int) -> list[int]:
    """Return the bytes that are in the memory of a view."""
    session = layout._session
    with current(session.driver, session.layout.contexts[int(view.device.removeprefix("gpu"))]):
        return sorted({*session.driver.memcpy_dtoh(address, view.size)[:: 1 << 12]})


def elastic(layout: Any, _method: str, given: list[Any]) -> Any:
    """Call a method of an elastic range."""
    name, method, *arguments = given
    if method == "seal":
        *arguments, key = arguments
        return layout.range(name).seal(*arguments, key=key)
    return getattr(layout.range(name), method)(*arguments)


def fill(layout: Any, _method: str, given: list[Any]) -> None:
    """Write a byte to a part of an elastic range."""
    name, offset, size, value = given
    found = layout.range(name)
    set_bytes(layout, found.view(offset, size), found.address + offset, value)


def part(layout: Any, _method: str, given: list[Any]) -> list[int]:
    """Return the bytes that are in a part of an elastic range."""
    name, offset, size = given
    found = layout.range(name)
    return bytes_of(layout, found.view(offset, size), found.address + offset)


def allocate(layout: Any, _method: str, given: list[Any]) -> int:
    """Allocate in a heap."""
    name, size = given
    return int(layout.heap(name).allocate(size))


def fork(_layout: Any, _method: str, _given: list[Any]) -> int:
    """Fork a child that lives on, with this process's descriptors but the standard streams, and return it."""
    child = os.fork()
    if not child:
        for stream in range(3):
            os.close(stream)
        signal.pause()
    return child


def leave_in_child(_layout: Any, _method: str, _given: list[Any]) -> tuple[str, int]:
    """Fork a child that opens files and leaves the layout; return whether its files are unchanged, and its status."""
    read, write = os.pipe()
    if child := os.fork():
        os.close(write)
        with os.fdopen(read) as answer:
            return answer.read(), os.waitpid(child, 0)[1]
    files = {os.memfd_create(str(number)): number for number in range(8)}

    def compare() -> None:
        names = [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in files]
        os.write(write, str(names == [f"/memfd:{number} (deleted)" for number in files.values()]).encode())

    atexit.register(compare)
    sys.exit(0)


def absent(layout: Any, _method: str, _given: list[Any]) -> list[str]:
    return sorted(layout.absent)


def done(_layout: Any, _method: str, _given: list[Any]) -> None:
    """Nothing: the answer has the state."""


ACTIONS = {
    "absent": absent, "allocate": allocate, "done": done, "elastic": elastic, "fill": fill, "fork": fork, "idle": idle,
    "idle_until_over": idle_until_over, "keep": keep, "kept": kept, "leave_in_child": leave_in_child, "part": part,
    "pending": pending, "read": read, "refuse": refuse, "write": write,
}  # fmt: skip


def say(**fields: Any) -> None:
    print_json(fields)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
