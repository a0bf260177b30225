"""Diagnosis of failed trials from the record."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from memtopo.drivers.cuda import inaccessible_devices
from memtopo.machine import Machine, Trial
from memtopo.machine.queries import changed
from memtopo.probe import diagnosis
from memtopo.probe.diagnosis import causes
from memtopo.probe.supervisor import VULKAN
from tests.helpers.machines import AROUND, complete, invented


def failed(
    name: str, error: str | None, call: str | None = None, gpu: str = "Invented GPU", **around: object
) -> Machine:
    """Machine with one failed trial of the first GPU, in an environment."""
    code = error if (error or "SIG").startswith(("SIG", "TIME")) else f"CUDA_ERROR_{error}"
    no = Trial(advertised=True, works=None if error == "OUT_OF_MEMORY" else False, error=code, call=call)
    works = Trial(advertised=True, works=True)
    machine = complete(invented(1, name=gpu, trials={"fabric": works} | {name: no}))
    return changed(machine, surroundings=AROUND.model_copy(update=around))


@pytest.mark.parametrize(
    ("machine", "likely", "do"),
    [
        (failed("fabric", "NOT_PERMITTED"), "there is no IMEX channel", "NVreg_CreateImexChannel0=1"),
        (failed("fabric", "NOT_PERMITTED", container=True), "there is no IMEX channel", "to the container"),
        (failed("fabric", "NOT_PERMITTED", imex_channels=1), "no IMEX channel can be opened", "/dev/nvidia-caps"),
        (failed("pool-fabric", "NOT_SUPPORTED"), "the NVLink fabric is not ready", "nvidia-fabricmanager"),
        (failed("ipc", "INVALID_VALUE", container=True), "the container keeps processes apart", "--ipc=host"),
        (failed("ipc", "INVALID_VALUE", ptrace_scope=2), "ptrace_scope is 2", "sysctl"),
        (failed("fd", "OPERATING_SYSTEM", open_files=64), "can open only 64 files", "ulimit"),
        (failed("vmm", "OUT_OF_MEMORY"), "the GPU is full", "probe it when idle"),
        (failed("vmm", "UNKNOWN", "cuDevicePrimaryCtxRetain"), "error state", "Xid"),
        (failed("vmm", "DEVICE_UNAVAILABLE", "cuDevicePrimaryCtxRetain"), "to itself", "nvidia-smi -c 0"),
        (failed("managed", "TIMEOUT"), "hung", "Xid"),
        (failed("concurrent", "SIGSEGV"), "the CPU cannot access", None),
        (failed("managed", "SIGABRT"), "died", "dmesg"),
        (failed("ipc", "INVALID_VALUE", gpu="NVIDIA H100 MIG 1g.10gb"), "MIG instance", "whole GPU"),
        (failed("fd", "INVALID_VALUE", wsl=True), "WSL", "Linux itself"),
        (failed("rdma", "NOT_SUPPORTED", bindings="13.4.0"), "older than cuda-bindings 13.4.0", "update the driver"),
        (failed("rdma", None), None, None),
        (failed("external-memory", "UNKNOWN", VULKAN), "Vulkan does not see this GPU", "set VK_DRIVER_FILES"),
        (failed("external-memory", "UNKNOWN", VULKAN, container=True), "cannot use it", "DRIVER_CAPABILITIES=all"),
        (failed("vmm", "UNKNOWN", wsl=True), None, None),
        (failed("fd", "UNKNOWN", gpu="NVIDIA H100 MIG 1g.10gb"), None, None),
        (failed("fd", "UNKNOWN", open_files=256), None, None),
        (failed("rdma", "UNKNOWN", open_files=64), None, None),
        (failed("ipc", "UNKNOWN", ptrace_scope=0), None, None),
        (failed("rdma", "NOT_SUPPORTED", bindings="9.10"), None, None),
        (failed("rdma", "UNKNOWN", bindings="13.4.0"), None, None),
        (failed("managed", "EXIT 3"), "the trial's process died", "dmesg"),
    ],
)  # fmt: skip
def test_a_failed_trial_has_its_likely_cause_and_remedy(machine: Machine, likely: str | None, do: str | None) -> None:
    cause = causes(machine)[0]
    assert (likely or "") in (cause.likely or "")
    assert (do or "") in (cause.do or "")
    assert cause.likely if likely else not cause.likely


def test_a_container_without_sys_nice_explains_host_memory() -> None:
    machine = complete(invented(1))
    no = Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_PERMITTED", call="cuMemCreate")
    host = {place: memory.model_copy(update={"trials": {"vmm": no}}) for place, memory in machine.host.items()}
    machine = changed(machine, host=host, surroundings=AROUND.model_copy(update={"container": True}))
    assert {cause.where for cause in causes(machine) if cause.do == "start it with --cap-add SYS_NICE"} == {*host}


@pytest.mark.parametrize(
    ("error", "shown", "likely"),
    [
        (None, "no error, but the bytes did not arrive", "lost on the way"),
        ("CUDA_ERROR_UNKNOWN", "CUDA_ERROR_UNKNOWN", "no path to each other"),
    ],
)
def test_a_lost_or_refused_store_is_reported_for_its_pair(error: str | None, shown: str, likely: str) -> None:
    machine = complete(invented(2))
    assert machine.peers[0][1]
    lost = machine.peers[0][1].model_copy(update={"store": Trial(advertised=True, works=False, error=error)})
    machine = changed(machine, peers=[[None, lost], machine.peers[1]])
    [cause] = [cause for cause in causes(machine) if cause.what == "store"]
    assert (cause.where, cause.error) == ("gpu0 to gpu1", shown)
    assert likely in str(cause.likely)


def test_a_failure_that_was_advertised_has_no_cause() -> None:
    assert {cause.what for cause in causes(complete(invented(1)))} == {"fabric", "fd+fabric", "pool-fabric"}


def test_environment_is_read_from_the_systems_files(tmp_path: Path) -> None:
    for name, text in [("proc/version", "Linux Microsoft"), ("proc/sys/kernel/yama/ptrace_scope", "2\n"),
                       ("proc/1/cgroup", "0::/docker/x"), ("dev/nvidia-caps-imex-channels/channel0", "")]:  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = diagnosis.read(tmp_path)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert seen.locked_bytes == (None if locked == resource.RLIM_INFINITY else locked)
    assert (seen.wsl, seen.ptrace_scope, seen.container, seen.imex_channels) == (True, 2, True, 1)
    bare = diagnosis.read(tmp_path / "nowhere")
    assert (bare.wsl, bare.ptrace_scope, bare.imex_channels) == (False, None, 0)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b", {"a/memory.max": "max", "a/b/memory.max": "4096"}, 4096),
        ("0::/a/b", {"a/memory.max": "1024\n", "a/b/memory.max": "4096\n"}, 1024),
        ("0::/", {"memory.max": "max"}, None),
        ("3:cpu,memory:/x\n2:pids:/", {"memory/x/memory.limit_in_bytes": "2048"}, 2048),
        ("3:memory:/x\n0::/", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("3:pids:/x", {"memory/x/memory.limit_in_bytes": "2048"}, None),
    ],
)
def test_the_smallest_memory_limit_of_the_control_groups_is_read(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    for name, text in [("proc/self/cgroup", f"{groups}\n"), *((f"sys/fs/cgroup/{k}", v) for k, v in files.items())]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert diagnosis.read(tmp_path).group_bytes == limit


def test_only_device_files_of_gpus_are_reported_as_closed(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-caps", "sda"):
        (tmp_path / "dev" / name).touch()
    assert inaccessible_devices(tmp_path) == []
    (tmp_path / "dev" / "nvidia1").symlink_to("/nowhere")
    assert inaccessible_devices(tmp_path) == ["/dev/nvidia1"]


@pytest.mark.parametrize(
    ("visible", "count", "ignored"),
    [(None, 2, None), ("", 0, None), ("0,1", 2, None), ("0,foo,1", 1, "foo,1"), ("foo", 0, "foo")],
)
def test_ignored_entries_of_cuda_visible_devices_are_reported(
    visible: str | None, count: int, ignored: str | None
) -> None:
    assert diagnosis.ignored_devices(visible, count) == ignored
