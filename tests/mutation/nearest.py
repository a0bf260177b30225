"""Tests of a module, the nearest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ELSEWHERE = {
    "memtopo/executor.py": ("tests/run",),
    "memtopo/drivers/cuda": ("tests/drivers/test_cuda_calls.py", "tests/drivers/test_cuda_without_gpu.py"),
    "memtopo/geometry": (
        "tests/kinds/test_build.py",
        "tests/geometry/test_access.py",
        "tests/geometry/test_groups.py",
        "tests/rules/test_bad.py",
        "tests/rules/test_answers.py",
        "tests/plans",
        "tests/kinds",
    ),
    "memtopo/kinds": ("tests/rules", "tests/geometry", "tests/plans"),
    "memtopo/diagnostics": ("tests/rules/test_answers.py",),
    "memtopo/language": ("tests/rules/test_answers.py",),
    "memtopo/planner.py": ("tests/run/test_states.py", "tests/plans"),
    "memtopo/rules": ("tests/rules/test_bad.py", "tests/rules", "tests/geometry", "tests/kinds"),
    "memtopo/rules/files.py": (
        "tests/rules/test_files_collecting.py",
        "tests/rules/test_files_results.py",
        "tests/rules",
    ),
    "memtopo/rules/__init__.py": ("tests/rules/test_files_selecting.py", "tests/rules/test_bad.py", "tests/rules"),
    "memtopo/language/located.py": ("tests/language/test_suppressions.py", "tests/rules/test_answers.py"),
    "memtopo/language/reader.py": ("tests/language/test_recovery.py", "tests/rules/test_answers.py"),
    "memtopo/geometry/model.py": ("tests/geometry/test_sizing.py", "tests/geometry", "tests/kinds", "tests/plans"),
    "memtopo/run/processes": (
        "tests/run/processes/test_worker_process.py",
        "tests/run/processes/test_worker.py",
        "tests/run/processes/test_joint_change.py",
        "tests/run/processes/test_reports.py",
        "tests/run/processes/test_ensemble.py",
        "tests/run/processes",
    ),
    "memtopo/sharing": ("tests/sharing/test_protocol.py", "tests/sharing/test_dishonest_holders.py"),
    "memtopo/sharing/programs.py": ("tests/sharing/test_programs.py",),
    "memtopo/sharing/claims.py": ("tests/sharing/test_endpoints.py", "tests/sharing/test_forks.py"),
    "memtopo/sharing/offers.py": ("tests/sharing/test_handles.py",),
    "memtopo/sharing/holder": (
        "tests/sharing/test_holder_state.py",
        "tests/sharing/test_responses.py",
        "tests/sharing/test_holder_shutdown.py",
        "tests/sharing/test_hostile_clients.py",
        "tests/sharing",
    ),
    "memtopo/sharing/holder/loop.py": (
        "tests/sharing/test_holder_shutdown.py",
        "tests/sharing",
        "tests/cli/test_service.py",
    ),
    "memtopo/sharing/holder/systemd.py": ("tests/cli/test_service.py",),
    "memtopo/sharing/producers.py": ("tests/sharing/test_programs.py",),
    "memtopo/spec.py": ("tests/language", "tests/kinds", "tests/rules/test_answers.py"),
}
"""Tests that do not have the name of what they test, the quickest first.

Files stand before folders, and the longest prefix counts.
"""

SKIPPED = ("tests/browser", "tests/gpu")
"""Tests that need more than Python."""

FAR = ("tests/cli", "tests/docs", "tests/output")
"""Tests of what is shown, which come last."""


def stages(root: Path, file: str) -> Iterator[list[str]]:
    """Yield four lists of test files: of the name of a module, of its room, of what imports it, and all others."""
    texts = _tests(root)
    module = Path(file).with_suffix("").parts
    own = module[-2] if module[-1] in {"__init__", "steps"} else module[-1]
    dotted = ".".join(module).removesuffix(".__init__")
    named = re.compile(rf"/test_{own}(_\w+)?\.py$")
    imports = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(dotted.rpartition('.')[0])} import .*\b{own}\b")
    folders = _folders(file)
    room = list(dict.fromkeys(name for each in folders for name in texts if f"{name}/".startswith(f"{each}/")))
    near = [name for name in room if named.search(name) or name in folders]
    importing = [name for name in texts if imports.search(texts[name]) and not name.startswith(FAR)]
    done: set[str] = set()
    for stage in (near or room, room, importing, list(texts)):
        yield [name for name in stage if name not in done]
        done.update(stage)


def _folders(file: str) -> list[str]:
    parts = Path("tests", *Path(file).parts[1:-1])
    own = [str(parts)] if parts != Path("tests") else []
    listed = max((prefix for prefix in ELSEWHERE if file.startswith(prefix)), default="")
    named = ELSEWHERE.get(listed, ())
    quick = [each for each in named if each.startswith(f"{parts}/")]  # of a room with tests that start processes
    return [*quick, *own, *named]


@cache
def _tests(root: Path) -> dict[str, str]:
    files = {str(file.relative_to(root)): file for file in (root / "tests").rglob("test_*.py")}
    names = sorted(files, key=lambda name: (name.startswith(FAR), name))
    return {name: files[name].read_text() for name in names if not name.startswith(SKIPPED)}
