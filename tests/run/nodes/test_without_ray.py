"""Ray is optional: nothing imports it before it is asked for, and a machine without it says how to get it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.python_process import run_python

TWO = Path(__file__).with_name("two_nodes.yaml")
NO_RAY = "import sys; sys.modules['ray'] = None; from memtopo.cli import main; main()"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python([sys.executable, "-c", NO_RAY, *arguments], capture_output=True, text=True)


def run_alone(code: str) -> int:
    """Exit status of a program in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.parametrize("address", ["ray", "ray://head:10001"])
def test_without_ray_a_cluster_is_refused_with_the_way_to_get_it(address: str) -> None:
    done = command("apply", str(TWO), "--on", address, "--machine", "h200x2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("memtopo: error: --on ray needs the package ray\nmemtopo: hint: pip install 'ray>=2.55'\n")


def test_a_cluster_of_another_kind_is_refused() -> None:
    done = command("apply", str(TWO), "--on", "slurm", "--machine", "h200x2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("memtopo: error: --on 'slurm' is not a cluster\n")


def test_a_spec_with_nodes_is_not_applied_on_one_host() -> None:
    done = command("apply", str(TWO), "--machine", "h200x2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--on ray" in done.stderr


def test_ray_is_not_imported_before_a_cluster_is_asked_for() -> None:
    code = "import sys, memtopo.cli.apply, memtopo.run.nodes.driver; sys.exit('ray' in sys.modules)"
    assert run_alone(code) == 0
    code = "import sys, memtopo, memtopo.cli.apply; sys.exit(any('run.nodes' in name for name in sys.modules))"
    assert run_alone(code) == 0
