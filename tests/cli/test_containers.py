"""A folder as the meeting place of layouts, from other user, pid, network, mount, IPC and UTS namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.common.errors import UsageError
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint, endpoints
from memtopo.sharing.held import survey
from tests.cli.conftest import InlineRunner
from tests.helpers.child_process import ChildProcess
from tests.helpers.command_line import MEMTOPO, ROOT, CommandResult, environment
from tests.helpers.holders import until
from tests.helpers.namespaces import CONTAINER, require_namespaces
from tests.helpers.python_process import PythonProcess, run_python

HOLDER = "tests.sharing.children.holder"
SPEC = """
memtopo: 1
name: kv
chunks: {w: {location: gpu0, size: 2MiB, handles: fd}}
buffers: {b: {location: gpu0, size: 2MiB}}
events: {e: {device: gpu0}}
exports: {w: {chunk: w, via: fd}, b: {buffer: b, via: ipc}, e: {event: e, via: ipc}}
"""
READER = """
memtopo: 1
name: reader
ranges: {v: {size: 2MiB}}
imports: {w: {from: kv/w, location: gpu0, size: 2MiB}}
map: {v: [w]}
access: {v: {gpu0: r}}
"""
IPC = """
memtopo: 1
name: reader
imports: {b: {from: kv/b, via: ipc, location: gpu0, size: 2MiB}}
"""
EVENT = """
memtopo: 1
name: reader
imports: {e: {from: kv/e, device: gpu0}}
"""
Launch = Callable[..., ChildProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the containers share."""
    found = tmp_path / "shared"
    found.mkdir()
    return found


@pytest.fixture
def launch(runtime: Path) -> Iterator[Launch]:
    """Starts programs in containers, each of its own."""
    require_namespaces()
    started: list[ChildProcess] = []

    def begin(module: str, **argument: Any) -> ChildProcess:
        found = ChildProcess(module, argument, runtime, before=CONTAINER)
        started.append(found)
        return found

    yield begin
    for each in started:
        each.kill()


@pytest.fixture
def contained(launch: Launch, folder: Path) -> ChildProcess:
    """A holder of the layout kv in a container."""
    found = launch(HOLDER, socket=str(folder / "kv.sock"))
    assert "error" not in found.read_line()
    return found


def in_container(*command_lines: Sequence[str | Path]) -> list[CommandResult]:
    """Run command lines of memtopo, one after the other, in one container."""
    lines = json.dumps([[str(word) for word in line] for line in command_lines])
    command = [*CONTAINER, sys.executable, "-m", "tests.helpers.command_lines", lines]
    done = run_python(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [CommandResult(*each) for each in json.loads(done.stdout)]


def written(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


def test_a_folder_has_the_sockets_of_layouts_by_name(folder: Path, runtime: Path) -> None:
    """A path that ends with a slash is a folder, even if there is none."""
    assert endpoint("kv", str(folder)).path == str(folder / "kv.sock")
    assert endpoint("kv", f"{folder}/new/").path == str(folder / "new" / "kv.sock")
    assert endpoint("kv", str(folder / "x")).path == str(folder / "x")
    (folder / "kv.sock").touch()
    (folder / "other.sock.lock").touch()
    (folder / "9.sock").touch()
    assert [each.path for each in endpoints(str(folder))] == [str(folder / "kv.sock"), str(folder / "other.sock")]
    with pytest.raises(UsageError, match="is a folder"):
        endpoint(None, str(folder))
    with pytest.raises(UsageError, match="not a layout's name"):
        endpoint("../kv", str(folder))


def test_commands_find_layouts_in_a_folder(run_inline: InlineRunner, runtime: Path, folder: Path, start: Any) -> None:
    holder = start(socket=str(folder / "kv.sock"))
    where = ("--socket", folder)
    assert [each["pid"] for each in run_inline("ls", *where, "--json").document["layouts"]] == [holder.pid]
    shown = run_inline("show", "kv", *where, "--json").document
    assert (shown["pid"], shown["pid_namespace"]) == (holder.pid, "same")
    assert 'memtopo_layout_up{layout="kv"} 1' in run_inline("metrics", *where).out
    missing = run_inline("show", *where)
    assert (missing.status, "is a folder" in missing.err) == (2, True)
    assert run_inline("show", "other", *where).status == 3
    assert run_inline("release", "kv", *where).out.splitlines()[-1] == "released: taken down"
    assert not run_inline("ls", *where).out


@pytest.fixture
def held(tmp_path: Path, folder: Path) -> Iterator[None]:
    """A layout that `apply --hold --socket FOLDER` holds in a container."""
    require_namespaces()
    command = [*CONTAINER, *MEMTOPO, "apply", str(written(tmp_path, SPEC)), "--machine", "h200x2", "--hold"]
    with PythonProcess(
        [*command, "--socket", str(folder)], cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
    ) as holder:
        until((folder / "kv.sock").exists)
        yield
        with connect(endpoint("kv", str(folder))) as client:
            assert client.release(force=True, grace=0.0).gone
        assert holder.wait() == 0
    assert list(folder.iterdir()) == []


def test_a_spec_and_python_import_from_a_layout_in_another_container(held: None, tmp_path: Path, folder: Path) -> None:
    """Over descriptors. Legacy IPC fails, and the report names the pid namespace."""
    on = ("--machine", "h200x2")
    reader, ipc, event = (tmp_path / f"{name}.yaml" for name in ("reader", "ipc", "event"))
    for path, text in ((reader, READER), (ipc, IPC), (event, EVENT)):
        path.write_text(text)
    by_folder, bound, over_ipc, of_event = in_container(
        ("apply", reader, *on, "--socket", folder),
        ("apply", reader, *on, "--with", f"kv={folder}"),
        ("apply", ipc, *on, "--socket", folder, "--json"),
        ("apply", event, *on, "--socket", folder, "--json"),
    )
    assert by_folder.status == 0, by_folder
    assert bound.status == 0, bound
    for result, error in (
        (over_ipc, "MemHandle: CUDA_ERROR_INVALID_HANDLE"),
        (of_event, "EventHandle: CUDA_ERROR_MAP_FAILED"),
    ):
        failure = result.document["failure"]
        assert (result.status, failure["error"]) == (4, f"cuIpcOpen{error}")
        assert "another pid namespace" in failure["cause"]
        assert "pid namespace (--pid)" in failure["hint"]
    with memtopo.attach("kv", ["w"], machine="h200x2", socket=folder) as attached:
        assert attached.exports["w"].size == 2 << 20


def test_a_holder_in_a_container_has_its_number_of_this_pid_namespace(contained: ChildProcess, folder: Path) -> None:
    """Its importers have numbers of its own pid namespace, and this process has none there."""
    with connect(endpoint("kv", str(folder))) as client:
        for handle in client.handles("page", count=1):
            handle.close()
        status = client.status()
    assert status.pid_namespace == "another"
    assert status.pid == child_of(contained.pid)
    assert [each.pid for each in status.importers] == [None]


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_processes_of_other_containers_have_no_number(contained: ChildProcess, launch: Launch, folder: Path) -> None:
    """In JSON it is null, in text a question mark with a note."""
    where = ("--socket", folder)
    listed, document, text = in_container(
        ("ls", *where), ("show", "kv", *where, "--json"), ("show", "kv", *where)
    )  # fmt: skip
    row, note = listed.out.splitlines()[1], listed.out.splitlines()[-1]
    assert row.split()[:3] == ["kv", "serving", "?"]
    assert note.strip() == "note: ? is a process of another pid namespace"
    assert (document.document["pid"], document.document["pid_namespace"]) == (None, "another")
    assert "a process of another pid namespace, uid 0" in text.out


def test_a_second_holder_in_another_container_is_refused(contained: ChildProcess, launch: Launch, folder: Path) -> None:
    """The number in the lock file is of the other pid namespace, and is not printed."""
    refused = launch(HOLDER, socket=str(folder / "kv.sock")).read_line()
    assert "already held by a process of another pid namespace" in refused["error"]


def test_what_a_container_that_was_killed_left_is_removed_from_outside(contained: ChildProcess, folder: Path) -> None:
    contained.kill()
    until(lambda: survey(str(folder)).layouts == ())
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_a_user_without_a_number_here_is_explained(folder: Path) -> None:
    """The kernel has one number for all users whom a user namespace does not map."""
    require_namespaces()
    program = (
        "import sys; from memtopo.common.errors import MemtopoError; from memtopo.sharing.held import survey;"
        "from memtopo.sharing.endpoints import Endpoint\n"
        "try: Endpoint(sys.argv[1], 'kv.sock').open_folder()\n"
        "except MemtopoError as error: print(error.message)"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program, "/"]
    done = run_python(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
        user=65533, group=65533, extra_groups=[],
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"other users may make no user namespaces: {done.stderr.strip()}")
    assert "belongs to uid 65534, which represents every unmapped user in this user namespace" in done.stdout


def test_attach_takes_a_folder_and_no_other_path(folder: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        memtopo.attach("kv", socket=folder / "kv.sock")
