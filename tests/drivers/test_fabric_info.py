"""NVML's answer about the clique of a GPU, without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from memtopo.drivers.cuda.nvml import FabricInfo

UUID = bytes.fromhex("5ac6bcbb0c314c0a9e0a3c4b0c4d1e2f")


def info(**fields: Any) -> FabricInfo:
    found = FabricInfo()
    answer = {"cluster": UUID, "state": 3, "clique": 7, **fields}
    found.cluster[:] = list(answer.pop("cluster"))
    for name, value in answer.items():
        setattr(found, name, value)
    return found


def test_the_struct_has_the_size_and_version_of_the_header() -> None:
    assert ctypes.sizeof(FabricInfo) == 36
    assert FabricInfo().version == 36 | 2 << 24
    assert (FabricInfo.cluster.offset, FabricInfo.clique.offset, FabricInfo.state.offset) == (4, 24, 28)


def test_a_registered_gpu_has_the_clique_of_its_cluster() -> None:
    assert info().member == ("5ac6bcbb-0c31-4c0a-9e0a-3c4b0c4d1e2f", 7)
    assert info(clique=0).member == ("5ac6bcbb-0c31-4c0a-9e0a-3c4b0c4d1e2f", 0)


@pytest.mark.parametrize("fields", [{"state": 2}, {"state": 0}, {"status": 3}, {"cluster": bytes(16)}])
def test_a_gpu_that_is_not_registered_or_of_no_cluster_has_no_clique(fields: dict[str, Any]) -> None:
    """A UUID of zeros is not a cluster, and not the same one on two hosts."""
    assert info(**fields).member is None
