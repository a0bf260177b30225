"""Views of managed and external memory."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.common.units import MiB
from tests.helpers.reports import require_taken_down

SPEC = {
    "memtopo": 1,
    "name": "kinds",
    "devices": {"prefill": 0, "decode": 1},
    "managed": {
        "m": {"size": "2MiB", "prefer": "prefill", "accessed_by": ["host", "decode"]},
        "own": {"size": "2MiB", "attach": "single"},
        "far": {"size": "2MiB", "prefer": "decode", "accessed_by": ["prefill"]},
    },
    "external": {
        "frame": {
            "from": "camera",
            "via": "opaque_fd",
            "device": "prefill",
            "size": "8MiB",
            "buffers": {"y": {"size": "4MiB"}, "odd": {"offset": "4097KiB", "size": "1KiB"}},
        }
    },
    "semaphores": {"ready": {"from": "camera", "via": "timeline_fd", "device": "prefill", "wait": 1, "signal": 2}},
}


def test_host_and_gpu_views_of_managed_memory_have_the_same_bytes() -> None:
    """Each view is of the device that it was requested for."""
    with memtopo.applied(SPEC, machine="h200x2") as layout:
        views = [layout.managed("m", dtype="float32", device=each) for each in ("host", "decode", None)]
        assert [view.device for view in views] == ["host", "gpu1", "gpu0"]
        assert layout.managed("far").device == "gpu1"
        host, other, home = (np.from_dlpack(view) for view in views)
        host[3] = 7
        assert other[3] == home[3] == 7
        assert layout.address("m") % (2 * MiB) == 0
        del views, host, other, home
        gc.collect()
    require_taken_down(layout)


def test_external_memory_is_viewed_whole_and_by_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer, with its folder, ends with the layout."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = memtopo.applied(SPEC, machine="h200x2")
    with made as layout:
        assert len(os.listdir(tmp_path)) == 1
        whole, luma = (
            np.from_dlpack(layout.external("frame")),
            np.from_dlpack(layout.external("frame.y", shape=(1024, -1))),
        )
        odd = np.from_dlpack(layout.external("frame.odd", dtype="uint16"))
        assert (len(whole), luma.shape, len(odd)) == (8 * MiB, (1024, 4096), 512)
        assert whole[250] == 250  # as the producer filled it
        luma[0, 5], odd[1] = 99, 0x0403
        assert whole[5] == 99
        assert [*whole[4097 * 1024 + 2 : 4097 * 1024 + 4]] == [3, 4]
        assert layout.buffers["frame.y"].size == 4 * MiB
        assert layout.address("frame.y") != layout.address("frame")
        del whole, luma, odd
        gc.collect()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda layout: layout.managed("x"), "no managed memory 'x'"),
        (lambda layout: layout.managed("own", device="decode"), "declared for the host and gpu0, and not for gpu1"),
        (lambda layout: layout.managed("m", offset=2 * MiB), "managed memory 'm' has 2MiB"),
        (lambda layout: layout.external("frame.z"), "no external memory 'frame.z'"),
        (lambda layout: layout.external("frame", device="host"), "is on gpu0, and host has no access to it"),
        (lambda layout: layout.buffer("frame"), "no buffer 'frame'"),
    ],
)
def test_a_missing_entry_or_device_without_access_is_refused_with_the_valid_ones(view: object, message: str) -> None:
    assert callable(view)
    with memtopo.applied(SPEC, machine="h200x2") as layout, pytest.raises(memtopo.Unsuitable, match=message):
        view(layout)


def outliving() -> tuple[np.ndarray, np.ndarray]:
    """Arrays over memory of a layout that was taken down."""
    with memtopo.applied(SPEC, machine="h200x2") as layout:
        frame, m = np.from_dlpack(layout.external("frame")), np.from_dlpack(layout.managed("m", device="host"))
        m[0] = 5
    return frame, m


def test_a_view_in_use_at_the_end_of_its_layout_is_named_and_reads_zeros() -> None:
    with pytest.warns(memtopo.ViewOutlived, match="external memory 'frame', managed memory 'm'"):
        frame, m = outliving()
    assert (frame[250], m[0]) == (0, 0)
