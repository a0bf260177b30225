"""Attachments that follow their layout to a new holder, after the first one has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api.attachment import Attached
from memtopo.api.imports import AttachTerms
from memtopo.driver.handles import close_handles
from memtopo.sharing.claims import claim
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.status import Notice
from tests.api.child_process import Process
from tests.api.test_apply import failing
from tests.helpers.child_process import PATIENCE
from tests.helpers.held_layouts import held
from tests.helpers.holders import until

MACHINE = "h200x2"
SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "kv",
    "ranges": {"weights": {"size": "4MiB"}, "cache": {"size": "2MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"},
        "c": {"location": "gpu1", "size": "2MiB", "handles": "fd"},
    },
    "map": {"weights": ["w"], "cache": ["c"]},
    "access": {"weights": {"gpu0": "rw"}, "cache": {"gpu1": "rw"}},
    "exports": {"w": {"chunk": "w", "via": "fd"}, "c": {"chunk": "c", "via": "fd"}},
}

Hold = Callable[..., Process]


@pytest.fixture
def hold(start: Callable[..., Process], tmp_path: Path) -> Hold:
    """A function that holds SPEC, with other sections in place of its own."""

    def begin(**sections: Any) -> Process:
        spec = tmp_path / "kv.yaml"
        spec.write_text(json.dumps(SPEC | sections))
        return start(spec=str(spec), machine=MACHINE)

    return begin


@contextmanager
def attached(**terms: Any) -> Iterator[Attached]:
    with memtopo.attach("kv", machine=MACHINE, reattach=True, **terms) as shared:
        yield shared


def importers() -> list[int]:
    with connect(endpoint("kv")) as client:
        return [each.handles for each in client.status().importers]


def switch_to(state: str) -> None:
    with connect(endpoint("kv")) as client:
        client.switch(state, wait=PATIENCE)


def test_the_memory_of_a_new_holder_is_at_the_same_addresses(hold: Hold) -> None:
    seen: list[tuple[str, tuple[str, ...], frozenset[str]]] = []
    first = hold()
    with attached() as shared:
        shared.on_change = lambda notice: seen.append((notice.kind, notice.exports, shared.absent))
        weights, where = np.from_dlpack(shared.export("w")), shared.address("w")
        weights[:7] = 7
        first.kill()
        assert (shared.poll(), weights[0], seen) == (None, 7, [])
        with ThreadPoolExecutor() as pool:
            found = pool.submit(shared.poll, PATIENCE)
            hold()
            assert found.result()
        assert (bytes(weights[:7]), shared.address("w")) == (b"weights", where)
        assert seen == [("changing", ("w", "c"), frozenset()), ("changed", ("w", "c"), frozenset())]
        assert (shared.absent, shared.check().different, importers()) == (frozenset(), 0, [3])
        assert shared.poll() is None
        del weights
    until(lambda: importers() == [])


def test_an_attachment_follows_one_holder_after_another(hold: Hold) -> None:
    holder = hold()
    with attached(exports=["c"]) as shared:
        for _ in range(3):
            holder.end()
            assert shared.poll() is None or shared.poll() is None  # the notice of a release may come before the end
            holder = hold()
            until(lambda: bool((notice := shared.poll(1)) and notice.kind == "changed"))
            assert importers() == [1]


def test_a_new_holder_of_something_else_is_refused_and_what_was_imported_stays(hold: Hold) -> None:
    first = hold()
    with attached() as shared:
        cache = np.from_dlpack(shared.export("c"))
        cache[:3] = 5
        first.kill()
        hold(exports={"w": {"chunk": "w", "via": "fd"}})
        with pytest.raises(
            memtopo.Unsuitable, match=r"export 'c' of .* differs from the export before its holder ended"
        ):
            until(lambda: bool(shared.poll(1)))
        assert (bytes(cache[:3]), importers()) == (b"\5\5\5", [])
        del cache


def test_a_new_holder_of_an_export_of_another_size_is_refused(hold: Hold) -> None:
    first = hold()
    with attached(exports=["w"]) as shared:
        first.kill()
        larger = {"location": "gpu0", "size": "4MiB", "count": 2, "handles": "fd"}
        hold(chunks=SPEC["chunks"] | {"w": larger}, ranges=SPEC["ranges"] | {"weights": {"size": "8MiB"}})
        with pytest.raises(
            memtopo.Unsuitable, match=r"export 'w' of .* differs from the export before its holder ended"
        ):
            until(lambda: bool(shared.poll(1)))
        assert importers() == []


def test_a_new_holder_of_another_spec_than_the_expected_one_is_refused(hold: Hold) -> None:
    """Though it offers the same."""
    first = hold()
    with attached(expect=memtopo.load(SPEC).digest) as shared:
        first.kill()
        hold(events={"ready": {"device": "gpu0"}})
        with pytest.raises(memtopo.Unsuitable, match=r"has the digest .*, and .* is expected"):
            until(lambda: bool(shared.poll(1)))
        assert importers() == []


@pytest.mark.parametrize("code", ["busy", "gone"])
def test_another_error_than_the_end_of_the_holder_is_raised(runtime: Path, code: str) -> None:
    """A callback may have a request to another layout refused; its own holder still serves."""

    def refuse(notice: Notice) -> None:
        raise memtopo.ExchangeError(code, f"{notice.kind}, but another layout is busy")

    def connections() -> list[int]:
        with connect(endpoint("kv")) as client:
            return [each.id for each in client.status().importers]

    spec = SPEC | {"states": {"idle": {"drop": ["c"]}}}
    with memtopo.hold(spec, machine=MACHINE), attached(on_change=refuse) as shared:
        before = connections()
        with connect(endpoint("kv")) as client:
            client.switch("idle", force=True, wait=0)
        with pytest.raises(memtopo.ExchangeError, match="changed, but another layout is busy"):
            until(lambda: bool(shared.poll(1)))
        assert (connections(), shared.absent) == (before, frozenset({"c"}))


def test_a_reader_waits_for_the_commit_of_the_new_content(runtime: Path) -> None:
    committed = SPEC | {"exports": {"w": {"chunk": "w", "via": "fd", "commit": "required"}}}

    def write(byte: int) -> None:
        with memtopo.attach("kv", role="writer") as writer:
            weights = np.from_dlpack(writer.export("w"))
            weights[:] = byte
            del weights
            writer.commit()

    with ExitStack() as reading:
        with memtopo.hold(committed, machine=MACHINE):
            write(1)
            shared = reading.enter_context(memtopo.attach("kv", reattach=True))
        with memtopo.hold(committed, machine=MACHINE):
            assert shared.poll() is None or shared.poll() is None
            weights = np.from_dlpack(shared.export("w"))
            assert weights[0] == 1
            write(2)
            until(lambda: bool(shared.poll(1)))
            assert weights[0] == 2
            del weights


def test_a_new_holder_that_ends_before_it_answers_is_not_there_yet(runtime: Path) -> None:
    del runtime
    with claim(where := endpoint("kv")) as claimed, claimed.listen() as listener, ThreadPoolExecutor() as pool:
        ended = pool.submit(lambda: listener.accept()[0].close())
        assert AttachTerms.within(0).again(where, (), 0.0, {}) is None
        ended.result(PATIENCE)


def test_a_new_holder_that_is_being_released_is_not_there_yet(runtime: Path) -> None:
    del runtime
    weights = {"w": {"chunk": "w", "via": "fd", "commit": "required"}, "b": {"buffer": "b", "via": "ipc"}}
    spec = SPEC | {"buffers": {"b": {"location": "gpu0", "size": "2MiB"}}, "exports": weights}
    where = endpoint("kv")
    with memtopo.hold(spec, machine=MACHINE), connect(where) as bound, ThreadPoolExecutor() as pool:
        had = {"w": bound.offers()["w"]}
        close_handles(list(bound.handles("b")))
        with connect(where) as client:
            released = pool.submit(client.release, force=True, grace=PATIENCE)
            assert (notice := bound.notice(PATIENCE))
            assert notice.kind == "releasing"
            assert AttachTerms.within(0).again(where, (), 0.0, had) is None
            bound.close()
            released.result(PATIENCE)


def test_exports_that_this_process_never_had_are_not_awaited(runtime: Path) -> None:
    """The next holder has another one, which nobody commits"""
    weights = {"w": {"chunk": "w", "via": "fd"}}
    more = weights | {"c": {"chunk": "c", "via": "fd", "commit": "required"}}
    with ExitStack() as reading:
        with memtopo.hold(SPEC | {"exports": weights}, machine=MACHINE):
            shared = reading.enter_context(attached())
        with memtopo.hold(SPEC | {"exports": more}, machine=MACHINE):
            until(lambda: bool((notice := shared.poll(1)) and notice.kind == "changed"))
            assert (set(shared.exports), importers()) == ({"w"}, [2])


@pytest.mark.parametrize("call", [1, 12])
def test_an_import_from_the_next_holder_that_failed_is_made_by_a_later_poll(runtime: Path, call: int) -> None:
    """Until then the process has the memory of the earlier one, and commits nothing to the later one"""
    target = failing(0)
    committed = SPEC | {"exports": {"w": {"chunk": "w", "via": "fd", "commit": "required"}}}
    with ExitStack() as reading:
        with held(committed, target):
            writer = reading.enter_context(memtopo.attach("kv", machine=target, role="writer", reattach=True))
            driver: Any = writer._session._opened
            weights = np.from_dlpack(writer.export("w"))
            weights[:3] = 1
        while writer.poll():
            pass
        with held(committed, target) as layout:
            driver.at = driver.calls + call
            with pytest.raises(memtopo.NotSwitched):
                until(lambda: bool(writer.poll(1)))
            driver.at = 0
            with pytest.raises(memtopo.Unsuitable, match="'w' has no memory in this process"):
                writer.commit()
            until(lambda: bool((notice := writer.poll()) and notice.kind == "changed"))
            weights[:3] = 2
            writer.commit()
            assert (layout.bytes_of("weights", 0, 3), importers(), writer.poll()) == (b"\2\2\2", [2], None)
            del weights
            reading.close()


def test_after_a_callback_that_raised_a_later_poll_attaches_as_the_writer(runtime: Path) -> None:
    """No connection is left that has the lease."""

    def fail_once(notice: Notice) -> None:
        writer.on_change = None
        raise RuntimeError(notice.kind)

    committed = SPEC | {"exports": {"w": {"chunk": "w", "via": "fd", "commit": "required"}}}
    with ExitStack() as writing:
        with memtopo.hold(committed, machine=MACHINE):
            writer = writing.enter_context(attached(role="writer", on_change=fail_once))
        with memtopo.hold(committed, machine=MACHINE):
            with pytest.raises(RuntimeError, match="changing"):
                until(lambda: bool((notice := writer.poll(1)) and notice.kind == "changed"))
            assert importers() == []
            until(lambda: bool((notice := writer.poll(1)) and notice.kind == "changed"))
            writer.commit()


@pytest.mark.parametrize("again", [False, True], ids=["a change", "a new holder"])
def test_a_callback_may_leave_the_attachment(runtime: Path, again: bool) -> None:
    spec = SPEC | {"states": {"idle": {"drop": ["c"]}}}
    with ExitStack() as reading, ExitStack() as holding, ThreadPoolExecutor() as pool:
        holding.enter_context(memtopo.hold(spec, machine=MACHINE))
        shared = reading.enter_context(attached(on_change=lambda _: reading.close()))
        if again:
            holding.close()
            holding.enter_context(memtopo.hold(spec, machine=MACHINE))
        else:
            pool.submit(switch_to, "idle")
        with pytest.raises(memtopo.Unsuitable, match="was taken down"):
            until(lambda: bool((notice := shared.poll(1)) and notice.kind == "changed"))
        until(lambda: importers() == [])


def test_an_import_has_no_memory_of_two_holders_after_a_release_that_failed(runtime: Path) -> None:
    target = failing(0)
    with ExitStack() as reading:
        with held(SPEC, target):
            shared = reading.enter_context(memtopo.attach("kv", ["w"], machine=target, reattach=True))
            driver: Any = shared._session._opened
        while shared.poll():
            pass
        with held(SPEC, target):
            driver.at = driver.calls + 6
            with pytest.raises(memtopo.NotSwitched, match=r"undo import w.0: cuMemRelease.* only be taken down"):
                until(lambda: bool(shared.poll(1)))
            driver.at = 0
            assert importers() == []
            reading.close()
