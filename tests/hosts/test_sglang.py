"""memtopo in the processes of SGLang, by its entry point alone."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import ROOT
from tests.hosts.releases import memtopo, release, run

PROCESSES = Path(__file__).with_name("sglang_processes.py")
THEIRS, OURS = "torch_memory_saver.entrypoint", "memtopo.torch.saver"


def used(*different: str, **variables: str) -> dict[str, Any]:
    """Module of the memory saver that SGLang's adapter uses in each process."""
    answer = run("torch_memory_saver", PROCESSES, str(release("sglang")), *different, **variables)
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def test_each_process_uses_memtopo_by_the_entry_point_alone() -> None:
    """A scheduler imports it at once; one that is not started as configured, when its plugins are loaded."""
    assert used() == {
        "imported": THEIRS,
        "loaded": OURS,
        "errors": [],
        "scheduler": [OURS, OURS, None],
        "controller": [THEIRS, OURS, None],
    }


def test_torch_memory_saver_need_not_be_installed() -> None:
    found = used("absent")
    assert found["imported"].startswith("ModuleNotFoundError")
    assert [found["loaded"], *found["scheduler"], *found["controller"][1:]] == [OURS, OURS, OURS, None, OURS, None]


def test_a_list_of_other_plugins_leaves_torch_memory_saver() -> None:
    assert used(SGLANG_PLUGINS="none")["loaded"] == THEIRS


@pytest.mark.parametrize(
    ("different", "preloaded", "error"),
    [
        (("in use",), "", "torch_memory_saver has regions in this process"),
        ((), "/lib/torch_memory_saver_hook_mode_preload_cu13.abi3.so", "LD_PRELOAD has the library"),
        (("other adapter",), "", "torch_memory_saver_adapter of this SGLang has no 'torch_memory_saver'"),
    ],
)
def test_where_memtopo_cannot_take_the_place_an_error_says_why(
    different: tuple[str, ...], preloaded: str, error: str
) -> None:
    found = used(*different, **({"LD_PRELOAD": preloaded} if preloaded else {}))
    assert found["loaded"] == THEIRS
    assert error in found["errors"][0]


def test_actors_of_ray_import_memtopo() -> None:
    """Those that start after SGLang has loaded its plugins, without plugins of their own."""
    modules = (memtopo(), release("torch_memory_saver"), ROOT, sysconfig.get_path("purelib"))
    path = os.pathsep.join(map(str, modules))
    assert run("torch_memory_saver", Path(__file__).with_name("ray_actor.py"), PYTHONPATH=path).split() == [
        OURS,
        "kept",
    ]
