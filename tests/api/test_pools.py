"""Views of allocations of memory pools, own and attached."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.api.errors import Unsuitable
from memtopo.api.imports import unknown_export
from memtopo.common.units import MiB
from tests.api.child_process import Process
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import require_taken_down

SPEC = """
memtopo: 1
name: pooled
pools:
  p: {location: gpus, handles: fd, accessed_by: gpu0}
  h: {location: "host:0", handles: fd}
allocations: {a: {pool: p, size: 8MiB, count: 3}, b: {pool: p, size: 1000B}, c: {pool: h, size: 4MiB}}
exports:
  a: {allocation: a, via: fd}
  one: {allocation: a.1, via: fd}
  b: {allocation: b, via: fd}
  c: {allocation: c, via: fd}
"""
Start = Callable[..., Process]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "pooled.yaml"
    file.write_text(SPEC)
    return str(file)


def test_an_allocation_is_viewed_by_those_with_access_to_its_pool(spec: str) -> None:
    with memtopo.applied(spec, machine="h200x2") as layout:
        views = [layout.allocation("a.1", device=device) for device in (None, "gpu0", "gpu1")]
        assert [view.device for view in views] == ["gpu1", "gpu0", "gpu1"]
        arrays = [np.from_dlpack(view) for view in views]
        arrays[0][5] = 7
        assert [array[5] for array in arrays] == [7, 7, 7]
        assert len(arrays[0]) == 8 * MiB
        host = layout.allocation("c", dtype="float32")
        assert (host.device, host.shape) == ("host", (MiB,))
        assert {layout.allocation("c", device=each).device for each in ("host", "host:0", "host:1")} == {"host"}
        with pytest.raises(Unsuitable, match=r"accessible to host, and not to gpu0"):
            layout.allocation("c", device="gpu0")
        with pytest.raises(Unsuitable, match=r"accessible to gpu0, and not to gpu1.*\[gpu1\]' for its pool\)"):
            layout.allocation("a.0", device="gpu1")
        with pytest.raises(Unsuitable, match=r"there is no allocation 'a'"):
            layout.allocation("a")
        assert layout.address("a.2") == layout.buffers["a.2"].address
        del views, arrays, host
        gc.collect()


def test_an_importer_shares_allocations_and_leaves_nothing(start: Start, spec: str) -> None:
    """What two exports offer, too: the driver gives one address for both (fact 82)."""
    start(spec=spec, machine="h200x2")
    before = open_descriptors()
    for _ in range(3):
        with memtopo.attach("pooled", machine="h200x2") as shared:
            whole, one = (np.from_dlpack(shared.export(name)) for name in ("a.1", "one"))
            whole[3] += 1
            assert whole[3] == one[3]
            del whole, one
            gc.collect()
        require_taken_down(shared)
    with memtopo.attach("pooled", machine="h200x2", exports=["one"]) as shared:
        assert shared.exports["one"].kind == "allocation"
    assert open_descriptors() == before


def test_a_process_imports_an_allocation_over_one_connection(start: Start, spec: str) -> None:
    """The first of two attachments to end would unmap it for the other (fact 82)."""
    start(spec=spec, machine="h200x2")
    with memtopo.attach("pooled", machine="h200x2", exports=["a"]) as shared:
        for again in ("a", "one"):  # the second has some of the first
            with (
                pytest.raises(memtopo.NotApplied, match=r"this process has imported allocations of export 'a' already"),
                memtopo.attach("pooled", machine="h200x2", exports=[again]),
            ):
                pass
        with memtopo.attach("pooled", machine="h200x2", exports=["b"]) as other:
            assert len(np.from_dlpack(other.export("b.0"))) == 1000
        assert not shared.check().differences
    with memtopo.attach("pooled", machine="h200x2", exports=["one"]) as shared:
        assert shared.exports["one"].kind == "allocation"


def test_two_names_of_one_holder_do_not_import_an_allocation_twice(start: Start, spec: str) -> None:
    start(spec=spec, machine="h200x2")
    with memtopo.attach("pooled", machine="h200x2", exports=["one"]) as shared:
        path = shared.socket
    one = {"via": "fd", "pool": "gpu1", "size": "8MiB"}
    imports = {"a": {"from": "pooled/one", **one}, "b": {"from": f"{path}/one", **one}}
    with (
        pytest.raises(memtopo.NotApplied, match=r"this process has imported allocations of export 'one' already"),
        memtopo.applied({"memtopo": 1, "name": "twice", "imports": imports}, machine="h200x2"),
    ):
        pass


def test_access_of_an_attachment_to_pools_is_read_and_write(start: Start, spec: str) -> None:
    """Fact 81."""
    start(spec=spec, machine="h200x2")
    with (
        pytest.raises(Unsuitable, match=r"export 'a' is an allocation.* not 'r'"),
        memtopo.attach("pooled", machine="h200x2", access="r"),
    ):
        pass
    with memtopo.attach("pooled", machine="h200x2", access="rw", exports=["b"]) as shared:
        assert not shared.export("b.0").read_only


def test_an_attachment_to_pools_is_for_the_device_that_it_names(start: Start, spec: str) -> None:
    start(spec=spec, machine="h200x2")
    with memtopo.attach("pooled", machine="h200x2", exports=["a"], device="gpu1") as shared:
        assert [shared.export(f"a.{index}").device for index in range(3)] == ["gpu1"] * 3
        assert shared.export("a.0", device="gpu0").device == "gpu0"
    with memtopo.attach("pooled", machine="h200x2", exports=["c"], device="host") as shared:
        assert shared.export("c").device == "host"
    with memtopo.attach("pooled", machine="h200x2", exports=["a"]) as shared:
        with pytest.raises(Unsuitable, match=r"not to gpu1") as refused:
            shared.export("a.0", device="gpu1")
        given = "write 'accessed_by: [gpu1]' for its import; of what is attached, attach(…, device='gpu1')"
        assert refused.value.hint == given
        with pytest.raises(Unsuitable, match=r"not to host") as refused:
            shared.export("a.0", device="host")
        assert "accessed_by" not in str(refused.value.hint)
    for device, code in (("gpu9", "MT401"), ("host", "MT406")):
        with (
            pytest.raises(memtopo.InvalidSpec) as invalid,
            memtopo.attach("pooled", machine="h200x2", exports=["a"], device=device),
        ):
            pass
        assert [each.code for each in invalid.value.diagnostics] == [code]


def hint(access: Callable[[], object]) -> str:
    with pytest.raises(Unsuitable) as refused:
        access()
    return str(refused.value.hint)


def test_names_of_allocations_are_listed(start: Start, spec: str) -> None:
    start(spec=spec, machine="h200x2")
    with memtopo.attach("pooled", machine="h200x2", exports=["a", "c"]) as shared:
        for name in ("a", "a.9", "a.01", "a.0.x"):
            assert hint(lambda name=name: shared.export(name)) == "there are a.0 … a.2"  # type: ignore[misc]
        assert hint(lambda: shared.export("c.0")) == "write 'c'"
        assert hint(lambda: shared.allocation("a")) == "there are a.0 … a.2"
        assert hint(lambda: shared.range("a.1")) == "it is an allocation: allocation('a.1')"
        assert hint(lambda: shared.range("a")) == "it is an allocation: allocation('a.0')"
        assert hint(lambda: shared.range("c")) == "it is an allocation: allocation('c')"


@pytest.mark.parametrize(
    ("name", "meant"), [("server_a.0", "did you mean 'server.a.0'?"), ("server_a", "did you mean 'server.a'?")]
)
def test_an_export_of_a_process_is_named_by_it(name: str, meant: str) -> None:
    """And not as the entry of its import, which is that of its range."""
    assert unknown_export(name, ["server.a", "server.b"]).hint == meant
