from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from memtopo.common.units import MiB
from memtopo.geometry.diagram import (
    DeviceAccess,
    Diagram,
    Export,
    HandleFlow,
    MappingSpan,
    MemoryDiagram,
    MemoryShare,
    ProcessDiagram,
    RangeDiagram,
    Resource,
)
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import FORMATS, page
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.svg import svg
from tests.helpers.diagrams import PARTS_AND_HOLES, spec_diagram, text_diagram
from tests.helpers.machines import invented
from tests.helpers.specs import EVERY_SPEC, ROOT, geometry_of

NAME = "{http://www.w3.org/2000/svg}"
QUICKSTART = ROOT / "specs" / "quickstart.yaml"
LARGEST = 2_000_000
MANY = 10_000
PARTS = 10_000


def hovers(text: str) -> list[str]:
    """Tooltips of a drawing."""
    return [
        found.text or "" for group in ET.fromstring(text).iter(f"{NAME}g") for found in group.findall(f"{NAME}title")
    ]


def texts_of(text: str) -> list[str]:
    """Every text of a drawing."""
    return [found.text or "" for found in ET.fromstring(text).iter(f"{NAME}text")]


def spec_svg(path: str, **more: object) -> str:
    shown, document = spec_diagram(ROOT / path)
    return svg(Drawing(shown, "title", locate=document.position, **more))  # type: ignore[arg-type]


def test_the_tooltip_of_a_span_has_all_its_properties() -> None:
    texts = hovers(spec_svg("specs/quickstart.yaml", addresses={("", "kv"): 0x7F0000000000}))
    expected = "\n".join(
        [
            "hot", "32MiB at 0 of kv", "address 0x7f0000000000", "on gpu0 (prefill)", "handles fd",
            "access gpu0 rw, gpu1 r", f"{QUICKSTART}:22:8",
        ]
    )  # fmt: skip
    assert expected in texts
    assert any("16 × 2 MiB = 32MiB at 64MiB of kv\naddress 0x7f0004000000" in each for each in texts)


def test_unknown_addresses_are_not_shown() -> None:
    assert not any("address 0x" in each for each in hovers(spec_svg("specs/quickstart.yaml")))


@pytest.mark.parametrize(
    ("spec", "there", "absent"),
    [
        (
            "quickstart",
            ["on gpu0 (prefill)", "may read", "same letter, same entry of the spec"],
            ["hole, no memory", "mapped again"],
        ),
        ("arena", ["hole, no memory", "may read and write"], ["may read", "mapped again", "on gpu1"]),
        ("ring-buffer", ["mapped again"], ["may read", "hole, no memory"]),
        ("hand-over", ["handles go from export to import", "may read"], ["on gpu1", "mapped again"]),
        ("paged-kv", ["on gpu0", "on gpu1"], ["several, or one of many"]),
        # The letter of four parts, one of each process.
        ("shared-heap", ["same letter, same entry of the spec"], ["same letter, same memory"]),
    ],
)
def test_the_legend_has_only_signs_that_occur(spec: str, there: list[str], absent: list[str]) -> None:
    texts = texts_of(spec_svg(f"specs/{spec}.yaml"))
    assert set(there) <= set(texts)
    assert not set(absent) & set(texts)


def test_a_chunk_that_is_mapped_again_is_labelled() -> None:
    assert "8 MiB at 8 MiB · gpu0 · same memory as at 0" in texts_of(spec_svg("specs/ring-buffer.yaml"))
    assert "of weights" in " ".join(texts_of(spec_svg("specs/read-only-view.yaml")))


def test_external_resources_have_rows_with_their_properties() -> None:
    texts = texts_of(spec_svg("specs/vulkan-frame.yaml"))
    assert "IMPORT" not in texts
    assert texts[texts.index("EXTERNAL") :][2:8] == [
        "frame", "8 MiB · gpu0 · from camera/frame · opaque_fd", "frame.y", "4 MiB at 0", "frame.uv", "2 MiB at 4 MiB",
    ]  # fmt: skip
    assert texts[texts.index("SEMAPHORE") + 2] == "gpu0 · from camera/ready · timeline · waits for 1 · signals 2"


def test_parts_are_to_scale_and_never_invisible() -> None:
    thing = Resource("external", "f", "f", 1, 100 * MiB, ("gpu0",), "camera/f", external=True)
    spans = [(0, 50 * MiB), (25 * MiB, 75 * MiB), (100 * MiB - 1, 1)]
    parts = tuple(Resource("part", f"f.{at}", "f", 1, size, offset=at) for at, size in spans)
    found = ET.fromstring(svg(Drawing(Diagram((), (), (replace(thing, parts=parts),)), "title")))
    rects = [{name: float(each.get(name, 0)) for name in ("x", "width")} for each in found.iter(f"{NAME}rect")
             if each.get("height") == "10"]  # fmt: skip
    tracks, filled = rects[::2], rects[1::2]
    wide = tracks[0]["width"]
    assert [(each["x"] / wide, each["width"] / wide) for each in filled[:2]] == [
        pytest.approx((0, 0.5), abs=0.001), pytest.approx((0.25, 0.75), abs=0.001)
    ]  # fmt: skip
    assert filled[2]["width"] >= 3
    assert filled[2]["x"] + filled[2]["width"] == pytest.approx(wide, abs=0.1)


def test_parts_beyond_the_limit_are_counted() -> None:
    parts = tuple(Resource("part", f"f.{index}", "f", 1, MiB, offset=index * MiB) for index in range(PARTS))
    thing = Resource("external", "f", "f", 1, PARTS * MiB, ("gpu0",), "camera/f", (), parts, external=True)
    for draw in (svg, page):
        text = draw(Drawing(Diagram((), (), (thing,)), "title"))
        assert len(text.encode()) < LARGEST
        assert "… and 9,988 more" in text


def test_many_equal_chunks_have_one_label() -> None:
    texts = texts_of(spec_svg("specs/paged-kv.yaml"))
    assert "8,000 × 2 MiB at 0 · gpu0, gpu1 round-robin" in texts
    assert len(texts) < 40


def test_a_line_joins_each_export_to_its_imports() -> None:
    shown, _ = spec_diagram(ROOT / "specs" / "weights.yaml")
    texts = texts_of(svg(Drawing(shown, "title")))
    assert texts.count("EXPORT") == 1
    assert texts.count("IMPORT") == len(shown.flows) == 2
    lines = [
        each for each in ET.fromstring(svg(Drawing(shown, "title"))).iter(f"{NAME}path") if each.get("class") == "f"
    ]
    assert len(lines) == 2 + 1  # and the one in the legend


def test_the_row_of_an_import_has_the_objects_of_all_its_exporters() -> None:
    """Also of those that are alike and drawn once."""
    text = (
        "processes: {pe: {count: 5, devices: {mine: [gpu0, gpu1]}, exports: {part: {chunk: part, via: fd}}, "
        "chunks: {part: {location: mine, size: 2MiB, handles: fd}}}, reader: {imports: {every: {from: pe.part}}}}"
    )
    assert "5 × 2 MiB · from pe.part" in texts_of(svg(Drawing(text_diagram(text), "heap")))


@pytest.mark.parametrize("path", [*EVERY_SPEC, PARTS_AND_HOLES], ids=lambda path: path.stem)
def test_a_drawing_is_deterministic_and_fetches_nothing(path: Path) -> None:
    shown, document = spec_diagram(path)
    for draw in (svg, page):
        text = draw(Drawing(shown, "title", locate=document.position))
        assert text == draw(Drawing(shown, "title", locate=document.position))
        fetched = text.replace("http://www.w3.org/2000/svg", "")
        assert not any(word in fetched for word in ("http:", "https:", "<script", "@import", "src=", "<link"))


def test_each_format_has_title_note_and_positions() -> None:
    shown, document = spec_diagram(QUICKSTART)
    sheet = Drawing(shown, "a title", "a note", document.position)
    for name in ("svg", "html"):
        text = FORMATS[name](sheet)
        assert "a title" in text
        assert "a note" in text
        assert "quickstart.yaml:22:8" in text


def many(pieces: int, ranges: int) -> Diagram:
    """A layout in which nothing is like its neighbour."""

    def span(index: int) -> MappingSpan:
        name, access = f"c{index}", (DeviceAccess("gpu0", "rw" if index % 3 else "r"),)
        return MappingSpan(
            index * MiB, MiB, name, name, name, 0, 1, MiB, 0, 1, (f"gpu{index % 8}",), ("fd",), access, ("map", index)
        )

    size = pieces * MiB
    rows = tuple(span(index) for index in range(pieces))
    shares = tuple(MemoryShare(f"c{index}", 1, MiB, MiB, ()) for index in range(pieces))
    memory = MemoryDiagram("gpu0", (), size, size * 2, size // 2, size // 2, shares)
    return Diagram(tuple(RangeDiagram(f"r{n}", f"r{n}", 1, size, size, rows, ()) for n in range(ranges)), (memory,))


@pytest.mark.parametrize(("pieces", "ranges"), [(MANY, 1), (1, MANY), (100, 100)])
def test_the_size_of_a_drawing_is_bounded(pieces: int, ranges: int) -> None:
    shown = many(pieces, ranges)
    for draw in (svg, page):
        text = draw(Drawing(shown, "title", locate=lambda path: f"a/rather/long/path/to/a/spec.yaml:{path}"))
        assert len(text.encode()) < LARGEST
        assert " more" in text


def test_a_block_of_many_mappings_has_the_letter_of_their_entry_or_that_of_several() -> None:
    """The legend has each of both letters once."""
    (shown,) = many(200, 1).ranges
    for entries, letter, other in ((1, "a", "*"), (2, "*", "a")):
        pieces = tuple(replace(span, chunk=f"c{index % entries}") for index, span in enumerate(shown.pieces))
        texts = texts_of(svg(Drawing(Diagram((replace(shown, pieces=pieces),), ()), "title")))
        assert texts.count(letter) > texts.count(other) == 1


def test_the_size_of_a_multi_process_drawing_is_bounded() -> None:
    one, label = many(100, 100), "p{}".format
    exports = tuple(Export(f"e{index}", "chunk", "c1", "a", "b", "fd", 2, MiB, ()) for index in range(50))
    alike = replace(one, memory=(), exports=exports)
    shown = Diagram(
        ranges=(),
        memory=one.memory * 8,
        processes=tuple(ProcessDiagram(label(index), label(index), 1, 1, alike, ()) for index in range(40)),
        flows=tuple(
            HandleFlow(
                label(index % 40), f"e{index % 50}", label(index * 7 % 40), f"n{index}", "chunk", "fd", 1, MiB, ()
            )
            for index in range(3000)
        ),
    )
    for draw in (svg, page):
        text = draw(Drawing(shown, "title"))
        assert len(text.encode()) < LARGEST
        assert "… and 28 more processes" in text


def test_an_empty_layout_is_drawn() -> None:
    nothing = Diagram((), ())
    assert texts_of(svg(Drawing(nothing, "title"))) == ["title"]
    assert "<h1>title</h1>" in page(Drawing(nothing, "title"))


def test_memory_taken_by_others_is_shown() -> None:
    shown = many(4, 1)
    taken = svg(Drawing(shown, "title"))
    assert "2 MiB taken by others" in texts_of(taken)
    free = replace(shown, memory=tuple(replace(each, taken=None) for each in shown.memory))
    assert len(taken) > len(svg(Drawing(free, "title")))


def test_a_drawing_shows_the_first_of_many_names_of_a_device() -> None:
    declared = ", ".join(f"name{index}: 0" for index in range(1000))
    shown = text_diagram(f"devices: {{{declared}}}\nchunks: {{c: {{location: name0, size: 2MiB}}}}\n")
    for text in (svg(Drawing(shown, "title")), page(Drawing(shown, "title"))):
        assert "name7" in text
        assert "name8" not in text
        assert "992 more" in text


def test_memory_that_exceeds_its_gpu_fills_the_bar_of_the_gpu() -> None:
    text = "managed: {m: {size: 800GiB, prefer: gpu0, oversubscribe: true}}"
    facts = invented(1)
    shown = build_diagram(geometry_of(text, facts), facts)
    (memory,) = shown.memory
    assert (memory.used, memory.free) == (800 << 30, 0)
    drawn = svg(Drawing(shown, "exceeding"))
    bars = [rect for rect in ET.fromstring(drawn).iter(f"{NAME}rect") if rect.get("class") in ("o", "u")]
    whole, used = (float(rect.get("height", 0)) for rect in bars)
    assert 0 < used <= whole


def test_memory_of_several_gpus_at_one_address_is_drawn_side_by_side() -> None:
    """Behind a multicast address; chunks of two GPUs are drawn one below the other."""
    drawn = ET.fromstring(spec_svg("specs/multicast.yaml"))
    for first, columns in (("part.0", 1), ("team", 2)):
        groups = [each for each in drawn.iter(f"{NAME}g") if (each.findtext(f"{NAME}title") or "").startswith(first)]
        starts = {path.get("d", "").split()[0] for path in groups[0].findall(f"{NAME}path")[:2]}
        assert len(starts) == columns, first


def test_lines_from_exports_to_imports_that_are_left_out_are_counted() -> None:
    text = """
memtopo: 1
name: heap
processes:
  pe:
    count: 8
    devices: {mine: gpus}
    ranges: {heap: {size: 16MiB}}
    chunks: {part: {location: mine, size: 2MiB, handles: fd}}
    exports: {part: {chunk: part, via: fd}}
    imports: {every: {from: pe.part}}
    map: {heap: [every]}
    access: {heap: {mine: rw}}
"""
    assert "… and 40 more lines from exports to imports" in svg(Drawing(text_diagram(text, invented(8)), "heap"))
    fewer = text.replace("count: 8", "count: 4").replace("16MiB", "8MiB")
    assert "more lines" not in svg(Drawing(text_diagram(fewer, invented(4)), "heap"))
