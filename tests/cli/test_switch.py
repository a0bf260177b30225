"""`memtopo switch`: a held layout changes its state, unless others would keep the memory, or a call fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from memtopo.common.errors import ExchangeError
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from tests.cli.conftest import InlineRunner, held
from tests.helpers.child_process import ChildProcess
from tests.helpers.holders import until

SPEC = """
memtopo: 1
name: sleeper
ranges: {weights: {size: 4MiB}, kv: {size: 4MiB}}
chunks:
  w: {location: gpu0, size: 2MiB, count: 2, handles: fd}
  page: {location: gpu0, size: 2MiB, count: 2, handles: fd}
map: {weights: [w], kv: [page]}
access: {weights: {gpu0: rw}, kv: {gpu0: rw}}
exports: {weights: {chunk: w, via: fd}, kv: {chunk: page, via: fd}}
states: {asleep: {drop: [kv], offload: {w: "host:0"}}, half: {drop: [kv]}}
"""


@pytest.fixture(autouse=True)
def spec(tmp_path: Path) -> None:
    """`spec.yaml` in the folder of the test."""
    (tmp_path / "spec.yaml").write_text(SPEC)


def test_a_held_layout_goes_to_a_state_and_back(run_inline: InlineRunner, tmp_path: Path) -> None:
    here = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with held(tmp_path):
        awake = run_inline("show", "sleeper", **here).out
        assert "memory      awake; other states: asleep, half" in awake
        assert "drawn in state" not in awake
        assert "nothing mapped" not in awake
        done = run_inline("switch", "sleeper", "asleep", **here)
        assert (done.status, done.out.splitlines()[-1]) == (0, "ok: state asleep is as declared")
        shown = run_inline("show", "sleeper", "--json", **here).document
        assert (shown["layout_state"], shown["generation"]) == ("asleep", 2)
        assert shown["memory"] == {"gpu0": 0, "host:0": 4 << 20}
        text = run_inline("show", "sleeper", **here).out
        assert "in use      0 B on gpu0, 4 MiB on host:0" in text
        assert "drawn in state asleep" in text
        assert text.count("nothing mapped") == 2
        document = run_inline("switch", "sleeper", "awake", "--json", **here).document
        assert (document["memtopo_switch"], document["state"], document["kept"]) == (1, "awake", [])
        assert document["memory"] == [{"location": "gpu0", "before": 0, "after": 8 << 20}]
        assert run_inline("check", "sleeper", **here).status == 0


def test_a_full_check_of_a_switch_compares_the_bytes_that_it_keeps(run_inline: InlineRunner, tmp_path: Path) -> None:
    with held(tmp_path):
        done = run_inline("switch", "sleeper", "asleep", "--check", "full", XDG_RUNTIME_DIR=str(tmp_path))
        assert done.status == 0
        assert "fingerprint" in done.out


def test_an_unknown_state_is_refused_with_the_known_ones(run_inline: InlineRunner, tmp_path: Path) -> None:
    with held(tmp_path):
        refused = run_inline("switch", "sleeper", "asleap", XDG_RUNTIME_DIR=str(tmp_path))
        assert (refused.status, "asleep" in refused.err) == (4, True)


@contextmanager
def importer(folder: Path, export: str) -> Iterator[ChildProcess]:
    """A process that has attached to the layout and follows it; it is killed at the end."""
    arguments = {"layout": "sleeper", "machine": "h100x1", "export": export}
    child = ChildProcess("tests.api.importer", arguments, folder)
    try:
        assert child.read_line() == {"importing": ["weights", "kv"]}
        yield child
    finally:
        child.kill()


def test_a_process_that_polls_follows_a_switch(run_inline: InlineRunner, tmp_path: Path) -> None:
    """It lets go of memory that goes, keeps its address, and has its bytes there after the return."""
    here = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with held(tmp_path), importer(tmp_path, "weights") as child:
        for _ in range(2):
            assert run_inline("switch", "sleeper", "asleep", "--wait", "60s", **here).status == 0
            gone = {"absent": ["kv", "weights"], "first": None, "moved": False}
            assert child.read_line() == {"kind": "changing", "state": "asleep", **gone}
            assert child.read_line() == {"kind": "changed", "state": "asleep", **gone}
            assert run_inline("switch", "sleeper", "awake", **here).status == 0
            back = {"absent": [], "first": "child", "moved": False}
            assert child.read_line() == {"kind": "changed", "state": "awake", **back}
        assert run_inline("release", "sleeper", **here).status == 0
        assert child.read_line() == {"outcome": "ok"}


def test_a_stopped_process_is_named_and_a_dead_one_is_not_waited_for(
    run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--force` the switch goes on; the process learns of it when it goes on, and has the new memory."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    here = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with held(tmp_path), importer(tmp_path, "kv") as child, ThreadPoolExecutor() as pool:
        child.send(signal.SIGSTOP)
        refused = run_inline("switch", "sleeper", "half", "--wait", "1ms", **here)
        assert (refused.status, f"process {child.pid} (2 of kv, 4 MiB)" in refused.err) == (4, True)
        forced = run_inline("switch", "sleeper", "half", "--wait", "1ms", "--force", **here)
        assert (forced.status, f"process {child.pid} keeps 4 MiB of memory" in forced.out) == (0, True)
        assert run_inline("switch", "sleeper", "awake", **here).status == 0
        child.send(signal.SIGCONT)
        lines = [child.read_line()]
        while lines[-1]["first"] != "\0" * 5:
            lines.append(child.read_line())
        assert not lines[-1]["moved"]
        child.send(signal.SIGSTOP)
        with connect(endpoint("sleeper")) as client, connect(endpoint("sleeper")) as other:
            switched = pool.submit(client.switch, "half", wait=60.0)
            until(lambda: refusal(other) == "changing")
            child.kill()
            assert switched.result().kept == ()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.switch("half", timeout=3),
        lambda client: client.change("{}", timeout=3),
        lambda client: client.check(timeout=3),
        lambda client: client.let_go(["kv"]),
        lambda client: client.write(["kv"]),
        lambda client: client.await_commit(["kv"], wait=3),
        lambda client: client.release(grace=0.0),
    ],
    ids=["switch", "change", "check", "let_go", "write", "await", "release"],
)
def test_a_stopped_holder_is_not_waited_for_and_does_nothing_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Client], object]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with held(tmp_path) as holder, connect(endpoint("sleeper"), timeout=0.2) as client:
        client.offers()
        holder.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(ExchangeError, match=r"within 0\.2 s") as caught:
                ask(client)
        finally:
            holder.send_signal(signal.SIGCONT)
        assert caught.value.hint == f"the holder is stopped (state T); continue it with 'kill -CONT {holder.pid}'"
        with connect(endpoint("sleeper")) as other:
            assert (other.status().generation, other.status().layout_state) == (1, "awake")


def refusal(client: Client) -> str:
    """Code of the error of a request for handles of kv."""
    try:
        for handle in client.handles("kv", 0, 1):
            handle.close()
    except ExchangeError as error:
        return error.code
    client.let_go(["kv"])
    return ""
