"""Programs that have a C library in them, compiled with sanitizers."""

from __future__ import annotations

import atexit
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from memtopo.native import FLAGS, Library


@cache
def sanitized(library: Library, checked: str, test: str) -> Path:
    """Program of the file in this folder with the name of a library and of a test; its first error ends it."""
    folder = Path(mkdtemp(prefix="memtopo-sanitized-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program, source = folder / test, Path(__file__).parent / f"{library.name}_{test}.c"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC", "-O2")]  # which takes four times as long
    flags += ["-g", f"-fsanitize={checked}", "-fno-sanitize-recover=all", "-include", str(library.source)]
    built = subprocess.run(["cc", *flags, "-o", program, source, "-ldl"], capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip(f"the compiler has no sanitizer: {built.stderr}")
    assert built.returncode == 0, built.stderr
    return program
