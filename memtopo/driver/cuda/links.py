"""What joins the GPUs to one another, asked of NVML: NVLinks and how many, or the nearest common part of PCIe."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_PCIE = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""`nvidia-smi topo`'s words, by NVML's levels: one switch, several, a host bridge, a NUMA node, the system."""

_ACTIVE, _GPU, _SWITCH = 1, 0, 2


def links(uuids: Sequence[str | None]) -> list[list[tuple[str | None, int | None]]]:
    """For each pair of GPUs the kind of link and the number of NVLinks; None where NVML does not tell."""
    count = len(uuids)
    told: list[list[tuple[str | None, int | None]]] = [[(None, None)] * count for _ in range(count)]
    try:
        from cuda.bindings import nvml  # noqa: PLC0415  # bindings before 13.1 have none

        nvml.init_v2()
    except Exception:  # noqa: BLE001  # whatever is wrong with NVML, the peers are still known
        return told
    try:
        gpus = [_handle(nvml, uuid) for uuid in uuids]
        buses = [_bus(nvml, gpu) for gpu in gpus]
        for a, gpu in enumerate(gpus):
            towards = _towards(nvml, gpu, buses)
            for b, other in enumerate(gpus):
                if a != b and gpu is not None and other is not None:
                    told[a][b] = ("NV", towards[b]) if towards[b] else (_pcie(nvml, gpu, other), None)
    finally:
        nvml.shutdown()
    return told


def _handle(nvml: Any, uuid: str | None) -> Any:
    with suppress(Exception):  # MIG instances, containers
        return nvml.device_get_handle_by_uuid(uuid)
    return None


def _bus(nvml: Any, gpu: Any) -> tuple[int, ...] | None:
    with suppress(Exception):
        return _address(nvml.device_get_pci_info_v3(gpu))
    return None


def _address(info: Any) -> tuple[int, ...]:
    return int(info.domain), int(info.bus), int(info.device_)


def _towards(nvml: Any, gpu: Any, buses: Sequence[tuple[int, ...] | None]) -> list[int]:
    """How many active NVLinks of a GPU lead to each of the others; through a switch, all lead to all."""
    counts, switched = [0] * len(buses), 0
    for link in range(int(nvml.NVLINK_MAX_LINKS)):
        with suppress(Exception):  # a link that the GPU does not have
            if nvml.device_get_nvlink_state(gpu, link) != _ACTIVE:
                continue
            kind = int(nvml.device_get_nvlink_remote_device_type(gpu, link))
            if kind == _SWITCH:
                switched += 1
            elif kind == _GPU:
                remote = _address(nvml.device_get_nvlink_remote_pci_info_v2(gpu, link))
                counts[buses.index(remote)] += 1
    return [count + switched for count in counts]


def _pcie(nvml: Any, gpu: Any, other: Any) -> str | None:
    with suppress(Exception):
        return _PCIE.get(int(nvml.device_get_topology_common_ancestor(gpu, other)))
    return None
