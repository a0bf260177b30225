"""memtopo in the place of torch_memory_saver, by itself and as verl calls it, and torch_memory_saver's own tests."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import ROOT
from tests.hosts.releases import release, run

SIMULATED = Path(__file__).with_name("saver_on_simulator.py")
SOURCE = os.environ.get("MEMTOPO_TMS_SOURCE", "https://github.com/fzyzcjy/torch_memory_saver")
COMMIT = "4a43c97771f139db0215c1378e8a0b50e679d23d"
PRIVATE = "'NoneType' object has no attribute '_"
"""End of a test that goes on to the private state of torch_memory_saver, `_impl`."""

OWN_TESTS = [
    "test_simple[torch]",
    "test_cuda_graph[torch]",
    "test_cpu_backup[torch]",
    "test_cpu_backup_multi_device_mmap_restore[torch]",
    "test_cpu_backup_rss",
    "test_cpu_backup_backend_from_env[torch]",
    "test_cpu_backup_retain_from_env[torch]",
    "test_multi_device[torch]",
    "test_multi_device_torch_mode",
    "test_rl_example[torch]",
]
"""Those of its mode `torch`; its test of backups on disk looks for files that are not in folders."""

PACKAGE = """
from memtopo.torch import saver
from memtopo.torch.saver import *
__path__ += saver.__path__
"""


def after(*calls: str) -> list[Any]:
    """What each call has left of the regions of the program."""
    return [json.loads(line) for line in run("torch_memory_saver", SIMULATED, *calls).splitlines()]


def states(weights: str, pages: str, kv_cache: str) -> dict[str, Any]:
    return {"weights": weights, "pages": pages, "kv_cache": kv_cache, "others": False}


def test_tags_are_paused_and_resumed_alone_and_all_together() -> None:
    found = after("pause:kv_cache", "pause", "pause", "resume:weights", "resume:kv_cache", "resume", "resume")
    asleep, awake = states("paused", "paused", "paused"), states("kept", "kept", "lost")
    by_tag = [states("kept", "paused", "paused"), states("kept", "paused", "lost")]
    assert found == [states("kept", "kept", "paused"), asleep, asleep, *by_tag, awake, awake]


def test_a_resume_without_room_loses_nothing_and_raises_the_error_of_pytorch() -> None:
    calls = ("pause", "fill", "resume", "pause:none", "backups", "empty", "resume")
    _, _, error, partly, backups, _, awake = after(*calls)
    assert error.startswith("OutOfMemoryError: heap 'kv_cache-")
    assert (partly, backups, awake) == (states("kept", "kept", "paused"), [], states("kept", "kept", "lost"))


def test_backups_stay_as_long_as_they_are_retained() -> None:
    found = after("pause", "backups", "resume", "backups", "retain:1", "pause", "resume", "backups")
    assert [found[at] for at in (1, 3, 7)] == [["weights", "pages"], [], ["weights", "pages"]]


def test_backups_on_disk_are_in_the_folder_that_was_set_before(tmp_path: Path) -> None:
    first, second = (f"set_disk_backup_dir:{tmp_path}/{name}" for name in "ab")
    *_, paused, other, resumed = after("disk", first, "pause:on_disk", second, "resume")
    assert [each["on_disk"] for each in (paused, other, resumed)] == ["paused", "paused", "kept"]
    assert [*(tmp_path / "a").iterdir(), *(tmp_path / "b").iterdir()] == []


def test_a_region_frees_its_unused_memory_at_its_end_and_changes_nothing_of_pytorch() -> None:
    assert after("enter:kv_cache,kv_cache", "enter:pages,kv_cache") == [[0, 0, 2, True], [0, 1, 1, True]]


def test_graphs_that_share_a_pool_have_one_in_each_heap_which_ends_with_the_last_of_them() -> None:
    """Two with a pool of the program, one with the pool of the first, one alone, and one in another heap."""
    assert after("graphs") == [[[1, 1, 1, 2, 3], [3, 3, 2, 1, 0]]]


def test_each_tag_has_a_heap_with_its_name_and_backup() -> None:
    names = ["weights-pinned-gpu0", "pages-mmap-gpu0", "kv_cache-gpu0", "m-7-b-gpu0"]
    assert after("region:7 b/ä", "heaps")[1] == names


REFUSED = {
    "margin:1000000000000": None,  # for regions that exist, and for new ones
    "allocate:weights": "OutOfMemory: heap 'weights-pinned-gpu0': 2 MiB cannot be allocated: the GPU would have less",
    "region:new": "OutOfMemory: heap 'new-gpu0': 2 MiB cannot be allocated: the GPU would have less",
    "margin:0": None,
    "region:other": None,
    "region:new,mmap": "ValueError: cpu_backup_backend requires enable_cpu_backup=True",
    "pause": None,
    "init:1": None,
    "region:later": "Unsuitable: TMS_INIT_ENABLE requests",
    "pause:weights": "Unsuitable: TMS_INIT_ENABLE requests",
}
"""Calls, and the beginnings of their errors."""


def test_what_a_region_cannot_have_is_an_error() -> None:
    for found, (call, error) in zip(after(*REFUSED), REFUSED.items(), strict=True):
        assert str(found).startswith(error or "{"), call


def test_what_verl_releases_and_resumes_has_its_weights_again() -> None:
    """Each list of tags in its rollouts by SGLang, in the order in which SGLang pauses them."""
    source = (release("verl") / "verl/workers/rollout/sglang_rollout/async_sglang_server.py").read_text()
    lists = {tuple(ast.literal_eval(each)) for each in _lists(ast.parse(source))}
    assert lists == {("kv_cache",), ("kv_cache", "weights")}
    for tags in lists:
        calls = [*(f"pause:{tag}" for tag in tags), *(f"resume:{tag}" for tag in reversed(tags))]
        assert after(*calls)[-1] == states("kept", "kept", "lost")


def _lists(tree: ast.AST) -> Iterator[ast.List]:
    """Lists of tags: strings that SGLang names."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.List):
            continue
        words = {item.value for item in each.elts if isinstance(item, ast.Constant)}
        if words and words <= {"kv_cache", "weights", "cuda_graph"}:
            yield each


@pytest.fixture(scope="module")
def own_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with torch_memory_saver's own tests, and with memtopo as `torch_memory_saver`."""
    folder = tmp_path_factory.mktemp("torch_memory_saver")
    for command in (["init", "-q"], ["fetch", "-q", "--depth", "1", SOURCE, COMMIT], ["checkout", "-q", "FETCH_HEAD"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    package = folder / "test" / "torch_memory_saver"
    package.mkdir()
    helpers = (folder / "torch_memory_saver" / "testing_utils.py").read_text()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "testing_utils.py").write_text(helpers)
    return folder / "test"


@pytest.mark.gpu
@pytest.mark.parametrize("name", OWN_TESTS)
def test_its_own_tests_pass_up_to_its_private_state(own_tests: Path, name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"test_examples.py::{name}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(own_tests), str(ROOT)))}
    done = subprocess.run(command, cwd=own_tests, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or PRIVATE in done.stdout + done.stderr, done.stdout
