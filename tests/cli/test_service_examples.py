"""The examples of services: their command lines are valid, and they agree with docs/service.md."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memtopo import machine
from memtopo.cli.app import program
from memtopo.rules import validate
from tests.helpers.specs import ROOT, document

EXAMPLES = ROOT / "examples"
DOCUMENTS = [*yaml.safe_load_all((EXAMPLES / "kubernetes" / "sidecar.yaml").read_text())]


def parsed(command: list[str]) -> dict[str, Any]:
    """Parameters of a command line of memtopo."""
    group: Any = program()
    context = group.commands[command[1]].make_context(command[1], command[2:])
    return dict(context.params)


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string((EXAMPLES / "systemd" / name).read_text())
    return found


def test_the_unit_holds_a_layout_at_the_socket_of_its_socket_unit() -> None:
    service, sockets = unit("memtopo@.service")["Service"], unit("memtopo@.socket")["Socket"]
    command = parsed(shlex.split(service["ExecStart"]))
    assert (command["hold"], command["spec"]) == (True, "/etc/memtopo/%i.yaml")
    assert command["socket"] == sockets["ListenSequentialPacket"]
    assert service["Type"] == "notify"
    assert service["User"] == sockets["SocketUser"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="without systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """A key or a value that systemd ignores is a line of its output. The path of memtopo need not exist."""
    for name in ("memtopo@.service", "memtopo@.socket"):
        text = (EXAMPLES / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/local/bin/memtopo", sys.executable))
    units = [tmp_path / f"memtopo@kv.{kind}" for kind in ("service", "socket")]
    command = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    own = [line for line in done.stderr.splitlines() if "memtopo@" in line]
    assert (done.returncode, own) == (0, [])


def test_the_unit_restarts_after_the_exit_statuses_of_the_docs() -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| ") and "status" not in line]
    restarted = {int(each): how.strip() for statuses, _, how in rows for each in statuses.split(",")}
    service = unit("memtopo@.service")["Service"]
    never = {*map(int, service["RestartPreventExitStatus"].split())}
    success = {0, *map(int, service["SuccessExitStatus"].split())}
    assert {status for status, how in restarted.items() if how.startswith("no")} == never | success


@pytest.mark.parametrize("name", ["memory", "probes"])
def test_the_sidecar_holds_a_valid_spec_in_the_folder_of_the_engine(name: str) -> None:
    config, pod = DOCUMENTS
    (spec,) = config["data"].values()
    assert not validate(document(spec), machine.load("h100x1")).diagnostics
    folder, memory = pod["spec"]["initContainers"]
    (variable,) = pod["spec"]["containers"][0]["env"]
    own = f"{folder['command'][-1]}/"
    if name == "memory":
        command = parsed(memory["command"])
        assert (command["hold"], command["socket"], command["spec"]) == (True, own, "/specs/kv-store.yaml")
        assert Path(command["spec"]).name in config["data"]
        assert (variable["name"], variable["value"]) == ("MEMTOPO_SOCKET", own)
    else:
        for probe in ("startupProbe", "livenessProbe"):
            command = parsed(memory[probe]["exec"]["command"])
            assert (command["name"], command["socket"]) == ("kv-store", own)
