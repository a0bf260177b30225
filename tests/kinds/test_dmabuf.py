"""Exports via dmabuf: memory with addresses of its own, in whole pages."""

from __future__ import annotations

import os

import pytest

from memtopo import planner
from memtopo.driver.types import DmaBufFlags, DriverError
from memtopo.kinds.chunks.steps import TryExportDmaBuf
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.exports import touched_exports
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.step import Phase
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, geometry_of, plan_of, steps_of
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
    assert (step.object, step.memory.size, step.count, step.memory.flags) == ("two.0", 4 << 20, 2, DmaBufFlags.NONE)


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
        needed.append((step.needs, memory.place(0)))
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
