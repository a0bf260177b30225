"""`memtopo.join` of a layout of which a part is held: processes come, leave and die one by one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.api.joined import MACHINE, TIMEOUT, Joined, Start, ready, reports
from tests.helpers.holders import until
from tests.helpers.processes import open_descriptors
from tests.helpers.python_process import run_python
from tests.helpers.specs import ENSEMBLES

SPEC = """
memtopo: 1
name: server
processes:
  weights:
    held: true
    count: 2
    devices: {mine: [gpu0, gpu1]}
    ranges: {weights: {size: 4MiB}}
    chunks: {shard: {location: mine, size: 2MiB, count: 2, handles: fd}}
    map: {weights: [shard]}
    access: {weights: {mine: rw}}
    exports: {shard: {chunk: shard, via: fd}}
    states: {asleep: {offload: {weights: host:0}}}
  engine:
    count: 20
    ranges: {weights: {size: 8MiB}, kv: {size: 4MiB}}
    chunks: {page: {location: gpu0, size: 2MiB, count: 2}}
    imports: {shards: {from: weights.shard}}
    map: {weights: [shards], kv: [page]}
    access: {weights: {gpu0: rw}, kv: {gpu0: rw}}
    states: {lean: {drop: [kv]}}
"""

BESIDE_HELD = [path for path in ENSEMBLES if memtopo.load(path).spec.held_processes]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec of two processes that are held, and of engines that import from both."""
    file = tmp_path / "server.yaml"
    file.write_text(SPEC)
    return file


@pytest.fixture
def held(join: Start, spec: Path) -> Iterator[None]:
    """The held part of the layout, which ends before the processes of `join` are waited for."""
    del join
    with memtopo.hold(spec, machine=MACHINE):
        yield


def refusal(engine: Joined) -> tuple[str, str]:
    answer = engine.read()
    return answer["error"], answer["message"]


def importers() -> list[int | None]:
    with connect(endpoint("server")) as client:
        return [each.pid for each in client.status().importers]


def memtopo_command(*arguments: str) -> int:
    return run_python([sys.executable, "-m", "memtopo", *arguments], capture_output=True).returncode


@pytest.mark.parametrize("spec", BESIDE_HELD, ids=lambda path: path.stem)
def test_every_spec_with_processes_that_are_held_is_joined_by_all_others(join: Start, spec: Path) -> None:
    declared = memtopo.load(spec).spec
    others = [each for each in declared.labels if each.partition(".")[0] not in declared.held_processes]
    engines = join(spec, others)
    with memtopo.hold(spec, machine=MACHINE):
        assert all("ranges" in each for each in ready(engines))
        for report in reports(engines):
            assert (report["report"]["outcome"], report["report"]["leaks"]) == ("ok", [])


@pytest.mark.usefixtures("held")
def test_engines_share_the_memory_of_all_processes_that_are_held_and_have_their_own(join: Start, spec: Path) -> None:
    first, second = engines = join(spec, ["engine.0", "engine.7"])
    assert [each["ranges"].keys() for each in ready(engines)] == [{"weights", "kv"}] * 2
    assert set(importers()) == {first.pid, second.pid}
    first.call("write", "weights", 7)
    first.call("write", "kv", 9)
    assert second.call("read", "weights")["answer"] == [7]
    assert 9 not in second.call("read", "kv")["answer"]
    for report in reports(engines):
        assert (report["report"]["outcome"], report["report"]["leaks"]) == ("ok", [])
    until(lambda: importers() == [])


@pytest.mark.usefixtures("held")
def test_an_engine_that_dies_leaves_the_others_alone_and_its_successor_has_the_same_bytes(
    join: Start, spec: Path
) -> None:
    first, second = engines = join(spec, ["engine.0", "engine.1"])
    ready(engines)
    first.call("write", "weights", 5)
    first.kill()
    until(lambda: importers() == [second.pid])
    assert (second.call("poll")["over"], second.call("read", "weights")["answer"]) == (None, [5])
    (successor,) = join(spec, ["engine.0"])
    ready([successor])
    assert successor.call("read", "weights")["answer"] == [5]
    reports([second, successor])


@pytest.mark.usefixtures("held")
def test_engines_follow_a_switch_of_the_held_part_and_join_while_it_is_asleep(join: Start, spec: Path) -> None:
    (engine,) = join(spec, ["engine.0"])
    ready([engine])
    engine.call("write", "weights", 3)
    assert engine.call("idle") == {"idle": True}
    assert memtopo_command("switch", "server", "asleep") == 0
    engine.call("done")
    assert engine.call("absent")["answer"] == ["shards"]
    (late,) = join(spec, ["engine.1"])
    ready([late])
    assert late.call("absent")["answer"] == ["shards"]
    for each in (engine, late):
        assert each.call("idle") == {"idle": True}
    assert memtopo_command("switch", "server", "awake") == 0
    for each in (engine, late):
        each.call("done")
        assert each.call("absent")["answer"] == []
        assert each.call("read", "weights")["answer"] == [3]
    reports([engine, late])


@pytest.mark.usefixtures("held")
def test_a_switch_of_an_engine_is_that_of_its_own_part(join: Start, spec: Path) -> None:
    first, second = engines = join(spec, ["engine.0", "engine.1"])
    ready(engines)
    second.call("write", "kv", 2)
    first.call("write", "weights", 6)
    assert first.call("switch", "lean")["state"] == "lean"
    assert (second.call("done")["state"], second.call("read", "kv")["answer"]) == ("awake", [2])
    assert first.call("read", "weights")["answer"] == [6]
    assert first.call("switch", "awake")["state"] == "awake"
    assert "memtopo change" in first.call("change", str(spec))["message"]
    reports(engines)


@pytest.mark.parametrize("callback", [False, True])
def test_the_death_of_the_holder_is_told_once_and_the_imports_stay(
    join: Start, spec: Path, runtime: Path, callback: bool
) -> None:
    command = ["apply", str(spec), "--machine", MACHINE, "--hold", "--detach", "--log", str(runtime / "log")]
    assert memtopo_command(*command) == 0
    with connect(endpoint("server")) as client:
        holder = client.pid
    (engine,) = join(spec, ["engine.0"], callback=callback)
    ready([engine])
    engine.call("write", "weights", 8)
    os.kill(holder, signal.SIGKILL)
    answer = engine.call("poll", TIMEOUT)
    lost = answer["lost"][0] if callback else answer["message"]
    assert "the holder of layout 'server' has ended" in lost
    if callback:
        assert len(engine.call("poll")["lost"]) == 1
    else:
        assert engine.call("poll")["error"] == "ProcessLost"
    assert engine.call("read", "weights")["answer"] == [8]
    (report,) = reports([engine])
    assert (report["report"]["exit_code"], report["report"]["leaks"]) == (0, [])
    until(lambda: memtopo_command("ls") == 0 and not [*(runtime / "memtopo").glob("*")])  # it removes what was left


def test_a_layout_that_nobody_holds_is_named_after_the_timeout(join: Start, spec: Path) -> None:
    (engine,) = join(spec, ["engine.0"], timeout=0.2)
    error, message = refusal(engine)
    assert error == "NoLayout"
    assert "server" in message


def test_an_engine_waits_for_the_commit_of_what_it_imports(join: Start, spec: Path) -> None:
    spec.write_text(SPEC.replace("{chunk: shard, via: fd}", "{chunk: shard, via: fd, commit: required}"))
    with memtopo.hold(spec, machine=MACHINE):
        (late,) = join(spec, ["engine.1"], timeout=0.3)
        assert refusal(late)[0] == "ExchangeError"
        (engine,) = join(spec, ["engine.0"])
        with memtopo.attach("server", role="writer") as writer:
            for index in (0, 1):
                view = writer.export(f"weights.{index}.shard")
                view.memory[:] = bytes([7]) * view.size
            del view
            writer.commit()
        ready([engine])
        assert engine.call("read", "weights")["answer"] == [7]
        reports([engine])


@pytest.mark.usefixtures("held")
def test_an_engine_that_has_joined_is_not_joined_again(join: Start, spec: Path) -> None:
    (engine,) = join(spec, ["engine.0"])
    ready([engine])
    (twice,) = join(spec, ["engine.0"])
    assert refusal(twice) == ("NotJoined", f"engine.0 has joined already, as process {engine.pid}")
    reports([engine])
    (again,) = join(spec, ["engine.0"])
    ready([again])
    reports([again])


@pytest.mark.usefixtures("held")
def test_a_process_that_is_refused_leaves_no_descriptor(spec: Path) -> None:
    with memtopo.join(spec, "engine.0", MACHINE):
        before = open_descriptors()
        for _ in range(3):
            with pytest.raises(memtopo.NotJoined, match="has joined already"):
                memtopo.join(spec, "engine.0", MACHINE).__enter__()
        until(lambda: open_descriptors() <= before)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("process", "machine", "expected"),
    [
        ("weights.0", MACHINE, "process 'weights' is held"),
        ("engine.20", MACHINE, "engine.20 is not a process of the layout"),
        ("engine.0", "h200x2", "is held on machine 'h200x4', and not on 'h200x2'"),
    ],
)
def test_processes_that_cannot_join_are_refused(
    join: Start, spec: Path, process: str, machine: str, expected: str
) -> None:
    (engine,) = join(spec, [process], machine=machine)
    error, message = refusal(engine)
    assert error == "NotJoined"
    assert expected in message
    assert importers() == []


@pytest.mark.usefixtures("held")
def test_a_world_of_another_size_is_refused(spec: Path) -> None:
    member = memtopo.api.joined.Rank("engine", 0, 2)
    with pytest.raises(memtopo.NotJoined, match="one of 2 processes of its launcher, but the spec has 20"):
        memtopo.join(spec, member, MACHINE).__enter__()


@pytest.mark.usefixtures("held")
def test_after_a_change_of_the_held_part_engines_join_with_the_new_spec(
    join: Start, spec: Path, tmp_path: Path
) -> None:
    (engine,) = join(spec, ["engine.0"])
    ready([engine])
    engine.call("write", "weights", 4)
    other = tmp_path / "more.yaml"
    other.write_text(SPEC.replace("{weights: {size: 4MiB}}", "{weights: {size: 4MiB}, more: {size: 2MiB}}"))
    assert memtopo_command("change", "server", str(other)) == 0
    assert engine.call("poll")["over"] is None
    (old,) = join(spec, ["engine.1"])
    error, message = refusal(old)
    assert (error, "has another spec" in message) == ("NotJoined", True)
    (new,) = join(other, ["engine.1"])
    ready([new])
    assert new.call("read", "weights")["answer"] == [4]
    reports([engine, new])


POOL = """
memtopo: 1
name: server
processes:
  pool:
    held: true
    ranges: {kv: {size: 64MiB, elastic: true}}
    chunks: {page: {location: gpu1, size: 2MiB, count: {min: 2, max: 8}, handles: fd}}
    access: {kv: {gpu1: rw}}
    exports: {pages: {chunk: page, via: fd, quota: 6}}
  engine:
    count: 2
    ranges: {cache: {size: 32MiB, elastic: true}, own: {size: 2MiB}}
    chunks: {own: {location: gpu0, size: 2MiB}}
    imports: {pages: {from: pool.pages}}
    map: {own: [own]}
    access: {cache: {gpu1: rw}, own: {gpu0: rw}}
"""


def test_engines_map_chunks_that_the_held_process_lends(join: Start, spec: Path) -> None:
    spec.write_text(POOL)
    size = 2 << 20

    def cache(engine: Joined, *request: Any) -> Any:
        answer = engine.call("elastic", "cache", *request)
        return answer.get("answer", answer.get("message"))

    assert memtopo_command("apply", str(spec), "--machine", MACHINE) == 0, "a rehearsal of all"
    with memtopo.hold(spec, machine=MACHINE):
        first, second = engines = join(spec, ["engine.0", "engine.1"])
        ready(engines)
        assert cache(first, "map", 0, "pages", 4) == ["pages.0", "pages.1", "pages.2", "pages.3"]
        first.call("fill", "cache", 0, 4 * size, 6)
        assert cache(first, "seal", 0, 2 * size, "prompt") == 1
        assert "5 chunks 'page' are requested, and 4 of 8" in cache(second, "map", 0, "pages", 5)
        first.kill()
        until(lambda: importers() == [second.pid])
        (successor,) = join(spec, ["engine.0"])
        ready([successor])
        assert cache(successor, "adopt", 4 * size, "prompt") == ["pages.0", "pages.1"]
        assert successor.call("part", "cache", 4 * size, 2 * size)["answer"] == [6]
        assert len(cache(second, "map", 0, "pages", 6)) == 6
        assert {report["report"]["outcome"] for report in reports([second, successor])} == {"ok"}
        until(lambda: importers() == [])


@pytest.mark.usefixtures("held")
def test_many_engines_leave_nothing_in_the_holder(join: Start, spec: Path) -> None:
    def joins_and_leaves() -> None:
        with memtopo.join(spec, "engine.3", MACHINE) as layout:
            assert not layout.over

    engines = join(spec, [f"engine.{index}" for index in range(5)])
    ready(engines)
    reports(engines)
    joins_and_leaves()
    before = open_descriptors()
    for _ in range(40):
        joins_and_leaves()
    until(lambda: importers() == [] and open_descriptors() <= before)


@pytest.mark.exhaustive(seconds=60)
def test_two_hundred_engines_of_which_twenty_are_there_at_once_leave_nothing(join: Start, spec: Path) -> None:
    """Each has lent chunks; a half of them is killed."""
    spec.write_text(POOL.replace("max: 8", "max: 60").replace("count: 2\n", "count: 20\n"))

    def left() -> Any:
        with connect(endpoint("server")) as client:
            found = client.statistics()
            lends = client.offers()["pool.pages"].lends
            assert found
            return found.memory, lends, open_descriptors()

    def twenty_come_and_go() -> None:
        engines = join(spec, [f"engine.{index}" for index in range(20)])
        ready(engines)
        mapped = [each.call("elastic", "cache", "map", 0, "pages", 3)["answer"] for each in engines]
        assert len({chunk for chunks in mapped for chunk in chunks}) == len(importers()) * 3 == 60
        for each in engines[1::2]:
            each.kill()
        assert {report["report"]["outcome"] for report in reports(engines[::2])} == {"ok"}
        for each in engines:
            each.kill()  # closes its pipes
        until(lambda: importers() == [])

    with memtopo.hold(spec, machine=MACHINE):
        twenty_come_and_go()
        before = left()
        for _ in range(9):
            twenty_come_and_go()
        until(lambda: left() == before)
    assert memtopo_command("ls") == 0, "it removes what the killed ones left"


SHORT = 5
"""Seconds after which a holder or a process is lost; all others have ended as long after that at the latest."""

CALLS = 236
"""Driver calls that an engine makes at least: 87 until it is built, 90 of two switches, 42 of a check, and others."""

VICTIMS = [(victim, call) for victim in ("engine", "holder") for call in (*range(1, CALLS, 6), CALLS)]


@pytest.mark.parametrize(("victim", "call"), VICTIMS[10::21])
def test_a_kill_leaves_nothing_and_ends_no_other_engine(
    join: Start, spec: Path, runtime: Path, victim: str, call: int
) -> None:
    killed_beside(join, spec, runtime, victim, call)


@pytest.mark.exhaustive(seconds=3)
@pytest.mark.parametrize(("victim", "call"), VICTIMS)
def test_every_kill_leaves_nothing_and_ends_no_other_engine(
    join: Start, spec: Path, runtime: Path, victim: str, call: int
) -> None:
    killed_beside(join, spec, runtime, victim, call)


def killed_beside(join: Start, spec: Path, runtime: Path, victim: str, call: int) -> None:
    """Kill an engine, or the holder, at one of the engine's driver calls; another engine goes on, or is told."""
    command = ["apply", str(spec), "--machine", MACHINE, "--hold", "--detach", "--log", str(runtime / "log")]
    assert memtopo_command(*command) == 0
    (other,) = join(spec, ["engine.1"], timeout=SHORT)
    ready([other])
    other.call("write", "weights", 6)
    lock = "" if victim == "engine" else str(runtime / "memtopo" / "server.sock.lock")
    (engine,) = join(spec, ["engine.0"], timeout=SHORT, kill_beside_held=[lock, call])
    last = worked(engine)
    if victim == "engine":
        assert last is None
        until(lambda: importers() == [other.pid])
        assert (other.call("poll")["over"], other.call("read", "weights")["answer"]) == (None, [6])
        assert memtopo_command("check", "server") == 0
        (report,) = reports([other])
        assert memtopo_command("release", "server") == 0
        assert memtopo_command("ls") == 0, "it removes what the engine left"
    else:
        assert last
        assert last["report"] is None or last["report"]["leaks"] == [], last
        assert other.call("poll", SHORT)["error"] == "ProcessLost"
        (report,) = reports([other])
        (folder,) = runtime.glob("memtopo")
        until(lambda: memtopo_command("ls") == 0 and not [*folder.iterdir()])  # once the workers have taken down
    assert report["report"]["leaks"] == []


def worked(engine: Joined) -> Any:
    """Last line of an engine that joins, switches its own part and leaves, each in time; None if it died."""
    answer = engine.read()
    if answer and "ranges" not in answer:
        assert answer["error"] in ("ExchangeError", "NoLayout", "NotApplied", "NotJoined"), answer
        assert answer["took"] < 2 * SHORT
        return answer
    for request in (["switch", "lean"], ["poll"], ["switch", "awake"], ["check"]):
        began = time.monotonic()
        with suppress(BrokenPipeError):
            engine.request(*request)
        if (answer := engine.read()) is None:
            return None
        assert answer.get("error") in (None, "ProcessLost"), answer
        assert time.monotonic() - began < 2 * SHORT, request
    engine.leave()
    return engine.read()
