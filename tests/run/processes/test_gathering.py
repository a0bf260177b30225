"""Processes that come to be those of one layout, and are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from uuid import UUID

import pytest

from memtopo.common import __version__
from memtopo.common.errors import MemtopoError
from memtopo.drivers import target
from memtopo.language import SpecText, read_file
from memtopo.run.processes.gathering import Gathering, Join, Joining, NotComplete
from memtopo.session.composition import Composition
from memtopo.sharing.channel import Channel
from tests.helpers.specs import ROOT
from tests.helpers.specs import document as in_a_spec

SPEC = ROOT / "specs" / "tensor-parallel-server.yaml"
NOBODY = 65534
STRANGER = f"""
import os, socket, sys
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.connect("\\0" + sys.argv[1])
    print(sock.recv(1 << 16).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_told_and_not_waited_for() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0memtopo-gathering-{os.getpid()}")
        listener.listen()
        command = [sys.executable, "-c", STRANGER, listener.getsockname()[1:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
            with pytest.raises(NotComplete, match=r"any process did not join within 3 s$"):
                Gathering(3.0, lambda: 0).wait(listener)
            out, _ = stranger.communicate()
    assert "the layout belongs to uid 0" in out


@contextmanager
def gathered(*seen: Sequence[str], text: str = "") -> Iterator[Gathering]:
    """Two processes of the layout, by default of SPEC, which see GPUs by their UUIDs."""
    document = in_a_spec(text) if text else read_file(str(SPEC))
    found = Gathering(1.0, lambda: 0)
    with socket.socket() as sock:
        channel: Channel[Join] = Channel(sock, (Join,))
        for rank, gpus in enumerate(seen):
            label = f"rank.{rank}"
            request = Join(__version__, label, SpecText.of(document), "local", None, tuple(gpus), "fast", 1.0)
            found.joined[label] = Joining(100 + rank, channel, request, document)
        yield found


TWO = target.resolve("h200x2")
FIRST, SECOND = target.uuids(TWO.machine)
LACKING = "rank.0 (process 100) uses gpu0, which it does not see"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (([FIRST], [SECOND]), {"rank.0": (0,), "rank.1": (1,)}),
        (([FIRST, SECOND], [SECOND, FIRST]), {"rank.0": (), "rank.1": (1, 0)}),
        (([SECOND], [SECOND]), LACKING),
        (([SECOND], [FIRST]), f"{LACKING}; rank.1 (process 101) has it"),
    ],
)
def test_each_process_has_the_gpus_of_its_part_or_all_are_told_which_other_one_does(
    seen: Sequence[Sequence[str]], expected: Mapping[str, Sequence[int]] | str
) -> None:
    composition = Composition.of(read_file(str(SPEC)), TWO)
    with gathered(*seen) as found:
        try:
            answer: object = found.visible(composition)
        except NotComplete as error:
            answer = error.message
    assert answer == expected


@pytest.mark.parametrize(
    ("seen", "visible"), [(([SECOND], [SECOND]), f"GPU-{UUID(SECOND)}"), (([FIRST], [SECOND]), None)]
)
def test_the_machine_has_the_gpus_that_all_processes_see_or_all_gpus(
    monkeypatch: pytest.MonkeyPatch, seen: Sequence[Sequence[str]], visible: str | None
) -> None:
    """Whatever the process sees that has started the coordinator."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{UUID(FIRST)}")
    with gathered(*seen) as found, suppress(MemtopoError):  # there may be no such GPUs here
        found._composed()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_a_process_has_to_see_each_gpu_of_its_part() -> None:
    text = "processes: {rank: {count: 2, chunks: {a: {location: gpu0, size: 2MiB}, b: {location: gpu1, size: 2MiB}}}}"
    composition = Composition.of(in_a_spec(text), TWO)
    with gathered([FIRST, SECOND], [FIRST], text=text) as found:
        with pytest.raises(NotComplete) as refused:
            found.visible(composition)
        assert refused.value.message.startswith("rank.1 (process 101) uses gpu1, which it does not see")


def test_processes_that_have_read_different_specs_from_one_file_make_no_layout() -> None:
    """It was written anew between their starts."""
    found = Gathering(1.0, lambda: 0)
    with socket.socket() as sock:
        channel: Channel[Join] = Channel(sock, (Join,))
        for rank, size in enumerate(("2MiB", "4MiB")):
            document = in_a_spec(f"processes: {{rank: {{count: 2, chunks: {{a: {{location: gpu0, size: {size}}}}}}}}}")
            request = Join(__version__, f"rank.{rank}", SpecText.of(document), "local", None, (FIRST,), "fast", 1.0)
            with pytest.raises(NotComplete, match="has another spec, sha256:") if rank else nullcontext():
                found._join(Joining(100 + rank, channel, request, document))
