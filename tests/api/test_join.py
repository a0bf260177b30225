"""`memtopo.join`: processes of a user as the processes of a layout."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.api import joined
from memtopo.api.errors import Unsuitable
from memtopo.driver.types import GpuUsage
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint, endpoint_names
from memtopo.sharing.held import answers
from memtopo.sharing.status import Notice
from memtopo.storage.saved import opened_folder
from memtopo.usage import Usage, usage
from tests.api.joined import MACHINE, TIMEOUT, Joined, Start, ready, reports
from tests.helpers.holders import until
from tests.helpers.python_process import PythonProcess, run_python
from tests.helpers.samples import sampled
from tests.helpers.specs import ENSEMBLES, ROOT

SLEEPING = ROOT / "specs" / "tensor-parallel-sleep.yaml"

PAIR = """
memtopo: 1
name: pair
processes:
  rank:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    ranges: {own: {size: 4MiB}, all: {size: 8MiB}}
    chunks: {c: {location: mine, size: 4MiB, handles: fd}}
    exports: {c: {chunk: c, via: fd}}
    imports: {of-all: {from: rank.c}}
    map: {own: [c], all: [of-all]}
    access: {own: {mine: rw}, all: {mine: r}}
    states: {level-1: {drop: [c]}}
"""


def coordinators(runtime: Path) -> list[int]:
    """Return the processes that coordinate a layout in a runtime directory."""
    locks = [each.read_text() for each in (runtime / "memtopo").glob("*.join.sock.lock")]
    return [int(re.findall("process ([0-9]+)", text)[0]) for text in locks]


def has_coordinator(spec: Path) -> bool:
    """Return whether a coordinator waits for processes of a spec: a second one would wait for some seconds alone."""
    return bool([*(spec.parent / "run" / "memtopo").glob("*.join.sock")])


def has_connected(spec: Path) -> bool:
    """Return whether a process is connected to the coordinator of a spec, whose socket is named after its lock."""
    locks = (spec.parent / "run" / "memtopo").glob("*.join.sock.lock")
    bound = Path("/proc/net/unix").read_text()
    return any(bound.count(f"/.{lock.stat().st_ino}.new\n") > 1 for lock in locks)


def in_turn(join: Start, spec: Path, processes: list[str], **arguments: Any) -> list[Joined]:
    """Start processes that join, all but the first one once there is a coordinator."""
    first = join(spec, processes[:1], **arguments)
    until(lambda: has_coordinator(spec))
    return [*first, *join(spec, processes[1:], **arguments)]


def cleaned() -> None:
    """Remove what a coordinator left that was killed, once another one that began late has ended."""
    command = [sys.executable, "-m", "memtopo", "ls"]
    folder = Path(os.environ["XDG_RUNTIME_DIR"], "memtopo")
    until(lambda: run_python(command, capture_output=True).returncode == 0 and not [*folder.glob("*")])


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A spec of two ranks that import from each other."""
    file = tmp_path / "pair.yaml"
    file.write_text(PAIR)
    return file


def labels(spec: Path) -> list[str]:
    return [*memtopo.plan(spec, machine=MACHINE).processes]


TOGETHER = [path for path in ENSEMBLES if not memtopo.load(path).spec.held_processes]


@pytest.mark.parametrize("spec", sampled(TOGETHER))
def test_every_spec_of_several_processes_is_joined_with_the_report_of_apply(join: Start, spec: Path) -> None:
    members = join(spec, labels(spec))
    assert all("ranges" in first for first in ready(members))
    found = [last["report"] for last in reports(members)]
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--machine", MACHINE, "--json"]
    applied = json.loads(run_python(command, capture_output=True, check=True).stdout)
    for report in found:
        assert (report["outcome"], report["exit_code"]) == ("ok", 0)
        assert report["leaks"] == []
    merged = [report for report in found if report["processes"]]
    assert merged, "no process has the report of all"
    assert checked(merged[0]) == checked(applied)


def checked(report: Any) -> list[Any]:
    """Return the results of the checks of each process, and of all, and where the ranges are."""
    parts = [report, *report["processes"]]
    return [[each.get("name"), each["outcome"], each["checks"], each.get("placed")] for each in parts]


def test_a_process_switches_all_others_which_take_part_when_they_poll(join: Start) -> None:
    server, *engines = members = join(SLEEPING, labels(SLEEPING))
    before = ready(members)
    assert server.call("write", "weights", 7)["answer"] is None
    for each in engines:
        each.request("poll", TIMEOUT)
    answer = server.call("switch", "asleep")
    assert (answer["answer"], answer["state"]) == (0, "asleep")
    assert [each.read()["state"] for each in engines] == ["asleep"] * 2
    for each in engines:
        each.request("poll", TIMEOUT)
    assert server.call("switch", "awake")["state"] == "awake"
    assert [each.read()["state"] for each in engines] == ["awake"] * 2
    assert [each.call("read", "weights")["answer"] for each in engines] == [[7]] * 2, "the bytes were not kept"
    assert before[1]["ranges"].keys() == {"weights", "kv-cache"}
    assert {each["report"]["outcome"] for each in reports(members)} == {"ok"}


@pytest.fixture
def child(join: Start, pair: Path) -> Iterator[tuple[list[Joined], int]]:
    """Two processes of a layout, and a child that the first has forked and that does not end."""
    members = join(pair, labels(pair))
    ready(members)
    pid = members[0].call("fork")["answer"]
    yield members, pid
    os.kill(pid, signal.SIGKILL)


def test_a_process_that_ends_is_lost_to_the_others_while_its_child_lives(child: tuple[list[Joined], int]) -> None:
    (first, second), _ = child
    first.kill()
    assert second.call("idle_until_over")["idle"]
    ended = second.read()
    assert (ended["error"], "rank.0 has ended" in ended["over"]) == ("ProcessLost", True)
    second.leave()
    assert second.read()["report"]["leaks"] == []


def test_a_child_that_leaves_the_layout_changes_nothing_of_its_own_or_the_others(join: Start, pair: Path) -> None:
    members = join(pair, labels(pair))
    ready(members)
    assert members[0].call("leave_in_child")["answer"] == ["True", 0]
    assert members[1].call("done")["over"] is None
    assert {last["report"]["outcome"] for last in reports(members)} == {"ok"}


def test_no_process_waits_at_the_gates_of_a_teardown_for_a_child(child: tuple[list[Joined], int]) -> None:
    members, _ = child
    found = [last["report"] for last in reports(members)]
    assert [report["outcome"] for report in found] == ["ok", "ok"]
    assert any(report["processes"] for report in found), "the report of all came in time"


def test_a_process_that_polls_is_told_the_state_that_comes_and_the_one_that_came(join: Start, pair: Path) -> None:
    first, second = members = join(pair, labels(pair))
    ready(members)
    second.request("poll", TIMEOUT)
    assert first.call("switch", "level-1")["seen"] == []
    answer = second.read()
    assert answer["answer"] == "level-1"
    assert answer["seen"] == [["changing", "level-1", "awake"], ["changed", "level-1", "level-1"]]
    second.request("poll", TIMEOUT)
    assert first.call("switch", "awake")["state"] == "awake"
    assert second.read()["seen"][2:] == [["changing", "awake", "level-1"], ["changed", "awake", "awake"]]
    for state, before in (("level-1", "awake"), ("awake", "level-1")):  # which the first one has requested before
        first.request("poll", TIMEOUT)
        second.call("switch", state)
        assert first.read()["seen"][-2:] == [["changing", state, before], ["changed", state, state]]
    reports(members)


def test_a_notice_has_the_seconds_to_take_part_and_the_layout_is_not_polled_after_its_end(
    join: Start, pair: Path
) -> None:
    (other,) = join(pair, ["rank.1"])
    seen: list[Notice] = []
    with memtopo.join(pair, "rank.0", MACHINE, timeout=TIMEOUT) as layout:
        ready([other])
        layout.on_change = seen.append
        other.request("switch", "level-1")
        assert layout.poll(TIMEOUT) == seen[-1]
        assert [(each.kind, each.grace) for each in seen] == [("changing", TIMEOUT), ("changed", 0)]
        other.read()
        other.leave()
    with pytest.raises(Unsuitable, match="was taken down"):
        layout.poll()


ONE = """
memtopo: 1
name: one
params: {size: 4MiB}
processes:
  engine:
    ranges: {r: {size: $size}}
    chunks: {c: {location: gpu0, size: $size}}
    map: {r: [c]}
    access: {r: {gpu0: rw}}
"""


@pytest.fixture
def one(tmp_path: Path, runtime: Path) -> Path:
    """A spec of one process with a parameter."""
    del runtime
    (file := tmp_path / "one.yaml").write_text(ONE)
    return file


def of_bytes(checks: Any) -> set[str]:
    """Aspects of the bytes that were checked."""
    return {each.aspect for each in checks.tallies if "byte" in each.aspect} if checks else set()


@pytest.mark.parametrize(("check", "aspects"), [("none", set()), ("fast", {"bytes"}), ("full", {"every byte"})])
def test_the_extent_of_the_check_is_the_one_that_is_requested(one: Path, check: Any, aspects: set[str]) -> None:
    with memtopo.join(one, "engine", MACHINE, check=check, params={"size": "2MiB"}) as layout:
        assert layout.ranges["r"].size == 2 << 20
    assert layout.report
    assert of_bytes(layout.report.checks) == aspects


def test_a_change_has_the_check_and_the_parameters_that_are_requested(one: Path) -> None:
    with memtopo.join(one, "engine", MACHINE) as layout:
        assert of_bytes(layout.change(one, params={"size": "6MiB"})) == {"bytes"}
        assert of_bytes(layout.change(one, params={"size": "8MiB"}, check="full")) == {"every byte"}
        assert layout.ranges["r"].size == 8 << 20


def test_all_processes_may_ask_for_the_same_state_at_once(join: Start) -> None:
    members = join(SLEEPING, labels(SLEEPING))
    ready(members)
    for state in ("asleep", "awake"):
        for each in members:
            each.request("switch", state)
        answers = [each.read() for each in members]
        assert [(each["state"], each["seen"]) for each in answers] == [(state, [])] * 3
    reports(members)


def test_a_switch_that_another_process_has_made_needs_nobody_to_take_part(join: Start, pair: Path) -> None:
    first, second = members = join(pair, labels(pair), timeout=2)
    ready(members)
    assert second.call("idle") == {"idle": True}
    assert first.call("switch", "level-1")["generation"] == 2
    second.request("done")
    assert second.read()["state"] == "level-1"
    answer = second.call("switch", "level-1")
    assert (answer["state"], answer["generation"], answer["answer"]) == ("level-1", 2, 0)
    with connect(endpoint("pair")) as client, pytest.raises(memtopo.ExchangeError, match="did not take part"):
        client.switch("level-1", full=True)
    reports(members)


def test_a_shell_lists_switches_and_checks_processes_that_are_idle(join: Start, pair: Path) -> None:
    members = join(pair, labels(pair))
    ready(members)
    for each in members:
        assert each.call("idle") == {"idle": True}
    assert endpoint_names() == ["pair"]
    for words in (["switch", "pair", "level-1"], ["check", "pair"]):
        assert shell(*words)[0] == 0
    with connect(endpoint("pair")) as client:
        assert client.status().layout_state == "level-1"
    for each in members:
        each.request("done")
        answer = each.read()
        assert (answer["state"], answer["generation"]) == ("level-1", 2)
    assert {each["report"]["exit_code"] for each in reports(members)} == {0}


def test_a_process_saves_the_memory_of_all_that_take_part(join: Start, pair: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    first, second = join(pair, labels(pair), timeout=2)
    ready([first, second])
    answer = first.call("save", folder)
    assert (answer["error"], "rank.1 did not take part within 2 s" in answer["message"]) == ("FolderRefused", True)
    assert second.call("idle") == {"idle": True}
    assert "error" not in first.call("save", folder)
    second.request("done")
    second.read()
    reports([first, second])
    with opened_folder(folder) as saved:
        index = saved.read_index()
    assert index
    assert (index.layout, [*index.parts]) == ("pair", ["rank.0", "rank.1"])


def test_a_switch_is_refused_if_the_function_of_a_process_raises(join: Start, pair: Path) -> None:
    """It is called before the process takes part."""
    first, second = join(pair, labels(pair), timeout=2)
    ready([first, second])
    second.request("refuse", TIMEOUT)
    answer = first.call("switch", "level-1")
    assert (answer["error"], second.read()["message"]) == ("NotSwitched", "not now")
    assert "rank.1 did not take part within 2 s" in answer["message"]
    assert second.call("poll")["state"] == "awake"
    second.request("poll", TIMEOUT)
    assert first.call("switch", "level-1")["state"] == "level-1"
    assert second.read()["state"] == "level-1"
    reports([first, second])


def test_others_hear_that_a_process_leaves_before_it_waits_for_them(join: Start, pair: Path) -> None:
    """They may still have imported its memory."""
    first, second = join(pair, labels(pair))
    ready([first, second])
    second.request("poll", TIMEOUT)
    first.leave()
    assert second.read()["over"] == "rank.0 has left"
    assert second.call("read", "all")["answer"] is not None, "its memory is gone before it leaves"
    assert "rank.0 has left" in second.call("switch", "level-1")["message"]
    found = [last["report"] for last in reports([second, first])]
    assert [(each["outcome"], [note for note in each["notes"] if "in time" in note]) for each in found] == [
        ("ok", [])
    ] * 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_a_process_is_raised_in_the_others_whose_imports_stay(
    join: Start, pair: Path, number: signal.Signals
) -> None:
    first, second = join(pair, labels(pair))
    ready([first, second])
    assert first.call("write", "own", 5)
    first.send(number)
    answer = second.call("poll", TIMEOUT)
    assert (answer["error"], answer["role"], answer["pid"]) == ("ProcessLost", "rank.0", first.pid)
    assert answer["message"].endswith(f"process rank.0 has ended (process {first.pid})"), "it had no work to do"
    assert 5 in second.call("read", "all")["answer"]
    for request in (["poll"], ["switch", "level-1"], ["change", str(pair)]):
        assert second.call(*request)["error"] == "ProcessLost"
    assert reports([second])[0]["report"]["outcome"] == "ok"


@pytest.mark.parametrize(("method", "error"), [("switch", "NotSwitched"), ("change", "NotChanged")])
def test_a_function_is_called_once_with_a_death_that_refuses_requests(
    join: Start, pair: Path, method: str, error: str
) -> None:
    first, second = join(pair, labels(pair), callback=True)
    ready([first, second])
    first.kill()
    second.call("pending", "TakeDown")
    for _ in range(2):
        answer = second.call(method, "level-1" if method == "switch" else str(pair))
        assert (answer["error"], "rank.0 has ended" in answer["message"]) == (error, True)
    (reason,) = second.call("poll")["lost"]
    assert "rank.0 has ended" in reason
    reports([second])


def joined_and_lost(join: Start, pair: Path, runtime: Path) -> list[Joined]:
    """Return the processes of a layout whose coordinator was killed, each of which has found that."""
    members = in_turn(join, pair, labels(pair))
    ready(members)
    (coordinator,) = coordinators(runtime)
    os.kill(coordinator, signal.SIGKILL)
    for each in members:
        lost = each.call("poll", TIMEOUT)
        assert (lost["error"], lost["role"], lost["pid"]) == ("ProcessLost", "coordinator", coordinator)
    return members


def test_the_death_of_the_coordinator_is_raised_and_the_memory_stays_until_the_layout_begins_again(
    join: Start, pair: Path, runtime: Path
) -> None:
    members = joined_and_lost(join, pair, runtime)
    assert all(each.call("read", "all")["answer"] is not None for each in members)
    assert [each["report"]["leaks"] for each in reports(members)] == [[], []]
    again = join(pair, labels(pair))
    assert all("ranges" in each for each in ready(again))
    reports(again)


def test_a_process_that_never_comes_is_named_to_those_that_wait(join: Start, pair: Path) -> None:
    (first,) = join(pair, ["rank.0"], timeout=1)
    answer = first.read()
    assert answer["error"] == "NotJoined"
    assert f"rank.1 did not join within 1 s; rank.0 (process {first.pid}) did" in answer["message"]


def test_a_process_that_joins_twice_is_refused_in_all(join: Start, pair: Path) -> None:
    members = in_turn(join, pair, ["rank.0", "rank.0"])
    for each in members:
        assert "rank.0 has joined twice" in each.read()["message"]


def test_a_world_of_another_size_is_refused_in_all(join: Start, pair: Path, runtime: Path) -> None:
    (first,) = join(pair, ["rank.0"])
    until(lambda: has_connected(pair))  # else the other one may be refused alone
    (other,) = join(pair, [""], variables={"RANK": "1", "WORLD_SIZE": "3"})
    for each in (first, other):
        assert "is one of 3 processes of its launcher, but the spec has 2" in each.read()["message"]


def test_a_process_that_the_spec_does_not_have_is_refused_with_those_that_it_has(join: Start, pair: Path) -> None:
    (member,) = join(pair, ["rank.2"])
    message = member.read()["message"]
    assert "rank.2" in message
    assert "rank.0 or rank.1" in message


def test_a_layout_that_does_not_fit_the_machine_is_refused_in_all(join: Start, pair: Path) -> None:
    for each in join(pair, labels(pair), machine="h100x1", timeout=1):  # that of a coordinator without processes, too
        assert "gpu1" in each.read()["message"]


def test_the_name_of_a_layout_that_is_held_is_refused(join: Start, pair: Path, tmp_path: Path) -> None:
    held = tmp_path / "held.yaml"
    held.write_text("memtopo: 1\nname: pair\nranges: {r: {size: 2MiB}}\n")
    with memtopo.hold(held, machine=MACHINE):
        for each in join(pair, labels(pair)):
            assert "already held" in each.read()["message"]


def test_another_process_of_a_complete_layout_is_refused(join: Start, pair: Path) -> None:
    members = join(pair, labels(pair))
    ready(members)
    (late,) = join(pair, ["rank.0"], timeout=1)
    answer = late.read()
    assert answer["error"] == "NotJoined"
    assert "has all its processes" in answer["message"]
    reports(members)


@pytest.mark.exhaustive(seconds=20)
def test_a_process_that_waits_for_the_end_of_a_layout_hears_who_is_missing(join: Start, pair: Path) -> None:
    members = join(pair, labels(pair))
    ready(members)
    (late,) = join(pair, ["rank.0"], timeout=10)
    reports(members)
    answer = late.read()
    assert (answer["error"], "rank.1 did not join" in answer["message"]) == ("NotJoined", True), answer


def test_a_process_of_two_layouts_has_the_heaps_of_each(runtime: Path) -> None:
    """Also if it has the same label in both."""

    def spec(name: str) -> dict[str, Any]:
        heap = {"heaps": {name: {"location": "gpu0", "size": "8MiB"}}, "access": {name: {"gpu0": "rw"}}}
        return {"memtopo": 1, "name": name, "processes": {"engine": heap}}

    with memtopo.join(spec("one"), "engine", MACHINE), memtopo.join(spec("two"), "engine", MACHINE):
        for name in ("one", "two"):
            with connect(endpoint(name)) as client:
                assert [each.heap for each in client.status().heaps] == [name]


def test_a_folder_that_does_not_exist_is_refused_at_once(pair: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(memtopo.ExchangeError, match=r"folder '.*none' for a socket does not exist"),
        memtopo.join(pair, "rank.0", MACHINE, socket=f"{tmp_path}/none/"),
    ):
        pass


def test_processes_meet_in_a_folder_that_an_argument_or_the_variable_names(
    join: Start, pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    named = {"MEMTOPO_SOCKET": f"{folder}/"}
    members = [*join(pair, ["rank.0"], socket=str(folder)), *join(pair, ["rank.1"], variables=named)]
    ready(members)
    for each in members:
        each.call("idle")
    command = [sys.executable, "-m", "memtopo", "switch", "pair", "level-1"]
    assert run_python(command, env=os.environ | named, capture_output=True).returncode == 0
    for each in members:
        each.request("done")
        assert each.read()["state"] == "level-1"
    reports(members)
    until(lambda: not [*folder.iterdir()])


def test_a_change_to_another_spec_is_made_with_all(join: Start, pair: Path) -> None:
    first, second = join(pair, labels(pair))
    ready([first, second])
    first.call("write", "own", 3)
    second.request("poll", TIMEOUT)
    assert first.call("change", str(changed(pair)))["answer"] == 0
    assert second.read()["generation"] == 2
    assert second.call("address", "more")["answer"] is None
    assert 3 in second.call("read", "all")["answer"]
    reports([first, second])


def test_a_process_follows_what_another_one_has_requested_before_its_own_request(join: Start, pair: Path) -> None:
    """Its program hears of that, and not of its own request."""
    first, second = members = join(pair, labels(pair))
    ready(members)
    larger = PAIR.replace("own: {size: 4MiB}", "own: {size: 6MiB}").replace("own: [c]", "own: [c, d]")
    pair.write_text(larger.replace("chunks: {", "chunks: {d: {location: mine, size: 2MiB}, "))
    second.call("keep", "own")
    first.request("change", str(pair))
    second.call("pending")
    second.request("switch", "level-1")
    first.read()
    assert first.call("idle") == {"idle": True}
    assert second.read()["seen"] == [["changing", "awake", "awake"], ["changed", "level-1", "level-1"]]
    assert second.call("switch", "awake")["generation"] == 4
    assert "its layout was changed" in second.call("kept")["answer"]
    second.call("write", "own", 5)
    assert second.call("read", "own")["answer"] == [5]
    first.request("done")
    assert [each[:2] for each in first.read()["seen"]] == [
        [kind, state] for state in ("level-1", "awake") for kind in ("changing", "changed")
    ]
    reports(members)


def test_a_process_hears_what_another_one_has_made_before_its_request_was_refused(join: Start, pair: Path) -> None:
    first, second = members = join(pair, labels(pair))
    ready(members)
    first.request("switch", "level-1")
    second.call("pending")
    assert second.call("change", str(changed(pair)))["error"] == "NotChanged"
    assert second.call("done")["seen"] == [["changing", "level-1", "awake"], ["changed", "level-1", "level-1"]]
    first.read()
    reports(members)


HEAP = (
    PAIR.replace("ranges: {", "heaps: {h: {location: mine, size: 64MiB}}\n    ranges: {")
    .replace("states: {level-1: {drop: [c]}}", "states: {level-1: {offload: {h: pinned}, drop: [c]}}")
    .replace("access: {", "access: {h: {mine: rw}, ")
)
"""The pair with a heap, in which the first process allocates before all switch."""


def test_a_view_stays_valid_while_another_process_switches_to_a_state_and_back(join: Start, pair: Path) -> None:
    pair.write_text(HEAP)
    first, second = members = join(pair, labels(pair))
    ready(members)
    second.call("keep", "h", second.call("allocate", "h", 4 << 20)["answer"])
    for state in ("level-1", "awake"):
        second.request("poll", TIMEOUT)
        first.call("switch", state)
        assert second.read()["state"] == state
    assert second.call("kept")["answer"] == ""
    reports(members)


CALLS = 265
"""Driver calls of a process of the pair: 98 until it is built, 3 to allocate, 71 of two switches, 75 of a change."""

VICTIMS = [(victim, call) for victim in ("process", "coordinator") for call in range(1, CALLS + 1, 4)]
TEARDOWN = 237
"""Driver call of the first process from which on it may be in its teardown."""

SHORT = 5
"""Seconds after which a process of these layouts is lost; all others have ended as long after that at the latest."""


@pytest.mark.parametrize(("victim", "call"), VICTIMS[9::25])
def test_a_kill_leaves_nothing_and_ends_no_other_process(join: Start, pair: Path, victim: str, call: int) -> None:
    killed_at(join, pair, victim, call)


@pytest.mark.exhaustive(seconds=2)
@pytest.mark.parametrize(("victim", "call"), VICTIMS)
def test_every_kill_leaves_nothing_and_ends_no_other_process(join: Start, pair: Path, victim: str, call: int) -> None:
    killed_at(join, pair, victim, call)


def shell(*arguments: str) -> tuple[int, Any]:
    """Return the status of a command, and its document."""
    done = run_python([sys.executable, "-m", "memtopo", *arguments, "--json"], capture_output=True)
    return done.returncode, json.loads(done.stdout)


def lost_to_the_shell(first: Joined, second: Joined, *, built: bool) -> None:
    """Compare what commands say of a layout whose first process was killed, and whose second one has memory if `built`.

    A process that waits for others to build ends by itself, and with it the layout.
    """
    first.ended()
    if not built:
        until(lambda: shell("ls")[1]["layouts"] == [])
        return
    until(lambda: shell("ls")[1]["layouts"][0]["state"] == "lost")
    end = {"lost": True, "ended": {"rank.0": first.pid}, "remaining": {"rank.1": second.pid}}
    _, listed = shell("ls")
    status, shown = shell("show", "pair")
    refused, released = shell("release", "pair")
    for found in (listed["layouts"][0], shown, released):
        assert {key: found["end"][key] for key in end} == end
        assert "rank.0" in found["end"]["reason"]
    assert (status, shown["state"], refused, released["gone"]) == (0, "lost", 4, False)
    for request in (["switch", "pair", "level-1"], ["check", "pair"]):
        status, error = shell(*request)
        assert (status, "is lost" in error["error"]["message"]) == (4, True)


def test_a_release_waits_for_processes_that_do_not_leave_no_longer_than_its_limit(join: Start, pair: Path) -> None:
    first, second = join(pair, labels(pair))
    ready([first, second])
    status, released = shell("release", "pair", "--wait", "500ms")
    assert (status, released["gone"], released["end"]["lost"]) == (4, False, False)
    assert released["end"]["remaining"] == {"rank.0": first.pid, "rank.1": second.pid}
    reports([first, second])


def test_what_a_killed_coordinator_leaves_is_lost_until_no_process_has_memory(
    join: Start, pair: Path, runtime: Path
) -> None:
    first, second = joined_and_lost(join, pair, runtime)
    (found,) = shell("ls")[1]["layouts"]
    assert (found["state"], [*found["end"]["ended"]]) == ("lost", ["coordinator"])
    assert found["end"]["remaining"] == {"rank.0": first.pid, "rank.1": second.pid}
    for request in (["show", "pair"], ["release", "pair"]):
        status, error = shell(*request)
        assert (status, f"kill {first.pid} {second.pid}" in error["error"]["hint"]) == (4, True)
    (late,) = join(pair, ["rank.0"], timeout=1)
    assert late.read()["error"] == "NotJoined"
    first.kill()
    first.ended()
    assert shell("ls")[1]["layouts"][0]["end"]["remaining"] == {"rank.1": second.pid}
    second.kill()
    second.ended()
    assert shell("ls")[1]["layouts"] == []


def test_a_coordinator_that_cannot_be_one_says_why_to_all_that_wait(join: Start, pair: Path, runtime: Path) -> None:
    (runtime / "memtopo").mkdir(mode=0o700)
    (lock := runtime / "memtopo" / "pair.join.sock.lock").mkdir()
    for each in join(pair, labels(pair)):
        assert "cannot be acquired: it is " in each.read()["message"]
    lock.rmdir()


def changed(spec: Path) -> Path:
    """Write a spec of the same processes with one range more."""
    other = spec.with_name("other.yaml")
    other.write_text(spec.read_text().replace("ranges: {", "ranges: {more: {size: 2MiB}, "))
    return other


def killed_at(join: Start, pair: Path, victim: str, call: int) -> None:
    """Kill a process at one of the driver calls of the first one; the second one raises or ends in order.

    Commands say what is left of a layout of which the first process was killed.
    """
    pair.write_text(HEAP)
    lock = pair.parent / "run" / "memtopo" / "pair.join.sock.lock"
    other = changed(pair)
    (first,) = join(pair, ["rank.0"], timeout=SHORT, kill=["" if victim == "process" else str(lock), call])
    until(lambda: has_coordinator(pair))
    (second,) = join(pair, ["rank.1"], timeout=SHORT)
    for request in (None, ["switch", "level-1"], ["switch", "awake"], ["change", str(other)]):
        began = time.monotonic()
        if request:
            second.request("poll", SHORT)
            with suppress(BrokenPipeError):
                first.request(*request)
        answer = second.read()
        if request is None and "ranges" not in answer:
            assert answer["error"] in ("NotApplied", "ProcessLost", "NotJoined"), answer
            assert answer["took"] < 2 * SHORT
            break
        assert request is None or time.monotonic() - began < 2 * SHORT, request
        if request is None:
            with suppress(BrokenPipeError):
                first.request("allocate", "h", 4 << 20)
        if request and answer.get("error"):
            assert answer["error"] == "ProcessLost", answer
            break
    if victim == "process" and call < TEARDOWN:
        lost_to_the_shell(first, second, built="took" not in answer)
    began = time.monotonic()
    with suppress(BrokenPipeError):
        first.leave()
    second.leave()
    last = second.read() or answer
    assert time.monotonic() - began < 2 * SHORT
    assert last["report"] is None or last["report"]["leaks"] == [], last
    assert (first.ended() == -signal.SIGKILL) == (victim == "process"), "the call was not made"
    if victim == "coordinator":
        cleaned()


def test_a_process_that_is_stopped_holds_up_no_other_one(join: Start, pair: Path) -> None:
    """It finds out when it goes on."""
    first, second = join(pair, labels(pair), timeout=2)
    ready([first, second])
    first.send(signal.SIGSTOP)
    assert "rank.0 did not take part within 2 s" in second.call("switch", "level-1")["message"]
    began = time.monotonic()
    (report,) = reports([second])
    assert time.monotonic() - began < 2 + 5
    assert report["report"]["leaks"] == []
    first.send(signal.SIGCONT)
    assert first.call("poll")["over"] == "rank.1 has left"
    reports([first])


@pytest.mark.parametrize("first", [pytest.param("stop", marks=pytest.mark.exhaustive), "request"])
def test_a_coordinator_that_is_stopped_holds_up_no_process(join: Start, pair: Path, runtime: Path, first: str) -> None:
    members = in_turn(join, pair, labels(pair), timeout=2)
    ready(members)
    (coordinator,) = coordinators(runtime)
    if first == "stop":
        os.kill(coordinator, signal.SIGSTOP)
    began = time.monotonic()
    members[0].request("switch", "level-1")
    if first == "request":
        os.kill(coordinator, signal.SIGSTOP)
    assert members[0].read()["error"] in ("NotSwitched", "ProcessLost")
    assert time.monotonic() - began < 2 + 5 + 1
    began = time.monotonic()
    assert [each["report"]["leaks"] for each in reports(members)] == [[], []]
    assert time.monotonic() - began < 2 + 5 + 1
    end = os.pidfd_open(coordinator)
    os.kill(coordinator, signal.SIGKILL)
    assert select.select([end], [], [], TIMEOUT)[0]
    os.close(end)
    cleaned()


@pytest.fixture
def unnumbered(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that no launcher has made."""
    for name in (name for launcher in joined._LAUNCHERS for name in launcher):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ("rank.1", 2)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, ("rank.1", 4)),
        (OPEN_MPI, ("rank.3", 4)),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ("rank.1", 2)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, ("rank.1", 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, ("rank.0", 1)),
    ],
)
def test_a_rank_is_that_of_its_launcher_among_those_of_its_host(
    unnumbered: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[str, int]
) -> None:
    for name, value in variables.items():
        unnumbered.setenv(name, value)
    found = memtopo.rank()
    assert (found, found.world) == expected


@pytest.mark.usefixtures("unnumbered")
def test_a_process_without_a_launcher_has_no_rank() -> None:
    with pytest.raises(Unsuitable, match="no launcher"):
        memtopo.rank()


def test_a_spec_of_one_process_is_not_joined() -> None:
    with (
        pytest.raises(Unsuitable, match="applied"),
        memtopo.join(ROOT / "specs" / "quickstart.yaml", "rank.0", MACHINE),
    ):
        pass


HEAPS = """
memtopo: 1
name: heaps
processes:
  rank:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    heaps: {weights: {location: mine, size: 64MiB}, cache: {location: mine, size: 64MiB}}
    access: {weights: {mine: rw}, cache: {mine: rw}}
    states: {level-1: {offload: {weights: pinned}, drop: [cache]}}
"""


def who() -> Usage:
    return usage(GpuUsage(), answers(Client.status))


def test_what_programs_allocate_in_heaps_is_shown_to_others(join: Start, tmp_path: Path) -> None:
    (tmp_path / "heaps.yaml").write_text(HEAPS)
    first, second = members = join(tmp_path / "heaps.yaml", ["rank.0", "rank.1"])
    ready(members)
    for size in (2 << 20, 6 << 20):
        first.call("allocate", "weights", size)
    second.call("allocate", "cache", 4 << 20)

    def shown() -> list[list[str]]:
        command = [sys.executable, "-m", "memtopo", "show", "heaps"]
        text = run_python(command, capture_output=True, check=True, text=True).stdout
        return [re.split("  +", line.strip()) for line in text.splitlines() if line.strip().startswith("rank.")]

    nothing = [["rank.0.cache", "0", "0 B", "0 B"], ["rank.1.weights", "0", "0 B", "0 B"]]
    used = [["rank.0.weights", "2", "8 MiB", "8 MiB"], ["rank.1.cache", "1", "4 MiB", "4 MiB"]]
    assert sorted(shown()) == sorted([*nothing, *used])
    found = {each.pid: [(use.role, use.label, use.bytes) for use in each.layouts] for each in who().processes}
    assert found[first.pid] == [("process", "rank.0", 8 << 20)]
    assert found[second.pid] == [("process", "rank.1", 4 << 20)]
    for member in members:
        member.request("poll", TIMEOUT)
    command = [sys.executable, "-m", "memtopo", "switch", "heaps", "level-1", "--json"]
    memory = json.loads(run_python(command, capture_output=True, check=True, text=True).stdout)["memory"]
    changes = {each["location"]: each["after"] - each["before"] for each in memory}
    assert changes == {"gpu0": -(8 << 20), "gpu1": -(4 << 20), "host": 8 << 20}  # the cache is dropped
    for member in members:
        member.read()
    used = [["rank.0.weights", "2", "8 MiB", "0 B"], ["rank.1.cache", "1", "4 MiB", "0 B"]]
    assert sorted(shown()) == sorted([*nothing, *used])
    command = [sys.executable, "-m", "memtopo", "metrics"]
    metrics = run_python(command, capture_output=True, check=True, text=True).stdout
    assert 'memtopo_heap_allocated_bytes{layout="heaps",process="rank.1",heap="cache"} 4194304' in metrics
    assert 'memtopo_heap_memory_bytes{layout="heaps",process="rank.1",heap="cache"} 0' in metrics
    reports(members)


FOUR = (
    HEAPS.replace("count: 2", "count: 4")
    .replace("[gpu0, gpu1]", "[gpu0, gpu1, gpu2, gpu3]")
    .replace("heaps", "four", 1)
)


SOME = {(2, "check"), (3, "teardown"), (4, "serving")}
"""Numbers of processes that die at once, and what the layout does then, that are tried every day."""


@pytest.mark.parametrize(
    ("count", "moment"),
    [
        pytest.param(*each, marks=[] if each in SOME else pytest.mark.exhaustive)
        for each in product((2, 3, 4), ("serving", "check", "teardown"))
    ],
)
def test_a_layout_is_lost_until_the_last_process_has_left_when_several_die_at_once(
    join: Start, tmp_path: Path, count: int, moment: str
) -> None:
    (spec := tmp_path / "four.yaml").write_text(FOUR)
    ranks = [f"rank.{number}" for number in range(4)]
    members = dict(zip(ranks, in_turn(join, spec, ranks, timeout=SHORT), strict=True))
    ready([*members.values()])
    dying, staying = [members[rank] for rank in ranks[:count]], [members[rank] for rank in ranks[count:]]
    command = [sys.executable, "-m", "memtopo", "check", "four"]
    asked = PythonProcess(command, stderr=subprocess.PIPE, text=True) if moment == "check" else None
    if moment == "teardown":
        dying[0].leave()
    for member in dying:
        member.kill()
    for member in dying:
        member.ended()

    def remaining() -> list[dict[str, int]]:
        return [each["end"] and each["end"]["remaining"] for each in shell("ls")[1]["layouts"]]

    until(lambda: remaining() == ([{rank: members[rank].pid for rank in ranks[count:]}] if staying else []))
    if asked:
        refused = asked.communicate(timeout=3 * SHORT)[1]
        assert (asked.returncode in (3, 4), "Traceback" in refused) == (True, False)  # 3 once nothing is left
    for member in staying:
        member.leave()
    assert all("ProcessLost" in str(last := member.read()) or last["report"]["leaks"] == [] for member in staying)
    until(lambda: shell("ls")[1]["layouts"] == [])


def test_a_spec_of_several_nodes_is_not_joined() -> None:
    spec = ROOT / "specs" / "nodes" / "tensor-parallel.yaml"
    with pytest.raises(Unsuitable, match="several nodes"):
        memtopo.join(spec, "rank.0", MACHINE).__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused_at_once(join: Start) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as named:
        folder = Path(named)
        folder.chmod(0o1777)
        spec = folder / "pair.yaml"
        spec.write_text(PAIR)
        (first,) = join(spec, ["rank.0"], socket=named, timeout=3)
        until(lambda: bool([*folder.glob("*.join.sock")]))
        (other,) = join(spec, ["rank.1"], socket=named, uid=65534)
        assert "belongs to uid 0" in other.read()["message"]
        assert "rank.1 did not join" in first.read()["message"]
        until(lambda: not [*folder.glob("*.sock*")])
