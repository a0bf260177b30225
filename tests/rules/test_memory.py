"""Limits of device memory: free memory, contexts, and all processes together."""

from __future__ import annotations

from memtopo.common.units import GiB
from memtopo.machine import queries
from tests.helpers.machines import invented, with_nodes
from tests.helpers.specs import diagnose, run, run_request


def test_a_context_needs_memory() -> None:
    """Fact 30."""
    text = "ranges: {{r: {{size: {0}}}}}\nchunks: {{c: {{location: gpu0, size: {0}}}}}\nmap: {{r: c}}\n"
    text += "access: {{r: {{gpu0: rw}}}}"
    machine = invented(1)
    (diagnostic,) = diagnose(text.format("81410MiB"), machine)
    assert diagnostic.code == "MT402"
    assert diagnostic.notes[-1] == "a context takes about 512 MiB of the GPU's memory in addition"
    assert run(run_request(text.format("81408MiB"), machine), machine).report.exit_code == 0


STATES = """\
ranges: {r: {size: 6GiB}}
chunks: {a: {location: gpu0, size: 6GiB}}
map: {r: a}
access: {r: {gpu0: rw}}
managed: {m: {size: 2GiB, prefer: host:1}}
states: {asleep: {offload: {r: WHERE}}}
"""


def test_a_hint_for_exhausted_host_memory_does_not_name_gpu_tools() -> None:
    machine = invented(1)
    request = run_request("chunks: {a: {location: host:0, size: 2GiB}}", machine)
    failure = run(request, queries.changed(machine, host_bytes=GiB)).report.failure
    assert failure
    assert "OUT_OF_MEMORY" in failure.error
    assert "nvidia-smi" not in str(failure.hint)
    assert "host" in str(failure.cause)


def test_the_failure_of_a_chunk_names_its_node() -> None:
    """Memory that others took since the machine was recorded."""
    before, now = with_nodes(invented(1), 8 * GiB, 4 * GiB), with_nodes(invented(1), 8 * GiB, GiB)
    failure = run(run_request("chunks: {a: {location: host:1, size: 2GiB}}", before), now).report.failure
    assert failure
    assert failure.reason == "host:1 has 1 GiB free"
    assert str(failure.cause).startswith("NUMA node host:1 has less than 2GiB of free memory")
    assert failure.path == ("chunks", "a")


def test_the_failure_of_pinned_memory_names_the_host() -> None:
    text = STATES.replace("WHERE", "pinned").replace("managed: {m: {size: 2GiB, prefer: host:1}}\n", "")
    before, now = with_nodes(invented(1), 8 * GiB, 4 * GiB), with_nodes(invented(1), 2 * GiB, 2 * GiB)
    failure = run(run_request(text, before), now).report.failure
    assert failure
    assert failure.reason == "the host has 4 GiB free"
    assert str(failure.cause).startswith("6GiB of the host's memory cannot be page-locked")
    assert "nvidia-smi" not in str(failure.hint)
