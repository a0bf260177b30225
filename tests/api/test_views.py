"""What a view is: which bytes, of which type and shape, for whom; and what is refused."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api import Live
from memtopo.api.dtypes import DTYPES
from memtopo.machine.target import Target

SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "views",
    "devices": {"prefill": 0, "decode": 1},
    "ranges": {"kv": {"size": "8MiB"}, "gap": {"size": "8MiB"}, "none": {"size": "4MiB"}, "split": {"size": "4MiB"}},
    "chunks": {
        "page": {"location": "prefill", "size": "2MiB", "count": 4},
        "far": {"location": "gpu1", "size": "2MiB"},
    },
    "map": {
        "kv": ["page"],
        "gap": [{"chunk": "page.0", "offset": "0"}, {"chunk": "page.1", "offset": "4MiB"}],
        "none": ["page.0:2"],
        "split": ["page.0", "far"],
    },
    "access": {
        "kv": {"prefill": "rw", "decode": "r"},
        "gap": {"prefill": "rw"},
        "split": [
            {"offset": "0", "size": "2MiB", "grant": {"gpu0": "rw"}},
            {"offset": "2MiB", "size": "2MiB", "grant": {"gpu1": "rw"}},
        ],
    },
}


@pytest.fixture
def layout(machine: Target) -> Iterator[Live]:
    with memtopo.applied(SPEC, machine) as found:
        yield found
        gc.collect()


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str, layout: Live) -> None:
    """Each dtype has its size; those that NumPy has are seen by it, through both interfaces, as what they are"""
    view = layout.range("kv", dtype=name, shape=(4, -1))
    assert view.size == 8 << 20
    known = getattr(np, name if name != "bool" else "bool_", None)
    if known is None:
        with pytest.raises(AttributeError, match="typestr"):
            _ = view.__array_interface__  # type: ignore[attr-defined]
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(view)
        return
    for made in (np.from_dlpack(view), np.asarray(view)):
        assert made.dtype == known
        assert made.shape == view.shape
        assert made.__array_interface__["data"] == (view.address, False)


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_a_dtype_may_be_an_object(dtype: object, layout: Live) -> None:
    """NumPy's types and dtypes mean what their names do"""
    assert layout.range("kv", dtype=dtype).dtype.name == "float16"


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (8 << 20,)),
        ({"dtype": "float32"}, (2 << 20,)),
        ({"dtype": "float16", "shape": (4, 1024, 1024)}, (4, 1024, 1024)),
        ({"shape": (2, -1)}, (2, 4 << 20)),
        ({"shape": 100}, (100,)),
        ({"shape": (), "dtype": "int64"}, ()),
        ({"offset": 4 << 20}, (4 << 20,)),
        ({"offset": 8, "size": 16, "dtype": "int64"}, (2,)),
        ({"offset": 8, "shape": (3, 2), "dtype": "int32"}, (3, 2)),
    ],
)
def test_shapes(arguments: dict[str, Any], shape: tuple[int, ...], layout: Live) -> None:
    """Type, shape, offset and size come to the bytes that they say"""
    view = layout.range("kv", **arguments)
    assert view.shape == shape
    assert view.address == layout.range("kv").address + arguments.get("offset", 0)
    assert np.from_dlpack(view).shape == shape


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"dtype": "float17"}, "did you mean 'float16'"),
        ({"shape": (8 << 20, 2)}, "8MiB"),
        ({"shape": (3, -1)}, "not of shape"),
        ({"shape": (-1, -1)}, "not of shape"),
        ({"shape": (-2, 4)}, "view would be"),
        ({"shape": (5,), "size": 4}, "not of shape"),
        ({"size": 7, "dtype": "int16"}, "no whole number"),
        ({"offset": 2, "size": 8, "dtype": "int64"}, "not aligned"),
        ({"offset": -4}, "view would be"),
        ({"offset": 9 << 20}, "view would be"),
        ({"offset": 8 << 20}, "view would be"),
        ({"shape": (0, 5)}, "view would be"),
        ({"device": "nobody"}, "no device 'nobody'"),
        ({"device": 7}, "gpu7 has no access"),
        ({"device": "host"}, "host has no access"),
    ],
)
def test_what_does_not_fit(arguments: dict[str, Any], told: str, layout: Live) -> None:
    """A view that would go past the end, does not come to its shape, or is not aligned is refused, with the reason"""
    with pytest.raises(memtopo.Unsuitable, match=told):
        layout.range("kv", **arguments)


def test_holes_are_refused(layout: Live) -> None:
    """A view has no holes: the first one is named, and a part without any is given"""
    with pytest.raises(memtopo.Unsuitable, match="from 2MiB to 4MiB"):
        layout.range("gap")
    with pytest.raises(memtopo.Unsuitable, match="from 6MiB to 8MiB"):
        layout.range("gap", offset=4 << 20)
    assert layout.range("gap", size=2 << 20).size == 2 << 20
    assert layout.range("gap", offset=4 << 20, size=2 << 20).size == 2 << 20
    with pytest.raises(memtopo.Unsuitable, match="from 6MiB to 7MiB"):
        layout.range("gap", offset=5 << 20, size=2 << 20)


def test_access_is_needed(layout: Live) -> None:
    """A range without access for the device is refused, wholly or in part"""
    with pytest.raises(memtopo.Unsuitable, match="grants no access"):
        layout.range("none")
    with pytest.raises(memtopo.Unsuitable, match="no single device"):
        layout.range("split")
    with pytest.raises(memtopo.Unsuitable, match="gpu1 has no access"):
        layout.range("split", device="decode", size=4096)
    assert layout.range("split", size=4096).device == "gpu0"
    assert layout.range("split", offset=2 << 20).device == "gpu1"
    with pytest.raises(memtopo.Unsuitable, match="did you mean 'gap'"):
        layout.range("gapp")


def test_read_only_views(layout: Live) -> None:
    """A device that may only read gets views that NumPy does not write to, and sees what others write"""
    mine, theirs = layout.range("kv", dtype="int32"), layout.range("kv", dtype="int32", device="decode")
    assert (mine.read_only, theirs.read_only) == (False, True)
    written = np.from_dlpack(mine)
    written[3] = 77
    for seen in (np.from_dlpack(theirs), np.asarray(theirs)):
        assert seen[3] == 77
        assert not seen.flags.writeable
    assert theirs.memory.readonly
    assert theirs.__array_interface__["data"][1] is True  # type: ignore[attr-defined]
    with pytest.raises(BufferError, match="read-only for gpu1"):
        theirs.__dlpack__()
    with pytest.raises(BufferError, match="read-only"):
        theirs.__dlpack__(max_version=(0, 8))


def test_the_default_device(layout: Live) -> None:
    """Without a device it is the one that may do most, and of equal ones the one that has the memory"""
    assert layout.range("kv").device == "gpu0"
    assert layout.chunk("far").device == "gpu1"


def test_chunks(layout: Live) -> None:
    """A chunk is found where it is mapped, with the access that is best"""
    assert layout.chunk("page.1").size == 2 << 20
    assert layout.chunk("page.1", device="decode").read_only
    assert layout.chunk("page.3", offset=1 << 20, dtype="float64").shape == (1 << 17,)
    with pytest.raises(memtopo.Unsuitable, match="not mapped"):
        layout.chunk("page.4")
    with pytest.raises(memtopo.Unsuitable, match="not mapped"):
        layout.chunk("page")
    with pytest.raises(memtopo.Unsuitable, match="2MiB"):
        layout.chunk("page.0", size=4 << 20)


def test_a_view_says_what_it_is(layout: Live) -> None:
    """A view's text has name, type, shape, device and access"""
    text = repr(layout.range("kv", dtype="bfloat16", shape=(2, -1), device="decode"))
    assert "range 'kv': bfloat16[2, 2097152] on gpu1" in text
    assert "read-only" in text


def outliving(machine: Target) -> list[Any]:
    """Several ways to go on using the memory of a layout that is gone."""
    with memtopo.applied(SPEC, machine) as layout:
        first = np.from_dlpack(layout.range("kv", dtype="uint8"))
        second = np.asarray(layout.range("gap", size=2 << 20))
        third = layout.chunk("far").memory[4:8]
        fourth = layout.range("split", size=4096).__dlpack__()
        first[:] = 5
        return [first, second, third, fourth]


def test_a_view_that_outlives_its_layout(machine: Target) -> None:
    """Whoever still has the memory is named once, however they have it; on a simulator they then read zeros"""
    with pytest.warns(memtopo.ViewOutlived, match="chunk 'far', range 'gap', range 'kv', range 'split'") as told:
        kept = outliving(machine)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert not kept[0].any()
    kept[0][:] = 1
    assert not kept[1].any()


def test_what_was_let_go_is_not_named(machine: Target) -> None:
    """Views and arrays that are gone before the end are no reason for a warning"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with memtopo.applied(SPEC, machine) as layout:
            seen: list[Any] = [
                np.from_dlpack(layout.range("kv")),
                np.asarray(layout.chunk("far")),
                layout.range("kv").memory,
            ]
            part = seen[0][10:20]
            seen.clear()
            del part


def test_a_view_of_a_layout_that_is_gone(machine: Target) -> None:
    """A view that is asked for its memory too late refuses"""
    with pytest.warns(memtopo.ViewOutlived), memtopo.applied(SPEC, machine) as layout:
        view = layout.range("kv")
    for late in (view.__dlpack__, lambda: view.memory, lambda: np.asarray(view)):
        with pytest.raises(BufferError, match="is gone"):
            late()


def test_the_warning_is_heard(tmp_path: Any) -> None:
    """Python drops warnings of its kind unasked; this one is shown, unless somebody chose otherwise"""
    import subprocess
    import sys

    from tests.cli.running import ROOT, environment

    script = (
        "import memtopo\nwith memtopo.applied('specs/ring-buffer.yaml', machine='h200x2') as l: v = l.range('ring')"
    )
    shown = [
        subprocess.run(
            [sys.executable, *options, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True,
            check=False,
        )
        for options in ((), ("-W", "ignore"), ("-W", "error"))
    ]  # fmt: skip
    assert ["ViewOutlived" in each.stderr for each in shown] == [True, False, True]
    assert [each.returncode for each in shown] == [0, 0, 1]
