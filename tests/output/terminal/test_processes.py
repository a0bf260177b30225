"""Layouts of several processes in the terminal: resources, connections, and bounded output."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.common.units import MiB
from memtopo.geometry.diagram import Diagram, Export, HandleFlow, MappingSpan, ProcessDiagram, RangeDiagram, Resource
from memtopo.machine import load
from memtopo.output.blocks import Addresses, Drawing
from memtopo.output.console import unstyled
from memtopo.output.diagram.notation import processes
from memtopo.plans import folding
from tests.helpers.diagrams import text_diagram
from tests.helpers.machines import invented

IMPORTS = "imports: {w: {from: s.out}}, ranges: {r: {size: 2MiB}}, map: {r: [w]}"
SERVER = "s: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, exports: {out: {chunk: c, via: fd}}}"


def drawing_lines(shown: Diagram, width: int = 100, addresses: Addresses | None = None) -> list[str]:
    return unstyled(Drawing(shown, addresses=addresses or {}), width).splitlines()


def titles(lines: list[str]) -> list[str]:
    return [line.strip("─ ") for line in lines if line.startswith("──")]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (("p", "p", 1, 1), "p"),
        (("p.3", "p.3", 1, 1), "p.3"),
        (("p.0", "p.3", 4, 1), "p.0 … 3"),
        (("p.0", "p.2", 2, 2), "p.0, p.2"),
        (("p.1", "p.7", 4, 2), "p.1, p.3 … 7"),
    ],
)
def test_equal_processes_are_named_by_first_and_last(shown: tuple[str, str, int, int], expected: str) -> None:
    """And by the second if they are not neighbours."""
    assert processes(ProcessDiagram(*shown, Diagram((), ()), ())) == expected


def test_distinct_processes_have_sections_and_memory_is_last() -> None:
    lines = drawing_lines(text_diagram(f"processes: {{{SERVER}, r: {{count: 3, {IMPORTS}}}}}"))
    assert titles(lines) == ["s", "r.0 … 2  3 equal processes", "memory  of all processes"]


def test_exports_name_the_processes_that_import_them() -> None:
    """A process, equal processes, every one of an entry, or none."""
    spread = f"r: {{count: 4, devices: {{mine: [gpu0, gpu1]}}, {IMPORTS}, access: {{r: {{mine: r}}}}}}"
    for readers, expected in (
        (f"one: {{{IMPORTS}}}", "→ one"),
        (f"r: {{count: 3, {IMPORTS}}}", "→ r.0 … 2"),
        (spread, "→ every r"),
        (f"one: {{{IMPORTS}}}, {spread}", "→ one, every r"),
        ("one: {ranges: {r: {size: 2MiB}}}", "by fd  c"),
    ):
        (line,) = (
            line for line in drawing_lines(text_diagram(f"processes: {{{SERVER}, {readers}}}")) if "export" in line
        )
        assert line.endswith(expected)


NEIGHBOURS = """
processes:
  s:
    count: 4
    devices: {mine: [gpu0, gpu1, gpu2, gpu3]}
    chunks: {c: {location: mine, size: 2MiB, handles: fd}}
    exports: {out: {chunk: c, via: fd}}
  r:
    count: 4
    devices: {mine: [gpu0, gpu1, gpu2, gpu3]}
    imports: {w: {from: s.out, order: ORDER}}
    ranges: {r: {size: SIZE}}
    map: {r: [w]}
    access: {r: {mine: r}}
"""


@pytest.mark.parametrize(
    ("order", "size", "expected"), [("own", "2MiB", "→ one r each"), ("[own, next]", "4MiB", "→ 2 r each")]
)
def test_exports_say_how_many_of_an_entry_import_from_each_process(order: str, size: str, expected: str) -> None:
    """In a drawing of processes that are alike."""
    text = NEIGHBOURS.replace("ORDER", order).replace("SIZE", size)
    found = folding.picture(text_diagram(text, load("h200x4")))
    (line,) = (line for line in drawing_lines(found) if "export" in line)
    assert line.endswith(expected)


def test_a_shared_chunk_has_one_letter_in_all_processes() -> None:
    """The name appears at its creation, export and import, and in memory."""
    text = "\n".join(drawing_lines(text_diagram(f"processes: {{{SERVER}, r: {{{IMPORTS}}}}}")))
    assert "export  a out" in text
    assert "a w " in text
    assert "from s.out" in text
    assert "a s: c 2 MiB" in text


def test_chunks_of_the_same_name_in_two_processes_have_different_letters() -> None:
    own = "chunks: {c: {location: gpu0, size: 2MiB}}, ranges: {r: {size: 2MiB}}, map: {r: [c]}"
    lines = drawing_lines(text_diagram(f"processes: {{p: {{{own}}}, q: {{{own}}}}}"))
    assert [line.split()[0] for line in lines if line.split()[1:2] == ["c"]] == ["a", "b"]


def test_imports_from_outside_are_drawn_like_their_device() -> None:
    """Though the layout itself takes no memory of it."""
    text = "\n".join(
        drawing_lines(
            text_diagram(
                "ranges: {r: {size: 4MiB}}\nimports: {a: {from: x/a, location: gpu0, size: 2MiB}, "
                "b: {from: x/b, location: gpu1, size: 2MiB}}\nmap: {r: [a, b]}"
            )
        )
    )
    assert "█b▒" in text


def test_many_distinct_processes_are_shortened_and_counted() -> None:
    shown = text_diagram("processes: {p: {ranges: {r: {size: 2MiB}}}}").processes[0]
    many = [replace(shown, first=f"p{turn}", last=f"p{turn}", count=3, step=1) for turn in range(100)]
    lines = drawing_lines(Diagram((), (), processes=tuple(many)))
    assert lines[-1].strip() == "… and 264 more processes"
    assert len(lines) < 60


def test_processes_are_drawn_as_far_as_two_screens_go_unless_every_one_is_asked_for() -> None:
    """However many ranges each of them has; the first one is drawn in any case."""
    ranges = ", ".join(f"r{number}: {{size: 2MiB}}" for number in range(12))
    (shown,) = text_diagram(f"processes: {{p: {{ranges: {{{ranges}}}}}}}").processes
    many = Diagram((), (), processes=tuple(replace(shown, first=f"p{turn}", last=f"p{turn}") for turn in range(12)))
    lines = drawing_lines(many)
    assert (titles(lines)[0], lines[-1].strip()) == ("p0", "… and 11 more processes")
    assert len(titles(unstyled(Drawing(many, every=True), 100).splitlines())) == 12


def test_many_buffers_and_exports_are_shortened_and_counted() -> None:
    things = tuple(Resource("buffer", f"b{turn}", f"b{turn}", bytes_each=MiB) for turn in range(1000))
    exports = tuple(Export(f"e{turn}", "chunk", "", "c", "c", "fd", 1, MiB, ()) for turn in range(1000))
    lines = drawing_lines(Diagram((), (), things, exports))
    assert lines[-1].strip() == "… 1,976 more"
    assert len(lines) < 40


def test_many_importers_of_an_export_are_shortened_and_counted() -> None:
    kinds = tuple(ProcessDiagram(f"p{turn}", f"p{turn}", 1, 1, Diagram((), ()), ()) for turn in range(100))
    export = Export("e", "chunk", "", "e", "e", "fd", 1, MiB, ())
    kinds = (replace(kinds[0], picture=Diagram((), (), exports=(export,))), *kinds[1:])
    flows = tuple(HandleFlow("p0", "e", each.first, "i", "chunk", "fd", 1, MiB, ()) for each in kinds)
    text = "\n".join(drawing_lines(Diagram((), (), processes=kinds, flows=flows)))
    assert "→ p0, p1, p2, p3, 96 more" in text


def test_ranges_of_a_run_are_drawn_with_their_addresses() -> None:
    """Counted ranges have the first address; ranges with different addresses have a word instead."""
    piece = MappingSpan(0, MiB, "c", "c", "c", 0, 1, MiB, locations=("gpu0",))
    counts = {"a": 1, "b": 2, "c": 1}
    shown = Diagram(
        tuple(RangeDiagram(each, each, count, MiB, MiB, (piece,), ()) for each, count in counts.items()), ()
    )
    text = "\n".join(drawing_lines(shown, addresses={("", "a"): 0x7F00, ("", "b"): 0x8F00, ("", "c"): None}))
    assert "a  1 MiB  at 0x7f00" in text
    assert "2 × 1 MiB  from 0x8f00" in text
    assert "c  1 MiB  elsewhere in each" in text


def test_memory_headings_fold_between_their_parts() -> None:
    own = "buffers: {a-buffer-of-a-long-name: {location: gpu0, size: 2MiB}}"
    shown = text_diagram(f"processes: {{p: {{{own}}}, q: {{{own}}}}}", invented(2))
    lines = drawing_lines(shown, width=60)
    assert all(len(line.split()) > 1 for line in lines if line.strip("─ pq"))
    assert any("MiB used" in line for line in lines)
