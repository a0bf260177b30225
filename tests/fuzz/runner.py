"""One check on very many inputs: guided by atheris where it is installed, otherwise random."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import time
from typing import Any

from tests.fuzz.mutation import LARGEST, ROOT, mutations, seeds

SECONDS = int(os.environ.get("MEMTOPO_FUZZ_SECONDS", "60"))


def run(name: str) -> None:
    """Search for an input that fails a check; such an input is written to tests/corpus/, and ends the run."""
    if importlib.util.find_spec("atheris"):
        _guided(name)
    else:
        _random(name)


def _guided(name: str) -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["memtopo"]):
        checks = importlib.import_module("tests.fuzz.checks").CHECKS
    corpus = [str(ROOT / folder) for folder in ("tests/corpus", "tests/bad", "specs")]
    with tempfile.TemporaryDirectory() as found:
        options = [f"-max_total_time={SECONDS}", f"-max_len={LARGEST}", f"-artifact_prefix={ROOT}/tests/corpus/"]
        atheris.Setup([sys.argv[0], *options, "-timeout=10", "-rss_limit_mb=2048", found, *corpus], checks[name])
        atheris.Fuzz()


def _random(name: str) -> None:
    check = importlib.import_module("tests.fuzz.checks").CHECKS[name]
    end, count = time.monotonic() + SECONDS, 0
    for data in mutations(time.time_ns(), seeds()):
        try:
            check(data)
        except BaseException:
            (ROOT / "tests" / "corpus" / f"crash-{count}").write_bytes(data)
            raise
        count += 1
        if time.monotonic() > end:
            break
    sys.stdout.write(f"{name}: {count:,} inputs by chance, none broke it; with atheris they would be better ones\n")
