"""Attached processes follow a holder that changes its layout: memory goes and comes back at the same addresses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.api.attachment import Attached
from memtopo.api.imports import HOLDER
from memtopo.api.live import Live
from memtopo.api.views import View
from memtopo.common.errors import ExchangeError, MemtopoError, UsageError
from memtopo.drivers.target import Target
from memtopo.kinds.layout import current
from memtopo.sharing.client import IN_FLIGHT, Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.state import HolderEvent, Supervision
from memtopo.sharing.status import Changed, Notice
from tests.api.test_apply import failing
from tests.helpers.child_process import PATIENCE
from tests.helpers.held_layouts import Held, Switch, held, switching
from tests.helpers.holders import until
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import require_taken_down

M = 2 << 20
SPEC = {
    "memtopo": 1,
    "name": "sleeper",
    "ranges": {"weights": {"size": "4MiB"}, "kv": {"size": "4MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"},
        "page": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"},
    },
    "map": {"weights": ["w"], "kv": ["page"]},
    "access": {"weights": {"gpu0": "rw"}, "kv": {"gpu0": "rw"}},
    "exports": {"w": {"chunk": "w", "via": "fd"}, "page": {"chunk": "page", "via": "fd"}},
    "states": {"asleep": {"offload": {"weights": "host:0"}, "drop": ["kv"]}, "half": {"drop": ["kv"]}},
}


@pytest.fixture
def shared(layout: Held, machine: Target) -> Iterator[Attached]:
    """An attachment to all exports of the layout."""
    with memtopo.attach("sleeper", machine=machine) as found:
        yield found
    require_taken_down(found)


def poll(shared: Attached) -> Notice:
    notice = shared.poll(PATIENCE)
    assert notice
    return notice


def switch_now(state: str) -> None:
    """Switch the layout, whose importers have nothing to let go of."""
    with connect(endpoint("sleeper")) as client:
        client.switch(state)


def test_memory_comes_back_at_the_same_address_with_the_bytes_of_the_holder(
    layout: Held, shared: Attached, switch: Switch
) -> None:
    weights, pages = np.asarray(shared.export("w")), np.asarray(shared.export("page"))
    weights[:5] = list(b"bytes")
    addresses = shared.address("w"), shared.address("page"), weights.ctypes.data
    for generation in (1, 3):
        asleep = switch("asleep")
        assert poll(shared).kind == "changing"
        assert shared.absent == {"w", "page"}
        assert asleep.result().kept == ()
        assert not layout.run.execution.layout.chunks.keys() & {"w.0", "page.0"}
        assert (weights[0], pages[0]) == (0, 0)
        notice = poll(shared)
        assert (notice.kind, notice.state, notice.generation) == ("changed", "asleep", generation + 1)
        assert shared.absent == {"w", "page"}
        awake = switch("awake")
        assert (poll(shared).state, shared.generation) == ("awake", generation + 2)
        awake.result()
        assert (shared.absent, bytes(weights[:5])) == (frozenset(), b"bytes")
        layout.write("kv", b"new")
        assert bytes(pages[:3]) == b"new"
        assert (shared.address("w"), shared.address("page"), weights.ctypes.data) == addresses
    assert shared.check().different == 0
    del weights, pages


def test_only_what_goes_is_let_go_of(layout: Held, shared: Attached, switch: Switch) -> None:
    weights = np.asarray(shared.export("w"))
    weights[:3] = list(b"abc")
    half = switch("half")
    assert poll(shared).exports == ("page",)
    half.result()
    assert bytes(weights[:3]) == b"abc"
    layout.write("weights", b"xyz")
    assert bytes(weights[:3]) == b"xyz"
    assert shared.absent == {"page"}
    del weights


def test_a_process_attaches_after_a_change_for_which_others_let_go(runtime: Path, machine: Target) -> None:
    events: list[HolderEvent] = []

    def absent() -> frozenset[str]:
        with memtopo.attach("sleeper", "page", machine=machine, wait=PATIENCE) as late:
            return late.absent

    def early() -> bool:
        return any(each.text == "importer attached" and each.fields["handles"] == 0 for each in events)

    with (
        held(SPEC, machine, supervision=Supervision(log=events.append)),
        memtopo.attach("sleeper", machine=machine) as shared,
        switching("sleeper") as switch,
        ThreadPoolExecutor() as pool,
    ):
        half = switch("half")
        until(lambda: any(each.text == "switch requested" for each in events))
        attached = pool.submit(absent)
        until(lambda: attached.done() or early())
        poll(shared)
        half.result()
        assert attached.result(PATIENCE) == {"page"}


def test_views_of_memory_that_is_gone_are_refused(shared: Attached, switch: Switch) -> None:
    """New ones, and tensors of views that exist."""
    view = shared.export("page")
    half = switch("half")
    poll(shared)
    with pytest.raises(memtopo.Unsuitable, match="range 'page' currently has no memory: the exporting layout"):
        shared.export("page")
    uses: tuple[Callable[[View], object], ...] = (lambda view: view.memory, np.from_dlpack, np.asarray)
    for use in uses:
        with pytest.raises(BufferError, match=r"currently has no memory.*poll\(\) imports it again"):
            use(view)
    assert shared.export("w").size == 2 * M
    half.result()
    awake = switch("awake")
    assert [poll(shared).state, poll(shared).state] == ["half", "awake"]
    awake.result()
    assert view.memory.nbytes == 2 * M
    del view


def test_the_callback_sees_memory_before_it_goes_and_after_it_is_back(
    layout: Held, machine: Target, switch: Switch
) -> None:
    seen: list[tuple[str, str | None, frozenset[str]]] = []
    with memtopo.attach("sleeper", "page", machine=machine) as shared:
        shared.on_change = lambda notice: seen.append((notice.kind, notice.state, shared.absent))
        half = switch("half")
        poll(shared)
        half.result()
        poll(shared)
        awake = switch("awake")
        poll(shared)
        awake.result()
    gone = frozenset({"page"})
    assert seen == [("changing", "half", frozenset()), ("changed", "half", gone), ("changed", "awake", frozenset())]


def test_a_callback_that_raises_keeps_the_memory(shared: Attached, switch: Switch) -> None:
    """And the importer is named at the deadline."""

    def refuse(notice: Notice) -> None:
        raise RuntimeError(notice.kind)

    shared.on_change = refuse
    half = switch("half", wait=0.2)
    with pytest.raises(RuntimeError, match="changing"):
        poll(shared)
    assert shared.absent == frozenset()
    with pytest.raises(ExchangeError, match="2 of page, 4 MiB"):
        half.result()
    assert poll(shared).exports == ()


def test_an_importer_that_does_not_poll_keeps_the_old_memory_under_force(
    layout: Held, shared: Attached, switch: Switch
) -> None:
    """It lets go and imports the new memory once it polls."""
    pages = np.asarray(shared.export("page"))
    pages[:3] = list(b"old")
    with pytest.raises(ExchangeError, match=r"did not release imported memory within 0.01 s"):
        switch("half", wait=0.01).result()
    assert [each.handles for each in switch("half", wait=0.01, force=True).result().kept] == [2]
    assert switch("awake").result().state == "awake"
    layout.write("kv", b"new")
    assert bytes(pages[:3]) == b"old"
    while shared.generation < 3:
        poll(shared)
    assert (shared.absent, bytes(pages[:3])) == (frozenset(), b"new")
    del pages


def test_an_importer_that_polls_after_forced_changes_is_told_the_last_state(
    layout: Held, shared: Attached, switch: Switch
) -> None:
    """An engine that paused for the first one goes on."""
    del layout
    states: list[str | None] = []
    shared.on_change = lambda notice: states.append(notice.state)
    switch("half", wait=0.01, force=True).result()
    switch("awake").result()
    until(lambda: shared.poll(1) and states[-1] == "awake")
    assert (states[0], shared.absent) == ("half", frozenset())


def test_a_layout_can_be_left_while_its_memory_is_gone(layout: Held, machine: Target, switch: Switch) -> None:
    with memtopo.attach("sleeper", machine=machine) as shared:
        asleep = switch("asleep")
        poll(shared)
        asleep.result()
    require_taken_down(shared)


def test_an_attachment_to_a_sleeping_layout_gets_its_memory_when_it_wakes(
    layout: Held, machine: Target, switch: Switch
) -> None:
    """And follows the next sleep as any other."""
    layout.write("weights", b"bytes")
    switch("asleep").result()
    with memtopo.attach("sleeper", machine=machine) as shared:
        assert shared.absent == {"w", "page"}
        assert shared.generation == 2
        with pytest.raises(memtopo.Unsuitable, match="currently has no memory"):
            shared.export("w")
        address = shared.address("w")
        assert switch("half").result().kept == ()
        assert poll(shared).exports == ("w", "page")
        assert shared.absent == {"page"}
        assert np.asarray(shared.export("w"))[:5].tobytes() == b"bytes"
        switch("awake").result()
        assert (poll(shared).state, shared.absent, shared.address("w")) == ("awake", frozenset(), address)
        assert shared.check().different == 0
        asleep = switch("asleep")
        assert poll(shared).exports == ("w", "page")
        assert asleep.result().kept == ()
    require_taken_down(shared)


@pytest.mark.parametrize("count", [2, IN_FLIGHT + 1])
def test_an_export_without_a_part_of_its_memory_is_absent(machine: Target, runtime: Any, count: int) -> None:
    """Its importer keeps no handles of the rest, not even of an answer before the one that was refused."""
    spec: Any = copy.deepcopy(SPEC) | {"states": {"less": {"drop": [f"page.{count - 1}"]}}}
    spec["chunks"]["page"]["count"], spec["ranges"]["kv"]["size"] = count, f"{2 * count}MiB"
    with held(spec, machine):
        switch_now("less")
        with memtopo.attach("sleeper", machine=machine) as shared:
            assert shared.absent == {"page"}
            with connect(endpoint("sleeper")) as client:
                (importer,) = client.status().importers
            assert [each.export for each in importer.taken] == ["w"]
            switch_now("awake")
            assert (poll(shared).state, shared.absent) == ("awake", frozenset())


def test_the_end_of_the_holder_is_an_error_whenever_it_is_polled(machine: Target, runtime: Any) -> None:
    """The memory stays valid until the importer leaves."""
    with held(SPEC, machine) as layout, memtopo.attach("sleeper", machine=machine) as shared:
        weights = np.asarray(shared.export("w"))
        weights[:3] = list(b"abc")
        layout.end()
        with pytest.raises(ExchangeError, match=r"^the holder has ended the connection"):
            [*iter(lambda: shared.poll(PATIENCE), None)]
        with pytest.raises(ExchangeError, match=r"^the holder has ended the connection") as error:
            shared.poll()
        assert error.value.hint
        assert error.value.hint.startswith("imports over fd and fabric stay valid")
        assert bytes(weights[:3]) == b"abc"
        del weights


def test_forty_switches_leave_no_descriptors(shared: Attached, switch: Switch) -> None:
    before = 0
    for _ in range(20):
        half = switch("half")
        assert [poll(shared).kind, poll(shared).kind] == ["changing", "changed"]
        half.result()
        awake = switch("awake")
        poll(shared)
        awake.result()
        before = before or open_descriptors()
    until(lambda: open_descriptors() <= before)
    assert shared.generation == 41


def test_an_export_of_another_size_is_not_imported_again(layout: Held, shared: Attached, switch: Switch) -> None:
    """Its memory stays away, and the holder does not wait for it."""
    half = switch("half")
    poll(shared)
    half.result()
    poll(shared)
    lease: Any = shared._lease
    lease._imports = [replace(each, size=2 * M) for each in lease._imports]
    awake = switch("awake")
    with pytest.raises(MemtopoError, match=r"import 'page' declares size 4MiB; holder/page has 2MiB"):
        poll(shared)
    assert shared.absent == {"page"}
    awake.result()
    assert switch("half").result().kept == ()


READER = {
    "memtopo": 1,
    "name": "reader",
    "ranges": {"view": {"size": "4MiB"}, "cache": {"size": "4MiB"}, "own": {"size": "2MiB"}},
    "imports": {
        "loaded": {"from": "sleeper/w", "location": "gpu0", "size": "2MiB", "count": 2},
        "shown": {"from": "sleeper/page", "location": "gpu0", "size": "2MiB", "count": 2},
    },
    "chunks": {"mine": {"location": "gpu0", "size": "2MiB"}},
    "map": {"view": ["loaded"], "cache": ["shown"], "own": ["mine"]},
    "access": {"view": {"gpu0": "r"}, "cache": {"gpu0": "rw"}, "own": {"gpu0": "rw"}},
    "states": {"idle": {"drop": ["own"]}},
}


def test_imports_of_a_spec_follow(layout: Held, machine: Target, switch: Switch) -> None:
    """Through states of the importing layout as well."""
    layout.write("weights", b"bytes")
    with memtopo.applied(READER, machine) as reader:
        view = np.asarray(reader.range("view"))
        asleep = switch("asleep")
        assert reader.poll(PATIENCE)
        assert asleep.result().kept == ()
        assert reader.absent == {"loaded", "shown"}
        reader.switch("idle")
        assert reader.absent == {"loaded", "shown"}
        reader.switch("awake")
        assert reader.poll(PATIENCE)
        with pytest.raises(memtopo.Unsuitable, match="currently has no memory"):
            reader.range("view")
        awake = switch("awake")
        assert reader.poll(PATIENCE)
        awake.result()
        assert (reader.absent, bytes(view[:5]), reader.check().different) == (frozenset(), b"bytes", 0)
        assert reader.poll() is None
        del view
    require_taken_down(reader)


def reader_without(*ranges: str) -> dict[str, Any]:
    """READER without some ranges, and without the imports that are mapped there."""
    spec: dict[str, Any] = copy.deepcopy(READER)
    for name in ranges:
        (mapped,) = spec["map"].pop(name)
        del spec["ranges"][name], spec["access"][name], spec["imports"][mapped]
    return spec


def test_imports_that_a_change_adds_follow(layout: Held, machine: Target, switch: Switch) -> None:
    """Also to a layout that imported nothing."""
    layout.write("weights", b"bytes")
    with memtopo.applied(reader_without("view", "cache"), machine) as reader:
        assert reader.poll() is None
        assert reader.change(READER).different == 0
        asleep = switch("asleep")
        assert reader.poll(PATIENCE)
        assert asleep.result().kept == ()
        assert reader.absent == {"loaded", "shown"}
        assert reader.poll(PATIENCE)
        awake = switch("awake")
        assert reader.poll(PATIENCE)
        awake.result()
        view = np.asarray(reader.range("view"))
        assert (reader.absent, bytes(view[:5]), reader.check().different) == (frozenset(), b"bytes", 0)
        del view


def test_a_layout_without_its_imports_is_changed_once_it_has_them_again(
    layout: Held, machine: Target, switch: Switch
) -> None:
    layout.write("weights", b"bytes")
    with memtopo.applied(READER, machine) as reader:
        asleep = switch("asleep")
        assert reader.poll(PATIENCE)
        asleep.result()
        with pytest.raises(memtopo.Unsuitable, match="without some memory") as refused:
            reader.change(READER | {"states": {}})
        assert refused.value.hint == "poll() until its imports are mapped again"
        assert reader.absent == {"loaded", "shown"}
        awake = switch("awake")
        while reader.absent:
            assert reader.poll(PATIENCE)
        awake.result()
        assert reader.change(READER | {"states": {}}).different == 0
        view = np.asarray(reader.range("view"))
        assert bytes(view[:5]) == b"bytes"
        del view


def test_imports_that_a_change_adds_are_replaced_after_a_forced_change(
    layout: Held, machine: Target, switch: Switch
) -> None:
    """Of a layout that has already followed others."""
    with memtopo.applied(reader_without("view"), machine) as reader:
        half = switch("half")
        assert [reader.poll(PATIENCE), reader.poll(PATIENCE)]
        half.result()
        switch("awake").result()
        assert reader.poll(PATIENCE)
        assert reader.change(READER).different == 0
        for state in ("asleep", "awake"):
            switch(state, force=True, wait=0).result()
        layout.write("weights", b"bytes")
        while reader.poll():
            pass
        view = np.asarray(reader.range("view"))
        assert (reader.absent, bytes(view[:5]), reader.check().different) == (frozenset(), b"bytes", 0)
        del view


def test_a_held_layout_follows_the_layout_that_it_imports_from(layout: Held, machine: Target, switch: Switch) -> None:
    layout.write("weights", b"bytes")
    with held(READER, machine, interval=0.01) as reader:
        mapped = reader.run.execution.layout.ranges["view"].address
        assert switch("half").result().kept == ()
        assert {"loaded.0", "mine"} <= reader.run.execution.layout.chunks.keys()
        assert "shown.0" not in reader.run.execution.layout.chunks
        assert switch("awake").result().kept == ()
        until(lambda: "shown.1" in reader.run.execution.layout.chunks)
        assert switch("asleep").result().kept == ()
        assert switch("awake").result().kept == ()
        until(lambda: reader.conductors[0].whole)
        assert reader.run.execution.layout.ranges["view"].address == mapped
        assert reader.bytes_of("view", 0, 5) == b"bytes"
    assert reader.report.outcome == "ok"


def test_a_held_layout_follows_later_what_it_could_not_follow(layout: Held, switch: Switch) -> None:
    target, drivers = failing(0), list[Any]()

    def opened() -> Any:
        drivers.append(target.open())
        return drivers[-1]

    with held(READER, replace(target, _opener=opened), interval=0.01) as reader:
        drivers[-1].at = drivers[-1].calls + 1
        switch("asleep", wait=0, force=True).result(PATIENCE)
        until(lambda: not {"loaded.0", "shown.0"} & reader.run.execution.layout.chunks.keys())
        switch("awake").result(PATIENCE)
        until(lambda: reader.conductors[0].whole)
    assert "CUDA_ERROR_UNKNOWN" in str(reader.report.notes)


def test_every_failing_call_leaves_the_imports_as_they_were(layout: Held) -> None:
    """Those of the check of repeated imports as well."""
    with memtopo.attach("sleeper", machine=failing(0)) as shared, connect(endpoint("sleeper")) as client:
        pages = np.asarray(shared.export("page"))
        pages[:3] = list(b"abc")
        for kind, absent in (("changing", set[str]()), ("changed", {"page"})):
            failures: list[str] = []
            notice = Notice(kind, exports=("page",))  # type: ignore[arg-type]
            while failure := failure_at(shared, notice, len(failures) + 1):
                failures.append(failure)
                assert shared.absent == absent
                (importer,) = client.status().importers
                assert {each.export for each in importer.taken} == {"w", "page"} - absent
                assert bytes(pages[:3]) == (b"\0\0\0" if absent else b"abc")
            assert len(failures) > 5
        assert "check of repeated imports" in failures[-1]
        assert bytes(pages[:3]) == b"abc"
        del pages


def failure_at(shared: Attached, notice: Notice, at: int) -> str:
    """Follow a notice while one of the driver's calls fails; return the error, which is empty after too few calls."""
    driver: Any = shared._session._opened
    driver.at = driver.calls + at
    try:
        Live._follow(shared, shared._imports, HOLDER, notice)  # type: ignore[arg-type]
    except memtopo.NotSwitched as error:
        return str(error)
    finally:
        driver.at = 0
    return ""


def test_a_view_shows_no_memory_that_a_failed_rollback_has_left_unmapped(layout: Held) -> None:
    with memtopo.attach("sleeper", machine=failing(0)) as shared:
        pages = np.asarray(shared.export("page"))
        pages[:3] = list(b"abc")
        driver: Any = shared._session._opened
        driver._every, driver.at = True, driver.calls + 5
        with pytest.raises(memtopo.NotSwitched, match=r"to roll back a change \(undo import page.1: cuMemRelease"):
            Live._follow(shared, shared._imports, HOLDER, Notice("changing", exports=("page",)))  # type: ignore[arg-type]
        driver.at = 0
        assert bytes(pages[:3]) == b"\0\0\0"
        del pages


def changed(spec: object) -> Callable[[Client], Changed]:
    return lambda client: client.change(json.dumps({"spec": json.dumps(spec)}), wait=PATIENCE)


def test_an_importer_follows_a_change_to_another_spec(layout: Held, shared: Attached) -> None:
    """An export that has other chunks comes back with these, one that is removed does not; the third is not touched."""
    spec: Any = copy.deepcopy(SPEC)
    spec["chunks"] |= {"fresh": spec["chunks"].pop("page")}
    spec["map"]["kv"] = ["fresh"]
    spec["exports"]["page"]["chunk"] = "fresh"
    weights, pages = np.asarray(shared.export("w")), np.asarray(shared.export("page"))
    weights[:3], pages[:3] = list(b"abc"), list(b"old")
    with ThreadPoolExecutor() as pool, connect(endpoint("sleeper")) as client:
        done = pool.submit(changed(spec), client)
        assert poll(shared).exports == ("page",)
        assert done.result().generation == 2
        assert poll(shared).generation == 2
        assert bytes(weights[:3]) == b"abc"
        layout.write("kv", b"new")
        assert (shared.absent, bytes(pages[:3])) == (frozenset(), b"new")
        del spec["exports"]["page"], spec["map"]["kv"], spec["chunks"]["fresh"], spec["access"]["kv"], spec["states"]
        done = pool.submit(changed(spec), client)
        assert poll(shared).kind == "changing"
        assert done.result().kept == ()
        assert poll(shared).kind == "changed"
        assert shared.absent == {"page"}
    del weights, pages


def with_pages(count: int) -> dict[str, Any]:
    """SPEC with another number of pages."""
    spec: dict[str, Any] = copy.deepcopy(SPEC)
    spec["chunks"]["page"]["count"] = count
    spec["ranges"]["kv"]["size"] = f"{2 * count}MiB"
    return spec


def test_an_export_that_grows_is_announced(layout: Held, shared: Attached) -> None:
    """What was imported stays; a reader of a spec keeps what it declares."""
    pages = np.asarray(shared.export("page"))
    pages[:3] = list(b"abc")
    with memtopo.applied(READER, shared._importer.target) as reader, connect(endpoint("sleeper")) as client:
        assert changed(with_pages(3))(client).kept == ()
        for each in (shared, reader):
            notice = each.poll(PATIENCE)
            assert notice
            assert (notice.kind, notice.exports, notice.generation) == ("changed", ("page",), 2)
            assert (each.absent, each.check().different) == (frozenset(), 0)
        assert shared.export("page").size == 2 * M
        assert bytes(pages[:3]) == b"abc"
        changed(with_pages(3) | {"ranges": {"weights": {"size": "8MiB"}, "kv": {"size": "6MiB"}}})(client)
        assert shared.poll() is None
    del pages


def test_reserved_addresses_get_what_an_export_gains(layout: Held, machine: Target) -> None:
    """Nothing that was imported before is touched; a shrunk export, whose memory went, comes back with the rest."""
    with (
        memtopo.attach("sleeper", machine=machine, reserve={"page": "8MiB"}) as shared,
        connect(endpoint("sleeper")) as client,
        ThreadPoolExecutor() as pool,
    ):
        pages = np.asarray(shared.export("page"))
        pages[:3] = list(b"abc")
        address = shared.address("page")
        changed(with_pages(4))(client)
        assert poll(shared).exports == ("page",)
        assert (shared.exports["page"].count, shared.address("page"), shared.check().different) == (4, address, 0)
        more = np.asarray(shared.export("page"))
        assert (more.size, bytes(more[:3])) == (4 * M, b"abc")
        assert shared.export("page", offset=3 * M).size == M
        more[3 * M] = 7
        assert layout.bytes_of("kv", 3 * M, 1) == b"\7"
        done = pool.submit(changed(with_pages(3)), client)
        assert poll(shared).kind == "changing"
        done.result()
        assert poll(shared).kind == "changed"
        assert (shared.exports["page"].count, shared.export("page").size) == (3, 3 * M)
        assert (shared.absent, bytes(pages[:3])) == (frozenset(), b"abc")
        del pages, more


def test_a_single_chunk_stays_where_it_is_as_its_export_grows(layout: Held, machine: Target) -> None:
    with connect(endpoint("sleeper")) as client:
        changed(with_pages(1))(client)
        with memtopo.attach("sleeper", machine=machine, reserve={"page": 4 * M}) as shared:
            before = shared._session.layout.chunks["page.0"]
            changed(with_pages(2))(client)
            poll(shared)
            assert (shared._session.layout.chunks["page.0"], shared.export("page").size) == (before, 2 * M)


def test_an_export_that_outgrows_its_reservation_stays_as_it_was(layout: Held, machine: Target) -> None:
    with (
        memtopo.attach("sleeper", machine=machine, reserve={"page": "4MiB"}) as shared,
        connect(endpoint("sleeper")) as client,
    ):
        changed(with_pages(3))(client)
        assert poll(shared).exports == ("page",)
        assert (shared.exports["page"].count, shared.export("page").size) == (2, 2 * M)


def test_an_export_that_loses_chunks_whose_memory_stays_takes_none_away(layout: Held, machine: Target) -> None:
    spec: Any = copy.deepcopy(SPEC)
    spec["exports"]["page"]["chunk"] = "page.0:1"
    with (
        memtopo.attach("sleeper", machine=machine, reserve={"page": "4MiB"}) as shared,
        connect(endpoint("sleeper")) as client,
    ):
        changed(spec)(client)
        assert (client.offers()["page"].count, poll(shared).exports) == (1, ("page",))
        assert (shared.absent, shared.exports["page"].count, shared.export("page").size) == (frozenset(), 2, 2 * M)


def test_a_failing_import_of_what_an_export_gains_leaves_the_rest(layout: Held) -> None:
    with (
        memtopo.attach("sleeper", machine=failing(0), reserve={"page": "8MiB"}) as shared,
        connect(endpoint("sleeper")) as client,
    ):
        driver: Any = shared._session._opened
        changed(with_pages(4))(client)
        driver.at = driver.calls + 3
        with pytest.raises(memtopo.NotSwitched, match="the imports are as before"):
            poll(shared)
        driver.at = 0
        assert (shared.exports["page"].count, shared.export("page").size, shared.check().different) == (2, 2 * M, 0)
        assert (poll(shared).kind, shared.export("page").size, shared.check().different) == ("changed", 4 * M, 0)


def test_a_notice_that_could_not_be_followed_is_followed_by_the_next_poll(layout: Held, switch: Switch) -> None:
    seen: list[str] = []
    with memtopo.attach("sleeper", machine=failing(0), on_change=lambda notice: seen.append(notice.kind)) as shared:
        driver: Any = shared._session._opened
        switch("asleep", wait=0, force=True).result(PATIENCE)
        driver.at = driver.calls + 1
        with pytest.raises(memtopo.NotSwitched, match="the imports are as before"):
            poll(shared)
        assert (shared.absent, seen) == (frozenset(), [])
        driver.at = 0
        assert (poll(shared).state, shared.absent, seen) == ("asleep", frozenset({"w", "page"}), ["changed"])
        switch("awake").result(PATIENCE)
        assert (poll(shared).state, shared.absent, shared.poll()) == ("awake", frozenset(), None)
        layout.write("weights", b"new")
        assert bytes(np.asarray(shared.export("w"))[:3]) == b"new"


def test_an_import_that_its_holder_could_not_export_is_made_by_the_next_poll(runtime: Any) -> None:
    target, drivers = failing(0), list[Any]()

    def opened() -> Any:
        drivers.append(target.open())
        return drivers[-1]

    with held(SPEC, replace(target, _opener=opened)), memtopo.attach("sleeper", machine=target) as shared:
        with connect(endpoint("sleeper")) as client:
            client.switch("half", force=True)
            assert (poll(shared).kind, shared.absent) == ("changed", frozenset({"page"}))
            client.switch("awake")
        drivers[0].at = drivers[0].calls + 1
        with pytest.raises(ExchangeError, match="cuMemExportToShareableHandle: CUDA_ERROR_UNKNOWN"):
            poll(shared)
        drivers[0].at = 0
        assert (poll(shared).kind, shared.absent, shared.check().different) == ("changed", frozenset(), 0)


@pytest.mark.parametrize(
    ("reserve", "error", "message"),
    [
        ({"pages": "8MiB"}, memtopo.Unsuitable, "there is no export 'pages'"),
        ({"e": 2 * M}, memtopo.Unsuitable, "export 'e' is of kind event, and has no range"),
        ({"e": "2M"}, UsageError, "not a valid form of a size"),
        ({"e": "2 granules"}, UsageError, "'2 granules' is not a size"),
    ],
)
def test_addresses_are_reserved_for_exports_of_chunks_alone(
    machine: Target, runtime: Any, reserve: dict[str, Any], error: type[Exception], message: str
) -> None:
    events = {"events": {"e": {"device": "gpu0"}}, "exports": {"e": {"event": "e", "via": "ipc"}}}
    with (
        held({"memtopo": 1, "name": "sleeper", **events}, machine),
        pytest.raises(error, match=message),
        memtopo.attach("sleeper", machine=machine, reserve=reserve),
    ):
        pass


def test_an_allocation_of_another_pool_is_imported_with_its_pool(runtime: Any, machine: Target) -> None:
    spec: Any = {
        "memtopo": 1,
        "name": "sleeper",
        "pools": {"slab": {"location": "gpu0", "max_size": "64MiB", "handles": "fd"}},
        "allocations": {"cell": {"pool": "slab", "size": "2MiB"}, "other": {"pool": "slab", "size": "2MiB"}},
        "exports": {"cell": {"allocation": "cell", "via": "fd"}, "other": {"allocation": "other", "via": "fd"}},
    }
    with (
        held(spec, machine) as layout,
        memtopo.attach("sleeper", machine=machine) as shared,
        connect(endpoint("sleeper")) as client,
    ):
        spec["pools"]["slab"]["max_size"] = "96MiB"
        client.change(json.dumps({"spec": json.dumps(spec)}), force=True)
        assert (poll(shared).kind, shared.absent, shared.check().different) == ("changed", frozenset(), 0)
        np.asarray(shared.export("other"))[:3] = 7
        execution = layout.run.execution
        execution.resume()
        with current(execution.driver, execution.layout.contexts[0]):
            found = execution.driver.memcpy_dtoh(execution.layout.buffers["other"].address, 3)
        assert found == b"\7\7\7"


def test_an_export_that_is_made_anew_under_its_name_is_imported_anew(layout: Held, shared: Attached) -> None:
    """Also if nothing of the old one went."""
    spec: Any = copy.deepcopy(SPEC)
    pages = np.asarray(shared.export("page"))
    layout.write("weights", b"weights")
    with connect(endpoint("sleeper")) as client:
        del spec["exports"]["page"]
        changed(spec)(client)
        spec["exports"] = {"page": {"chunk": "w", "via": "fd"}}
        changed(spec)(client)
        while shared.poll():
            pass
        assert bytes(pages[:7]) == b"weights"
    del pages


def test_an_export_that_is_changing_again_comes_back_after_that(
    shared: Attached, switch: Switch, machine: Target
) -> None:
    half = switch("half")
    poll(shared)
    half.result()
    poll(shared)
    awake = switch("awake")
    awake.result()
    with memtopo.attach("sleeper", "page", machine=machine) as other:
        half = switch("half")
        assert other.notice(PATIENCE)
        assert poll(shared).state == "awake"
        assert shared.absent == {"page"}
    half.result()
    assert poll(shared).state == "half"
    switch("awake").result()
    assert (poll(shared).state, shared.absent) == ("awake", frozenset())
