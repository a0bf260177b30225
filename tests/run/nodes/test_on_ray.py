"""Layouts of three nodes on a real Ray cluster of this host: applied, held, and taken down whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.decoding import decode
from memtopo.machine import dump
from memtopo.plans.report import Report
from memtopo.run.nodes.agent import RUN_VARIABLE
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.machines import with_fabric

pytestmark = [pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"), pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
THREE = (HERE / "two_nodes.yaml").read_text().replace("count: 4", "count: 3").replace("[a, b]", "[a, b, c]")
LABELS = {"a": "rank.0", "b": "rank.1", "c": "rank.2"}
CLUSTER = "MEMTOPO_TEST_CLUSTER"
"""Environment variable of all processes of the cluster of these tests."""
TIMEOUT = 20.0
"""Seconds without a sign of life after which an agent is lost; deaths are found at once."""
GRACE = 30.0
"""Seconds after the end of a driver within which no process of a run is left."""

PHASES = {
    "open": "device_primary_ctx_retain#1",
    "reserve": "mem_address_reserve#1",
    "create": "mem_create#1",
    "export": "mem_export_to_shareable_handle#1",
    "import": "mem_import_from_shareable_handle#2",
    "map": "mem_map#2",
    "grant": "mem_set_access#1",
    "check": "mem_get_access#1",
    "verify": "memcpy_dtoh#1",
    "take down": "mem_unmap#1",
    "release": "mem_release#1",
}
"""A driver call of each phase."""

VICTIMS = ("worker", "agent", "raylet", "hub", "driver")
EVERY = [*product(VICTIMS, PHASES)]
SAMPLE = "agent", "map"


@dataclass
class RayCluster:
    """A cluster: its process, its address, and the environment of commands that use it."""

    process: subprocess.Popen[str]
    environment: dict[str, str]

    def add_node(self) -> None:
        """Add a node in place of a dead one."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("add\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "added\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", CLUSTER: str(os.getpid())}
    environment["RAY_enable_worker_prestart"] = "0"  # each would import Ray before there is a layout
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "helpers" / "ray_cluster.py"), "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield RayCluster(process, {**environment, "RAY_ADDRESS": address})
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "three.yaml"
    file.write_text(THREE)
    return file


def left() -> list[int]:
    """Workers of runs on the cluster that have not ended."""
    marks = [f"\0{RUN_VARIABLE}=".encode(), f"\0{CLUSTER}={os.getpid()}\0".encode()]
    found = []
    for entry in os.listdir("/proc"):
        try:
            environment = b"\0" + Path("/proc", entry, "environ").read_bytes()
            if all(mark in environment for mark in marks):
                found.append(int(entry))
        except (OSError, ValueError):
            continue
    return found


def none_left() -> bool:
    """Wait until no worker is left."""
    deadline = time.monotonic() + GRACE
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left()


def drive(cluster: RayCluster, spec: Path, **options: Any) -> tuple[Report | None, int, str]:
    """Report of a driver, unless it died, its exit status, and its standard error."""
    program = [sys.executable, str(HERE / "driver_program.py"), str(spec), cluster.environment["RAY_ADDRESS"]]
    done = subprocess.run(
        [*program, json.dumps(options)], capture_output=True, text=True, env=cluster.environment, check=False
    )
    report = decode(done.stdout, Report) if done.stdout else None
    return report, done.returncode, done.stderr


@pytest.mark.exhaustive(seconds=30)
def test_the_command_applies_a_spec_on_the_nodes_of_a_cluster(cluster: RayCluster, spec: Path) -> None:
    machine = spec.with_name("fabric.json")
    machine.write_text(dump(with_fabric(2)))
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--on", "ray", "--machine", str(machine), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=cluster.environment, check=False)
    assert done.returncode == 0, done.stderr
    assert_ok(json.loads(done.stdout))
    assert none_left()


def assert_ok(report: Any) -> None:
    """Assert that a layout was as declared on all nodes, and that nothing of it is left."""
    assert report["outcome"] == "ok"
    assert [(node["name"], node["outcome"], node["processes"]) for node in report["nodes"]] == [
        (node, "ok", [label]) for node, label in LABELS.items()
    ]
    assert all(not any(node["left"]["ledger_after"].values()) for node in report["nodes"])
    tallies = {each["aspect"]: each for each in report["checks"]["tallies"]}
    assert tallies["imported"]["as_declared"] == 9


def memtopo(*arguments: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "memtopo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def test_a_held_layout_is_listed_shown_and_released_with_all_its_nodes(cluster: RayCluster, spec: Path) -> None:
    """On the host of the driver, which serves the layout's name. The report is that of all nodes."""
    here = cluster.environment | {"XDG_RUNTIME_DIR": str(spec.parent)}
    machine = spec.with_name("fabric.json")
    machine.write_text(dump(with_fabric(2)))
    sockets = {node: spec.with_name(f"{node}.sock") for node in LABELS}
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--on", "ray", "--machine", str(machine), "--hold"]
    with (
        subprocess.Popen(
            [*command, "--json", "--socket", str(spec.with_name("{node}.sock"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=here,
            text=True,
        ) as driver,
        ExitStack() as stack,
    ):
        stack.callback(driver.terminate)
        assert driver.stderr
        serving = list(islice((line for line in driver.stderr if line.startswith("holding ")), len(LABELS) + 1))
        assert {line.split()[4].strip(",") for line in serving[:-1]} == set(LABELS)
        assert serving[-1].endswith("release it on all nodes with 'memtopo release two-nodes'\n")
        for node, label in LABELS.items():
            with connect(endpoint(socket=str(sockets[node]))) as client:
                assert set(client.offers()) == {f"{label}.own"}
                assert client.check().different == 0
        listed = json.loads(memtopo("ls", "--json", environment=here))["layouts"]
        assert [(each["name"], each["nodes"], each["exports"]) for each in listed] == [("two-nodes", [*LABELS], 3)]
        shown = json.loads(memtopo("show", "two-nodes", "--json", environment=here))
        assert [each["offers"][0]["name"] for each in shown["nodes"]] == [f"{label}.own" for label in LABELS.values()]
        assert memtopo("show", "two-nodes", environment=here).count("\nnode ") == len(LABELS)
        assert "released: taken down" in memtopo("release", "two-nodes", environment=here)
        out, errors = driver.communicate(timeout=60)
    assert driver.returncode == 0, errors
    report = json.loads(out)
    assert_ok(report)
    assert [note.count("until the end of another node") for note in report["notes"]] == [1] * len(LABELS)
    assert not any(path.exists() for path in sockets.values())
    assert none_left()


@pytest.mark.exhaustive(seconds=30)
def test_a_node_that_dies_while_held_is_lost_and_not_taken_down(cluster: RayCluster, spec: Path) -> None:
    socket = str(spec.with_name("{node}.sock"))
    program = [sys.executable, str(HERE / "driver_program.py"), str(spec), cluster.environment["RAY_ADDRESS"]]
    with subprocess.Popen(
        [*program, json.dumps({"socket": socket, "timeout": TIMEOUT})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environment,
        text=True,
    ) as driver:
        assert driver.stderr
        assert driver.stderr.readline().startswith("serving ")
        workers = {pid for pid in left() if environment_of(pid).get(RUN_VARIABLE, "").endswith("/b")}
        (agent,) = {parent(pid) for pid in workers} - workers  # a worker's parent is the server that has forked it
        os.kill(parent(agent), signal.SIGKILL)
        out, errors = driver.communicate(timeout=120)
    cluster.add_node()
    assert out, errors
    report = decode(out, Report)
    assert (report.outcome, report.exit_code) == ("leaked", 5), report
    assert [each.outcome for each in report.nodes] == ["taken down", "lost", "taken down"]
    assert [each.what for each in report.leaks] == ["node b: 2 MiB of gpu0 of rank.1"]
    assert none_left()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if entry)


@pytest.mark.exhaustive(seconds=30)
def test_a_signal_to_the_driver_takes_down_all_nodes(cluster: RayCluster, spec: Path) -> None:
    report, status, errors = drive(cluster, spec, crash=crash("driver", "map", "SIGINT"), timeout=TIMEOUT)
    assert report, errors
    assert (report.outcome, report.exit_code, status) == ("interrupted", 130, 0)
    assert {each.outcome for each in report.nodes} == {"taken down"}
    assert none_left()


def crash(victim: str, phase: str, number: str = "SIGKILL") -> dict[str, str]:
    return {"process": "rank.1", "call": PHASES[phase], "signal": number, "victim": victim}


@pytest.mark.parametrize(
    ("victim", "phase"),
    [SAMPLE, *(pytest.param(*each, marks=pytest.mark.exhaustive(seconds=30)) for each in EVERY if each != SAMPLE)],
)
def test_whoever_is_killed_the_others_take_down(cluster: RayCluster, spec: Path, victim: str, phase: str) -> None:
    """Kill a victim at a call of a phase: the others take down, and the report names it."""
    report, status, errors = drive(cluster, spec, crash=crash(victim, phase), timeout=TIMEOUT)
    if victim == "raylet":
        cluster.add_node()
    assert none_left()
    if victim == "driver":
        assert status == -signal.SIGKILL
        return
    assert report, errors
    nodes = {each.name: each for each in report.nodes}
    processes = {each.name: each for each in report.processes}
    if report.outcome == "ok":  # all had been done before it was noticed
        assert victim in {"raylet", "hub"}
    else:
        assert report.failure
        assert report.exit_code == (5 if nodes["b"].outcome == "lost" else 4)
        if victim == "raylet":
            assert nodes["b"].outcome in {"ended", "lost"}, report
            lost = [each.what for each in report.leaks if each.what.startswith("node b: ")]
            assert bool(lost) == (nodes["b"].outcome == "lost"), report
            assert "node b" in f"{report.failure.step} {report.failure.error}", report
        if victim == "hub":
            assert "hub" in f"{report.failure.step} {report.failure.error}", report
    if victim == "worker":
        assert processes["rank.1"].lost == "was killed by SIGKILL"
        assert report.failure
        assert "rank.1" in report.failure.error
    if victim == "agent":
        assert (nodes["b"].outcome, processes["rank.1"].outcome) == ("ended", "ended")
        assert report.failure
        assert report.failure.step == "node b"
    for node in ("a", "c"):
        if nodes[node].outcome == "ended":  # its agent was silent for the timeout: the machine is busy
            assert "no sign of life" in str(nodes[node].lost), report
        else:  # an import from a dead process may fail before its death is known
            imports_first = phase == "import" and victim in {"agent", "worker"}
            assert nodes[node].outcome in {"taken down", "ok", *["failed"] * imports_first}, report
        rest = nodes[node].left
        assert rest is None or not any(rest.ledger_after.values())
