"""Errors of memtopo itself while a layout is held: they are answered and recorded, and the layout is held on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, InternalError
from memtopo.diagnostics.model import Path as SpecPath
from memtopo.driver.types import Access, Grant, gpu
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target
from memtopo.run.messages import CheckChange
from memtopo.session.composition import Revision, RunRequest, revision
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.metrics import MetricsTarget
from memtopo.sharing.holder.state import HolderEvent, Supervision
from tests.helpers.held_layouts import held
from tests.helpers.holders import holding, until
from tests.helpers.lockstep import together
from tests.helpers.machines import invented
from tests.helpers.memfd_exports import OneState
from tests.helpers.specs import run_request

MACHINE = invented(2)
SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "kv",
    "ranges": {"kv": {"size": "4MiB"}},
    "chunks": {"page": {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"}},
    "map": {"kv": "page"},
    "access": {"kv": {"gpu0": "rw"}},
    "exports": {"page": {"chunk": "page", "via": "fd"}},
}
LARGER = {**SPEC, "ranges": {"kv": {"size": "8MiB"}}, "exports": {"more": {"chunk": "page.0", "via": "fd"}}}
PROCESSES = """
processes:
  one:
    ranges: {r: {size: 4MiB}}
    chunks: {c: {location: gpu0, size: 2MiB, count: 2}}
    map: {r: [c]}
    access: {r: {gpu0: rw}}
  other: {buffers: {b: {location: gpu0, size: 2MiB}}}
"""


class Generous(Forwarder):
    """A driver that grants another GPU access, too, from the second grant on."""

    grants = 0

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self.grants += 1
        more = (Grant(gpu(1), Access.RW),) if self.grants > 1 else ()
        self._driver.mem_set_access(address, size, (*grants, *more))

    def close(self) -> None:
        self._driver.close()


def generous() -> Any:
    driver = SimDriver(MACHINE)
    driver.init()
    return Generous(driver)


def nowhere_at_first() -> Callable[[SpecPath], str | None]:
    """Positions of entries, of which the first one fails."""
    asked: list[SpecPath] = []

    def position_of(path: SpecPath) -> str | None:
        asked.append(path)
        if len(asked) == 1:
            raise ValueError("it has no position")
        return None

    return position_of


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def layout() -> Iterator[OneState]:
    found = OneState()
    yield found
    os.close(found.memory)


def test_a_change_that_was_made_and_cannot_be_shown_leaves_the_layout_held_as_changed() -> None:
    """The request of the new spec fails to say where the difference is that the check has found."""

    def revise(source: str, before: RunRequest) -> Revision:
        found = revision(source, before, target)
        return replace(found, request=replace(found.request, position_of=nowhere_at_first()))

    target = Target("generous", MACHINE, simulated=True, _opener=generous)
    with held(SPEC, target, revise) as found, connect(endpoint("kv")) as client:
        with pytest.raises(ExchangeError, match=r"ValueError: it has no position; the layout is held on") as caught:
            client.change(json.dumps({"spec": json.dumps(LARGER)}))
        assert (caught.value.code, caught.value.exit_code) == ("internal", 70)
        assert client.status().generation == 2
        assert list(client.offers()) == ["more"]
        assert json.loads(client.source())["spec"] == json.dumps(LARGER)
        assert {each.aspect for each in client.check().differences} == {"access"}
        for handle in client.handles("more"):
            handle.close()
    assert (found.report.exit_code, found.report.leaks) == (6, ())
    assert [each.first for each in found.report.placed] == ["kv"]


def test_an_error_of_memtopo_while_a_change_is_made_is_answered(layout: OneState) -> None:
    events: list[HolderEvent] = []
    layout.failure = ValueError("a name")
    with holding(layout, supervision=Supervision(log=events.append)), connect(endpoint("kv")) as client:
        requests: list[Callable[[], object]] = [lambda: client.switch("asleep"), lambda: client.change("{}")]
        for request in requests:
            with pytest.raises(ExchangeError, match="internal error: ValueError: a name; the layout is held") as caught:
                request()
            assert caught.value.code == "internal"
        layout.failure = None
        assert client.switch("asleep").state == "asleep"
    texts = [(each.text, each.severity) for each in events if "internal" in each.text]
    assert texts == [("switch met an internal error", "error"), ("change met an internal error", "error")]


def test_an_error_of_memtopo_in_an_answer_is_the_answer(layout: OneState) -> None:
    """The path of a spec is text, and that of this layout is a number for a while."""
    with holding(layout), connect(endpoint("kv")) as client:
        layout.spec = 7  # type: ignore[assignment]
        with pytest.raises(ExchangeError, match="internal error: ") as caught:
            client.status()
        assert caught.value.code == "internal"
        layout.spec = None
        assert client.status().name == "kv"


def test_metrics_that_cannot_be_shown_are_left_out_and_recorded_once(layout: OneState) -> None:
    events: list[HolderEvent] = []
    shown: list[int] = []

    def render(*_: object) -> str:
        shown.append(1)
        raise ValueError("a number")

    supervision = Supervision(log=events.append, metrics=MetricsTarget(render, write=lambda _: None))
    with holding(layout, supervision=supervision), connect(endpoint("kv")) as client:
        until(lambda: len(shown) > 1)
        assert client.status().name == "kv"
    assert [each.fields["reason"] for each in events if each.text == "internal error"] == ["ValueError: a number"]


def test_a_process_that_cannot_show_what_it_has_changed_goes_on() -> None:
    text = PROCESSES.replace("2MiB, count: 2", "4MiB, count: 1")
    with together(PROCESSES, MACHINE) as layout:
        run = layout.runs["one"]

        def grant_more() -> None:
            address, size = run.execution.layout.ranges["r"]
            run.execution.driver.mem_set_access(address, size, (Grant(gpu(1), Access.RW),))

        layout.before[CheckChange()] = grant_more
        with pytest.raises(InternalError, match=r"^one: internal error: ValueError: it has no position$"):
            layout.change_to(replace(run_request(text, MACHINE), position_of=nowhere_at_first()))
        assert layout.generation == 2
        assert {each.aspect for each in run.recheck().differences} == {"access"}
        assert not layout.change_to(run_request(PROCESSES, MACHINE)).different
