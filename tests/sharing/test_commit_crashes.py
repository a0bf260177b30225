"""Writers and readers that are killed at each message of the protocol, and many of them at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memtopo.drivers.target import recorded
from memtopo.kinds.layout import current
from memtopo.sharing.holder import MOST_CLIENTS
from memtopo.sharing.holder.clients import SPARE
from tests.helpers.child_process import PATIENCE
from tests.helpers.held_layouts import Held, held
from tests.helpers.holders import asked, heard, raw, until
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.sharing.test_commits import begin, code, commit, read, spec, states

PROGRAM = """
import json, os, signal, socket, sys
path, requests, last_is_read = json.loads(sys.argv[1])
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(path)
for number, request in enumerate(requests, 1):
    if request["request"] == "commit":  # of the generation of its handles
        request["exports"][0]["generation"] = generation
    sock.send(json.dumps(request).encode())
    if number < len(requests) or last_is_read:
        answer, _, _, _ = socket.recv_fds(sock, 65536, 253)
        generation = json.loads(answer)["ok"].get("generation")
os.kill(os.getpid(), signal.SIGKILL)
"""


def packet(request: str, **fields: Any) -> dict[str, Any]:
    return {"memtopo": 1, "request": request, **fields}


HANDLES = [packet("handles", export="weights", first=index, count=1) for index in range(2)]
READER = [packet("status"), packet("offers", first=0), packet("await", exports=["weights"], wait=PATIENCE), *HANDLES]
WRITER = [
    *READER[:2],
    packet("write", exports=["weights"], wait=PATIENCE),
    *HANDLES,
    packet("commit", exports=[{"name": "weights", "generation": 1}]),
]
CRASHES = [(count, is_read) for count in range(len(WRITER) + 1) for is_read in (False, True)]


@pytest.fixture
def layout(runtime: Path) -> Iterator[Held]:
    with held(spec(), recorded("invented", invented(1))) as found:
        yield found


@pytest.fixture
def path(runtime: Path, layout: Held) -> str:
    return str(runtime / "memtopo" / "kv.sock")


def kill_after(path: str, requests: list[dict[str, Any]], *, last_is_read: bool) -> None:
    """Run a client that sends these requests, and is killed before or after it has read the last answer."""
    argument = json.dumps([path, requests, last_is_read])
    done = subprocess.run([sys.executable, "-S", "-c", PROGRAM, argument], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def free_bytes(layout: Held) -> int:
    """Free memory of the GPU."""
    execution = layout.run.execution
    with current(execution.driver, execution.layout.contexts[0]):
        return execution.driver.mem_get_info()[0]


def generation(path: str) -> int:
    with raw(path) as sock:
        return int(asked(sock, "status")["ok"]["generation"])


@pytest.mark.parametrize(("count", "last_is_read"), CRASHES)
def test_a_writer_killed_at_any_message_leaves_all_or_nothing(
    layout: Held, path: str, count: int, last_is_read: bool
) -> None:
    layout.write("w", b"half")
    kill_after(path, WRITER[:count], last_is_read=last_is_read)
    with raw(path) as sock:
        until(lambda: states(sock)["weights"] != "writing")
        assert asked(sock, "importers", after=0)["ok"]["importers"] == []
        if states(sock)["weights"] == "committed":
            assert WRITER[:count] == WRITER
            assert layout.bytes_of("w", 0, 4) == b"half"
        else:
            assert code(read(sock)) == "uncommitted"
            assert not (count == len(WRITER) and last_is_read)
            begin(sock, "write")
            answer = heard(sock)
            assert answer
            now = answer.message["ok"]["generation"]
            assert (layout.bytes_of("w", 0, 4) == b"half") == (now == 1)
            if now == 1:  # it had no lease, and so no handle
                assert count < 4
            assert "ok" in commit(sock, now)
        assert len(read(sock)["ok"]["handles"]) == 2
        assert asked(sock, "check")["ok"]["different"] == 0


@pytest.mark.parametrize(("count", "last_is_read"), [each for each in CRASHES if each[0] <= len(READER)])
def test_a_reader_killed_at_any_message_leaves_nothing(layout: Held, path: str, count: int, last_is_read: bool) -> None:
    with raw(path) as writer:
        begin(writer, "write")
        assert heard(writer)
        layout.write("w", b"all of it")
        assert "ok" in commit(writer)
    kill_after(path, READER[:count], last_is_read=last_is_read)
    with raw(path) as sock:
        until(lambda: asked(sock, "importers", after=0)["ok"]["importers"] == [])
        assert states(sock)["weights"] == "committed"
        assert layout.bytes_of("w", 0, 9) == b"all of it"
        assert generation(path) == 1
        assert asked(sock, "check")["ok"]["different"] == 0


def test_two_hundred_readers_get_what_one_writer_commits(layout: Held, path: str) -> None:
    """Afterwards there is no descriptor and no thread of them left, and no importer."""
    with raw(path) as writer:
        begin(writer, "write")
        assert heard(writer)
        read(writer)
        before, threads = open_descriptors(), threading.active_count()
        with ExitStack() as stack:
            readers = [stack.enter_context(raw(path)) for _ in range(200)]
            for each in readers:
                begin(each, "await")
            assert "ok" in commit(writer)
            for each in readers:
                answer = heard(each)
                assert answer
                assert answer.message["ok"]["exports"] == ["weights"]
                assert len(read(each)["ok"]["handles"]) == 2
            page = asked(writer, "importers", after=0)["ok"]
            assert page["more"] or len(page["importers"]) == 201
        until(lambda: open_descriptors() <= before)
        assert threading.active_count() == threads
        assert len(asked(writer, "importers", after=0)["ok"]["importers"]) == 1


@pytest.mark.parametrize("rounds", [200, pytest.param(10_000, marks=pytest.mark.exhaustive(seconds=5))])
def test_rounds_of_attaching_and_releasing_leave_nothing(layout: Held, path: str, rounds: int) -> None:
    """No descriptor, no thread, no importer, and no byte of memory."""
    with raw(path) as writer:
        begin(writer, "write")
        assert heard(writer)
        read(writer)
        assert "ok" in commit(writer)
        before, threads, free = open_descriptors(), threading.active_count(), free_bytes(layout)
        for _ in range(rounds):
            with raw(path) as reader:
                begin(reader, "await")
                assert heard(reader)
                assert len(read(reader)["ok"]["handles"]) == 2
        until(lambda: open_descriptors() <= before)
        assert threading.active_count() == threads
        assert len(asked(writer, "importers", after=0)["ok"]["importers"]) == 1
        assert free_bytes(layout) == free


def test_readers_that_wait_leave_connections_for_their_writer(layout: Held, path: str) -> None:
    with ExitStack() as stack:
        for _ in range(MOST_CLIENTS - SPARE):
            begin(stack.enter_context(raw(path)), "await")
        with raw(path) as late:
            begin(late, "await")
            answer = heard(late)
        assert answer
        assert code(answer.message) == "full"
        writer = stack.enter_context(raw(path))
        begin(writer, "write")
        granted = heard(writer)
        assert granted
        assert "ok" in granted.message
        assert "ok" in commit(writer)


def test_readers_whose_wait_is_over_leave_their_connections_to_importers(layout: Held, path: str) -> None:
    with ExitStack() as stack:
        for _ in range(MOST_CLIENTS - SPARE):
            sock = stack.enter_context(raw(path))
            begin(sock, "await", 0.0)
            answer = heard(sock)
            assert answer
            assert code(answer.message) == "uncommitted"
        with raw(path) as importer:
            assert "ok" in asked(importer, "handles", export="cache", first=0, count=1)
