"""GPUs that CUDA_VISIBLE_DEVICES makes visible, by answers of one H200 and of two, and by the programming guide."""

from __future__ import annotations

import pytest

from memtopo import machine
from memtopo.drivers.sim.calls import RefusedCall
from memtopo.drivers.sim.devices import SimDevices, visible_gpus
from memtopo.machine import queries

NONE, INVALID = "NO_DEVICE", "INVALID_DEVICE"
UUID = "99943d7a-fc1e-de74-2a0b-82e7caf7393f"
OTHER = "99943d7b-fc1e-de74-2a0b-82e7caf7393f"
ON_HARDWARE: dict[str | None, object] = {
    None: [0], "0": [0], "": NONE, " ": NONE, "0,0": INVALID, "0,junk": [0], "junk,0": NONE, "-1": NONE, "0,-1": [0],
    "-1,0": NONE, "1": NONE, "0,1": [0], "1,0": NONE, " 0": [0], "0 ": [0], "0 ,": [0], "0,": [0], ",0": NONE,
    ",": NONE, "00": [0], "0x0": [0], "+0": [0], "0 0": [0], "0;1": [0], "0.0": [0], "0a": [0], "a0": NONE,
    "4294967296": [0], "99999999999999999999": NONE, "NoDevFiles": NONE, "all": NONE, f"GPU-{UUID}": [0],
    f"GPU-{UUID.upper()}": [0], "GPU-99943d7a": [0], "GPU-9": [0], "GPU-": NONE, "GPU": NONE, UUID: NONE,
    f"gpu-{UUID}": NONE, f"GPU-{UUID}x": [0], "GPU-99943d7a,0": [0], "0,GPU-99943d7a": [0],
    f"GPU-{UUID.replace('-', '')}": [0], f"MIG-{UUID}": [0], f"MIG-GPU-{UUID}/1/0": NONE, "0,GPU-ffffffff": [0],
}  # fmt: skip
OF_TWO: dict[str | None, object] = {
    None: [0, 1], "1": [1], "1,0": [1, 0], "0,1": [0, 1], "1,2,0": [1], "1,-1,0": [1], "0,1,0": INVALID,
    "1,7,0": [1], "1,1": INVALID, "0,0,1": INVALID, f"GPU-{UUID},GPU-{UUID}": INVALID, f"MIG-{OTHER}": [1],
    f"0,GPU-{OTHER}": [0], f"GPU-{OTHER},0": [1],
    f"GPU-{OTHER}": [1], f"GPU-{OTHER},GPU-{UUID}": [1, 0], "GPU-99943d7b,GPU-99943d7a": [1, 0], "GPU-9": NONE,
    "GPU-99943d7b,0": [1], "1,GPU-99943d7a": [1],
}  # fmt: skip


def seen(uuids: list[str], listed: str | None, order: str | None = None) -> object:
    recorded = machine.load(f"h{'100' if len(uuids) == 1 else '200'}x{len(uuids)}")
    named = queries.with_gpus(recorded, range(len(uuids)), [f"GPU-{uuid}" for uuid in uuids])
    try:
        return [*visible_gpus(SimDevices(named), listed, order)]
    except RefusedCall as refused:
        return refused.name.removeprefix("CUDA_ERROR_")


@pytest.mark.parametrize("listed", ON_HARDWARE)
def test_one_gpu_is_visible_as_on_hardware(listed: str | None) -> None:
    assert seen([UUID], listed) == ON_HARDWARE[listed]


@pytest.mark.parametrize("listed", OF_TWO)
def test_the_list_has_an_order_and_ends_at_the_first_entry_without_a_gpu(listed: str | None) -> None:
    assert seen([UUID, OTHER], listed) == OF_TWO[listed]


def test_an_unknown_order_is_refused() -> None:
    assert [seen([UUID], "0", order) for order in ("PCI_BUS_ID", "FASTEST_FIRST", "junk")] == [[0], [0], INVALID]
