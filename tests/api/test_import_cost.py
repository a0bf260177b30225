"""Modules that memtopo loads: the API on first use, NumPy and CUDA never by itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import memtopo
from memtopo import api
from tests.helpers.command_line import ROOT, environment

LATE = ("memtopo.api", "pydantic", "yaml", "numpy", "cuda", "rich", "ctypes")


def loaded(script: str) -> Any:
    """Lazily imported modules that a program has loaded at its end."""
    text = f"import json, sys\n{script}\nprint(json.dumps([name for name in {LATE!r} if name in sys.modules]))"
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment(), text=True)
    return json.loads(done.stdout)


def test_importing_memtopo_loads_neither_the_api_nor_third_party_packages() -> None:
    assert loaded("import memtopo; memtopo.__version__; dir(memtopo)") == []


def test_planning_loads_no_driver_no_numpy_and_no_terminal_package() -> None:
    script = "import memtopo; memtopo.plan('specs/quickstart.yaml', machine='h200x2').steps"
    assert not {"numpy", "cuda", "rich"} & set(loaded(script))


def test_a_simulated_layout_is_built_and_viewed_without_numpy() -> None:
    script = (
        "import memtopo\n"
        "with memtopo.applied('specs/ring-buffer.yaml', machine='h200x2') as layout:\n"
        "    memory = layout.range('ring').memory\n"
        "    memory[0] = 7\n"
        "    assert memory[len(memory) // 2] == 7\n"
        "    del memory\n"
    )
    assert not {"numpy", "cuda"} & set(loaded(script))


def test_all_lists_exactly_the_public_names() -> None:
    assert {name for name in memtopo.__all__ if getattr(memtopo, name) is None} == set()
    assert {"load", "plan", "applied", "attach"} < set(dir(memtopo))
    with pytest.raises(AttributeError, match="no attribute 'apply_all'"):
        _ = memtopo.apply_all


def raised(name: str) -> Iterator[str]:
    """Errors of memtopo that a public object and its public methods document."""
    found = getattr(api, name)
    members = [each for key, each in vars(found).items() if key[0] != "_"] if isinstance(found, type) else []
    texts = [getattr(each, "__doc__", None) or "" for each in (found, *members)]
    errors = {each.__name__ for each in subclasses(memtopo.MemtopoError)}
    for sentence in re.findall(r"aises? [^.]*", " ".join(texts)):
        yield from errors & set(re.findall(r"`(\w+)`", sentence))


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def test_every_error_that_a_public_object_raises_is_public() -> None:
    documented = {error for name in api.__all__ for error in raised(name)}
    assert {"ExchangeError", "NoLayout", "Unavailable", "UsageError", "DriverError"} <= documented
    assert documented <= set(memtopo.__all__)
