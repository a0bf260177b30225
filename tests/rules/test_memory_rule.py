"""Memory is counted against what is free where that is known, else against the total."""

from __future__ import annotations

from memtopo.machine import queries
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, run, run_request

SPEC = "chunks: {hot: {location: [gpu0, gpu1], size: 20GiB, count: 4}}"


def test_free_memory_of_a_live_machine() -> None:
    """A layout that fits into the total of a GPU and not into what is free of it is refused, with both numbers"""
    machine = invented(2)
    busy = machine.devices[1].model_copy(update={"free_bytes": 30 << 30})
    live = queries.changed(machine, devices=[machine.devices[0], busy])
    assert "MT402" not in codes(SPEC, machine)
    (fault,) = [fault for fault in diagnose(SPEC, live) if fault.code == "MT402"]
    assert fault.message == "the layout needs 40.0 GiB on gpu1, which has 30.0 GiB free: 10.5 GiB too much"


def test_a_context_takes_memory_too() -> None:
    """A layout that fits a GPU, but not beside its context, is refused (fact 30); one that fits beside it is built"""
    text = "ranges: {{r: {{size: {0}}}}}\nchunks: {{c: {{location: gpu0, size: {0}}}}}\nmap: {{r: c}}\n"
    text += "access: {{r: {{gpu0: rw}}}}"
    machine = invented(1)
    (fault,) = diagnose(text.format("81410MiB"), machine)
    assert fault.code == "MT402"
    assert fault.notes[-1] == "a context takes about 512 MiB of the GPU's memory besides"
    assert run(run_request(text.format("81408MiB"), machine), machine).report.exit_code == 0
