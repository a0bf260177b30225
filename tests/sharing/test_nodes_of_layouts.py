"""Statuses of the nodes of a held layout: as text and back, their reports, and releases that importers prevent."""

from __future__ import annotations

import json
import os
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, ExchangeError
from memtopo.machine import MachineLine
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.held import survey
from memtopo.sharing.holder.metrics import StatusReports
from memtopo.sharing.holder.state import HeldNodes, Supervision
from memtopo.sharing.messages import decode_nodes
from memtopo.sharing.status import Importer, NodeStatus, Status
from tests.helpers.holders import holding
from tests.helpers.memfd_exports import OFFERS, OneState

IMPORTER = Importer(1, 42, 0, 5.0, 3, 6 << 20, bound=True, taken=())
STATUS = Status(
    "kv", "/run/kv.sock", 41, 0, 0.0, "serving", None, None, MachineLine("m", simulated=True, devices=(), driver="1"),
    tuple(OFFERS[:3]), (IMPORTER,), contexts=("gpu0",),
)  # fmt: skip
NODES = (STATUS.of_node("a", "one"), NodeStatus("b", "two", "starting"))


def test_statuses_are_the_same_after_a_text() -> None:
    assert decode_nodes(json.dumps([to_builtins(each) for each in NODES])) == NODES
    assert decode_nodes("") == ()
    names = ("state", "socket", "pid", "offers", "importers", "contexts")
    assert [getattr(NODES[0], name) for name in names] == [getattr(STATUS, name) for name in names]


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "[{}]", "[", "[" * 100_000, '[{"node": "a", "host": "x", "state": "odd"}]']
)
def test_a_text_that_is_no_list_of_statuses_is_refused(text: str) -> None:
    with pytest.raises(BadPacket):
        decode_nodes(text)


def test_a_status_is_reported_at_once_and_again_when_it_differs() -> None:
    now, reported = [STATUS], list[Status]()
    reports = StatusReports(lambda: now[0], reported.append)
    for moment, status in [
        (1.0, STATUS),
        (2.0, STATUS),
        (2.1, replace(STATUS, generation=2)),  # too early
        (3.0, replace(STATUS, generation=3)),
        (4.0, replace(STATUS, generation=3)),
    ]:
        now[0] = status
        reports.advance(moment)
    assert [each.generation for each in reported] == [1, 3]


def test_a_release_is_refused_while_importers_of_another_node_use_exports_over_ipc() -> None:
    free = tuple(replace(each, importers=tuple(replace(one, bound=False) for one in each.importers)) for each in NODES)
    HeldNodes(("a", "b"), lambda: NODES, own="a").require_unbound()
    HeldNodes(("a", "b"), lambda: free).require_unbound()
    with pytest.raises(ExchangeError, match="in use by 1 process on a"):
        HeldNodes(("a", "b"), lambda: NODES, own="b").require_unbound()
    for names, processes in (("a", "2 processes on a"), ("abcde", "10 processes on a, b, c, d …")):
        two = [replace(STATUS, importers=(IMPORTER, IMPORTER)).of_node(name, "x") for name in names]
        with pytest.raises(ExchangeError, match=f"in use by {processes}"):
            HeldNodes(tuple(names), partial(tuple, two)).require_unbound()


def test_a_release_of_a_node_is_refused_for_importers_of_another_one_unless_it_is_forced(runtime: Path) -> None:
    del runtime
    reported, layout = list[Status](), OneState()
    nodes = HeldNodes(("a", "b"), lambda: NODES, reported.append, own="b")
    with (
        closing(os.fdopen(layout.memory)),
        holding(layout, supervision=Supervision(nodes=nodes), lasting=3600.0),
        connect(endpoint("kv")) as client,
    ):
        assert (client.status().nodes, [each.state for each in reported]) == (NODES, ["serving"])
        (entry,) = survey().layouts
        assert (entry.nodes, entry.exports, entry.importers) == (("a", "b"), 3, 1)
        assert entry.bytes == sum(each.count * each.size for each in OFFERS[:3])
        names, status = ("pid", "since", "deadline", "spec", "machine"), client.status()
        assert [getattr(entry, name) for name in names] == [getattr(status, name) for name in names]
        assert status.deadline
        with pytest.raises(ExchangeError, match="in use by 1 process on a") as refused:
            client.release()
        assert (refused.value.code, client.status().state) == ("attached", "serving")
        assert client.release(force=True, grace=0.0).gone
