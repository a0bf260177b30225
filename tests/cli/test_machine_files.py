"""A machine that cannot be used is exit 3, says why, and never becomes another machine."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import Unavailable
from memtopo.machine import LARGEST_FILE, dump, load, parse
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART

GOOD = dump(load("h200x2"))
FACTS = json.loads(GOOD)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON: line 1, column 1"),
        (GOOD[:3000].encode(), "is not JSON"),
        (Path(QUICKSTART).read_bytes(), "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"memtopo_machine": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[]", "is not a machine file"),
        (b'"\\ud800"', "is not a machine file"),
        (b"{}", "is not a machine file"),
        (b'{"memtopo_machine": 2}', "has version 2; this memtopo reads version 1"),
        (b'{"memtopo_machine": "\\u001b[31m"}', "has version"),
        (b'{"memtopo_machine": 1}', "driver is missing"),
        (b" " * (LARGEST_FILE + 1), "has more than 8 MiB"),
    ],
    ids=lambda value: value[:12].decode(errors="replace") if isinstance(value, bytes) else None,
)
def test_a_file_that_is_no_machine_of_this_version_is_rejected(
    run_inline: InlineRunner, tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "ours.json"
    file.write_bytes(content)
    result = run_inline("plan", QUICKSTART, "--machine", file)
    assert (result.status, result.out) == (3, "")
    assert result.err.startswith("memtopo: error: ")
    assert str(file) in result.err
    assert message in result.err
    assert "\x1b" not in result.err


def change(*path: str | int, to: object) -> Callable[[Any], None]:
    def apply(facts: Any) -> None:
        *way, last = path
        for step in way:
            facts = facts[step]
        facts[last] = to

    return apply


GRANULE = ("devices", 0, "memory", "granularity", 0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("devices", 0, "memory_bytes", to=-1), "devices.0.memory_bytes: should be greater than 0"),
        (change("devices", 0, "memory_bytes", to="80GiB"), "devices.0.memory_bytes: should be a valid integer"),
        (
            change("devices", 0, "memory_bytes", to=10**4000),
            "devices.0.memory_bytes: should be less than 9223372036854",
        ),
        (change("devices", 0, "nme", to="x"), "devices.0.nme is not a field of a record"),
        (change(*GRANULE, "handles", to=["fb"]), "'fb' is not a handle type"),
        (change(*GRANULE, "minimum", to=3), "a granule of 3 bytes is not a power of two from 4096 on"),
        (change(*GRANULE, "minimum", to=1 << 70), "granularity.0.minimum"),
        (change("host", "attic:1", to={"granularity": []}), "'attic:1' is neither host nor host:N"),
        (change("peers", to=[]), "peers has 0 entries, and there are 2 devices"),
        (change("peers", 0, to=[]), "peers.0 has 0 entries, and there are 2 devices"),
    ],
)
def test_a_damaged_fact_is_named_by_its_position_for_every_command(
    run_inline: InlineRunner, tmp_path: Path, damage: Callable[[Any], None], message: str
) -> None:
    facts = copy.deepcopy(FACTS)
    damage(facts)
    file = tmp_path / "ours.json"
    file.write_text(json.dumps(facts))
    for command in (["apply", QUICKSTART, "--machine"], ["probe", "--machine"], ["machines"]):
        result = run_inline(*command, file)
        assert (result.status, result.out) == (3, "")
        assert message in result.err
        assert "is damaged" not in result.err
        assert "memtopo: hint: 'memtopo schema machine' has all fields" in result.err


def test_a_missing_or_odd_fact_is_rejected_or_gives_a_machine() -> None:
    strange: tuple[object, ...] = (None, -1, 1 << 64, "x", [], {}, ["x"])
    facts = json.loads(GOOD)
    for *above, last in list(places(FACTS)):
        holder = reduce(getitem, above, facts)
        kept = holder[last]
        for value in strange:
            holder[last] = value
            try:
                machine = parse(json.dumps(facts).encode(), "x")
            except Unavailable:
                continue
            assert machine.locations
            assert all(entry.minimum for memory in machine.locations.values() for entry in memory.granularity)
        holder[last] = kept
    assert facts == FACTS


def places(facts: Any, *way: str | int) -> Any:
    """The way to everything in a JSON document."""
    steps = facts.items() if isinstance(facts, dict) else enumerate(facts) if isinstance(facts, list) else ()
    for step, below in steps:
        yield (*way, step)
        yield from places(below, *way, step)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h200x22", "use local, h100x1, h200x2"),
        ("h200-x2", "did you mean 'h200x2'?"),
        ("H200x4", "did you mean 'h200x4'?"),
        ("", "use local, h100x1, h200x2"),
        ("LOCAL", "use local, "),
        ("x" * 5000, "use local, "),
        ("nowhere.json", "no such file or directory"),
        ("nowhere/else", "no such file or directory"),
        ("./", "is a directory"),
        ("n" * 300 + ".json", "file name too long"),
        ("/dev/zero", "is a device"),
    ],
)
def test_an_unknown_machine_is_answered_with_the_known_ones(run_inline: InlineRunner, name: str, message: str) -> None:
    """The message is short."""
    result = run_inline("plan", QUICKSTART, "--machine", name)
    assert (result.status, result.out) == (3, "")
    assert message in result.err
    assert len(result.err) < 600


def test_a_bare_name_is_never_a_file(run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint shows the path if such a file exists."""
    monkeypatch.chdir(tmp_path)
    Path("ours").write_text(GOOD)
    assert "write ./ours" in run_inline("plan", QUICKSTART, "--machine", "ours").err
    assert run_inline("plan", QUICKSTART, "--machine", "./ours").status == 0


def test_a_machine_that_is_named_twice_is_one(run_inline: InlineRunner) -> None:
    assert run_inline("plan", QUICKSTART, "-m", "h200x2", "-m", "h200x2").status == 0
