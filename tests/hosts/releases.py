"""Releases of the hosts that memtopo is tried with: pinned, downloaded from the package index, and unpacked once.

`MEMTOPO_HOST_RELEASES="vllm==0.34.0"` tries other releases; several are separated by spaces. `MEMTOPO_HOST_CACHE` is
the folder of what was downloaded, by default `memtopo/hosts` in the user's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from email.parser import Parser
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.helpers.command_line import ROOT

RELEASES = {"vllm": "0.33.0", "sglang": "0.5.23", "torch_memory_saver": "0.0.10", "verl": "0.9.1"}
"""Versions of the hosts that the tests were written for."""

TORCH = "torch==2.13.0"
"""PyTorch of the environments. That for a CPU is enough, where the configuration of pip leads to one."""

NEEDED = {
    "vllm": (
        "aiohttp apache-tvm-ffi cachetools cbor2 cloudpickle einops fastapi huggingface-hub llguidance msgspec openai "
        "opentelemetry-api opentelemetry-exporter-otlp opentelemetry-sdk opentelemetry-semantic-conventions-ai orjson "
        "oss-harmony partial-json-parser pillow prometheus-client protobuf psutil py-cpuinfo pybase64 pyzmq regex "
        "requests sentencepiece tiktoken tqdm transformers xgrammar"
    ),
    "sglang": "",
    "torch_memory_saver": "",
    "verl": "",
}
"""Requirements of each host that its modules under test import. The wheel has their versions; others need a GPU."""


def version(host: str) -> str:
    """Return the version of a host that is tried."""
    chosen = (each.partition("==") for each in os.environ.get("MEMTOPO_HOST_RELEASES", "").split())
    return (RELEASES | {name: version for name, _, version in chosen})[host]


@cache
def release(host: str) -> Path:
    """Return the folder of the unpacked wheel of a host, which belongs on `PYTHONPATH`."""

    def unpack(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as wheels:
            _pip("download", "--no-deps", "--only-binary=:all:", "--dest", wheels, f"{host}=={version(host)}")
            (wheel,) = Path(wheels).iterdir()
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)

    return _made(f"{host}-{version(host)}", unpack)


@cache
def python(host: str) -> Path:
    """Return the interpreter of an environment with PyTorch, and with what a host and memtopo require."""
    requirements = [TORCH, *_ours(), *_required(host)]
    digest = sha256("\n".join(requirements).encode()).hexdigest()[:8]

    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        _pip("--python", folder / "bin" / "python", "install", "--no-compile", *requirements)

    return _made(f"{host}-{version(host)}-environment-{digest}", install) / "bin" / "python"


@cache
def memtopo() -> Path:
    """Return the folder of memtopo's own unpacked wheel, with its entry points, built from the checkout."""
    folder = Path(tempfile.mkdtemp(prefix="memtopo-wheel-"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def run(host: str, program: Path, *arguments: str, **variables: str) -> str:
    """Run a program with a host and memtopo; return what it has printed. Its failure is one of the test."""
    modules = os.pathsep.join(map(str, (memtopo(), release(host), ROOT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MEMTOPO_", "VLLM_", "PYTORCH_"))}
    done = subprocess.run(
        [python(host), program, *arguments],
        env=kept | {"PYTHONPATH": modules} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _required(host: str) -> list[str]:
    """Requirements of the wheel of a host that are needed."""
    (metadata,) = release(host).glob("*.dist-info/METADATA")
    found = Parser().parsestr(metadata.read_text()).get_all("Requires-Dist", [])
    names = (re.split(r"[^\w-]", each, maxsplit=1)[0].lower().replace("_", "-") for each in found)
    return [
        each for name, each in zip(names, found, strict=True) if name in NEEDED[host].split() and "extra" not in each
    ]


def _ours() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], "numpy>=2"]


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, which is made as a whole."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("MEMTOPO_HOST_CACHE") or Path(caches, "memtopo", "hosts"))
    folder, complete = cache / name, cache / f"{name}.complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        complete.touch()
    return folder


def _pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)
