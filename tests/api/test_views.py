"""Views: bytes, types, shapes, devices and access."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api import Live
from memtopo.api.dlpack import DTYPES
from memtopo.api.memory import unknown
from memtopo.drivers.target import Target

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
def test_every_dtype_has_its_size_and_its_numpy_type(name: str, layout: Live) -> None:
    """Through both interfaces; bfloat16 and float8 have no NumPy type."""
    view = layout.range("kv", dtype=name, shape=(4, -1))
    assert view.size == 8 << 20
    known = getattr(np, name if name != "bool" else "bool_", None)
    if known is None:
        with pytest.raises(AttributeError, match="typestr"):
            _ = view.__array_interface__
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(view)
        return
    for made in (np.from_dlpack(view), np.asarray(view)):
        assert made.dtype == known
        assert made.shape == view.shape
        assert made.__array_interface__["data"] == (view.address, False)


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_a_dtype_is_given_by_name_or_as_numpy_object(dtype: object, layout: Live) -> None:
    assert layout.range("kv", dtype=dtype).dtype.name == "float16"


@pytest.mark.parametrize(("shape", "help"), [((3, -1), "(8388608,)"), ((3, -1, 1024), "(-1, 1024)")])
def test_a_shape_that_does_not_fit_is_refused_with_one_that_does(
    shape: tuple[int, ...], help: str, layout: Live
) -> None:
    with pytest.raises(memtopo.Unsuitable, match="8,388,608 elements") as refused:
        layout.range("kv", shape=shape)
    assert refused.value.hint == f"write shape={help}"


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (8 << 20,)),
        ({"dtype": "float32"}, (2 << 20,)),
        ({"dtype": "float16", "shape": (4, 1024, 1024)}, (4, 1024, 1024)),
        ({"shape": (2, -1)}, (2, 4 << 20)),
        ({"shape": 100}, (100,)),
        ({"shape": np.int64(100)}, (100,)),
        ({"shape": np.array(100)}, (100,)),
        ({"shape": np.array([2, -1])}, (2, 4 << 20)),
        ({"shape": (), "dtype": "int64"}, ()),
        ({"offset": 4 << 20}, (4 << 20,)),
        ({"offset": 8, "size": 16, "dtype": "int64"}, (2,)),
        ({"offset": 8, "shape": (3, 2), "dtype": "int32"}, (3, 2)),
    ],
)
def test_type_shape_offset_and_size_select_the_bytes(
    arguments: dict[str, Any], shape: tuple[int, ...], layout: Live
) -> None:
    view = layout.range("kv", **arguments)
    assert view.shape == shape
    assert view.address == layout.range("kv").address + arguments.get("offset", 0)
    assert np.from_dlpack(view).shape == shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float17"}, "did you mean 'float16'"),
        ({"shape": (8 << 20, 2)}, "8MiB"),
        ({"shape": (3, -1)}, "do not have the shape"),
        ({"shape": (-1, -1)}, "do not have the shape"),
        ({"shape": (-2, 4)}, "view would be"),
        ({"shape": (5,), "size": 4}, "do not have the shape"),
        ({"size": 7, "dtype": "int16"}, "not a whole number"),
        ({"offset": 2, "size": 8, "dtype": "int64"}, "not aligned"),
        ({"offset": "2MiB"}, "offset is a whole number, not '2MiB'"),
        ({"size": 2.0}, "size is a whole number"),
        ({"shape": (2.5, 4)}, r"shape is a whole number, not '2.5' \(hint: numbers of elements"),
        ({"shape": "ab"}, "shape is a whole number, not 'a'"),
        ({"shape": 2.0}, "shape is a whole number"),
        ({"offset": -4}, "view would be"),
        ({"offset": 9 << 20}, "view would be"),
        ({"offset": 8 << 20}, "view would be"),
        ({"shape": (0, 5)}, "view would be"),
        ({"device": "nobody"}, "no device 'nobody'"),
        ({"device": 7}, "gpu7 has no access"),
        ({"device": "host"}, "host has no access"),
    ],
)
def test_a_view_beyond_the_end_of_another_shape_or_misaligned_is_refused(
    arguments: dict[str, Any], message: str, layout: Live
) -> None:
    with pytest.raises(memtopo.Unsuitable, match=message):
        layout.range("kv", **arguments)


def test_a_view_with_a_hole_is_refused(layout: Live) -> None:
    """The first hole is named; a part without holes is accepted."""
    with pytest.raises(memtopo.Unsuitable, match="from 2MiB to 4MiB"):
        layout.range("gap")
    with pytest.raises(memtopo.Unsuitable, match="from 6MiB to 8MiB"):
        layout.range("gap", offset=4 << 20)
    assert layout.range("gap", size=2 << 20).size == 2 << 20
    assert layout.range("gap", offset=4 << 20, size=2 << 20).size == 2 << 20
    with pytest.raises(memtopo.Unsuitable, match="from 6MiB to 7MiB"):
        layout.range("gap", offset=5 << 20, size=2 << 20)


def test_a_range_without_access_for_the_device_is_refused(layout: Live) -> None:
    """Wholly or in part."""
    with pytest.raises(memtopo.Unsuitable, match="grants no access"):
        layout.range("none")
    with pytest.raises(memtopo.Unsuitable, match=r"no single device.*parts of it are accessible to gpu0, gpu1"):
        layout.range("split")
    with pytest.raises(memtopo.Unsuitable, match=r"gpu1 has no access.*it is accessible to gpu0"):
        layout.range("split", device="decode", size=4096)
    assert layout.range("split", size=4096).device == "gpu0"
    assert layout.range("split", offset=2 << 20).device == "gpu1"
    with pytest.raises(memtopo.Unsuitable, match="did you mean 'gap'"):
        layout.range("gapp")


def test_a_view_of_a_device_with_access_r_is_read_only(layout: Live) -> None:
    """NumPy does not write to it, and it shows the stores of others."""
    mine, theirs = layout.range("kv", dtype="int32"), layout.range("kv", dtype="int32", device="decode")
    assert (mine.read_only, theirs.read_only) == (False, True)
    written = np.from_dlpack(mine)
    written[3] = 77
    for seen in (np.from_dlpack(theirs), np.asarray(theirs)):
        assert seen[3] == 77
        assert not seen.flags.writeable
    assert theirs.memory.readonly
    assert theirs.__array_interface__["data"][1] is True
    with pytest.raises(BufferError, match="read-only for gpu1"):
        theirs.__dlpack__()
    with pytest.raises(BufferError, match="read-only"):
        theirs.__dlpack__(max_version=(0, 8))


def test_the_default_device_has_most_access_then_the_first_byte_then_the_least_number(machine: Target) -> None:
    gpus = {"gpu0": "rw", "gpu1": "rw"}
    spec = {
        "memtopo": 1, "name": "views", "ranges": {"r": {"size": "4MiB"}, "h": {"size": "2MiB"}, "l": {"size": "2MiB"}},
        "chunks": {"c": {"location": "gpus", "size": "2MiB", "count": 2}, "n": {"location": "host:0", "size": "2MiB"}},
        "map": {"r": ["c"], "h": ["n"], "l": ["c.0"]},
        "access": {"r": gpus, "h": {**gpus, "host": "rw"}, "l": {"gpu0": "r", "gpu1": "rw"}},
    }  # fmt: skip
    with memtopo.applied(spec, machine) as layout:
        parts = (
            layout.range("r"),
            layout.range("r", offset=2 << 20),
            layout.range("h"),
            layout.range("h", device="host:1"),
            layout.range("l"),
        )
        assert [each.device for each in parts] == ["gpu0", "gpu1", "gpu0", "host:1", "gpu1"]
        del parts


def test_a_chunk_is_viewed_through_the_mapping_with_most_access(layout: Live) -> None:
    assert layout.chunk("page.1").size == 2 << 20
    assert layout.chunk("page.1", device="decode").read_only
    assert layout.chunk("page.3", offset=1 << 20, dtype="float64").shape == (1 << 17,)
    for name in ("page.4", "page.0:2", "page"):
        with pytest.raises(memtopo.Unsuitable, match=rf"no chunk '{name}' \(hint: there are page\.0 … page\.3\)"):
            layout.chunk(name)
    with pytest.raises(memtopo.Unsuitable, match="2MiB"):
        layout.chunk("page.0", size=4 << 20)


def test_a_chunk_is_viewed_where_it_may_be_written(machine: Target) -> None:
    access = {"first": "r", "second": "rw", "third": "r"}
    spec: dict[str, Any] = {
        "memtopo": 1,
        "name": "views",
        "ranges": {name: {"size": "2MiB"} for name in access},
        "chunks": {"c": {"location": "gpu0", "size": "2MiB"}},
        "map": {name: ["c"] for name in access},
        "access": {name: {"gpu0": word} for name, word in access.items()},
    }
    with memtopo.applied(spec, machine) as layout:
        view = layout.chunk("c")
        assert (view.address, view.read_only) == (layout.range("second").address, False)
        del view


def test_a_part_of_a_chunk_is_viewed_where_that_chunk_is_mapped(machine: Target) -> None:
    """From the first byte of the part to its last."""
    chunks = {"c": {"location": "gpu0", "size": "2MiB", "count": 3, "parts": {"flags": "4KiB", "data": "rest"}}}
    spec = {"memtopo": 1, "name": "parts", "ranges": {"r": {"size": "4MiB"}}, "chunks": chunks}
    with memtopo.applied({**spec, "map": {"r": ["c.1:3"]}, "access": {"r": {"gpu0": "rw"}}}, machine) as layout:
        whole = layout.range("r")
        for label, start in (("c.1", 0), ("c.2", 2 << 20)):
            flags, data = layout.chunk(f"{label}.flags"), layout.chunk(f"{label}.data")
            assert (flags.address - whole.address, flags.size) == (start, 4 << 10)
            assert (data.address - whole.address, data.size) == (start + (4 << 10), (2 << 20) - (4 << 10))
        with pytest.raises(memtopo.Unsuitable, match="4KiB"):
            layout.chunk("c.1.flags", offset=4 << 10)
        with pytest.raises(memtopo.Unsuitable):
            layout.chunk("c.0.flags")
        with pytest.raises(memtopo.Unsuitable, match=r"did you mean 'c\.0\.flags'"):
            layout.chunk("c.0.flag")
        del whole, flags, data


def test_repr_has_name_type_shape_device_and_access(layout: Live) -> None:
    text = repr(layout.range("kv", dtype="bfloat16", shape=(2, -1), device="decode"))
    assert "range 'kv': bfloat16[2, 2097152] on gpu1" in text
    assert "read-only" in text


def outliving(machine: Target) -> list[Any]:
    """Views and arrays in use after the end of their layout."""
    with memtopo.applied(SPEC, machine) as layout:
        first = np.from_dlpack(layout.range("kv", dtype="uint8"))
        second = np.asarray(layout.range("gap", size=2 << 20))
        third = layout.chunk("far").memory[4:8]
        fourth = layout.range("split", size=4096).__dlpack__()
        first[:] = 5
        return [first, second, third, fourth]


def test_memory_in_use_at_the_end_of_its_layout_is_named_once(machine: Target) -> None:
    """By whichever interface; on a simulator it reads zeros afterwards."""
    with pytest.warns(memtopo.ViewOutlived, match="chunk 'far', range 'gap', range 'kv', range 'split'") as caught:
        kept = outliving(machine)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not kept[0].any()
    kept[0][:] = 1
    assert not kept[1].any()


def test_deleted_views_and_arrays_give_no_warning(machine: Target) -> None:
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


def test_a_view_refuses_access_after_the_end_of_its_layout(machine: Target) -> None:
    with pytest.warns(memtopo.ViewOutlived), memtopo.applied(SPEC, machine) as layout:
        view = layout.range("kv")
    for late in (view.__dlpack__, lambda: view.memory, lambda: np.asarray(view)):
        with pytest.raises(BufferError, match="was released"):
            late()


def test_the_warning_is_shown_unless_filtered(tmp_path: Any) -> None:
    """Python ignores warnings of its category by default."""
    import subprocess
    import sys

    from tests.helpers.command_line import ROOT, environment

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


@pytest.mark.parametrize(
    ("name", "known", "hint"), [("kv0", ["kv.0", "kv3.0", "kv0.0"], "kv0.0"), ("kv3", ["kv3.1", "kv3.0"], "kv3.0")]
)
def test_a_name_without_index_is_meant_to_be_the_first_of_its_entry(name: str, known: list[str], hint: str) -> None:
    assert unknown("range", name, known).hint == f"did you mean {hint!r}?"


def test_a_view_that_only_a_traceback_keeps_is_not_warned_of(machine: Target) -> None:
    def fail() -> None:
        with memtopo.applied(SPEC, machine) as layout:
            view = layout.range("kv")
            raise KeyError(view.size)

    with warnings.catch_warnings():
        warnings.simplefilter("error", memtopo.ViewOutlived)
        with pytest.raises(KeyError):
            fail()
