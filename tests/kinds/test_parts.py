"""Named parts of chunks: their offsets, and where they are known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.api.imports import importing_spec
from memtopo.common.units import KiB, MiB, NamedPart
from memtopo.geometry.groups import ChunkGroup
from memtopo.language.limits import LARGEST_PARTS
from memtopo.output.diagram.build import build_diagram
from memtopo.sharing.errors import BadPacket
from memtopo.sharing.offers import Offer
from memtopo.sharing.wire import read
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose

ONE = (
    "ranges: {r: {size: 8MiB}}\nchunks: {c: {location: gpu0, size: SIZE, count: 2, parts: PARTS, handles: fd}}\n"
    "map: {r: c}\naccess: {r: {gpu0: rw}}\nexports: {c: {chunk: c, via: fd}}\n"
)
PARTS = "{signal: 4KiB, counters: 60KiB, data: rest}"
OFFSETS = (
    NamedPart("signal", 0, 4 * KiB),
    NamedPart("counters", 4 * KiB, 60 * KiB),
    NamedPart("data", 64 * KiB, 4 * MiB - 64 * KiB),
)


def one(parts: str, size: str = "4MiB") -> str:
    return ONE.replace("PARTS", parts).replace("SIZE", size)


@pytest.mark.parametrize(
    ("parts", "size", "expected"),
    [
        (PARTS, "4MiB", OFFSETS),
        ("{a: rest}", "4MiB", (NamedPart("a", 0, 4 * MiB),)),
        ("{a: 1B}", "4MiB", (NamedPart("a", 0, 1),)),
        ("{a: rest, b: 1 granule}", "4MiB", (NamedPart("a", 0, 2 * MiB), NamedPart("b", 2 * MiB, 2 * MiB))),
        ("{a: 1MiB, b: rest}", "3MiB, round: up", (NamedPart("a", 0, MiB), NamedPart("b", MiB, 3 * MiB))),
    ],
)
def test_parts_follow_one_another_and_one_takes_the_rest(
    parts: str, size: str, expected: tuple[NamedPart, ...]
) -> None:
    assert clean_geometry(one(parts, size)).of(ChunkGroup)["c"].parts == expected


@pytest.mark.parametrize(
    ("parts", "expected", "path"),
    [
        ("{a: 4MiB, b: 1B}", "MT313", ("parts",)),
        ("{a: 18446744073709551615B}", "MT313", ("parts",)),
        ("{a: 4MiB, b: rest}", "MT313", ("parts", "b")),
        ("{a: 5MiB, b: rest}", "MT313", ("parts",)),
        ("{a: rest, b: rest}", "MT204", ("parts",)),
        ("{}", "MT103", ("parts",)),
        ("[signal]", "MT103", ("parts",)),
        ("{a: 0}", "MT105", ("parts", "a")),
        ("{a: left}", "MT105", ("parts", "a")),
        ("{a: {}}", "MT103", ("parts", "a")),
        ("{a.b: 4KiB}", "MT104", ("parts", "a.b")),
        ("{0: 4KiB}", "MT104", ("parts", "0")),
        (f"{{{', '.join(f'p{number}: 1B' for number in range(LARGEST_PARTS + 1))}}}", "MT109", ("parts",)),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_their_place(parts: str, expected: str, path: tuple[str, ...]) -> None:
    (diagnostic,) = diagnose(one(parts))
    assert (diagnostic.code, diagnostic.path) == (expected, ("chunks", "c", *path))


def test_an_import_has_the_parts_of_its_export() -> None:
    text = f"processes:\n server: {{{', '.join(one(PARTS).splitlines())}}}\n"
    reader = " reader: {imports: {x: {from: server.cMORE}}, ranges: {v: {size: 8MiB}}, map: {v: x}, "
    text += reader + "access: {v: {gpu0: r}}}\n"
    assert clean_geometry(text.replace("MORE", "")).processes["reader"].of(ChunkGroup)["x"].parts == OFFSETS
    assert codes(text.replace("MORE", f", parts: {PARTS}")) == ["MT604"]


def test_only_an_import_of_chunks_declares_parts() -> None:
    text = "imports: {x: {from: l/x, location: gpu0, size: 4MiB, parts: {a: 1MiB}MORE}}\n"
    assert codes(text.replace("MORE", "")) == ["MT501"]
    assert codes(text.replace("MORE", ", via: ipc")) == ["MT603"]
    assert codes(text.replace("a: 1MiB", "a: 5MiB").replace("MORE", "")) == ["MT313"]


def test_a_drawing_has_the_parts_of_each_chunk() -> None:
    geometry = clean_geometry(one(PARTS))
    (shown,) = build_diagram(geometry, invented(2)).ranges
    assert [span.parts for span in shown.pieces] == [OFFSETS] * len(shown.pieces)


def test_views_of_parts_are_at_their_offsets(tmp_path: Path) -> None:
    spec = tmp_path / "parts.yaml"
    spec.write_text(f"memtopo: 1\nname: parts\n{one(PARTS)}")
    with memtopo.applied(spec, machine="h100x1") as layout:
        whole, data = layout.chunk("c.1"), layout.chunk("c.1.data", dtype="uint32")
        assert (data.address - whole.address, data.shape) == (64 * KiB, ((4 * MiB - 64 * KiB) // 4,))
        np.from_dlpack(layout.chunk("c.1", dtype="uint32"))[:] = 0
        np.from_dlpack(layout.chunk("c.1.counters", dtype="uint32", offset=8, size=8))[:] = 7
        written = np.flatnonzero(np.from_dlpack(layout.chunk("c.1", dtype="uint32")))
        assert written.tolist() == [1024 + 2, 1024 + 3]
        for label in ("c.1.other", "c.signal", "c.2.data", "c.1.data.signal", "signal", ".signal"):
            with pytest.raises(memtopo.Unsuitable, match=re.escape(label)):
                layout.chunk(label)
        with pytest.raises(memtopo.Unsuitable):
            layout.chunk("c.1.signal", size=8 * KiB)
        del whole, data


def test_an_attached_layout_knows_the_parts_of_an_offer() -> None:
    offer = Offer("c", "chunk", "fd", 2, 4 * MiB, "gpu0", "00" * 16, parts=OFFSETS)
    spec = importing_spec("held", {"c": offer}, ["00" * 16], None, {"c": "rw"}, {})
    assert list(spec["imports"]["c"]["parts"].values()) == ["4KiB", "60KiB", "4032KiB"]


OFFER = {"name": "c", "kind": "chunk", "via": "fd", "count": 1, "size": 4096, "location": "gpu0", "properties": []}


def test_parts_of_an_offer_are_within_its_size() -> None:
    part = {"name": "signal", "offset": 4000, "size": 96}
    assert read(Offer, {**OFFER, "parts": [part]}, "an offer").parts == (NamedPart("signal", 4000, 96),)
    assert read(Offer, OFFER, "an offer").parts == ()
    for wrong in ({**part, "size": 97}, {**part, "offset": 4096}, {**part, "size": 0}, {"name": "signal"}, 7):
        with pytest.raises(BadPacket):
            read(Offer, {**OFFER, "parts": [wrong]}, "an offer")
    with pytest.raises(BadPacket):
        read(Offer, {**OFFER, "parts": [part] * (LARGEST_PARTS + 1)}, "an offer")
