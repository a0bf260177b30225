"""The releases that the tests of this folder run with."""

from __future__ import annotations

import pytest

from tests.hosts import releases


def test_a_variable_chooses_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_HOST_RELEASES", "vllm==0.34.0 verl==1.0")
    assert [releases.version(host) for host in ("vllm", "verl")] == ["0.34.0", "1.0"]
    assert releases.version("sglang") == releases.RELEASES["sglang"]
