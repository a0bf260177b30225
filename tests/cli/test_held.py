"""The commands that ask held layouts: ls, show, check and release."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtopo.cli.held import layout_source
from memtopo.language import read_file
from memtopo.machine import load
from tests.cli.conftest import Here
from tests.cli.running import ROOT


@pytest.fixture
def ask(here: Here, runtime: Path) -> Callable[..., Any]:
    """Runs a command that looks into that directory."""
    return lambda *arguments, **variables: here(*arguments, XDG_RUNTIME_DIR=str(runtime), **variables)


def test_ls(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Ls lists what is held, and nothing is no failure"""
    assert ask("ls").out == "no layout is held\n"
    assert ask("ls", "--json").document == {"memtopo_layouts": 1, "layouts": []}
    holder = start()
    said = ask("ls")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[1].split()[:5] == ["kv", "serving", str(holder.pid), "9", "0"]
    (entry,) = ask("ls", "--json").document["layouts"]
    assert (entry["name"], entry["pid"], entry["exports"]) == ("kv", holder.pid, 9)
    holder.kill()
    assert ask("ls").out == "no layout is held\n"


def test_show(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Show tells who holds a layout, what is exported, and who is attached"""
    holder, importer = start(), start("importer")
    importer.said()
    said = ask("show", "kv")
    assert (said.status, said.err) == (0, "")
    assert f"process {holder.pid}" in said.out
    assert str(importer.pid) in said.out.splitlines()[-1]
    document = ask("show", "kv", "--json").document
    assert (document["memtopo_layout"], document["pid"], document["importers"][0]["pid"]) == (
        1,
        holder.pid,
        importer.pid,
    )
    assert document["offers"][0]["name"] == "page"


def test_show_draws_it(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Show draws a layout from what its holder was told of it, as `draw` draws the spec on that machine"""
    path = ROOT / "specs" / "paged-kv.yaml"
    start(source=layout_source(read_file(path), load("h200x4")))
    _, _, drawing = ask("draw", path, "-mh200x4").out.partition("\n\n")
    assert drawing in ask("show", "kv").out
    picture = ask("show", "kv", "--json").document["picture"]
    assert picture == ask("draw", path, "-mh200x4", "--json").document["picture"]


@pytest.mark.parametrize(
    "source", ["", "x", "[]", "{}", '{"spec": 1, "machine": 2}', '{"spec": "a: [", "machine": "{}"}', "[" * 100_000]
)
def test_show_of_what_cannot_be_drawn(ask: Callable[..., Any], start: Callable[..., Any], source: str) -> None:
    """What is no spec and machine is not drawn, and all else is shown"""
    start(source=source)
    assert ask("show", "kv").status == 0
    document = ask("show", "kv", "--json").document
    assert (document["picture"], document["offers"][0]["name"]) == (None, "page")


@pytest.mark.parametrize(("differences", "status"), [(0, 0), (3, 1)])
def test_check(ask: Callable[..., Any], start: Callable[..., Any], differences: int, status: int) -> None:
    """Check is 0 where everything is as declared and 1 where not, and says how much it looked at"""
    start(differences=differences)
    said = ask("check", "kv")
    assert (said.status, said.err) == (status, "")
    assert "1,000 of 1,000 as declared" in said.out
    assert ("different: 3 things" in said.out) == bool(status)
    document = ask("check", "kv", "--json").document
    assert (document["ok"], document["checks"]["different"]) == (not status, differences)


def test_release(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Release is 0 once everything is taken down, and then nobody holds the layout"""
    holder = start()
    assert ask("release", "kv").out.splitlines()[-1] == "released: taken down"
    assert holder.end(None)["held"]["why"] == "release"
    assert ask("show", "kv").status == 3


def test_release_of_what_is_in_use(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Release is refused with 4 while somebody uses it over ipc, who is named; --force says what was lost"""
    start()
    importer = start("importer", export="block", notices=1)
    importer.said()
    said = ask("release", "kv")
    assert (said.status, said.out) == (4, "")
    assert f"in use by process {importer.pid}" in said.err
    assert "--force" in said.err
    assert ask("release", "kv", "--json").document["error"]["exit_code"] == 4
    document = ask("release", "kv", MEMTOPO_FORCE="1", MEMTOPO_GRACE="200ms", MEMTOPO_JSON="1").document
    assert importer.said()["grace"] == 0.2
    assert (document["gone"], [each["pid"] for each in document["lost"]]) == (True, [importer.pid])


@pytest.mark.parametrize("command", ["show", "check", "release"])
def test_no_such_layout(ask: Callable[..., Any], start: Callable[..., Any], command: str) -> None:
    """A layout that nobody holds is 3, with the one that was probably meant"""
    start(name="weights-server")
    said = ask(command, "weight-server")
    assert (said.status, said.out) == (3, "")
    assert "no layout 'weight-server' is held" in said.err
    assert "did you mean 'weights-server'?" in said.err
    assert ask(command, "weight-server", "--json").document["error"]["exit_code"] == 3


@pytest.mark.parametrize("command", ["show", "check", "release"])
def test_a_socket(ask: Callable[..., Any], start: Callable[..., Any], tmp_path: Path, command: str) -> None:
    """--socket leads to a layout elsewhere; together with a name, it has to be that one"""
    path = tmp_path / "else.sock"
    start(socket=str(path))
    said = ask(command, "kw", "--socket", path)
    assert said.status == 3
    assert "is 'kv', not 'kw'" in said.err
    assert ask(command, "kv", MEMTOPO_SOCKET=str(path)).status == 0
    if command != "release":
        assert ask("ls", "--socket", path).out.splitlines()[1].split()[0] == "kv"
    assert ask(command, "--socket", tmp_path / "nobody.sock").status == 3


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["show"], "missing argument 'NAME'", "--socket PATH"),
        (["check", "../kv"], "'../kv' is not a layout's name", "--socket takes a path"),
        (["release", "kv", "--grace", "10"], "'10' has no unit", "write 10s"),
        (["release", "kv", "--grace", "soon"], "'soon' is not a duration", "memtopo: error"),
        (["release", "kv", "--wait", "1 min"], "'1 min' is not a valid form of a duration", "write 1m"),
        (["show", "kv", "--allow-uid", "me"], "invalid value for '--allow-uid'", "see 'memtopo show --help'"),
        (["show", "kv", "--socket", ""], "'' is no path for a socket", "write --socket"),
    ],
)
def test_wrong_usage(ask: Callable[..., Any], arguments: list[str], message: str, hint: str) -> None:
    """What cannot be meant is 2, before anybody is asked"""
    said = ask(*arguments)
    assert (said.status, said.out) == (2, "")
    assert message in said.err.lower() or message in said.err
    assert hint in said.err


def test_a_directory_that_is_not_ours(ask: Callable[..., Any], runtime: Path) -> None:
    """A runtime directory that others may enter is 4, and the message says what closes it"""
    (runtime / "memtopo").mkdir()
    (runtime / "memtopo").chmod(0o755)
    for command in (["ls"], ["show", "kv"]):
        said = ask(*command)
        assert (said.status, said.out) == (4, "")
        assert "chmod 700" in said.err


def test_a_holder_that_does_not_answer(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """A stopped holder is listed with the reason; to show it is 4"""
    holder = start()
    holder.send(signal.SIGSTOP)
    assert "unreachable" in ask("ls").out
    said = ask("show", "kv")
    assert (said.status, said.out) == (4, "")
    assert "no answer to 'status' within 5 s" in said.err
    assert f"process {holder.pid}" in said.err
    holder.send(signal.SIGCONT)
