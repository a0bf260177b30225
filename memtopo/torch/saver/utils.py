"""Utilities of torch_memory_saver that programs import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import torch


def get_binary_path_from_package(stem: str) -> Path:
    """Return the path of a library of torch_memory_saver's own package, for `LD_PRELOAD`; memtopo has none.

    Raises `RuntimeError` if that package is not installed, or has no such library for PyTorch's version of CUDA.
    """
    pattern = f"{stem}_cu{(torch.version.cuda or '').split('.')[0]}.*.so"
    try:
        files = metadata.files("torch_memory_saver") or []
    except metadata.PackageNotFoundError:
        files = []
    for each in files:
        if each.match(pattern):
            return Path(str(each.locate()))
    message = f"memtopo has no library {stem!r}, and the package torch_memory_saver, which has, is not installed"
    raise RuntimeError(f"{message} with {pattern}: 'pip install torch_memory_saver' for what has to be preloaded")


def is_xpu() -> bool:
    """Return false: heaps are memory of CUDA devices."""
    return False


@contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """Set an environment variable for the duration of a `with`."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before
