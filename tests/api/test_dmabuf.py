"""Dma-bufs of a held layout, and of one in this process; a simulated device reads and writes through them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.api.objects import DmaBuf, DmaBufs
from memtopo.common.errors import ExchangeError, NoLayout
from memtopo.drivers.sim import external_api as nic
from memtopo.drivers.target import Target
from memtopo.sharing.client import IN_FLIGHT, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.status import Notice
from tests.api.child_process import Process
from tests.helpers.child_process import PATIENCE
from tests.helpers.held_layouts import Held, Switch, held
from tests.helpers.holders import holding, until
from tests.helpers.memfd_exports import PAGES, OneState
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import require_taken_down

M = 2 << 20
SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "nic",
    "ranges": {"kv": {"size": "4MiB"}, "more": {"size": "4MiB"}, "weights": {"size": "4MiB"}},
    "chunks": {
        "page": {"location": "gpu0", "size": "2MiB", "count": 2},
        "q": {"location": "gpu0", "size": "2MiB", "count": 2},
        "w": {"location": "gpu0", "size": "4MiB", "handles": "fd", "parts": {"flags": "4KiB", "data": "rest"}},
    },
    "map": {"kv": ["page"], "more": ["q"], "weights": ["w"]},
    "access": {"kv": {"gpu0": "rw"}, "more": {"gpu0": "rw"}, "weights": {"gpu0": "rw"}},
    "buffers": {"b": {"location": "gpu0", "size": "100KiB"}},
    "exports": {
        "w": {"chunk": "w", "via": "fd"},
        "kv": {"range": "kv", "via": "dmabuf"},
        "pages": {"chunk": "q", "via": "dmabuf"},
        "flags": {"chunk": "w", "part": "flags", "via": "dmabuf"},
        "card": {"chunk": "w", "via": "dmabuf"},
        "b": {"buffer": "b", "via": "dmabuf"},
    },
    "states": {"half": {"drop": ["kv", "more"]}},
}
SIZES = {"kv": [2 * M], "pages": [M, M], "flags": [4096], "card": [2 * M], "b": [M]}


def sizes(bufs: DmaBufs) -> dict[str, list[int]]:
    return {name: [os.lseek(each.fd, 0, os.SEEK_END) for each in bufs[name]] for name in bufs.exports}


def notice(bufs: DmaBufs) -> Notice:
    found = bufs.notice(PATIENCE)
    assert found
    return found


@pytest.mark.usefixtures("layout")
def test_all_dma_bufs_of_a_layout_have_the_offered_sizes() -> None:
    with memtopo.dma_bufs("nic") as bufs:
        assert sizes(bufs) == SIZES
        assert [each.size for each in bufs["pages"]] == SIZES["pages"]
        assert [each.name for each in bufs["pages"]] == ["pages.0", "pages.1"]
        kinds = {name: (offer.kind, offer.via) for name, offer in bufs.exports.items()}
        assert kinds["kv"] == ("range", "dmabuf")
        assert kinds["b"] == ("buffer", "dmabuf")
        (kv,) = bufs["kv"]
        with pytest.raises(memtopo.Unsuitable, match="entered only once"), bufs:
            pass
        assert kv.fileno() == kv.fd
    with pytest.raises(memtopo.Unsuitable, match="entered only once"), bufs:
        pass
    with pytest.raises(memtopo.Unsuitable, match="'kv' is closed"):
        kv.fileno()


def test_no_descriptor_is_left_in_either_process(start: Callable[..., Process]) -> None:
    """After many rounds of a holder of its own, whose teardown finds no leak."""
    holder = start(spec="specs/nic-kv.yaml", machine="h100x1")
    before = open_descriptors()
    for _ in range(3):
        with memtopo.dma_bufs("nic-kv") as bufs:
            assert sizes(bufs) == {"kv": [17 * M], "flags": [4096]}
    assert open_descriptors() == before
    summary, report = holder.end()
    assert (summary["clients"], summary["handles"]) == (3, 6)
    assert report == {"outcome": "ok", "failure": None}


def test_a_device_and_the_holder_read_the_bytes_of_each_other(layout: Held) -> None:
    with memtopo.dma_bufs("nic", ["card", "kv"]) as bufs:
        (card,), (kv,) = bufs["card"], bufs["kv"]
        layout.write("weights", b"weights")
        assert nic.read(card.fd, 0, 7) == b"weights"
        nic.write(card.fd, 2 * M - 2, b"ok")
        assert layout.bytes_of("weights", 2 * M - 2, 2) == b"ok"
        layout.write("kv", b"kv")
        assert nic.read(kv.fd, 0, 2) == b"kv"
        nic.write(kv.fd, M - 1, b"ab")
        assert layout.bytes_of("kv", M - 1, 2) == b"ab"


def test_bytes_outlive_the_holder(machine: Target, runtime: Any) -> None:
    with held(SPEC, machine) as found, memtopo.dma_bufs("nic", "card") as bufs:
        found.write("weights", b"weights")
        kept = os.dup(bufs["card"][0].fd)
    assert nic.read(kept, 0, 7) == b"weights"
    os.close(kept)


def test_a_program_follows_a_switch_of_the_layout(layout: Held, switch: Switch) -> None:
    """The holder waits until it has let go; then the export is absent until the layout is awake."""
    with memtopo.dma_bufs("nic") as bufs:
        half = switch("half")
        assert notice(bufs).kind == "changing"
        assert not half.done()
        bufs.let_go(["kv", "pages"])
        assert half.result().kept == ()
        assert notice(bufs).kind == "changed"
        assert bufs["kv"] == ()
        with pytest.raises(ExchangeError) as caught:
            bufs.take("kv")
        assert caught.value.code == "absent"
        assert nic.read(bufs["card"][0].fd, 0, 1)
        awake = switch("awake")
        while notice(bufs).state != "awake":
            pass
        awake.result()
        assert [each.size for each in bufs.take("pages")] == SIZES["pages"]
        assert sizes(bufs) | {"kv": [2 * M]} == SIZES
        layout.write("kv", b"new")
        assert nic.read(bufs.take("kv")[0].fd, 0, 3) == b"new"


def test_a_program_may_begin_while_memory_is_gone(layout: Held, switch: Switch) -> None:
    """It takes the dma-bufs after the notice that the memory is back."""
    switch("half").result()
    with memtopo.dma_bufs("nic") as bufs:
        assert sizes(bufs) == SIZES | {"kv": [], "pages": []}
        awake = switch("awake")
        assert notice(bufs).state == "awake"
        awake.result()
        assert len(bufs.take("pages")) == 2
    del layout


def test_a_program_that_keeps_its_dma_bufs_is_named(layout: Held, switch: Switch) -> None:
    """And keeps the old memory under force."""
    layout.write("kv", b"old")
    with memtopo.dma_bufs("nic", ["kv"]) as bufs:
        with pytest.raises(ExchangeError, match="1 of kv, 4 MiB"):
            switch("half", wait=0.05).result()
        assert [each.handles for each in switch("half", wait=0.05, force=True).result().kept] == [1]
        switch("awake").result()
        assert nic.read(bufs["kv"][0].fd, 0, 3) == b"old"


def test_dma_bufs_that_are_taken_again_replace_those_that_are_open(layout: Held) -> None:
    with memtopo.dma_bufs("nic", ["pages", "card"]) as bufs:
        old = bufs["pages"]
        bufs.take("pages")
        before = open_descriptors()  # with what the holder has since the first time, and may be about to close
        for _ in range(8):
            new = bufs.take("pages")
        assert bufs["pages"] == new
        until(lambda: open_descriptors() <= before)
        for each in old:
            with pytest.raises(memtopo.Unsuitable, match="is closed"):
                each.fileno()
        layout.write("more", b"again")
        assert nic.read(new[0].fd, 0, 5) == b"again"


def test_an_export_that_has_lost_its_memory_has_no_dma_bufs_once_they_are_taken(layout: Held, switch: Switch) -> None:
    """It has them again as soon as it has memory."""
    with memtopo.dma_bufs("nic", ["kv"]) as bufs:
        switch("half", wait=0.0, force=True).result()
        with pytest.raises(ExchangeError) as caught:
            bufs.take("kv")
        assert (caught.value.code, bufs["kv"]) == ("absent", ())
        switch("awake").result()
        layout.write("kv", b"new")
        assert nic.read(bufs.take("kv")[0].fd, 0, 3) == b"new"


@pytest.mark.usefixtures("layout")
def test_nothing_is_let_go_of_with_an_export_that_does_not_exist() -> None:
    with memtopo.dma_bufs("nic", ["kv", "pages"]) as bufs:
        with pytest.raises(memtopo.Unsuitable, match="did you mean 'pages'"):
            bufs.let_go(["kv", "pagse"])
        assert bufs["kv"][0].fileno() >= 0


def test_what_is_let_go_of_is_closed_before_the_holder_is_told(layout: Held) -> None:
    """Also if it cannot be told."""
    with memtopo.dma_bufs("nic", ["kv", "pages"]) as bufs:
        kv, *pages = *bufs["kv"], *bufs["pages"]
        layout.end()
        with pytest.raises(ExchangeError, match="the holder has ended the connection"):
            until(lambda: bufs.notice(PATIENCE) is None)
        with pytest.raises(ExchangeError):
            bufs.let_go(["pages"])
        for each in pages:
            with pytest.raises(memtopo.Unsuitable, match="is closed"):
                each.fileno()
        assert (bufs["pages"], bufs["kv"]) == ((), (kv,))


def test_dma_bufs_of_an_export_without_a_part_of_its_memory_are_all_closed(machine: Target, runtime: Any) -> None:
    """Also those of an answer before the one that was refused."""
    count = IN_FLIGHT + 1
    spec = {key: SPEC[key] for key in ("memtopo", "name")} | {
        "ranges": {"more": {"size": f"{2 * count}MiB"}},
        "chunks": {"q": {"location": "gpu0", "size": "2MiB", "count": count}},
        "map": {"more": ["q"]},
        "access": {"more": {"gpu0": "rw"}},
        "exports": {"pages": {"chunk": "q", "via": "dmabuf"}},
        "states": {"less": {"drop": [f"q.{count - 1}"]}},
    }
    with held(spec, machine), connect(endpoint("nic")) as client:
        client.switch("less")
        with memtopo.dma_bufs("nic") as bufs:
            before = open_descriptors()
            with pytest.raises(ExchangeError):
                bufs.take("pages")
            assert (bufs["pages"], open_descriptors()) == ((), before)


@pytest.mark.usefixtures("layout")
def test_attach_leaves_dma_bufs_out(machine: Target) -> None:
    """No process imports them (fact 84)."""
    with memtopo.attach("nic", machine=machine) as shared:
        assert list(shared.exports) == ["w"]
    for names in (["kv"], "card", ["w", "flags"]):
        with pytest.raises(memtopo.Unsuitable, match=r"is a dma-buf.*dma_bufs\(\) opens it"):
            memtopo.attach("nic", names, machine=machine).__enter__()


@pytest.mark.usefixtures("layout")
def test_other_exports_are_refused_by_name() -> None:
    wrong = {"w": r"via fd.*attach\(\)", "pagse": "did you mean 'pages'", "none": "there is no export via dmabuf"}
    for names, message in wrong.items():
        with pytest.raises(memtopo.Unsuitable, match=message):
            memtopo.dma_bufs("nic", names).__enter__()
    with memtopo.dma_bufs("nic") as bufs:
        with pytest.raises(memtopo.Unsuitable, match="there is no export via dmabuf 'w'"):
            bufs["w"]
        with pytest.raises(memtopo.Unsuitable, match="only once"):
            bufs.__enter__()
    with pytest.raises(memtopo.Unsuitable, match="inside of a 'with'"):
        memtopo.dma_bufs("nic").notice()


def test_a_layout_without_dma_bufs_is_refused(start: Callable[..., Process]) -> None:
    with pytest.raises(NoLayout):
        memtopo.dma_bufs("kv-store").__enter__()
    start(spec="specs/hold.yaml", machine="h200x2")
    with pytest.raises(memtopo.Unsuitable, match="nothing is exported via dmabuf"):
        memtopo.dma_bufs("kv-store").__enter__()


def test_a_layout_that_only_devices_use_keeps_a_context(machine: Target, runtime: Any) -> None:
    """The call needs one (fact 83), unlike other exports of chunks; and attach has nothing to import."""
    only = {key: value for key, value in SPEC.items() if key not in ("buffers", "states")}
    only |= {"exports": {"kv": SPEC["exports"]["kv"]}}
    with held(only, machine) as found, memtopo.dma_bufs("nic") as bufs:
        assert found.run.execution.layout.contexts.keys() == {0}
        assert sizes(bufs) == {"kv": [2 * M]}
        with pytest.raises(memtopo.Unsuitable, match="is a dma-buf"):
            memtopo.attach("nic", machine=machine).__enter__()


def test_a_layout_in_this_process_opens_its_own_dma_bufs(machine: Target) -> None:
    with memtopo.applied(SPEC, machine=machine) as layout:
        weights = np.from_dlpack(layout.chunk("w"))
        weights[:2] = [1, 2]
        with layout.dma_buf("card") as card, layout.dma_buf("pages", 1) as page:
            assert nic.read(card.fileno(), 0, 2) == b"\1\2"
            assert (page.name, page.size, repr(page)) == ("pages.1", M, "<dma-buf pages.1 of 2,097,152 bytes: open>")
        for name, index in (("w", 0), ("pages", 2), ("pages", -1), ("none", 0)):
            with pytest.raises(memtopo.Unsuitable, match="there is no export via dmabuf"):
                layout.dma_buf(name, index)
        layout.switch("half")
        with pytest.raises(memtopo.Unsuitable, match="has no memory in state 'half'"):
            layout.dma_buf("kv")
        layout.switch("awake")
        layout.dma_buf("kv").close()
        del weights
    require_taken_down(layout)


@pytest.mark.usefixtures("runtime")
def test_dma_bufs_are_not_entered_if_one_cannot_be_had_for_another_reason_than_a_state() -> None:
    found = OneState([replace(PAGES, name=name, via="dmabuf", count=1) for name in ("page", "broken")])
    with closing(os.fdopen(found.memory)), holding(found):
        before = open_descriptors()
        with pytest.raises(ExchangeError, match="cannot be had"):
            memtopo.dma_bufs("kv").__enter__()
        until(lambda: open_descriptors() <= before)  # the holder closes its end a moment later


def test_a_dma_buf_is_closed_once() -> None:
    buf = DmaBuf("x", 1, os.dup(0))
    buf.close()
    buf.close()
    assert repr(buf).endswith("closed>")
