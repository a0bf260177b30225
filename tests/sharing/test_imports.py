"""External objects are compared with their declarations, since the driver does not (facts 53, 55)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import memtopo
from memtopo.common.errors import ExchangeError, MemtopoError, NoLayout
from memtopo.driver.handles import Handle
from memtopo.drivers import target
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.layout import HandleSource, Layout
from memtopo.plans.report import Checks
from memtopo.run.processes.worker import SiblingHandles
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.imports import HolderHandles, ImportMismatch
from memtopo.sharing.offers import LayoutExports, Offer
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import Process, until
from tests.helpers.machines import invented
from tests.helpers.memfd_exports import MACHINE as LINE
from tests.helpers.memfd_exports import Memfds
from tests.helpers.processes import open_descriptors
from tests.helpers.specs import clean_geometry, validate_text
from tests.sharing.children.producer import BYTES

MACHINE = invented(2)
GPUS = target.uuids(MACHINE)
SPEC = """
external:   {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB, dedicated: true}}
semaphores: {ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1}}
"""
FRAME = {"kind": "memory", "size": 8 << 20, "gpu": GPUS[0], "dedicated": True}
READY = {"kind": "semaphore", "timeline": True}


def holders(bound: str | None = None, spec: str = SPEC) -> HolderHandles:
    geometry = validate_text(spec, MACHINE).geometry
    assert geometry
    return HolderHandles(geometry, GPUS, {"camera": bound} if bound else {})


@pytest.fixture
def producer(start: Callable[..., Process], tmp_path: Path) -> Callable[..., tuple[str, Process]]:
    """Starts a producer of some exports; its socket, and the process."""

    def begin(**exports: Any) -> tuple[str, Process]:
        process = start("producer", where=str(tmp_path / "camera.sock"), exports=exports)
        return process.read_line()["serving"], process

    return begin


def test_a_handle_as_declared_is_taken_from_the_export_of_the_same_name(
    producer: Callable[..., tuple[str, Process]],
) -> None:
    where, process = producer(frame=FRAME, ready=READY)
    before, found = open_descriptors(), holders(where)
    found.attach("camera")
    assert not found.gone("camera")
    frame, ready = found.take("camera", "frame", 0).fd, found.take("camera", "ready", 0).fd
    assert frame is not None
    assert ready is not None
    assert os.pread(frame, len(BYTES), 0) == BYTES
    process.send(signal.SIGKILL)
    until(lambda: found.gone("camera"))
    assert os.pread(ready, len(BYTES), 0) == BYTES  # a descriptor does not go with whoever made it
    found.detach("camera")
    assert open_descriptors() == before


@pytest.mark.parametrize("several", [False, True])
def test_what_a_changed_spec_imports_over_the_same_connection_is_compared_as_well(
    producer: Callable[..., tuple[str, Process]], several: bool
) -> None:
    """Also in a process of several, whose other imports are from its siblings."""
    where, _ = producer(frame=FRAME, other=FRAME | {"dedicated": False})
    before = SPEC.splitlines()[1]
    external = holders(where, before)
    found: HandleSource = external
    if several:
        found = SiblingHandles(clean_geometry(before, MACHINE), no_sibling, external)
    found.attach("camera")
    found.expect(clean_geometry(before.replace("from: camera", "from: camera/other"), MACHINE))
    with pytest.raises(ImportMismatch, match=r"'frame' declares it as dedicated .*; .*other has memory that is"):
        found.take("camera", "other", 0)
    found.detach("camera")


def test_a_process_of_several_closes_what_holders_have_sent_after_each_stage(
    producer: Callable[..., tuple[str, Process]],
) -> None:
    where, _ = producer(frame=FRAME)
    spec = SPEC.splitlines()[1]
    found = SiblingHandles(clean_geometry(spec, MACHINE), no_sibling, holders(where, spec))
    found.attach("camera")
    before = open_descriptors()
    assert found.take("camera", "frame", 0).fd is not None
    assert open_descriptors() == before + 1
    found.settle()
    assert open_descriptors() == before
    found.detach("camera")


def no_sibling(holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
    raise MemtopoError(f"{holder} has no {count} handles of {export} from {first} on")


def test_an_export_of_another_name_is_taken_after_a_slash(producer: Callable[..., tuple[str, Process]]) -> None:
    where, _ = producer(other=FRAME)
    found = holders(where, SPEC.splitlines()[1].replace("from: camera", "from: camera/other"))
    found.attach("camera")
    assert found.take("camera", "other", 0).fd is not None
    found.detach("camera")


def test_a_holder_that_a_spec_names_by_path_needs_no_binding(producer: Callable[..., tuple[str, Process]]) -> None:
    where, _ = producer(other=FRAME)
    found = holders(spec=SPEC.splitlines()[1].replace("from: camera", f"from: {where}/other"))
    found.attach(where)
    assert found.take(where, "other", 0).fd is not None
    found.detach(where)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"frame": FRAME | {"size": 4 << 20}}, "external 'frame' declares size 8MiB; camera/frame has 4MiB"),
        ({"frame": FRAME | {"size": 16 << 20}}, "external 'frame' declares size 8MiB; camera/frame has 16MiB"),
        (
            {"frame": FRAME | {"gpu": GPUS[1]}},
            rf"external 'frame' declares device gpu0 \({GPUS[0]}\); camera/frame has gpu1 \({GPUS[1]}\)",
        ),
        ({"frame": FRAME | {"gpu": "0" * 32}}, rf"declares device gpu0 \({GPUS[0]}\); camera/frame has {'0' * 32}"),
        ({"frame": FRAME | {"dedicated": False}}, "'frame' declares it as dedicated .*; .* has memory that is not"),
        ({"frame": READY}, "external 'frame' declares a memory; camera/frame has timeline semaphore"),
        ({"ready": READY | {"timeline": False}}, "semaphore 'ready' declares a timeline semaphore; .* has binary sem"),
        ({"ready": FRAME}, "semaphore 'ready' declares a timeline semaphore; camera/ready has memory"),
        ({"ready": READY | {"gpu": GPUS[1]}}, "semaphore 'ready' declares device gpu0 .*; camera/ready has gpu1"),
    ],
)
def test_a_mismatch_reports_declaration_offer_and_producer(
    producer: Callable[..., tuple[str, Process]], changed: Any, message: str
) -> None:
    where, process = producer(**({"frame": FRAME, "ready": READY} | changed))
    before, found = open_descriptors(), holders(where)
    with pytest.raises(ImportMismatch, match=rf"{message}.*\(holder: process {process.pid}\)"):
        found.attach("camera")
    assert open_descriptors() == before


def test_an_unknown_export_is_an_error_that_lists_the_known_ones(producer: Callable[..., tuple[str, Process]]) -> None:
    where, _ = producer(frame=FRAME, steady=READY)
    with pytest.raises(ExchangeError, match="no export 'ready'") as error:
        holders(where).attach("camera")
    assert error.value.hint == "did you mean 'steady'?"


def test_a_producer_that_dies_before_the_handle_is_an_error_that_names_the_import(
    producer: Callable[..., tuple[str, Process]],
) -> None:
    where, process = producer(frame=FRAME, ready=READY)
    before, found = open_descriptors(), holders(where)
    found.attach("camera")
    process.send(signal.SIGKILL)
    process.ended()
    assert found.gone("camera")
    with pytest.raises(ExchangeError, match=r"^external 'frame' cannot be imported: the holder ended the connection"):
        found.take("camera", "frame", 0)
    found.detach("camera")
    assert open_descriptors() == before


def test_an_unbound_name_is_an_error_with_the_option_that_binds_it(runtime: Path) -> None:
    with pytest.raises(NoLayout, match="no process offers external 'frame': no layout 'camera'") as error:
        holders().attach("camera")
    assert "--with camera=/" in str(error.value.hint)


def test_a_bound_socket_without_a_listener_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(MemtopoError, match=str(tmp_path / "camera.sock")):
        holders(str(tmp_path / "camera.sock")).attach("camera")


def test_a_socket_in_a_spec_is_connected_to_by_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "camera.sock")
    frame = f"{{from: {path}/frame, via: opaque_fd, device: gpu0, size: 8MiB, dedicated: true}}"
    with pytest.raises(NoLayout, match=path) as error:
        holders(spec=f"external: {{frame: {frame}}}").attach(path)
    assert "no process offers" not in str(error.value)


def offers(spec: str) -> Sequence[Offer]:
    """Offers of a layout that is built from a spec."""
    driver = SimDriver(MACHINE)
    driver.init()
    try:
        return LayoutExports(clean_geometry(spec, MACHINE), Layout(), driver, lambda: Checks((), (), 0)).offers()
    finally:
        driver.close()


@contextmanager
def serving(kept: Sequence[Offer]) -> Iterator[None]:
    """Hold the layout `kv` with some offers, in a thread."""
    ready, over = threading.Event(), threading.Event()
    about = HolderInfo("kv", None, LINE)
    with claim(endpoint("kv")) as claimed:
        thread = threading.Thread(
            target=lambda: hold(Memfds(kept), claimed, about, stop=lambda: int(over.is_set()), ready=ready.set)
        )
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            yield
        finally:
            over.set()
            thread.join()


BUFFER = "buffers: {b: {location: gpu0, size: 12441600B}}\nexports: {b: {buffer: b, via: ipc}}"
IMPORT = "imports: {b: {from: kv/b, via: ipc, location: gpu0, size: SIZE}}"


@pytest.mark.parametrize(
    ("size", "accepted"),
    [("12441600B", True), ("12MiB", True), ("12441601B", False), ("11MiB", False), ("2MiB", False), ("14MiB", False)],
)
@pytest.mark.usefixtures("runtime")
def test_a_buffer_is_imported_with_its_declared_size_or_that_of_its_blocks(size: str, accepted: bool) -> None:
    found = holders(spec=IMPORT.replace("SIZE", size))
    with serving(offers(BUFFER)):
        if accepted:
            found.attach("kv")
            found.detach("kv")
        else:
            with pytest.raises(ImportMismatch, match=r"import 'b' declares size .*; kv/b has 12150KiB"):
                found.attach("kv")


@pytest.mark.parametrize(("size", "accepted"), [("12441601B", True), ("12MiB", True), ("10MiB", False)])
@pytest.mark.usefixtures("runtime")
def test_a_holder_that_offers_no_declared_size_offers_whole_blocks(size: str, accepted: bool) -> None:
    found = holders(spec=IMPORT.replace("SIZE", size))
    with serving([replace(each, declared=None) for each in offers(BUFFER)]):
        if accepted:
            found.attach("kv")
            found.detach("kv")
        else:
            with pytest.raises(ImportMismatch, match="declares size 10MiB; kv/b has 12MiB"):
                found.attach("kv")


@pytest.mark.usefixtures("runtime")
def test_a_location_is_compared_by_uuid_and_named_by_ordinal() -> None:
    """Fact 38."""
    found = holders(spec=IMPORT.replace("SIZE", "12MiB").replace("gpu0", "gpu1"))
    with (
        serving(offers(BUFFER)),
        pytest.raises(ImportMismatch, match=rf"declares location gpu1 \({GPUS[1]}\); kv/b has gpu0 \({GPUS[0]}\)"),
    ):
        found.attach("kv")


SEVERAL = """
chunks:
  c: {location: [gpu0, gpu1], size: 2MiB, count: 4, handles: fd}
  page: {location: gpu0, size: 2MiB, count: {min: 0, max: 8}, handles: fd}
buffers: {b: {location: gpu0, size: 4MiB}}
exports: {c: {chunk: c, via: fd}, b: {buffer: b, via: ipc}, page: {chunk: page, via: fd}}
"""
IMPORTS = """
imports:
  b: {from: kv/b, via: ipc, location: gpu0, size: 4MiB}
  c: {from: kv/c, location: [gpu0, gpu1], size: 2MiB, count: 4}
  page: {from: kv/page, location: gpu0, size: 2MiB, count: {max: 8}}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "path", "hint"),
    [
        ("size: 4MiB", "size: 6MiB", ("b", "size"), "write 'size: 4MiB'"),
        ("count: 4", "count: 5", ("c", "count"), "write 'count: 4'"),
        ("2MiB, count: 4", "4MiB, count: 2", ("c", "count"), "write 'count: 4' and 'size: 2MiB'"),
        ("[gpu0, gpu1]", "gpu0", ("c", "location"), "write 'location: [gpu0, gpu1]'"),
        ("{max: 8}", "8", ("page", "count"), "write 'count: {max: 8}'"),
        ("2MiB, count: 4", "2MiB, count: {max: 4}", ("c", "count"), "write 'count: 4'"),
        ("kv/c,", "kv/d,", ("c",), "write one of c, b, page"),
        ("kv/c,", "kv/b,", ("c", "kind"), "declare the properties that the holder exports"),
    ],
)
@pytest.mark.usefixtures("runtime")
def test_the_place_of_a_mismatch_is_the_import_that_is_wrong(
    right: str, wrong: str, path: tuple[str, ...], hint: str
) -> None:
    """Whichever of several imports from one holder it is; the help has the values of the holder."""
    found = holders(spec=IMPORTS.replace(right, wrong))
    with serving(offers(SEVERAL)), pytest.raises(MemtopoError) as error:
        found.attach("kv")
    assert (error.value.path, error.value.hint) == (("imports", *path), hint)


TWO = """
external:
  frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}
  depth: {from: lidar, via: opaque_fd, device: gpu0, size: 4KiB}
"""


def test_the_end_of_a_holder_is_an_error_once_and_hides_no_notice_of_another(tmp_path: Path) -> None:
    """And whenever no holder is left."""
    memory = os.memfd_create("frame", os.MFD_CLOEXEC)
    exports = {name: memtopo.ExternalMemory(memory, 4096, GPUS[0]) for name in ("frame", "depth")}
    camera, lidar = (memtopo.serve(tmp_path / f"{name}.sock", exports) for name in ("camera", "lidar"))
    found = HolderHandles(clean_geometry(TWO, MACHINE), GPUS, {"camera": camera.path, "lidar": lidar.path})
    with lidar:
        with camera:
            for holder in ("camera", "lidar"):
                found.attach(holder)
            assert found.take("lidar", "depth", 0).fd is not None
            assert found.notice(0.0) is None
        with pytest.raises(ExchangeError) as gone:
            found.notice(0.0)
        assert gone.value.code == "gone"
        assert (found.notice(0.0), found.gone("camera"), found.gone("lidar")) == (None, True, False)
    notice = found.notice(PATIENCE)
    assert notice
    assert (notice[0], notice[1].kind) == ("lidar", "releasing")
    for _ in range(2):
        with pytest.raises(ExchangeError):
            found.notice(0.0)
    for holder in ("camera", "lidar"):
        found.detach(holder)
    os.close(memory)
