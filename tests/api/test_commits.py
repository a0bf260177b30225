"""Writers and readers: `memtopo.attach` to exports that one process fills and commits, and others wait for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.api.attachment import Attached
from memtopo.api.imports import AttachTerms
from memtopo.common.errors import ExchangeError, NoLayout, UsageError
from memtopo.drivers.target import Target
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.sockets import SYSTEM
from tests.api.test_apply import failing
from tests.helpers.child_process import PATIENCE
from tests.helpers.held_layouts import Held, held
from tests.helpers.holders import until
from tests.helpers.processes import open_descriptors

MiB = 1 << 20


def spec(*names: str) -> dict[str, Any]:
    """A layout of one committed export for each name, and of a cache."""
    return {
        "memtopo": 1,
        "name": "model",
        "ranges": {name: {"size": "4MiB"} for name in (*names, "cache")},
        "chunks": {
            name: {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"} for name in (*names, "cache")
        },
        "map": {name: [name] for name in (*names, "cache")},
        "access": {name: {"gpu0": "rw"} for name in (*names, "cache")},
        "exports": {
            **{name: {"chunk": name, "via": "fd", "commit": "required"} for name in names},
            "cache": {"chunk": "cache", "via": "fd"},
        },
    }


SPEC = spec("weights")


@pytest.fixture
def layout(runtime: Path, machine: Target) -> Iterator[Held]:
    """A held layout whose weights are empty."""
    with held(SPEC, machine) as found:
        yield found


@contextmanager
def attached(machine: Target, **terms: Any) -> Iterator[Attached]:
    with memtopo.attach("model", "weights", machine=machine, **terms) as shared:
        yield shared


def fill(shared: Attached, byte: int, export: str = "weights") -> None:
    weights = np.from_dlpack(shared.export(export))
    weights[:] = byte


def first_byte(machine: Target, **terms: Any) -> int:
    """Attach as a reader, and return a byte of the weights."""
    with attached(machine, **terms) as shared:
        weights = np.from_dlpack(shared.export("weights"))
        assert not weights.flags.writeable
        byte = int(weights[3 * MiB])
        del weights
        return byte


def in_thread(call: Callable[[], int]) -> Future[int]:
    found: Future[int] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 the waiting test raises it
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def test_readers_wait_for_the_commit_and_read_what_was_written(layout: Held, machine: Target) -> None:
    with attached(machine, role="writer") as writer:
        reader = in_thread(lambda: first_byte(machine, wait="60s"))
        fill(writer, 7)
        assert not reader.done()
        writer.commit()
        assert reader.result(PATIENCE) == 7
    assert first_byte(machine) == 7


def test_attachments_of_readers_and_writers_leave_no_descriptor(layout: Held, machine: Target) -> None:
    """A simulated chunk has a descriptor from its first export on."""
    with attached(machine, role="writer"):
        pass
    with attached(machine, role="writer", wait=PATIENCE) as writer:
        before = open_descriptors()
        writer.commit()
        assert first_byte(machine) == 0
    with pytest.raises(ExchangeError), attached(machine, role="writer"):
        pass
    until(lambda: open_descriptors() < before)  # the holder runs in this process


def test_a_second_writer_is_refused_or_waits(layout: Held, machine: Target) -> None:
    with attached(machine, role="writer"):
        with pytest.raises(ExchangeError, match="is writing export 'weights'") as refused:
            attached(machine, role="writer").__enter__()
        assert refused.value.code == "writing"
        second = attached(machine, role="writer", wait="60s")
        entered = in_thread(lambda: second.__enter__().generation)
    assert entered.result(PATIENCE) > 1
    second.__exit__(None, None, None)


def test_readers_have_read_access_and_writers_commit(layout: Held, machine: Target) -> None:
    with attached(machine, role="writer") as writer:
        writer.commit()
    with attached(machine) as reader, pytest.raises(memtopo.Unsuitable, match="does not write layout 'model'"):
        reader.commit()
    with pytest.raises(memtopo.Unsuitable, match="it is committed by a writer"), attached(machine, access="rw"):
        pass
    with memtopo.attach("model", "cache", machine=machine) as shared:
        assert not shared.export("cache").read_only
    with (
        pytest.raises(memtopo.Unsuitable, match="has no export to write"),
        memtopo.attach("model", "cache", role="writer", machine=machine),
    ):
        pass
    with pytest.raises(ExchangeError, match="export 'weights' is committed"), attached(machine, role="writer"):
        pass


def test_a_new_generation_is_written_beside_the_old_one(layout: Held, machine: Target) -> None:
    """A change adds an export, a writer commits it while readers use the old one, and a change drops that."""
    with attached(machine, role="writer") as writer:
        fill(writer, 1)
        writer.commit()
    with attached(machine) as reader, connect(endpoint("model")) as client, ThreadPoolExecutor() as pool:
        old = np.from_dlpack(reader.export("weights"))
        client.change(source_of(spec("weights", "weights-2")))
        with memtopo.attach("model", "weights-2", role="writer", machine=machine) as writer:
            fill(writer, 2, "weights-2")
            assert old[0] == 1
            writer.commit()
        with memtopo.attach("model", "weights-2", machine=machine) as next_reader:
            assert np.from_dlpack(next_reader.export("weights-2"))[0] == 2
            dropped = pool.submit(client.change, source_of(spec("weights-2")), wait=PATIENCE)
            notice = reader.poll(PATIENCE)
            assert notice
            del old
            assert (notice.kind, notice.exports) == ("changing", ("weights",))
            assert dropped.result(PATIENCE).kept == ()
            assert np.from_dlpack(next_reader.export("weights-2"))[0] == 2
        assert [each.commit for each in client.offers().values()] == ["committed", None]


def source_of(given: dict[str, Any]) -> str:
    """Source of a spec for a change."""
    import json

    return json.dumps({"spec": json.dumps(given), "name": "next.yaml"})


def test_what_is_attached_is_what_is_offered_after_the_wait(layout: Held, machine: Target) -> None:
    """Another process may change the layout meanwhile."""
    larger = spec("weights")
    larger["chunks"]["weights"]["count"], larger["ranges"]["weights"]["size"] = 3, "6MiB"
    with connect(endpoint("model")) as reader, connect(endpoint("model")) as other:
        assert reader.offers()["weights"].count == 2
        other.change(source_of(larger))
        with attached(machine, role="writer") as writer:
            writer.commit()
        terms = AttachTerms.within(PATIENCE)
        assert terms.join(reader, "model", reader.path)["weights"].count == 3


def test_a_layout_that_is_not_held_yet_is_waited_for(runtime: Path, machine: Target) -> None:
    with pytest.raises(NoLayout), attached(machine, wait=0.05):
        pass
    reader = in_thread(lambda: first_byte(machine, wait="60s"))
    with held(SPEC, machine):
        with attached(machine, role="writer", wait="60s") as writer:
            fill(writer, 9)
            writer.commit()
        assert reader.result(PATIENCE) == 9


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("elsewhere")])
def test_what_is_no_socket_is_not_waited_for(runtime: Path, make: Callable[[Path], None]) -> None:
    pauses: list[float] = []
    terms = AttachTerms.within(PATIENCE, system=replace(SYSTEM, pause=pauses.append))
    make(runtime / "model.sock")
    with pytest.raises(ExchangeError) as refused:
        terms.connect(endpoint(socket=str(runtime / "model.sock")), ())
    assert (refused.value.code, pauses) == ("folder", [])


def test_a_reader_of_another_layout_is_refused_with_both_digests(layout: Held, machine: Target) -> None:
    expected, other = memtopo.load(SPEC).digest, memtopo.load(spec("weights", "more")).digest
    assert expected.startswith("sha256:")
    with memtopo.attach("model", "cache", expect=expected, machine=machine):
        pass
    with (
        pytest.raises(memtopo.Unsuitable, match=f"has the digest {expected}, and {other} is expected"),
        memtopo.attach("model", "cache", expect=other, machine=machine),
    ):
        pass


def test_a_layout_that_becomes_another_one_during_the_wait_is_refused(layout: Held, machine: Target) -> None:
    """It is changed and committed once the terms have seen the expected digest, as they look how long they may wait."""
    expected, other = memtopo.load(SPEC).digest, spec("weights") | {"events": {"ready": {"device": "gpu0"}}}
    with (
        connect(endpoint("model")) as reader,
        connect(endpoint("model")) as client,
        attached(machine, role="writer") as writer,
    ):
        steps = deque[Callable[[], object]]([lambda: client.change(source_of(other)), writer.commit])

        def now() -> float:
            while steps:
                steps.popleft()()
            return SYSTEM.now()

        terms = AttachTerms(["weights"], "reader", SYSTEM.now() + PATIENCE, expected, replace(SYSTEM, now=now))
        with pytest.raises(memtopo.Unsuitable, match=f"has the digest .*, and {expected} is expected"):
            terms.join(reader, "model", reader.path)
        assert not steps
        assert set(replace(terms, expect=None).join(reader, "model", reader.path)) == {"weights"}


def test_a_digest_ignores_comments_and_the_order_of_keys(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("memtopo: 1\nname: x\nranges: {a: {size: 2MiB, align: 2MiB}}\n")
    two.write_text("# a comment\nname: x\nmemtopo: 1\nranges:\n  a: {align: 2MiB, size: 2MiB}\n")
    assert memtopo.load(one).digest == memtopo.load(two).digest
    two.write_text("memtopo: 1\nname: x\nranges: {a: {size: 4MiB, align: 2MiB}}\n")
    assert memtopo.load(one).digest != memtopo.load(two).digest


def test_a_reader_gets_dropped_content_back_with_the_next_commit(runtime: Path, machine: Target) -> None:
    """Memory that is created anew after a drop is empty, and stays away from the reader until it is committed."""
    with held({**SPEC, "states": {"asleep": {"drop": ["weights"]}}}, machine), connect(endpoint("model")) as switching:
        with attached(machine, role="writer") as writer:
            fill(writer, 7)
            writer.commit()
        with attached(machine) as reader:
            with ThreadPoolExecutor() as pool:
                asleep = pool.submit(switching.switch, "asleep", wait=PATIENCE)
                until(lambda: bool(reader.poll() and reader.absent))
                asleep.result(PATIENCE)
            switching.switch("awake")
            until(lambda: bool(reader.poll(1.0)))
            assert reader.absent == {"weights"}
            with attached(machine, role="writer") as writer:
                fill(writer, 8)
                writer.commit()
            until(lambda: bool(reader.poll()) and not reader.absent)
            weights = np.from_dlpack(reader.export("weights"))
            assert int(weights[0]) == 8
            del weights


def test_a_writer_does_not_commit_memory_that_was_dropped_before_it_has_written_it_again(
    runtime: Path, machine: Target
) -> None:
    with (
        held({**SPEC, "states": {"asleep": {"drop": ["weights"]}}}, machine),
        connect(endpoint("model")) as switching,
        ThreadPoolExecutor() as pool,
        attached(machine, role="writer") as writer,
    ):
        fill(writer, 7)
        asleep = pool.submit(switching.switch, "asleep", wait=PATIENCE)
        until(lambda: bool(writer.poll() and writer.absent))
        asleep.result(PATIENCE)
        with pytest.raises(memtopo.Unsuitable, match="no memory in this process, and everything written to it is lost"):
            writer.commit()
        switching.switch("awake")
        until(lambda: bool(writer.poll(1.0)) and not writer.absent)
        assert switching.offers()["weights"].commit != "committed"
        fill(writer, 8)
        writer.commit()
        assert first_byte(machine) == 8


def test_a_writer_does_not_commit_memory_that_was_replaced_while_it_kept_the_old_memory(runtime: Path) -> None:
    """It has received handles of the new memory, and could not import them"""
    machine = failing(0)
    with (
        held({**SPEC, "states": {"asleep": {"drop": ["weights"]}}}, machine),
        connect(endpoint("model")) as switching,
        attached(machine, role="writer") as writer,
    ):
        driver: Any = writer._session._opened
        fill(writer, 7)
        switching.switch("asleep", force=True)
        switching.switch("awake")
        driver.at = driver.calls + 1
        with pytest.raises(memtopo.NotSwitched, match="the imports are as before"):
            until(lambda: bool(writer.poll(1.0)))
        driver.at = 0
        with pytest.raises(memtopo.ExchangeError, match="has generation 2, but generation 1 was written") as refused:
            writer.commit()
        assert (refused.value.code, switching.fresh_offers()["weights"].commit) == ("stale", "writing")
        while writer.poll():
            pass
        fill(writer, 8)
        writer.commit()
        assert first_byte(machine) == 8


def test_a_role_is_reader_or_writer(machine: Target) -> None:
    with pytest.raises(UsageError, match="role='wrtier' is not known"), attached(machine, role="wrtier"):
        pass


SHARD = {
    "ranges": {"w": {"size": "4MiB"}, "own": {"size": "2MiB"}},
    "chunks": {
        "w": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"},
        "own": {"location": "gpu0", "size": "2MiB", "handles": "fd"},
    },
    "map": {"w": ["w"], "own": ["own"]},
    "access": {"w": {"gpu0": "rw"}, "own": {"gpu0": "rw"}},
    "exports": {"w": {"chunk": "w", "via": "fd", "commit": "required"}, "own": {"chunk": "own", "via": "fd"}},
}
SHARDS = {"memtopo": 1, "name": "shards", "processes": {"server": SHARD | {"count": "2"}}}


def test_each_process_of_several_has_a_writer_and_its_memory_is_created_anew_alone(runtime: Path) -> None:
    def first_bytes(shared: Attached) -> list[int]:
        return [int(np.from_dlpack(shared.export(f"server.{index}.w"))[0]) for index in (0, 1)]

    committed = ["server.0.w", "server.1.w"]
    with memtopo.hold(SHARDS, machine="h200x2"), memtopo.attach("shards", ["server.1.own"]) as other:
        kept = np.from_dlpack(other.export("server.1.own"))
        kept[:] = 3
        with memtopo.attach("shards", committed[:1], role="writer") as writer:
            fill(writer, 5, committed[0])
            writer.commit()
        with memtopo.attach("shards", committed[1:], role="writer") as writer:
            fill(writer, 6, committed[1])  # and ends without a commit
        with pytest.raises(ExchangeError, match="no process is writing it"):
            memtopo.attach("shards", committed).__enter__()
        with memtopo.attach("shards", committed[1:], role="writer") as writer:
            assert int(np.from_dlpack(writer.export(committed[1]))[0]) == 0, "the memory was not created anew"
            fill(writer, 7, committed[1])
            writer.commit()
        with memtopo.attach("shards", committed) as reader:
            assert first_bytes(reader) == [5, 7]
        assert (other.poll(), int(kept[0])) == (None, 3)
        del kept
