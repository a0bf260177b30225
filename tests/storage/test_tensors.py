"""Headers of safetensors: what the package's own reader accepts is read alike, and what it refuses is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from memtopo.storage.tensors import LARGEST_HEADER, PREFIX, BadTensors, encoded, placed, read_header, read_table


def written(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    """A file with a header, as JSON unless it is bytes, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, dtype: str = "U8", shape: list[Any] | None = None, **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end], **more}


@pytest.mark.parametrize("offset", range(8))
def test_tensors_are_where_the_package_reads_them(tmp_path: Path, offset: int) -> None:
    """With a data start at any offset, in any order of names."""
    arrays: dict[str, Any] = {
        "b": np.arange(7, dtype=np.float16),
        "a.weight": np.arange(12, dtype=np.float64).reshape(3, 4),
        "scalar": np.array(5, dtype=np.int32),
        "empty": np.zeros((0, 3), dtype=np.uint8),
    }
    save_file(arrays, tmp_path / "model", metadata={"format": "np"})
    data = (tmp_path / "model").read_bytes()
    length = int.from_bytes(data[:8], "little")
    written(tmp_path / "model", data[8 : 8 + length] + b" " * offset, data[8 + length :])
    content = (tmp_path / "model").read_bytes()
    found = read_header(tmp_path / "model")
    assert [each.offset for each in found] == sorted(each.offset for each in found)
    with safe_open(tmp_path / "model", framework="np") as file:
        assert {each.name for each in found} == set(file.keys())
        for each in found:
            expected = file.get_tensor(each.name)
            assert each.shape == expected.shape
            assert content[each.offset : each.offset + each.size] == expected.tobytes()


BAD: dict[str, tuple[object, bytes, str]] = {
    "overlap": ({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6), "overlaps the one before: it begins at 2"),
    "hole": ({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6), "follows a hole: it begins at 5, and not at 4"),
    "extra bytes": ({"a": entry(0, 4)}, bytes(6), "has 6 bytes of data, and its tensors have 4"),
    "short": ({"a": entry(0, 4)}, bytes(3), "has 3 bytes of data, and its tensors have 4"),
    "size of another shape": ({"a": entry(0, 4, "F32", [2])}, bytes(4), "has 4 bytes for tensor 'a'"),
    "huge shape": ({"a": entry(0, 4, "U8", [1 << 62, 1 << 62])}, bytes(4), "has 4 bytes for tensor 'a'"),
    "negative": ({"a": entry(0, 4, "U8", [-4])}, bytes(4), "wrong entry: a: Expected `int`"),
    "backwards": ({"a": entry(4, 0, "U8", [4])}, bytes(4), "has -4 bytes for tensor 'a'"),
    "fraction": ({"a": entry(0, 4, "U8", [4.5])}, bytes(4), "wrong entry: a: Expected `int`"),
    "dtype": ({"a": entry(0, 4, "X9")}, bytes(4), "of dtype 'X9', which is not known"),
    "list": ([1], b"", "no JSON object"),
    "text": (b"not json", b"", "no JSON"),
    "bytes": (b"\xff\xfe", b"", "no JSON"),
    "nested": (b'{"a": ' + b"[" * 100_000, b"", "no JSON"),
    "no entry": ({"a": 5}, b"", "wrong entry: a"),
    "metadata": ({"__metadata__": {"a": 5}}, b"", "wrong entry: __metadata__"),
    "half a nibble": ({"a": entry(0, 1, "F4", [1])}, bytes(1), "has 1 bytes for tensor 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_the_package_refuses_is_refused(tmp_path: Path, name: str) -> None:
    header, data, message = BAD[name]
    path = written(tmp_path / "model", header, data)
    with pytest.raises((SafetensorError, UnicodeDecodeError)), safe_open(path, framework="np"):
        pass
    with pytest.raises(BadTensors, match="has ") as caught:
        read_header(path)
    assert message in caught.value.message


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"a": entry(0, 4)})[:-1] + ', "a": ' + json.dumps(entry(0, 4)) + "}"
    with pytest.raises(BadTensors, match="a name is there twice"):
        read_header(written(tmp_path / "model", text.encode(), bytes(4)))


@pytest.mark.parametrize(
    ("length", "size", "message"),
    [
        (LARGEST_HEADER + 1, LARGEST_HEADER + 9, "the limit is 100,000,000"),
        (1 << 63, 100, "it has 100 bytes, and no header fits"),
        (93, 100, "it has 100 bytes, and no header fits"),
        (0, 7, "has 7 bytes"),
    ],
)
def test_a_length_that_cannot_be_is_refused_before_anything_is_read(
    tmp_path: Path, length: int, size: int, message: str
) -> None:
    written(tmp_path / "model", b"", length=length)
    os.truncate(tmp_path / "model", size)
    with pytest.raises(BadTensors, match=message):
        read_header(tmp_path / "model")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "is not a regular file"), (".", "is a folder"), ("no", "no such file")):
        with pytest.raises(BadTensors, match=message):
            read_header(tmp_path / name)


def test_a_table_is_read_as_it_was_written_and_nothing_else_is(tmp_path: Path) -> None:
    path = written(tmp_path / "model", {"a": entry(0, 4, "F32", []), "b": entry(4, 10)}, bytes(10))
    table, end = placed(read_header(path))
    data = encoded(table.values())
    memory = data.ljust(end, b"\0")

    def read(memory: bytes, size: int) -> object:
        return read_table(memory[:PREFIX], lambda offset, length: memory[offset : offset + length], size)

    assert read(memory, end) == table
    assert [each.offset % 256 for each in table.values()] == [0, 0]
    assert min(each.offset for each in table.values()) >= len(data)
    for at in (0, 9, 20, len(data) - 1):
        flipped = bytearray(memory)
        flipped[at] ^= 1
        assert read(bytes(flipped), end) == {}
    assert read(memory, len(data) - 1) == {}
