"""Imports of a built layout from a holder that changes: they go and come back, and failures leave them as they were."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import Stopped
from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target, uuids
from memtopo.executor import StepFailed
from memtopo.kinds.layout import current
from memtopo.run.apply import apply
from memtopo.run.imports import Follower, OutsideImports
from memtopo.run.transition import RollbackFailed
from memtopo.session.composition import RunRequest
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.imports import HolderHandles, ImportMismatch
from memtopo.sharing.status import Notice
from tests.helpers.child_process import PATIENCE
from tests.helpers.conducted import Conducted, conducted
from tests.helpers.failing_driver import Failing
from tests.helpers.held_layouts import Held, held
from tests.helpers.machines import invented
from tests.helpers.specs import run_request
from tests.run.verification.test_isolation import CountsTries

MACHINE = invented(2)
SPEC = {
    "memtopo": 1,
    "name": "sleeper",
    "ranges": {"weights": {"size": "2MiB"}, "kv": {"size": "4MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "handles": "fd"},
        "page": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"},
    },
    "map": {"weights": ["w"], "kv": ["page"]},
    "access": {"weights": {"gpu0": "rw"}, "kv": {"gpu0": "rw"}},
    "exports": {"w": {"chunk": "w", "via": "fd"}, "page": {"chunk": "page", "via": "fd"}},
    "states": {"half": {"drop": ["kv"]}, "bare": {"drop": ["weights"]}},
}
READER = """
ranges: {view: {size: 2MiB}, cache: {size: 4MiB}, own: {size: 2MiB}}
imports:
  loaded: {from: sleeper/w, location: gpu0, size: 2MiB}
  shown: {from: sleeper/page, location: gpu0, size: 2MiB, count: 2}
chunks: {mine: {location: gpu0, size: 2MiB}}
map: {view: [loaded], cache: [shown], own: [mine]}
access: {view: {gpu0: r}, cache: {gpu0: rw}, own: {gpu0: rw}}
"""
HOLDER = "sleeper"
TAKES_BACK, GIVES = (Notice(kind, exports=("page", "w")) for kind in ("changing", "changed"))
TAKES_PAGES, GIVES_PAGES = (replace(each, exports=("page",)) for each in (TAKES_BACK, GIVES))


def opened() -> Any:
    driver = SimDriver(MACHINE)
    driver.init()
    return driver


@pytest.fixture
def holder(runtime: Path) -> Iterator[Held]:
    """The layout from which the reader imports, held in a thread."""
    del runtime
    with held(SPEC, Target("invented", MACHINE, simulated=True, _opener=opened)) as found:
        yield found


def request(text: str = READER) -> RunRequest:
    return replace(run_request(text, MACHINE), exclusive=False)


@dataclass
class Reader:
    """A layout that imports from the holder, with the number of times that its mappings were moved."""

    made: Conducted
    handles: HolderHandles
    failing: Failing
    moved: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.imports = OutsideImports(self.made, self.handles, lambda: self.moved.append(1))

    def chunks(self, name: str) -> list[int]:
        """Handles of the chunks of an import."""
        found = self.made.run.execution.layout.chunks
        return [handle for label, handle in found.items() if label.partition(".")[0] == name]

    def bytes_of(self, name: str) -> bytes:
        execution = self.made.run.execution
        with current(execution.driver, execution.layout.contexts[0]):
            return execution.driver.memcpy_dtoh(execution.layout.ranges[name].address, 3)


@contextmanager
def reading(only: set[str] | None = None) -> Iterator[Reader]:
    """The layout that imports, on a driver of which the named methods may fail."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        failing = Failing(driver, only=only)
        handles = HolderHandles(request().geometry, uuids(MACHINE))
        made = conducted(request(), Ledger(failing), handle_source=handles)
        made.build()
        try:
            yield Reader(made, handles, failing)
        finally:
            failing.at = 0
            made.take_down()
        assert made.report().leaks == ()


def taken() -> set[str]:
    """Exports of which the holder knows an importer."""
    with connect(endpoint(HOLDER)) as client:
        return {each.export for importer in client.status().importers for each in importer.taken}


def replace_now(**chunks: Any) -> None:
    """Replace the chunks of the holder's exports by others of some properties, whatever its importers still have."""
    spec: Any = copy.deepcopy(SPEC)
    del spec["states"]
    for name, properties in chunks.items():
        spec["chunks"][f"{name}-2"] = spec["chunks"].pop(name) | properties
        spec["exports"][name]["chunk"] = f"{name}-2"
    spec["map"] = {"weights": ["w-2"], "kv": ["page-2"]}
    spec["ranges"] = {"weights": {"size": "8MiB"}, "kv": {"size": "8MiB"}}
    with connect(endpoint(HOLDER)) as client:
        client.change(json.dumps({"spec": json.dumps(spec)}), force=True)


def switch_now(state: str) -> None:
    """Switch the layout of the holder, whatever its importers still have."""
    with connect(endpoint(HOLDER)) as client:
        client.switch(state, force=True, wait=0.0)


def test_an_import_that_its_holder_takes_back_goes_alone_and_comes_back(holder: Held) -> None:
    with reading() as reader:
        kept = reader.chunks("loaded")
        reader.imports.follow(HOLDER, TAKES_PAGES)
        assert (reader.imports.absent, taken()) == ({"shown": "page"}, {"w"})
        assert (reader.chunks("shown"), reader.chunks("loaded")) == ([], kept)
        holder.write("kv", b"new")
        reader.imports.follow(HOLDER, GIVES_PAGES)
        assert (reader.imports.absent, taken()) == ({}, {"w", "page"})
        assert (reader.bytes_of("cache"), reader.chunks("loaded")) == (b"new", kept)
        assert len(reader.moved) == 2


def test_an_import_is_made_again_only_if_its_holder_has_made_the_memory_anew(holder: Held) -> None:
    """Without a notice before that, and once."""
    with reading() as reader:
        kept = reader.chunks("loaded")
        switch_now("half")
        switch_now("awake")
        holder.write("kv", b"new")
        assert reader.bytes_of("cache") != b"new"
        reader.imports.follow(HOLDER, GIVES)
        assert reader.bytes_of("cache") == b"new"
        again = reader.chunks("shown")
        reader.imports.follow(HOLDER, GIVES)
        assert (reader.chunks("shown"), reader.chunks("loaded")) == (again, kept)


def test_an_import_that_its_holder_cannot_give_yet_stays_away_beside_others_that_return(holder: Held) -> None:
    del holder
    with reading() as reader:
        reader.imports.follow(HOLDER, TAKES_BACK)
        switch_now("half")
        reader.imports.follow(HOLDER, GIVES)
        assert (reader.imports.absent, taken()) == ({"shown": "page"}, {"w"})
        switch_now("awake")
        reader.imports.follow(HOLDER, GIVES)
        assert (reader.imports.absent, reader.made.recheck().different) == ({}, 0)


def test_an_import_that_is_gone_at_its_holder_is_let_go_of_without_a_notice_before(holder: Held) -> None:
    del holder
    with reading() as reader:
        switch_now("half")
        reader.imports.follow(HOLDER, GIVES)
        assert (reader.imports.absent, reader.chunks("shown"), taken()) == ({"shown": "page"}, [], {"w"})


def test_a_full_check_tries_no_access_to_memory_of_a_holder(holder: Held) -> None:
    """A fill that is not refused is a write."""
    with SimDriver(MACHINE) as sim:
        sim.init()
        driver, handles = CountsTries(sim), HolderHandles(request().geometry, uuids(MACHINE))
        report = apply(replace(request(), check="full"), Ledger(driver), handle_source=handles)
    assert (report.outcome, driver.accepted, driver.refused) == ("ok", 1, 0)


@pytest.mark.parametrize("method", ["mem_import_from_shareable_handle", "mem_set_access", "mem_get_access"])
def test_an_import_that_fails_leaves_nothing_of_it_here_or_with_its_holder(holder: Held, method: str) -> None:
    """Also if the check after it fails. The next notice brings it back."""
    del holder
    with reading({method}) as reader:
        reader.imports.follow(HOLDER, TAKES_PAGES)
        reader.failing.at = reader.failing.calls + 1
        with pytest.raises(StepFailed):
            reader.imports.follow(HOLDER, GIVES_PAGES)
        assert (reader.imports.absent, reader.chunks("shown"), taken()) == ({"shown": "page"}, [], {"w"})
        assert len(reader.moved) > 1, "what shows the mappings was told"
        reader.imports.follow(HOLDER, GIVES_PAGES)
        assert (reader.imports.absent, reader.made.recheck().different) == ({}, 0)


def test_a_change_that_could_not_be_followed_comes_again_with_the_next_one_of_its_holder(holder: Held) -> None:
    del holder
    gives = replace(GIVES_PAGES, exports=("page", "other"))
    with reading({"mem_import_from_shareable_handle"}) as reader:
        reader.imports.follow(HOLDER, TAKES_PAGES)
        reader.failing.at = reader.failing.calls + 1
        with pytest.raises(StepFailed):
            reader.imports.follow(HOLDER, gives)
        assert reader.imports.next(0.0) == (HOLDER, gives)
        switch_now("bare")
        found = reader.imports.next(0.0)
        assert found
        assert found[1].exports == ("page", "other", "w")
        reader.imports.follow(*found)
        assert (reader.imports.absent, reader.imports.next(0.0)) == ({"loaded": "w"}, None)


def test_a_change_whose_following_was_interrupted_comes_again(holder: Held) -> None:
    del holder

    def interrupt() -> int:
        raise KeyboardInterrupt

    with reading() as reader:
        reader.imports.follow(HOLDER, TAKES_PAGES)
        goes_on, reader.made.stop = reader.made.stop, interrupt
        with pytest.raises(KeyboardInterrupt):
            reader.imports.follow(HOLDER, GIVES_PAGES)
        reader.made.stop = goes_on
        assert reader.imports.next(0.0) == (HOLDER, GIVES_PAGES)
        reader.imports.follow(HOLDER, GIVES_PAGES)
        assert (reader.imports.absent, reader.made.recheck().different) == ({}, 0)


def test_a_notice_is_not_awaited_while_a_change_is_to_be_followed(holder: Held) -> None:
    del holder
    with reading({"mem_import_from_shareable_handle"}) as reader:
        reader.imports.follow(HOLDER, TAKES_PAGES)
        reader.failing.at = reader.failing.calls + 1
        with pytest.raises(StepFailed):
            reader.imports.follow(HOLDER, GIVES_PAGES)
        started = time.monotonic()
        assert reader.imports.next(5.0) == (HOLDER, GIVES_PAGES)
        assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("other", [{"size": "4MiB"}, {"count": 2}])
@pytest.mark.parametrize("let_go", [False, True])
def test_exports_that_still_fit_are_imported_beside_one_that_does_not(
    holder: Held, let_go: bool, other: dict[str, Any]
) -> None:
    """The notice comes again for these, and the other one is not tried again without a notice of it."""
    with reading() as reader:
        kept = [] if let_go else reader.chunks("loaded")
        if let_go:
            reader.imports.follow(HOLDER, TAKES_BACK)
        replace_now(w=other, page={})
        holder.write("kv", b"new")
        found = reader.imports.next(PATIENCE)
        assert found
        with pytest.raises(ImportMismatch, match="'loaded' declares"):
            reader.imports.follow(*found)
        assert (reader.bytes_of("cache"), reader.chunks("loaded")) == (b"new", kept)
        pages = reader.chunks("shown")
        found = reader.imports.next(0.0)
        assert found
        assert found[1].exports == ("page",)
        reader.imports.follow(*found)
        assert (reader.chunks("shown"), reader.imports.next(0.0)) == (pages, None)
        with pytest.raises(ImportMismatch):
            reader.imports.follow(HOLDER, replace(GIVES, exports=("w",)))
        assert reader.imports.next(0.0) is None


def test_what_a_change_receives_again_is_of_the_version_that_was_imported_before(holder: Held) -> None:
    """An import that the change leaves is of the old memory, and is made again."""
    with reading() as reader:
        switch_now("half")
        switch_now("awake")
        holder.write("kv", b"new")
        more = "imports:\n  more: {from: sleeper/page, location: gpu0, size: 2MiB, count: 2}"
        reader.imports.change(request(READER.replace("imports:", more)))
        reader.imports.follow(HOLDER, GIVES_PAGES)
        assert reader.bytes_of("cache") == b"new"


def test_an_import_that_cannot_be_let_go_of_stays_with_its_holder(holder: Held) -> None:
    del holder
    with reading({"mem_unmap"}) as reader:
        reader.failing.at = reader.failing.calls + 1
        with pytest.raises(StepFailed):
            reader.imports.follow(HOLDER, TAKES_BACK)
        assert (reader.imports.absent, taken(), reader.moved) == ({}, {"w", "page"}, [1])


def test_what_is_absent_stays_absent_in_a_change_to_another_spec(holder: Held) -> None:
    del holder
    with reading() as reader:
        reader.imports.follow(HOLDER, TAKES_PAGES)
        reader.imports.change(request(READER.replace("own: {size: 2MiB}", "own: {size: 4MiB}")))
        assert (reader.imports.absent, reader.chunks("shown"), taken()) == ({"shown": "page"}, [], {"w"})
        reader.imports.follow(HOLDER, GIVES_PAGES)
        assert (reader.imports.absent, reader.made.recheck().different) == ({}, 0)


def test_a_follower_notes_a_failure_once_and_follows_the_next_notice(holder: Held) -> None:
    del holder
    with reading({"mem_unmap"}) as reader:
        follower = Follower(reader.made)
        for _ in range(2):
            reader.failing.calls, reader.failing.at = 0, 1
            switch_now("half")
            assert follower.stop() == 0
            switch_now("awake")
            assert follower.stop() == 0
        assert [note.partition(":")[0] for note in follower.notes] == ["undo map shown.0 to shown.1"]
        assert reader.made.whole
        reader.made.stop = lambda: 15
        assert follower.stop() == 15


def test_a_follower_that_is_stopped_notes_no_failure(holder: Held) -> None:
    del holder
    with reading() as reader:
        follower = Follower(reader.made)
        switch_now("half")
        reader.made.stop = lambda: 15
        with pytest.raises(Stopped):
            follower.stop()
        assert (follower.notes, reader.made.whole) == ([], True)


def test_what_a_change_no_longer_imports_is_let_go_of_when_its_holder_takes_it_back(holder: Held) -> None:
    del holder
    without = "  shown: {from: sleeper/page, location: gpu0, size: 2MiB, count: 2}\n"
    with reading() as reader:
        text = READER.replace(without, "").replace("cache: [shown], ", "")
        reader.imports.change(request(text))
        reader.imports.follow(HOLDER, TAKES_PAGES)
        assert (reader.imports.absent, taken()) == ({}, {"w"})


def test_memory_that_was_released_is_not_replaced_by_other_memory_in_a_rollback(holder: Held) -> None:
    """Of which some would be old, and some new"""
    with reading({"mem_release"}) as reader:
        holder.write("kv", b"old")
        switch_now("half")
        switch_now("awake")
        holder.write("kv", b"new")
        reader.failing.at = reader.failing.calls + 2
        with pytest.raises(RollbackFailed, match="export 'page' has other memory now") as failed:
            reader.imports.follow(HOLDER, GIVES_PAGES)
        assert "undo import shown.0: cuMemRelease" in str(failed.value)
        assert len(reader.chunks("shown")) == 1
