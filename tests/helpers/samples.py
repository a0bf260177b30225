"""Sample of the shipped specs, for tests of a property of all specs that take long."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

SAMPLE = {
    "alternatives", "elastic-kv", "engine-heaps", "four-gpu-kv", "hand-over", "hold", "legacy-ipc", "managed",
    "multicast", "nic-kv", "node-local", "parts-and-holes", "pools", "ring-buffer", "shared-ring", "sleep-mode",
    "tensor-parallel-sleep", "vulkan-frame",
}  # fmt: skip
"""Names of specs: every section is in one of them, with one process and with several."""


def in_sample(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.stem in SAMPLE]


def sampled(paths: Iterable[Path], seconds: float = 1.0, names: Collection[str] = SAMPLE) -> list[Any]:
    """Parameters of a test of so many seconds: the specs of a sample, and exhaustively the others."""
    others = pytest.mark.exhaustive(seconds=seconds)
    return [pytest.param(path, marks=() if path.stem in names else others, id=path.stem) for path in paths]
