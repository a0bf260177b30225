"""The C program of examples/c, built without NVIDIA's headers and run without a driver."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.sharing import wire
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.api.child_process import Process
from tests.api.test_dmabuf import SPEC as NIC
from tests.api.test_following import SPEC, M
from tests.api.test_gpu_sharing import fnv
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import ROOT, environment
from tests.helpers.held_layouts import held

SOURCE = ROOT / "examples" / "c"
pytestmark = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("make")), reason="needs a C compiler and make")
OFFER = {
    "name": "pages", "kind": "chunk", "via": "fd", "count": 2, "size": 4096, "location": "gpu0", "gpu": "ab" * 16,
    "properties": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda that maps the simulator's memory."""
    folder = tmp_path_factory.mktemp("libcuda")
    source = ROOT / "tests" / "helpers" / "libcuda.c"
    command = ["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def env(libcuda: Path, runtime: Path, machine: Target) -> dict[str, str]:
    """Environment of the program on a simulated GPU."""
    gpu = target.uuids(machine.machine)[0]
    return environment(XDG_RUNTIME_DIR=str(runtime), LD_LIBRARY_PATH=str(libcuda), SIMULATED_GPU=gpu)


@pytest.fixture(scope="module")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built with warnings as errors, and with sanitizers where the compiler has them.

    AddressSanitizer reserves terabytes of addresses, which a limit of the process may forbid.
    """
    build = tmp_path_factory.mktemp("c")
    flags = "CFLAGS=-O1 -g -Werror"
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    sanitized = ["make", "-C", str(SOURCE), f"BUILD={build}", f"{flags} -fsanitize=address,undefined"]
    # Not every compiler comes with sanitizers.
    if limited or subprocess.run(sanitized, check=False, capture_output=True).returncode:
        subprocess.run(["make", "-C", str(SOURCE), f"BUILD={build}", flags], check=True, capture_output=True)
    return build / "attach"


def run(attach: Path, runtime: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program; libcuda is absent unless the machine has a GPU."""
    env = environment(XDG_RUNTIME_DIR=str(runtime))
    return subprocess.run(
        [str(attach), *map(str, words)], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def _no_driver() -> bool:
    try:
        import ctypes

        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


@pytest.mark.skipif(not _no_driver(), reason="there is a driver, which is asked")
def test_the_client_reports_a_missing_libcuda_after_receiving_a_descriptor(
    attach: Path, start: Callable[..., Process], runtime: Path
) -> None:
    """It finds the layout by name and by path."""
    holder = start(spec="specs/hold.yaml", machine="h200x2")
    for where in ("kv-store", runtime / "memtopo" / "kv-store.sock"):
        done = run(attach, runtime, where, "pages.31")
        assert "pages: 32 x 2097152 bytes via fd on GPU" in done.stdout
        assert "descriptor of pages.31 received" in done.stdout
        assert "no libcuda" in done.stderr
        assert done.returncode == 1
    assert holder.end()[0]["handles"] == 2


def test_the_client_reports_missing_layouts_exports_and_handles(
    attach: Path, start: Callable[..., Process], runtime: Path
) -> None:
    """And an export over ipc, and wrong usage; it ends in order."""
    assert "no holder answers" in run(attach, runtime, "kv-store", "pages").stderr
    start(spec="specs/hold.yaml", machine="h200x2")
    assert "there is no export 'page'" in run(attach, runtime, "kv-store", "page").stderr
    assert "has 32 handles" in run(attach, runtime, "kv-store", "pages.32").stderr
    assert "over fd alone" in run(attach, runtime, "kv-store", "lengths").stderr
    assert run(attach, runtime, "kv-store").returncode == 2
    linked = runtime / "linked.sock"
    linked.symlink_to(runtime / "memtopo" / "kv-store.sock")
    assert "no holder answers" in run(attach, runtime, linked, "pages").stderr


@contextmanager
def saying(path: Path, *answers: Any) -> Iterator[None]:
    """A holder that sends these answers to any request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                for answer in answers:
                    sock.recv(65536)
                    sock.send(answer if isinstance(answer, bytes) else wire.encode(answer))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(30)


OFFERS = {"ok": {"total": 1, "offers": [OFFER]}}
NOTICE = {"notice": "releasing", "grace": 5.0}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"[]"], "no packet"),
        ([b'{"memtopo":1,"ok":{"total":1,"offers":[{'], "no packet"),
        ([b'{"memtopo":1,"ok":{}} and more'], "no packet"),
        ([b'{"memtopo":1' + b"[" * 100], "no packet"),
        ([b'{"memtopo":1,"ok":"' + b"\\"], "no packet"),
        ([b'{"memtopo":2,"ok":{}}'], "no packet"),
        ([b'{"memtopo":1,"ok":{"total":99999999999999999999,"offers":[{}]}}'], "no export"),
        ([{"ok": {"total": 5, "offers": []}}], "no export"),
        ([{"ok": {"total": 5, "offers": {"name": "pages"}}}], "no export"),
        ([{"ok": {"total": 1, "offers": [{**OFFER, "name": "p" * 1000}]}}], "no export"),
        ([{"ok": {"total": 1, "offers": [{**OFFER, "size": -4}]}}], "no export"),
        ([{"ok": {"total": 1, "offers": [{**OFFER, "size": 1.5}]}}], "no export"),
        ([{"error": {"code": "full", "message": "too many", "hint": None}}], "refuses: too many"),
        ([{"error": {"code": "full"}}], "refuses: ?"),
        ([OFFERS, {"ok": {"offer": OFFER, "first": 0, "handles": []}}], "0 descriptors"),
        ([OFFERS], "attach: "),
        ([], "attach: "),
        ([b'{"memtopo" : 1 , "x":[1,{"ok":3}], "ok" : {"offers":[ {"name":"a"} , 7 ],"total":2}}'], "no export"),
    ],
)
def test_the_client_ends_by_itself_on_invalid_messages_of_a_holder(
    answers: list[Any], message: str, attach: Path, tmp_path: Path
) -> None:
    """It reports the error, and nothing is read past the end of a message."""
    (tmp_path / "own").mkdir(mode=0o700)
    path = tmp_path / "own" / "s.sock"
    with saying(path, *answers):
        done = run(attach, tmp_path, path, "pages")
    assert message in done.stderr, done
    assert done.returncode == 1


def test_the_client_skips_notices(attach: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [str(attach), str(path), "pages"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                for message in (NOTICE, NOTICE, OFFERS):
                    sock.send(wire.encode(message))
                assert b'"handles"' in sock.recv(65536)
            _, errors = program.communicate(timeout=60)
    assert "no answer" in errors


def test_the_client_follows_a_switch_and_keeps_its_address(attach: Path, env: dict[str, str], machine: Target) -> None:
    """It reads the bytes that it wrote at the address at which it wrote them, and ends with the layout."""
    with held(SPEC, machine) as layout, following(attach, env, "sleeper", "w.1", "written by C") as program:
        lines = program.stdout
        assert lines
        assert next(lines).startswith("w: 2 x 2097152 bytes via fd")
        assert next(lines) == "descriptor of w.1 received\n"
        mapped = next(lines)
        assert re.fullmatch(r"checksum [0-9a-f]{16} of 2097152 bytes at 0x[0-9a-f]+\n", mapped)
        with connect(endpoint("sleeper")) as client:
            for _ in range(2):
                assert client.switch("asleep", wait=PATIENCE).kept == ()
                assert not {"w.0", "w.1"} & layout.run.execution.layout.chunks.keys()
                assert [next(lines), next(lines)] == ["let go of w\n", "w has no memory in state asleep\n"]
                client.switch("awake")
                assert next(lines) == mapped
        assert layout.bytes_of("weights", M, 12) == b"written by C"
        layout.end()
        assert program.wait(PATIENCE) == 0, program.stderr and program.stderr.read()


def test_the_client_maps_memory_that_was_gone_when_it_began(attach: Path, env: dict[str, str], machine: Target) -> None:
    """And writes its text there."""
    with held(SPEC, machine) as layout, connect(endpoint("sleeper")) as client:
        client.switch("half")
        with following(attach, env, "sleeper", "page", "written by C") as program:
            lines = program.stdout
            assert lines
            assert [next(lines), next(lines)][1] == "page has no memory at present\n"
            client.switch("awake")
            assert re.fullmatch(r"checksum [0-9a-f]{16} of 2097152 bytes at 0x[0-9a-f]+\n", next(lines))
            assert layout.bytes_of("kv", 0, 12) == b"written by C"


def test_the_client_maps_new_memory_after_a_forced_switch(attach: Path, env: dict[str, str], machine: Target) -> None:
    """While it was stopped: it lets go of the old memory as it goes on."""
    with held(SPEC, machine) as layout, following(attach, env, "sleeper", "page", "old") as program:
        lines = program.stdout
        assert lines
        old = [next(lines) for _ in range(3)][-1]
        program.send_signal(signal.SIGSTOP)
        with connect(endpoint("sleeper")) as client:
            assert [each.pid for each in client.switch("half", force=True, wait=0.01).kept] == [program.pid]
            client.switch("awake")
        assert layout.bytes_of("kv", 0, 3) == b"\0\0\0"
        program.send_signal(signal.SIGCONT)
        assert next(lines) == "let go of page\n"
        new = next(lines)
        assert new.split()[-1] == old.split()[-1]
        assert new.split()[1] == f"{fnv(bytes(M)):016x}" != old.split()[1]


@contextmanager
def following(attach: Path, env: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    """The program with `--follow`, which is killed at the end."""
    command = [str(attach), "--follow", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def test_a_program_without_cuda_receives_a_dma_buf(attach: Path, start: Callable[..., Process], runtime: Path) -> None:
    """The size is that of the offer; an export via fd is none."""
    start(spec="specs/nic-kv.yaml", machine="h100x1")
    program = attach.with_name("dmabuf")
    done = run(program, runtime, "nic-kv", "kv")
    assert done.stdout.splitlines()[0] == f"kv.0: a dma-buf of {34 << 20} bytes"
    assert (done.returncode, done.stderr) == (0, "")
    assert "flags.0: a dma-buf of 4096 bytes" in run(program, runtime, "nic-kv", "flags").stdout
    refused = run(program, runtime, "nic-kv", "pages")
    assert (refused.returncode, refused.stderr) == (1, "dmabuf: pages is via fd\n")
    assert run(program, runtime, "nic-kv").returncode == 2
    unknown = run(program, runtime, "nic-kv", "nosuch").stderr
    assert unknown == "dmabuf: there is no export 'nosuch'; there are: pages, kv, flags\n"
    assert "attach: 'kv' is a dma-buf: ./dmabuf takes it\n" in run(attach, runtime, "nic-kv", "kv").stderr


def test_a_program_without_cuda_lets_go_of_a_dma_buf_and_takes_it_again(
    attach: Path, machine: Target, runtime: Path
) -> None:
    """With --follow, when the holder takes the memory back and has it again."""
    with held(NIC, machine):
        words = [str(attach.with_name("dmabuf")), "--follow", "nic", "kv"]
        env = environment(XDG_RUNTIME_DIR=str(runtime))
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            lines = iter(process.stdout.readline, "")
            _until(lines, "kv.0: a dma-buf")
            with connect(endpoint("nic")) as client:
                assert client.switch("half", wait=PATIENCE).kept == ()
                _until(lines, "let go of kv")
                _until(lines, "kv has no memory at present")
                client.switch("awake", wait=PATIENCE)
                _until(lines, "kv.0: a dma-buf")
                client.release(wait=0.0)
            assert process.wait(PATIENCE) == 0


def _until(lines: Iterator[str], beginning: str) -> None:
    assert any(line.startswith(beginning) for line in lines)
