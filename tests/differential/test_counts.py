"""Counts of recorded calls, which docs/simulated-calls.md is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import METHODS as PROTOCOL
from tests.differential import counts, traces
from tests.differential.calls import CALLS
from tests.differential.resource_calls import RESOURCE_CALLS
from tests.differential.resources import ResourceSession
from tests.differential.traces import Step

RECORDED = sorted(traces.FOLDER.glob("*.xz"), key=lambda path: path.stat().st_size)
DRIVEN = {method for method in PROTOCOL if call_name(method).startswith("cu")}
SESSION = {"is_idle": ResourceSession.is_idle.__code__}


def names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, and those that functions within it use."""
    yield from code.co_names
    for each in [*code.co_consts, *(SESSION[name] for name in code.co_names if name in SESSION)]:
        if isinstance(each, CodeType):
            yield from names(each)


def test_counts_of_the_smallest_file_are_current() -> None:
    assert counts.count(RECORDED[0]) == counts.read()[RECORDED[0].name], "python -m tests.differential count"


@pytest.mark.exhaustive(seconds=10)
@pytest.mark.parametrize("path", RECORDED[1:], ids=lambda path: path.stem)
def test_counts_of_every_file_are_current(path: Path) -> None:
    assert counts.count(path) == counts.read()[path.name], "python -m tests.differential count"


def test_every_file_of_traces_is_counted() -> None:
    assert set(counts.read()) == {path.name for path in RECORDED}


@pytest.mark.parametrize(("name", "made"), [*CALLS.items(), *RESOURCE_CALLS.items()])
def test_a_call_in_text_is_counted_as_the_function_that_it_calls(name: str, made: Callable[..., Any]) -> None:
    """One under a condition, or in the second process, is counted as the call that it names."""
    called = set(names(made.__code__)) & DRIVEN
    if name in counts.METHODS:
        assert counts.METHODS[name] in called
    else:
        assert not called or name == "safely"


def test_calls_that_were_not_made_are_not_counted() -> None:
    steps = [
        Step("a0 = there alloc 64K", "ok"),
        Step("safely gpu0 r0 write 00", "not tried 0 0"),
        Step("safely gpu0 r0 read 1", "00"),
        Step("hostread r0 1", "00"),
        Step("release c0", "undefined"),
        Step("end", "ok"),
    ]
    assert list(counts.functions(steps)) == ["cuMemAlloc", "cuMemcpyDtoH"]
