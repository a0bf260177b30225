from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import ExchangeError, NoLayout, UsageError
from memtopo.language.names import NAME as LANGUAGE
from memtopo.sharing.claims import claim
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import NAME, endpoint, endpoints, endpoints_beside, usual_endpoint
from memtopo.sharing.held import Survey, survey
from tests.helpers.holders import Holder, Process, raw
from tests.helpers.line_count import executed_lines
from tests.helpers.memfd_exports import PAGES
from tests.helpers.python_process import PythonProcess

NOBODY = 65534
LONGEST = "n" * 128
LOCK = "memtopo lock of process 1\n"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def test_names_of_layouts_are_the_same_in_the_language_and_in_sharing() -> None:
    assert (NAME.pattern, NAME.flags) == (LANGUAGE.pattern, LANGUAGE.flags)


def test_folder_is_0700_and_socket_and_lock_are_0600(runtime: Path, holder: Holder) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [runtime / "memtopo", *runtime.glob("*/*")]}
    assert modes == {"memtopo": 0o700, "kv.sock": 0o600, "kv.sock.lock": 0o600}


@pytest.mark.parametrize(
    ("at_path", "uids", "mode"), [(True, [NOBODY], 0o666), (True, [os.geteuid()], 0o600), (False, [NOBODY], 0o600)]
)
def test_a_socket_is_open_to_all_only_at_a_path_and_if_another_user_may_connect(
    runtime: Path, start: Callable[..., Holder], at_path: bool, uids: list[int], mode: int
) -> None:
    path = runtime / ("there.sock" if at_path else "memtopo/kv.sock")
    start(socket=str(path) if at_path else None, allow_uids=uids)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("umask", ["000", "077", "277"])
def test_the_umask_does_not_change_who_can_connect(runtime: Path, umask: str) -> None:
    script = "import os,sys; os.umask(int(sys.argv[1], 8)); sys.argv[1:] = ['{}']; "
    script += "from tests.sharing.children.holder import main; main(lasting=30)"
    holder = PythonProcess([sys.executable, "-c", script, umask], stdout=subprocess.PIPE)
    try:
        assert holder.stdout
        assert holder.stdout.readline()
        assert stat.S_IMODE((runtime / "memtopo" / "kv.sock").stat().st_mode) == 0o600
        with connect(endpoint("kv")) as client:
            assert client.status().name == "kv"
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize(
    "name", ["", "..", "../kv", "a/b", "/kv", "kv.sock", ".kv", "9", "a b", "kv\n", "kv\0", "ä", "n" * 129]
)
def test_an_invalid_name_is_wrong_usage(runtime: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a layout's name"):
        endpoint(name)


def test_endpoints_of_a_folder_are_those_of_its_sockets_and_locks(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    for name in ("other.sock", "kv.sock", "kv.sock.lock", "dead.sock.lock", "9.sock", "notes.txt"):
        (folder / name).touch()
    found = [str(folder / f"{name}.sock") for name in ("dead", "kv", "other")]
    assert [each.path for each in endpoints(str(folder))] == found
    assert [each.path for each in endpoints(f"{folder}/")] == found
    with pytest.raises(ExchangeError, match="missing/' for a socket does not exist"):
        endpoints(f"{tmp_path}/missing/")
    assert [each.path for each in endpoints(found[0])] == found[:1]


@pytest.mark.parametrize("path", ["", "a\0b", "a\0b/", "/" + "n" * 251])
def test_an_invalid_path_is_wrong_usage(path: str) -> None:
    with pytest.raises(UsageError, match="is not a path for a socket"):
        endpoint(socket=path)


def test_a_name_of_128_characters_works_in_a_folder_longer_than_a_socket_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / ("d" * 200) / ("e" * 200)
    runtime.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    holder = Holder(runtime, {"name": LONGEST})
    try:
        with connect(endpoint(LONGEST)) as client:
            assert client.status().name == LONGEST
            assert len(list(client.handles("woven"))) == 3
        assert holder.end()["fds"] == 0
    finally:
        holder.kill()


def distrusted(folder: str = "memtopo") -> None:
    """Both ends refuse the runtime directory, naming it."""
    for act in (lambda: claim(endpoint("kv")), lambda: connect(endpoint("kv")), survey):
        with pytest.raises(ExchangeError, match=f"folder '.*{folder}.*' is not used for sockets") as caught:
            act()
        assert caught.value.exit_code == 4
        assert caught.value.hint


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path, runtime: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    (runtime / "memtopo").symlink_to(tmp_path / "other")
    distrusted()
    assert os.listdir(tmp_path / "other") == []


def test_a_folder_that_is_a_file_is_not_used(runtime: Path) -> None:
    (runtime / "memtopo").write_text("")
    distrusted()


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777, 0o1777])
def test_a_folder_that_others_may_enter_is_not_used(runtime: Path, mode: int) -> None:
    (runtime / "memtopo").mkdir()
    (runtime / "memtopo").chmod(mode)
    distrusted()


@as_root
def test_a_folder_of_another_user_is_not_used(runtime: Path) -> None:
    (runtime / "memtopo").mkdir(mode=0o700)
    os.chown(runtime / "memtopo", NOBODY, NOBODY)
    distrusted()


@as_root
def test_a_named_folder_of_another_user_is_used_if_that_user_is_allowed(tmp_path: Path) -> None:
    folder = f"{tmp_path}/"
    os.chown(folder, NOBODY, NOBODY)
    with claim(endpoint("kv", folder), [NOBODY]):
        assert [each.file for each in endpoints(folder, [NOBODY])] == ["kv.sock"]
        assert [each.error for each in survey(folder, allow_uids=[NOBODY]).layouts]
    assert endpoints_beside(folder, [NOBODY]) == []
    for act in (lambda: claim(endpoint("kv", folder)), lambda: survey(folder)):
        with pytest.raises(ExchangeError, match=f"belongs to uid {NOBODY}") as caught:
            act()
        assert (caught.value.hint or "").startswith(f"--allow-uid {NOBODY},")


@as_root
def test_a_runtime_folder_of_another_user_is_not_used(runtime: Path) -> None:
    os.chown(runtime, NOBODY, NOBODY)
    distrusted("run")


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_could_replace_is_not_used(runtime: Path, mode: int) -> None:
    runtime.chmod(mode)
    distrusted("run")


@pytest.mark.parametrize("given", ["", "relative", "/not/there"])
def test_without_a_runtime_folder_one_in_the_temporary_folder_is_used_as_strictly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ours = tmp_path / f"memtopo-{os.geteuid()}"
    with claim(endpoint("kv")) as claimed:
        assert claimed.endpoint.path == str(ours / "kv.sock")
        assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    ours.chmod(0o755)
    distrusted("memtopo-")


def test_without_both_variables_the_folder_is_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    assert endpoint("kv").folder == f"/tmp/memtopo-{os.geteuid()}"


def test_one_of_eight_concurrent_holders_gets_the_name_while_clients_remove_stale_files(runtime: Path) -> None:
    started = [Process("holder", {}, runtime) for _ in range(8)]
    try:
        report: list[Any] = []
        for each in started:
            survey()
            report.append(each.read_line())
        assert sum("serving" in each for each in report) == 1
        with connect(endpoint("kv")) as client:
            assert client.pid in [each.pid for each in started]
    finally:
        for each in started:
            each.kill()


def test_stale_files_of_a_killed_holder_are_removed_and_the_name_is_free(
    runtime: Path, start: Callable[..., Holder]
) -> None:
    for look in (survey, str):
        start().kill()
        assert sorted(os.listdir(runtime / "memtopo")) == ["kv.sock", "kv.sock.lock"]
        look()
        with pytest.raises(NoLayout):
            connect(endpoint("kv"))
        assert os.listdir(runtime / "memtopo") == []
    start().kill()
    again = start()
    with connect(endpoint("kv")) as client:
        assert client.pid == again.pid


def test_a_lock_without_a_socket_or_with_a_temporary_one_is_stale(runtime: Path) -> None:
    with claim(endpoint("kv")) as claimed:
        lock = runtime / "memtopo" / "kv.sock.lock"
        with pytest.raises(ExchangeError, match=f"'kv' is being built .* process {os.getpid()} at") as caught:
            connect(endpoint("kv"))
        assert caught.value.code == "starting"
        assert [(each.name, each.state) for each in survey().layouts] == [("kv", "starting")]
        assert claimed.endpoint.name == "kv"
    elsewhere = endpoint(socket=str(runtime / "elsewhere.sock"))
    with claim(elsewhere), pytest.raises(ExchangeError, match=r"^the layout at '/.*re\.sock' is being built"):
        connect(elsewhere)
    with claim(elsewhere):
        (entry,) = survey(elsewhere.path).layouts
        assert (entry.name, entry.state, entry.socket) == (elsewhere.path, "starting", elsewhere.path)
    lock.write_text(LOCK)
    claim(endpoint("kv")).close()
    lock.write_text(LOCK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unfinished:
        unfinished.bind(str(runtime / "memtopo" / f".{lock.stat().st_ino}.new"))
    assert survey().layouts == ()
    assert os.listdir(runtime / "memtopo") == []


def test_a_listening_holder_keeps_its_socket_without_its_lock_file(
    runtime: Path, holder: Holder, start: Callable[..., Any]
) -> None:
    (runtime / "memtopo" / "kv.sock.lock").unlink()
    assert start().begun["error"].startswith("layout 'kv' is already held by")
    with connect(endpoint("kv")) as client:
        assert client.pid == holder.pid


def test_a_lock_that_a_client_holds_for_a_moment_does_not_refuse_a_holder(runtime: Path) -> None:
    (runtime / "memtopo").mkdir(mode=0o700)
    (runtime / "memtopo" / "kv.sock.lock").write_text(LOCK)
    script = "import fcntl,sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); sys.stdin.read(1)"
    cleaner = PythonProcess(
        [sys.executable, "-c", script, str(runtime / "memtopo" / "kv.sock.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with cleaner:
        assert cleaner.stdout
        assert cleaner.stdin
        cleaner.stdout.readline()
        cleaner.stdin.close()  # it lets go while the holder tries
        claim(endpoint("kv")).close()


def test_a_folder_is_no_path_of_one_socket(tmp_path: Path) -> None:
    for path in ("/", "a/", str(tmp_path)):
        with pytest.raises(UsageError, match="is a folder"):
            endpoint(socket=path)


def look_at(path: Path) -> None:
    """Look for a holder at a path, and try to become one; none is found."""
    where = endpoint(socket=str(path))
    for look in (lambda: survey(str(path)), lambda: connect(where), lambda: claim(where)):
        with suppress(NoLayout, ExchangeError):
            assert look() == Survey(())


@pytest.mark.parametrize("text", ["", "precious", "1\n", LOCK[:-1], LOCK + "\n", LOCK.replace("1", "one")])
def test_a_lock_file_that_memtopo_did_not_write_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path, lock = tmp_path / "poetry", tmp_path / "poetry.lock"
    lock.write_text(text)
    before = lock.stat()
    look_at(path)
    assert (os.listdir(tmp_path), lock.read_text()) == (["poetry.lock"], text)
    assert (lock.stat().st_ino, lock.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(ExchangeError, match="it is a file that memtopo did not write"):
        claim(endpoint(socket=str(path)))


def test_a_lock_with_two_names_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text(LOCK)
    os.link(tmp_path / "kept", tmp_path / "kv.lock")
    look_at(tmp_path / "kv")
    assert sorted(os.listdir(tmp_path)) == ["kept", "kv.lock"]
    with pytest.raises(ExchangeError, match="it has other names"):
        claim(endpoint(socket=str(tmp_path / "kv")))


@as_root
def test_a_lock_of_another_user_stays(tmp_path: Path) -> None:
    (tmp_path / "kv.lock").write_text(LOCK)
    os.chown(tmp_path / "kv.lock", NOBODY, NOBODY)
    look_at(tmp_path / "kv")
    assert os.listdir(tmp_path) == ["kv.lock"]


def test_a_dead_socket_without_a_lock_of_memtopo_stays(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
    look_at(path)
    assert os.listdir(tmp_path) == ["other"]
    with pytest.raises(ExchangeError, match="memtopo did not create it"):
        claim(endpoint(socket=str(path)))


def test_files_that_replaced_those_of_a_holder_stay(tmp_path: Path) -> None:
    path, lock = tmp_path / "kv", tmp_path / "kv.lock"
    with claim(endpoint(socket=str(path))) as claimed:
        path.write_text("precious")
        with pytest.raises(ExchangeError, match="cannot be created: file exists"):
            claimed.listen()
        path.unlink()
        with claimed.listen():
            for each in (path, lock):
                each.unlink()
                each.write_text("precious")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == dict.fromkeys(["kv", "kv.lock"], "precious")


def test_a_link_to_a_dead_socket_stays_and_its_name_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "other"))
    link = tmp_path / "kv"
    link.symlink_to("other")
    with pytest.raises(ExchangeError, match="is not a socket of this user"):
        claim(endpoint(socket=str(link)))
    assert link.is_symlink()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_lock_that_is_no_regular_file_is_refused_without_waiting(runtime: Path, tmp_path: Path, kind: str) -> None:
    (runtime / "memtopo").mkdir(mode=0o700)
    lock = runtime / "memtopo" / "kv.sock.lock"
    if kind == "link":
        lock.symlink_to(tmp_path / "made")
    else:
        os.mkfifo(lock) if kind == "fifo" else lock.mkdir()
    with pytest.raises(ExchangeError, match="cannot be acquired"):
        claim(endpoint("kv"))
    assert not (tmp_path / "made").exists()


def test_a_link_at_the_name_of_a_socket_is_not_followed(runtime: Path, holder: Holder, tmp_path: Path) -> None:
    (runtime / "memtopo" / "link.sock").symlink_to("kv.sock")
    with pytest.raises(ExchangeError, match="cannot be used"):
        connect(endpoint("link"))


def test_the_work_of_a_survey_is_proportional_to_the_stale_locks(runtime: Path) -> None:
    def work(count: int) -> int:
        for index in range(count):
            (runtime / "memtopo" / f"layout-{index}.sock.lock").write_bytes(b"memtopo lock of process 1\n")
        return executed_lines(survey)

    with claim(endpoint("kv")):
        pass
    assert work(60) < 2.3 * work(30)
    assert os.listdir(runtime / "memtopo") == []


def test_survey_lists_all_layouts_and_why_one_does_not_answer(start: Callable[..., Holder], runtime: Path) -> None:
    first, stopped = start(), start(name="stopped")
    (runtime / "memtopo" / "9.sock").write_text("not a name")
    stopped.send(signal.SIGSTOP)
    serving, silent = survey().layouts
    stopped.send(signal.SIGCONT)
    assert (serving.name, serving.state, serving.pid, serving.exports) == ("kv", "serving", first.pid, 9)
    assert serving.bytes == (PAGES.count + 4 + 3 + 2 + 1 + 2) * 4096
    assert (silent.name, silent.state) == ("stopped", "unreachable")
    assert silent.error
    assert f"process {stopped.pid}" in silent.error


def test_another_client_connects_by_a_short_path(runtime: Path, holder: Holder) -> None:
    with raw(runtime / "memtopo" / "kv.sock") as sock:
        assert sock.getpeername()


def test_a_program_looks_in_the_folder_of_its_variable_unless_it_names_a_socket_or_the_variable_is_one(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer listens at the path of MEMTOPO_SOCKET itself."""
    folder, other, usual = tmp_path / "folder", tmp_path / "other", str(runtime / "memtopo" / "kv.sock")
    for each in (folder, other):
        each.mkdir()
    found = []
    for variable in ("", str(folder), str(tmp_path / "producer.sock")):
        monkeypatch.setenv("MEMTOPO_SOCKET", variable)
        found.append((usual_endpoint("kv").path, usual_endpoint("kv", f"{other}/").path))
    named = str(other / "kv.sock")
    assert found == [(usual, named), (str(folder / "kv.sock"), named), (usual, named)]
