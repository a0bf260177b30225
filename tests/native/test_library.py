"""The C libraries: compiled once, replaced as a whole, and what is said where it cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.native import CAPTURE, FLAGS, HEAPS, LIBCUDA, LIBRARIES, Library, NoLibrary
from memtopo.plans.trace import read_traces
from tests.helpers import captures
from tests.helpers.command_line import environment
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT
from tests.native.sanitizers import sanitized

PROGRAM = """
import memtopo
with memtopo.applied({SPEC!r}, machine="h200x2") as layout:
    heap = layout.heap("weights")
    print(heap.size)
    try:
        print(heap.allocate(1) == heap.address)
    except memtopo.Unsuitable as error:
        print(error)
print(layout.report.outcome)
"""


def run(cache: Path, **variables: str) -> list[str]:
    """Lines that a program prints which allocates in a heap, with a cache of its own."""
    program = PROGRAM.replace("{SPEC!r}", repr(str(ROOT / "specs/engine-heaps.yaml")))
    env = environment(XDG_CACHE_HOME=str(cache), **variables)
    return str(run_python([sys.executable, "-c", program], env=env, capture_output=True, text=True).stdout).splitlines()


def test_it_is_compiled_once_into_the_cache_of_the_user(tmp_path: Path) -> None:
    assert run(tmp_path, CC="env cc") == ["68719476736", "True", "ok"]
    (library,) = (tmp_path / "memtopo").iterdir()
    made = library.stat()
    assert run(tmp_path, CC="/nonexistent") == ["68719476736", "True", "ok"]
    assert library.stat() == made


def test_without_a_compiler_all_but_allocations_works_and_says_so(tmp_path: Path) -> None:
    size, error, outcome = run(tmp_path, CC="/nonexistent")
    assert (size, outcome) == ("68719476736", "ok")
    assert "the library of heaps cannot be compiled" in error
    assert "install a C compiler, or a wheel of memtopo" in error


def test_what_a_compiler_reports_is_shown(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cc: no such option' >&2\nexit 1\n")
    compiler.chmod(0o700)
    _, error, outcome = run(tmp_path / "cache", CC=str(compiler))
    assert "cannot compile the library of heaps: cc: no such option" in error
    assert outcome == "ok"


COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo made > "$2"
exit $STATUS
"""


def test_a_library_is_compiled_again_if_its_source_a_header_or_an_option_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into one absolute path for each, which has no half of a library."""
    folder = tmp_path / "native"
    (folder / "own").mkdir(parents=True)
    (tmp_path / "cc").write_text(COMPILER)
    monkeypatch.setattr("memtopo.native._FOLDER", folder)
    monkeypatch.setenv("CC", f"sh {tmp_path / 'cc'}")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.chdir(tmp_path)
    (folder / "own.c").write_text("1")
    own, other = Library("own", "tests"), Library("own", "tests", ("-DOTHER",))
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(NoLibrary):
        own.file()
    assert [*(tmp_path / "cache" / "memtopo").iterdir()] == []
    monkeypatch.setenv("STATUS", "0")
    made = [own.file(), own.file(), other.file()]
    for file in ("own.c", "own/calls.h"):
        (folder / file).write_text("2")
        made.append(own.file())
    assert [made.index(each) for each in made] == [0, 0, 2, 3, 4]
    assert all(each.is_absolute() and each.read_text() == "made\n" for each in made)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_each_function_of_a_library_is_called_with_sanitizers(library: Library) -> None:
    """That the programs call what they name, their own tests find."""
    source = library.source.read_text()
    exported = {*re.findall(r"^(?:PUBLIC )?\w+ \**((?:memtopo_|cu|Initialize)\w+)\(.*\{$", source, re.MULTILINE)}
    called = "".join(file.read_text() for file in Path(__file__).parent.glob(f"{library.name}_*.c"))
    assert exported
    assert {name for name in exported if f"{name}(" not in called} == set()


@pytest.mark.parametrize("checked", ["thread", "address,undefined"])
def test_threads_use_heaps_without_a_race_or_an_error_of_memory(checked: str) -> None:
    """Eight threads that allocate and free while a ninth puts each of their heaps to sleep, with a sanitizer."""
    done = subprocess.run([sanitized(HEAPS, checked, "stress")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("checked", ["thread", "address,undefined"])
def test_threads_are_captured_without_a_race_or_an_error_of_memory(checked: str, tmp_path: Path) -> None:
    """Eight threads that make calls while a ninth starts and ends captures, with a sanitizer."""
    program, record = sanitized(CAPTURE, checked, "stress"), tmp_path / "record"
    record.touch()
    env = captures.variables(CUPTI_NAMES="cuMemAlloc_v2,cuMemSetAccess,cuIpcGetMemHandle")
    done = subprocess.run([program, record, captures.cupti()], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    traces = read_traces([record])
    assert len(traces) == 12
    assert sum(call.method == "mark" for trace in traces for call in trace.calls) == 240


def test_functions_of_the_driver_are_answered_without_an_error_of_memory() -> None:
    """In the process, and over a socket, where the answer maps memory and stores descriptors."""
    done = subprocess.run(
        [sanitized(LIBCUDA, "address,undefined", "calls")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_it_compiles_without_a_warning(library: Library, tmp_path: Path) -> None:
    flags = [*FLAGS, "-Wall", "-Wextra", "-Werror", "-std=c11", "-D_DEFAULT_SOURCE"]
    command = ["cc", *flags, "-o", str(tmp_path / "library.so"), str(library.source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
