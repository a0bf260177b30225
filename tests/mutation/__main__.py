"""Mutation tests: `python -m tests.mutation [--all] [--shard 2/8] [--sample 40 --seed 1] [PATH ...]`.

Each mutant is written into a copy of the working tree, where the tests nearest to it run until one fails.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from itertools import islice
from pathlib import Path

import hypothesis.strategies  # noqa: F401 imported once, and not by each run of tests
import prometheus_client.parser  # noqa: F401 as above
import pydantic  # noqa: F401 as above
import pytest
import rich.console  # noqa: F401 as above
import typer  # noqa: F401 as above
import yaml  # noqa: F401 as above

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.nearest import stages

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutation"
RENDERED = ("memtopo/output", "memtopo/cli", "memtopo/diagnostics/explanations", "memtopo/diagnostics/__init__.py")
"""Texts and pictures, which are compared with files of their own."""
MEMORY = 8 << 30
"""Bytes that one run of tests may take; a mutant may never stop to ask for more."""
MOST_KILLERS = 20
"""Tests that killed the mutants of a room before, and are tried first."""
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
OUTCOMES = ("killed", "equivalent", "survived")


def main() -> int:
    """Run the mutants that the arguments select; return 1 if one that is not listed as equivalent survives."""
    options = _options()
    reasons = _equivalent()
    tree = BUILD / options.shard.replace("/", "-of-")
    BUILD.mkdir(parents=True, exist_ok=True)
    with tree.with_suffix(".lock").open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            sys.exit("another run of this shard is under way")
        return _run_all(_copy(tree), options, reasons)


def _run_all(tree: Path, options: argparse.Namespace, reasons: dict[tuple[str, str, str], str]) -> int:
    chosen = _selected(options)
    print(f"{len(chosen)} mutants", flush=True)
    outcomes: Counter[tuple[str, str]] = Counter()
    survivors: list[Mutant] = []
    killers: dict[str, list[str]] = defaultdict(list)
    for number, mutant in enumerate(chosen, 1):
        print(f"\r{number}/{len(chosen)} ", end="", file=sys.stderr, flush=True)
        earlier = killers[room := _room(mutant.file)]
        outcome, killer = ("equivalent", ()) if mutant.key in reasons else _outcome(tree, mutant, earlier, options)
        _passes_unchanged(tree, killer, options.limit)
        if len(killer) == 1 and "::" in killer[0]:
            killers[room] = [*killer, *(each for each in earlier if each not in killer)][:MOST_KILLERS]
        outcomes[room, outcome] += 1
        if outcome == "survived":
            survivors.append(mutant)
            print(f"survived: {mutant}", flush=True)
    (BUILD / "survivors").write_text("".join(f"{mutant.key}\n" for mutant in survivors))
    _print_table(outcomes)
    return 1 if survivors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files and folders; otherwise those changed since the merge base")
    parser.add_argument("--all", action="store_true", help="every file of memtopo")
    parser.add_argument("--again", action="store_true", help="of these only what survived the last run")
    parser.add_argument("--shard", default="1/1", help="one part of several, as 2/8")
    parser.add_argument("--sample", type=int, default=0, help="number of mutants to draw at random")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one run of tests")
    parser.add_argument("--depth", type=int, default=3, help="tests: 1 of its name, 2 its room, 3 importing it, 4 all")
    parser.add_argument("--base", default="origin/main", help="what changes are compared with")
    return parser.parse_args()


def _selected(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of the shard and sample that the options name, without those that do not compile."""
    lines = _changed(options.base) if not (options.all or options.paths) else None
    files = sorted(lines) if lines is not None else list(_files(options.paths or ["memtopo"]))
    found = [each for file in files for each in mutants(ROOT, file) if lines is None or each.line in lines[file]]
    shard, count = map(int, options.shard.split("/"))
    found = found[shard - 1 :: count]
    if options.sample:
        places = random.Random(options.seed).sample(range(len(found)), min(options.sample, len(found)))
        found = [found[place] for place in sorted(places)]
    if options.again:
        before = set((BUILD / "survivors").read_text().splitlines())
        found = [each for each in found if str(each.key) in before]
    return [each for each in found if each.source]


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        given = ROOT / path
        for file in sorted(given.rglob("*.py")) if given.is_dir() else [given]:
            name = str(file.relative_to(ROOT))
            if not name.startswith(RENDERED):
                yield name


def _changed(base: str) -> dict[str, set[int]]:
    """Return the lines by file that differ from the merge base with `base`, committed or not."""
    merge_base = _git("merge-base", base, "HEAD").strip()
    lines: dict[str, set[int]] = {}
    file = ""
    for line in _git("diff", "-U0", "--no-prefix", "--diff-filter=d", merge_base, "--", "memtopo").splitlines():
        if line.startswith("+++ "):
            file = line[4:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    return {file: lines[file] for file in lines if file in set(_files(["memtopo"]))}


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _equivalent() -> dict[tuple[str, str, str], str]:
    """Return the reasons of the mutants that no test can find, by key."""
    listed = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())
    return {(each["file"], each["before"], each["after"]): each["reason"] for each in listed["mutant"]}


def _copy(tree: Path) -> Path:
    """Return a fresh copy of the working tree, without what git ignores."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in _git("ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def _outcome(
    tree: Path, mutant: Mutant, earlier: Sequence[str], options: argparse.Namespace
) -> tuple[str, tuple[str, ...]]:
    """Return what became of a mutant, and the test that killed it, or the tests one of which did.

    `earlier` are tests that killed others of the same room, which run first.
    """
    target = tree / mutant.file
    _write(target, mutant.source)
    try:
        if earlier and _exit_code(tree, earlier, options.limit) == pytest.ExitCode.TESTS_FAILED:
            return "killed", _failed(tree, earlier)
        for tests in islice(stages(tree, mutant.file), options.depth):
            if tests and _exit_code(tree, tests, options.limit) not in PASSED:
                return "killed", _failed(tree, tests)
        return "survived", ()
    finally:
        _write(target, mutant.module.code)


@cache
def _passes_unchanged(tree: Path, tests: tuple[str, ...], limit: int) -> None:
    """End the program if these tests fail without a mutant: what they find then says nothing."""
    if tests and not any(_exit_code(tree, tests, limit) in PASSED for _ in range(2)):
        sys.exit(f"these tests fail without a mutant, see {tree}.log: {' '.join(tests)}")


def _write(target: Path, source: str) -> None:
    """Write a file with a time in seconds that it never had: by it Python finds the compiled file out of date."""
    moment = int(target.stat().st_mtime) - 1
    target.write_text(source)
    os.utime(target, (moment, moment))


def _exit_code(tree: Path, tests: Sequence[str], limit: int) -> int:
    """Run the tests in a process of their own until one fails; return -9 after the time limit in seconds."""
    _failure(tree).unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        os._exit(_run(tree, tests))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _failed(tree: Path, tests: Sequence[str]) -> tuple[str, ...]:
    """Return the test that failed in the last run; all of its tests if it ended otherwise."""
    return (_failure(tree).read_text(),) if _failure(tree).exists() else tuple(tests)


def _failure(tree: Path) -> Path:
    return tree.with_suffix(".failed")


class _Recorder:
    """Plugin of pytest that writes the name of the test that failed to a file, or that of its module."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._file.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def _run(tree: Path, tests: Sequence[str]) -> int:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it starts in the background
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.environ |= {"PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": "ci"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    with (tree.parent / f"{tree.name}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in {"", str(ROOT)})]
    for name in [name for name in sys.modules if name.partition(".")[0] in {"memtopo", "tests"}]:
        del sys.modules[name]
    imported = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    options = "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", imported
    return pytest.main([*options, *tests], [_Recorder(_failure(tree))])


def _room(file: str) -> str:
    parts = Path(file).with_suffix("").parts[1:]
    return ".".join(parts[:-1] or parts)


def _print_table(outcomes: Counter[tuple[str, str]]) -> None:
    """Print the outcomes by room, with the share of what is not equivalent that was killed."""
    print(f"{'room':24}{'mutants':>9}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES) + f"{'score':>8}")
    for room in [*sorted({room for room, _ in outcomes}), ""]:
        counts = [sum(n for (at, of), n in outcomes.items() if of == each and room in {at, ""}) for each in OUTCOMES]
        killed, equivalent, _ = counts
        score = f"{killed / max(1, sum(counts) - equivalent):.1%}"
        print(f"{room or 'all':24}{sum(counts):9}" + "".join(f"{count:12}" for count in counts) + f"{score:>8}")


if __name__ == "__main__":
    sys.exit(main())
