from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import UsageError
from memtopo.language.fields import NAME as LANGUAGE
from memtopo.sharing import ExchangeError, NoLayout, claim, connect, endpoint, survey
from memtopo.sharing.endpoints import NAME
from tests.sharing.holding import Holder, Process, raw
from tests.sharing.shelves import PAGES

NOBODY = 65534
LONGEST = "n" * 128
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def test_one_pattern_of_names() -> None:
    """A layout's name is the same for the language and for the directory"""
    assert (NAME.pattern, NAME.flags) == (LANGUAGE.pattern, LANGUAGE.flags)


def test_modes(runtime: Path, holder: Holder) -> None:
    """The directory is 0700, the socket and the lock 0600, whatever the umask"""
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [runtime / "memtopo", *runtime.glob("*/*")]}
    assert modes == {"memtopo": 0o700, "kv.sock": 0o600, "kv.sock.lock": 0o600}


@pytest.mark.parametrize("umask", ["000", "077", "277"])
def test_umask(runtime: Path, umask: str) -> None:
    """Neither an open nor a closed umask changes who can connect"""
    script = "import os,sys; os.umask(int(sys.argv[1], 8)); sys.argv[1:] = ['{}']; "
    script += "from tests.sharing.holder import main; main(lasting=30)"
    holder = subprocess.Popen([sys.executable, "-c", script, umask], stdout=subprocess.PIPE)
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
def test_names_stay_in_the_directory(runtime: Path, name: str) -> None:
    """What is no name leads nowhere, and is wrong usage"""
    with pytest.raises(UsageError, match="is not a layout's name"):
        endpoint(name)


@pytest.mark.parametrize("path", ["", "/", "a/", "a\0b", "/" + "n" * 251])
def test_paths(path: str) -> None:
    """What cannot be the path of a socket is wrong usage"""
    with pytest.raises(UsageError, match="is no path for a socket"):
        endpoint(socket=path)


def test_a_long_name_in_a_long_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of 128 characters is held and found in a directory whose path no socket's address could carry"""
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


def test_a_socket_elsewhere(tmp_path: Path, start: Callable[..., Holder]) -> None:
    """A socket stands where it is wished, and everything works there as it does by name"""
    path = tmp_path / "elsewhere.sock"
    holder = start(socket=str(path))
    with connect(endpoint(socket=str(path))) as client:
        assert client.status().socket == str(path)
    with pytest.raises(NoLayout):
        connect(endpoint("kv"))
    holder.end()
    assert list(tmp_path.glob("elsewhere*")) == []


def distrusted(folder: str = "memtopo") -> None:
    """Both ends refuse the runtime directory, naming it."""
    for act in (lambda: claim(endpoint("kv")), lambda: connect(endpoint("kv")), survey):
        with pytest.raises(ExchangeError, match=f"folder '.*{folder}.*' is not used for sockets") as told:
            act()
        assert told.value.exit_code == 4
        assert told.value.hint


def test_a_link(tmp_path: Path, runtime: Path) -> None:
    """A directory that is a link is not used, wherever it leads"""
    (tmp_path / "other").mkdir(mode=0o700)
    (runtime / "memtopo").symlink_to(tmp_path / "other")
    distrusted()
    assert os.listdir(tmp_path / "other") == []


def test_a_file(runtime: Path) -> None:
    """A directory that is a file is not used"""
    (runtime / "memtopo").write_text("")
    distrusted()


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777, 0o1777])
def test_an_open_directory(runtime: Path, mode: int) -> None:
    """A directory that others may enter is not used"""
    (runtime / "memtopo").mkdir()
    (runtime / "memtopo").chmod(mode)
    distrusted()


@as_root
def test_another_users_directory(runtime: Path) -> None:
    """A directory of another user is not used"""
    (runtime / "memtopo").mkdir(mode=0o700)
    os.chown(runtime / "memtopo", NOBODY, NOBODY)
    distrusted()


@as_root
def test_another_users_runtime_directory(runtime: Path) -> None:
    """A runtime directory of another user, as su leaves it behind, is not used"""
    os.chown(runtime, NOBODY, NOBODY)
    distrusted("run")


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_where_others_could_move_it(runtime: Path, mode: int) -> None:
    """A directory within one that others may write to is not used, since they could put another one there"""
    runtime.chmod(mode)
    distrusted("run")


@pytest.mark.parametrize("given", ["", "relative", "/not/there"])
def test_the_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Without a runtime directory it is one of the user's own in the temporary one, just as strict"""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ours = tmp_path / f"memtopo-{os.geteuid()}"
    with claim(endpoint("kv")) as claimed:
        assert claimed.endpoint.path == str(ours / "kv.sock")
        assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    ours.chmod(0o755)
    distrusted("memtopo-")


def test_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without both variables it stands in /tmp"""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    assert endpoint("kv").folder == f"/tmp/memtopo-{os.geteuid()}"


def test_two_holders_of_one_name(holder: Holder, start: Callable[..., Any]) -> None:
    """A name that is held is refused to a second holder, which names the first; the first one goes on"""
    told = start().begun
    assert told["error"] == f"layout 'kv' is already held by process {holder.pid}"
    assert told["exit_code"] == 4
    assert "'memtopo release kv'" in told["hint"]
    with connect(endpoint("kv")) as client:
        assert client.pid == holder.pid


def test_many_at_once(runtime: Path) -> None:
    """Of eight holders that begin at once one has the name, while clients look and clean up"""
    started = [Process("holder", {}, runtime) for _ in range(8)]
    try:
        told: list[Any] = []
        for each in started:
            survey()
            told.append(each.said())
        assert sum("serving" in each for each in told) == 1
        with connect(endpoint("kv")) as client:
            assert client.pid in [each.pid for each in started]
    finally:
        for each in started:
            each.kill()


def test_a_dead_holder(runtime: Path, start: Callable[..., Holder]) -> None:
    """What a killed holder left is found by whoever asks, and removed; the name is free"""
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


def test_a_holder_that_died_while_it_began(runtime: Path) -> None:
    """A lock without a socket, and one with a socket that nobody ever saw, are what is left of nobody"""
    with claim(endpoint("kv")) as claimed:
        lock = runtime / "memtopo" / "kv.sock.lock"
        hidden = runtime / "memtopo" / f".{lock.stat().st_ino}.new"
        with pytest.raises(ExchangeError, match=f"'kv' is being built .* process {os.getpid()} at") as told:
            connect(endpoint("kv"))
        assert told.value.code == "starting"
        assert [(each.name, each.state) for each in survey().layouts] == [("kv", "starting")]
        assert claimed.endpoint.name == "kv"
    lock.write_text("1\n")
    with claim(endpoint("kv")) as claimed:
        hidden = runtime / "memtopo" / f".{lock.stat().st_ino}.new"
    lock.write_text("1\n")
    (runtime / "memtopo" / f".{lock.stat().st_ino}.new").write_text("")
    assert survey().layouts == ()
    assert os.listdir(runtime / "memtopo") == []
    assert hidden


def test_a_lock_that_was_removed(runtime: Path, holder: Holder, start: Callable[..., Any]) -> None:
    """A holder that answers keeps its socket, though somebody removed its lock"""
    (runtime / "memtopo" / "kv.sock.lock").unlink()
    assert start().begun["error"].startswith("layout 'kv' is already held by")
    with connect(endpoint("kv")) as client:
        assert client.pid == holder.pid


def test_a_client_that_cleans_up(runtime: Path) -> None:
    """A lock that is taken for a moment, as by a client that cleans up, does not keep a holder from the name"""
    (runtime / "memtopo").mkdir(mode=0o700)
    script = "import fcntl,sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); sys.stdin.read(1)"
    cleaner = subprocess.Popen(
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


@pytest.mark.parametrize("make", [lambda path: path.write_text("precious"), lambda path: path.mkdir()])
def test_what_is_no_socket_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A path at which something else stands is refused, and that stays"""
    path = tmp_path / "precious"
    make(path)
    with pytest.raises(ExchangeError, match="it is no socket of this user"):
        claim(endpoint(socket=str(path)))
    assert os.listdir(tmp_path) == ["precious"]
    with pytest.raises(ExchangeError, match="cannot be used"):
        connect(endpoint(socket=str(path)))
    assert path.exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_lock_that_is_none(runtime: Path, tmp_path: Path, kind: str) -> None:
    """A lock that is a link, a fifo or a directory is refused without waiting, and nothing is made at its end"""
    (runtime / "memtopo").mkdir(mode=0o700)
    lock = runtime / "memtopo" / "kv.sock.lock"
    if kind == "link":
        lock.symlink_to(tmp_path / "made")
    else:
        os.mkfifo(lock) if kind == "fifo" else lock.mkdir()
    with pytest.raises(ExchangeError, match="cannot be acquired"):
        claim(endpoint("kv"))
    assert not (tmp_path / "made").exists()


def test_a_socket_that_is_a_link(runtime: Path, holder: Holder, tmp_path: Path) -> None:
    """A client follows no link at a socket's name"""
    (runtime / "memtopo" / "link.sock").symlink_to("kv.sock")
    with pytest.raises(ExchangeError, match="cannot be used"):
        connect(endpoint("link"))


def test_the_lock_says_who(runtime: Path, holder: Holder) -> None:
    """The lock is locked while the holder lives, and says which process that is"""
    with (runtime / "memtopo" / "kv.sock.lock").open("r+") as lock:
        assert int(lock.read()) == holder.pid
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_survey(start: Callable[..., Holder], runtime: Path) -> None:
    """All layouts are listed by name with what they are; a holder that does not answer is listed with the reason"""
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


def test_the_address_is_short(runtime: Path, holder: Holder) -> None:
    """A client of another make connects by the path where that is short enough"""
    with raw(runtime / "memtopo" / "kv.sock") as sock:
        assert sock.getpeername()
