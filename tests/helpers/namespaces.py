"""Processes in other namespaces, as in containers that share a folder and nothing else."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest

CONTAINER = (
    *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--net", "--mount", "--ipc", "--uts", "--"),
)
"""Command in user, pid, network, mount, IPC and UTS namespaces of its own; it ends with this process."""


def require_namespaces() -> None:
    """Skip a test where the system allows no such namespaces."""
    if reason := _refusal():
        pytest.skip(f"the system allows no namespaces here: {reason}")


@cache
def _refusal() -> str:
    try:
        done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "util-linux has no unshare"
    return done.stderr.strip() or "unshare failed" if done.returncode else ""
