"""Exports via dmabuf: memory with addresses of its own, in whole pages."""

from __future__ import annotations

import os

import pytest

from memtopo import planner
from memtopo.driver.types import DmaBufFlags, DriverError
from memtopo.kinds.dmabuf.steps import TryExportDmaBuf
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.exports import touched_exports
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.step import Phase
from memtopo.machine import Trial
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, geometry_of, plan_of, steps_of
from tests.run.test_transition import built

OWN = """
ranges: {r: {size: 8MiB}, half: {size: 4MiB}, two: {size: 4MiB, count: 2}, mixed: {size: 4MiB}}
chunks:
  w: {location: gpu0, size: 4MiB, handles: fd, parts: {flags: 4KiB, odd: 100B, tail: 8092B, data: rest}}
  p: {location: [gpu0, gpu1], size: 2MiB, count: 4}
  q: {location: gpu0, size: 2MiB, count: 4}
  n: {location: gpu0, size: 2MiB}
map: {r: [w, q.0, q.1], half: [p.0], two: [q], mixed: [p.2:4]}
access: {r: {gpu0: rw}, half: {gpu0: rw}, two: {gpu0: rw}, mixed: {gpu0: rw}}
buffers: {b: {location: [gpu0, gpu1], size: 100KiB, count: 2}}
events: {e: {device: gpu0}}
"""


NEVER = "  n: {location: gpu0, size: 2MiB}\n"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{chunk: w, via: dmabuf}", []),
        ("{chunk: w, part: flags, via: dmabuf}", []),
        ("{chunk: w, part: odd, via: dmabuf}", ["MT714"]),
        ("{chunk: w, part: tail, via: dmabuf}", ["MT714"]),
        ("{chunk: w, part: data, via: dmabuf}", []),
        ("{chunk: w, part: nothing, via: dmabuf}", ["MT201"]),
        ("{chunk: q, part: data, via: dmabuf}", ["MT201"]),
        ("{chunk: q, via: dmabuf}", []),
        ("{chunk: q.1:3, via: dmabuf}", []),
        ("{chunk: q.9, via: dmabuf}", ["MT202"]),
        ("{chunk: p, via: dmabuf}", ["MT713"]),
        ("{chunk: p.0, via: dmabuf}", []),
        ("{chunk: p.1, via: dmabuf}", ["MT713"]),
        ("{chunk: n, via: dmabuf}", ["MT713"]),
        ("{range: r, via: dmabuf}", []),
        ("{range: half, via: dmabuf}", ["MT713"]),
        ("{range: two, via: dmabuf}", []),
        ("{range: two.1, via: dmabuf}", []),
        ("{range: mixed, via: dmabuf}", ["MT713"]),
        ("{range: nothing, via: dmabuf}", ["MT201"]),
        ("{range: w, via: dmabuf}", ["MT201"]),
        ("{chunk: r, via: fd}", ["MT201"]),
        ("{range: r, via: fd}", ["MT601"]),
        ("{range: r, via: fabric else fd}", ["MT601"]),
        ("{buffer: b, via: dmabuf}", []),
        ("{buffer: b.1, via: dmabuf}", []),
        ("{buffer: b, part: flags, via: dmabuf}", ["MT201"]),
        ("{event: e, via: dmabuf}", ["MT601"]),
        ("{chunk: w, part: flags, via: fd}", ["MT601"]),
        ("{chunk: w, mapping: pcie, via: fd}", ["MT601"]),
        ("{chunk: w, mapping: pcie, via: dmabuf}", ["MT404"]),
        ("{chunk: w, mapping: bar1, via: dmabuf}", ["MT107"]),
        ("{chunk: w, via: dmabuf else fd}", ["MT107"]),
        ("{chunk: w, via: dma_buf}", ["MT107"]),
        ("{chunk: w, via: dmabuf, commit: required}", ["MT607"]),
    ],
)
def test_a_dma_buf_is_of_mapped_memory_of_one_gpu_in_whole_pages(entry: str, expected: list[str]) -> None:
    """Fact 83."""
    assert [code for code in codes(f"{OWN}exports: {{x: {entry}}}\n") if code != "MT501"] == expected


@pytest.mark.parametrize(
    ("entry", "note", "helps"),
    [("{allocation: a, via: dmabuf}", "no memory of pools", True), ("{event: e, via: dmabuf}", "fact 83", False)],
)
def test_what_cannot_be_a_dma_buf_has_the_reason_and_what_can_if_there_is_something(
    entry: str, note: str, helps: bool
) -> None:
    text = "events: {e: {device: gpu0}}\npools: {p: {location: gpu0, handles: fd}}\n"
    text += "allocations: {a: {pool: p, size: 2MiB}}\n"
    (found,) = [each for each in diagnose(f"{text}exports: {{x: {entry}}}\n") if each.code == "MT601"]
    assert (note in found.notes[0], found.help is not None) == (True, helps)


@pytest.mark.parametrize(
    ("attributes", "trials", "pcie", "expected"),
    [
        ({"DMA_BUF_SUPPORTED": 0}, {}, "", ["MT404"]),
        ({"DMA_BUF_SUPPORTED": 0}, {"dmabuf": Trial(works=True)}, "", []),
        ({}, {"dmabuf": Trial(works=False, error="CUDA_ERROR_NOT_SUPPORTED")}, "", ["MT404"]),
        ({}, {"dmabuf-pcie": Trial(works=True)}, ", mapping: pcie", []),
        ({}, {"dmabuf-pcie": Trial(works=False, error="CUDA_ERROR_NOT_SUPPORTED")}, ", mapping: pcie", ["MT404"]),
    ],
)
def test_trials_decide_about_dma_bufs(
    attributes: dict[str, int], trials: dict[str, Trial], pcie: str, expected: list[str]
) -> None:
    text = f"buffers: {{b: {{location: gpu0, size: 2MiB}}}}\nexports: {{x: {{buffer: b, via: dmabuf{pcie}}}}}\n"
    assert codes(text, invented(1, attributes=attributes, trials=trials)) == expected


@pytest.mark.parametrize("exported", ["chunk: w", "range: r"])
def test_compressible_memory_is_no_dma_buf(exported: str) -> None:
    """Fact 83."""
    text = "ranges: {r: {size: 2MiB}}\nchunks: {w: {location: gpu0, size: 2MiB, compressible: true}}\n"
    text += f"map: {{r: w}}\naccess: {{r: {{gpu0: rw}}}}\nexports: {{x: {{{exported}, via: dmabuf}}}}\n"
    assert codes(text) == ["MT405"]


def test_nothing_is_said_about_addresses_where_the_mapping_has_an_error() -> None:
    text = f"{OWN}exports: {{x: {{range: r, via: dmabuf}}}}\n"
    assert codes(text.replace("q.0, q.1]", "q.0, nothing]")).count("MT713") == 0
    assert codes(text.replace("r: {size: 8MiB}", "r: {size: 7B}")).count("MT713") == 0
    assert codes(text.replace("w: {location: gpu0", "w: {location: gpu7")).count("MT713") == 0


PROCESSES = """
processes:
  server:
    ranges: {r: {size: 2MiB}}
    chunks: {w: {location: gpu1, size: 2MiB, handles: fd}}
    map: {r: w}
    access: {r: {gpu1: rw}}
    exports: {w: {chunk: w, via: fd}, nic: {range: r, via: dmabuf}}
  reader:
    ranges: {v: {size: 2MiB}}
    imports: {w: {from: server.w}}
    map: {v: w}
    access: {v: {gpu1: r}}
    exports: {nic: {chunk: w, via: dmabuf}}
"""


def test_an_imported_chunk_is_exported_as_a_dma_buf() -> None:
    """Unlike its export by a handle (facts 26, 83)."""
    geometry = clean_geometry(PROCESSES).processes["reader"]
    assert str(geometry.of(ExportGroup)["nic"].location_of(0)) == "gpu1"
    assert geometry.kept_contexts == {1}
    hidden = PROCESSES.replace("  reader:\n", "  reader:\n    visible: gpu0\n").replace("access: {v: {gpu1: r}}", "")
    assert "MT606" in codes(hidden)


OPENED = """
processes:
  server:
    buffers: {b: {location: gpu0, size: 2MiB}}
    exports: {b: {buffer: b, via: ipc}}
  reader:
    imports: {b: {from: server.b}}
    exports: {nic: {buffer: b, via: dmabuf}}
"""


def test_a_buffer_that_is_opened_is_no_dma_buf() -> None:
    """Fact 83."""
    (found,) = diagnose(OPENED)
    assert (found.code, found.path) == ("MT602", ("processes", "reader", "exports", "nic", "buffer"))
    assert "server.b" in found.message


def test_no_process_imports_a_dma_buf() -> None:
    """Fact 84."""
    text = PROCESSES.replace("from: server.w", "from: server.nic")
    (found,) = [each for each in diagnose(text) if each.code == "MT604"]
    assert found.path == ("processes", "reader", "imports", "w", "from")
    assert found.labels[0].path == ("processes", "server", "exports", "nic")
    assert "fd" in str(found.help)


def test_dma_bufs_are_tried_after_all_mappings() -> None:
    plan = planner.plan(
        clean_geometry(
            f"{OWN}exports: {{x: {{range: two, via: dmabuf}}}}\n".replace(NEVER, "").replace(
                "half: [p.0]", "half: [p.0, p.1]"
            )
        ),
        invented(2),
    )
    (step,) = [each for each in plan.steps if isinstance(each, TryExportDmaBuf)]
    assert step.phase is Phase.SETTLE
    assert set(step.needs) == {("range", "two.0"), ("chunk", "q.0"), ("chunk", "q.1")}
    assert (step.object, step.size, step.count, step.flags) == ("two.0", 4 << 20, 2, DmaBufFlags.NONE)


CHANGED = """
ranges: {{r: {{size: 4MiB}}, s: {{size: 4MiB}}}}
chunks: {{w: {{location: gpu0, size: 2MiB, count: 4, parts: {{a: {part}, b: rest}}}}}}
map: {{r: [{first}], s: [{second}]}}
access: {{r: {{gpu0: {access}}}, s: {{gpu0: rw}}}}
exports: {{r: {{range: r, via: dmabuf}}, w: {{chunk: w.0, via: dmabuf}}, a: {{chunk: w.3, part: a, via: dmabuf}}}}
"""


def test_the_dma_buf_of_a_chunk_that_is_mapped_twice_does_not_depend_on_the_order_of_entries() -> None:
    text = """
ranges: {a: {size: 4MiB}, b: {size: 2MiB}}
chunks: {w: {location: gpu0, size: 2MiB}}
map: {MAP}
access: {a: {gpu0: rw}, b: {gpu0: rw}}
exports: {w: {chunk: w, via: dmabuf}}
"""
    needed = []
    for mapped in ("a: [w, w], b: [w]", "b: [w], a: [{chunk: w, offset: 2MiB}, {chunk: w, offset: 0}]"):
        geometry = clean_geometry(text.replace("MAP", mapped), invented(2))
        plan, memory = planner.plan(geometry, invented(2)), geometry.of(ExportGroup)["w"].dma_buf
        step = next(step for step in plan.steps if isinstance(step, TryExportDmaBuf))
        assert memory
        needed.append((step.needed, memory.place(0)))
    assert needed[0] == needed[1] == ((("range", "a"), ("chunk", "w")), ("a", 0))


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        ({}, set()),
        ({"access": "r"}, set()),
        ({"first": "w.1, w.0"}, {"r"}),
        ({"first": "w.0, w.2", "second": "w.1, w.3"}, {"r"}),
        ({"first": "w.2, w.3", "second": "w.0, w.1"}, {"r"}),
        ({"part": "8KiB"}, {"a"}),
    ],
)
def test_a_change_touches_the_dma_bufs_of_other_memory(change: dict[str, str], touched: set[str]) -> None:
    """A chunk that is mapped elsewhere is the same memory."""
    before = {"first": "w.0, w.1", "second": "w.2, w.3", "access": "rw", "part": "4KiB"}
    old, new = (clean_geometry(CHANGED.format(**values)) for values in (before, before | change))
    assert set(touched_exports(old, new, ())) == touched
    assert set(touched_exports(old, old, {("chunk", "w.1")})) == {"r"}


LIVE = """
ranges: {r: {size: 4MiB, count: 2}, s: {size: 4MiB}}
chunks: {c: {location: gpu0, size: 2MiB, count: 4}, w: {location: gpu0, size: 4MiB, parts: {a: 4KiB, b: rest}}}
map: {r: [c], s: [w]}
access: {r: {gpu0: rw}, s: {gpu0: rw}}
exports: {r: {range: r, via: dmabuf}, c: {chunk: "c.1:3", via: dmabuf}, b: {chunk: w, part: b, via: dmabuf}}
"""


def test_a_dma_buf_is_of_what_is_mapped_now_or_there_is_none() -> None:
    exports = geometry_of(LIVE, invented(1)).of(ExportGroup)
    with built(plan_of(LIVE, invented(1)), invented(1)) as layout:
        ledger, live = layout.ledger, layout.execution.layout

        def address(name: str, index: int) -> int:
            memory = exports[name].dma_buf
            assert memory
            return memory.address(live, exports[name].first + index)

        ranges = {label: found.address for label, found in live.ranges.items()}
        assert [address("r", index) for index in (0, 1)] == [ranges["r.0"], ranges["r.1"]]
        assert [address("c", index) for index in (0, 1)] == [ranges["r.0"] + (2 << 20), ranges["r.1"]]
        assert address("b", 0) == ranges["s"] + (4 << 10)
        assert [*exports["r"].resources] == [("chunk", f"c.{number}") for number in range(4)]
        descriptors = len(os.listdir("/proc/self/fd"))
        handle = exports["b"].exporter.handle(ledger, live, exports["b"], 0)
        assert handle.fd is not None
        assert os.lseek(handle.fd, 0, os.SEEK_END) == (4 << 20) - (4 << 10)
        handle.close()
        with pytest.raises(DriverError):
            exports["r"].exporter.handle(Failing(ledger, 1, only={"ctx_pop_current"}), live, exports["r"], 0)
        ledger.ctx_pop_current()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        maps = {step.chunk: step for step in steps_of(layout.execution.plan, MapChunk)}
        maps["c.3"].undo(ledger, live)
        assert address("r", 0)
        with pytest.raises(KeyError, match=r"c\.3"):
            exports["r"].exporter.handle(ledger, live, exports["r"], 1)
        maps["c.2"].undo(ledger, live)
        with pytest.raises(KeyError, match=r"c\.2"):
            address("c", 1)
        live.mappings[ranges["r.1"]] = "c.0"
        with pytest.raises(KeyError, match=r"c\.2"):
            address("c", 1)
        del live.mappings[ranges["r.1"]]
