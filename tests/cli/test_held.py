"""The commands that ask held layouts: ls, show, check and release."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.language import read_file
from memtopo.machine import load
from memtopo.plans.report import Checks, Failure, Leak, Report
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo, Supervision
from memtopo.sharing.wire import layout_source
from tests.cli.conftest import InlineRunner
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import ROOT
from tests.helpers.machines import invented
from tests.helpers.memfd_exports import MACHINE, Memfds
from tests.helpers.specs import plan_of

NOBODY = 65534


@pytest.fixture
def ask(run_inline: InlineRunner, runtime: Path) -> Callable[..., Any]:
    """Runs a command that looks into that directory."""
    return lambda *arguments, **variables: run_inline(*arguments, XDG_RUNTIME_DIR=str(runtime), **variables)


def test_ls_lists_held_layouts(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """No layout is no failure."""
    assert (ask("ls").out, ask("ls").err) == ("", "memtopo: no layout is held\n")
    assert ask("ls", "--json").document == {"memtopo_layouts": 1, "layouts": []}
    holder = start()
    result = ask("ls")
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[1].split()[:5] == ["kv", "serving", str(holder.pid), "9", "0"]
    (entry,) = ask("ls", "--json").document["layouts"]
    assert (entry["name"], entry["pid"], entry["exports"]) == ("kv", holder.pid, 9)
    holder.kill()
    assert not ask("ls").out


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["plan", "kv"], "'kv' is a held layout", "memtopo show kv"),
        (["apply", "kv", "-m", "h200x2"], "'kv' is a held layout", "memtopo show kv"),
        (["change", "plan.json", "kv"], "'kv' is a held layout", "memtopo show kv"),
        (["change", "kv", "plan.json", "--machine", "h200x2"], "no such option: --machine", "omit it"),
        (["switch", "asleep", "kv"], "'kv' is a held layout", "memtopo switch kv asleep"),
        (["load", "kv", "x"], "exports of chunks", "name one with --into: page, "),
        (["save", "saved", "kv"], "'kv' is a held layout", "memtopo save kv saved"),
        (["save", "kv", ""], "FOLDER is empty", "write a path"),
        (["apply", f"{ROOT}/specs/hold.yaml", "-m", "h200x2", "--from", ""], "--from is empty", "write a path"),
        (["release", "plan.json"], "'plan.json' is a file", "memtopo ls"),
    ],
)
def test_arguments_in_the_wrong_place_are_answered_with_the_right_one(
    ask: Callable[..., Any],
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    error: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text('{"memtopo_plan": 1}')
    start()
    result = ask(*words)
    assert result.status
    assert error in result.err
    assert hint in result.err


def test_a_missing_spec_is_one_whatever_the_runtime_folder(run_inline: InlineRunner, tmp_path: Path) -> None:
    (tmp_path / "memtopo").mkdir(mode=0o777)
    (tmp_path / "memtopo").chmod(0o777)
    result = run_inline("plan", "missing", "--machine", "h200x2", XDG_RUNTIME_DIR=str(tmp_path))
    assert result.err.startswith("missing: error[MT001]")


def test_show_reports_holder_exports_and_clients(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    holder, importer = start(), start("importer")
    importer.read_line()
    result = ask("show", "kv")
    assert (result.status, result.err) == (0, "")
    assert f"process {holder.pid}" in result.out
    assert str(importer.pid) in result.out.splitlines()[-1]
    document = ask("show", "kv", "--json").document
    assert (document["memtopo_layout"], document["pid"], document["importers"][0]["pid"]) == (
        1,
        holder.pid,
        importer.pid,
    )
    assert document["offers"][0]["name"] == "page"


def test_show_draws_the_same_as_draw(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """The diagram is built from the spec and machine that the holder reports."""
    path = ROOT / "specs" / "paged-kv.yaml"
    start(source=layout_source(read_file(path), load("h200x4")))
    _, _, drawing = ask("draw", path, "-mh200x4").out.partition("\n\n")
    assert drawing in ask("show", "kv").out
    picture = ask("show", "kv", "--json").document["picture"]
    assert picture == ask("draw", path, "-mh200x4", "--json").document["picture"]
    start(name="alike", source=layout_source(read_file(ROOT / "specs" / "real" / "nvshmem.yaml"), load("h200x4")))
    assert ["── pe.3 ──" in ask("show", "alike", *more).out for more in ((), ("--all",))] == [False, True]


@pytest.mark.parametrize(
    "source", ["", "x", "[]", "{}", '{"spec": 1, "machine": 2}', '{"spec": "a: [", "machine": "{}"}', "[" * 100_000]
)
def test_show_without_a_valid_spec_or_machine_omits_the_drawing(
    ask: Callable[..., Any], start: Callable[..., Any], source: str
) -> None:
    start(source=source)
    assert ask("show", "kv").status == 0
    document = ask("show", "kv", "--json").document
    assert (document["picture"], document["offers"][0]["name"]) == (None, "page")


@pytest.mark.parametrize(("differences", "status"), [(0, 0), (3, 1)])
def test_check_exits_with_0_if_as_declared_and_else_with_1(
    ask: Callable[..., Any], start: Callable[..., Any], differences: int, status: int
) -> None:
    """It reports the number of checked items."""
    start(differences=differences)
    result = ask("check", "kv")
    assert (result.status, result.err) == (status, "")
    assert "1,000 of 1,000 as declared" in result.out
    assert ("different: 3 things" in result.out) == bool(status)
    document = ask("check", "kv", "--json").document
    assert (document["ok"], document["checks"]["different"]) == (not status, differences)


def test_release_exits_with_0_after_teardown(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Afterwards the layout has no holder."""
    holder = start()
    assert ask("release", "kv").out.splitlines()[-1] == "released: taken down"
    assert holder.end(None)["held"]["why"] == "release"
    assert ask("show", "kv").status == 3


OK = Report("kv", None, MACHINE, "ok", 0, plan_of("events: {e: {device: gpu0}}", invented(1)).summary())
LEAKED = replace(OK, outcome="leaked", exit_code=5, leaks=(Leak("chunk a.0", "refused"), Leak("range r", "refused")))
FAILED = replace(OK, outcome="failed", exit_code=4, failure=Failure("hold", "process a was killed by SIGKILL"))
DIFFERENT = replace(OK, outcome="different", exit_code=6, checks=Checks((), (), 2))


@pytest.mark.parametrize(
    ("end", "status", "verdict"),
    [
        (OK, 0, "released: taken down"),
        (LEAKED, 5, "released, leaked: left behind: chunk a.0, range r"),
        (FAILED, 4, "released, failed: process a was killed by SIGKILL"),
        (DIFFERENT, 6, "released, different: 2 not as declared"),
        (None, 4, "released, died: its holder ended without a report"),
    ],
)
def test_release_exits_as_its_holder(
    ask: Callable[..., Any], runtime: Path, end: Report | None, status: int, verdict: str
) -> None:
    socket, ready = str(runtime / "kv.sock"), Event()

    def held() -> None:
        about, reported = HolderInfo("kv", None, MACHINE), Supervision(reports_end=True)
        with claim(endpoint("kv", socket)) as claimed:
            hold(Memfds(), claimed, about, stop=lambda: 0, ready=ready.set, supervision=reported)
            if end:
                claimed.report_end(end)

    for as_json in (False, True):
        thread = Thread(target=held)
        thread.start()
        assert ready.wait(PATIENCE)
        result = ask("release", "--socket", socket, *["--json"] * as_json)
        thread.join(PATIENCE)
        ready.clear()
        assert result.status == status
        assert as_json or result.out.splitlines()[-1] == verdict
    assert (result.document["outcome"], result.document["exit_code"]) == (end.outcome if end else "died", status)
    assert verdict.endswith(result.document["reason"] or "taken down")


def test_a_release_that_has_not_finished_in_time_exits_with_4(ask: Callable[..., Any], runtime: Path) -> None:
    socket, ready, finish = str(runtime / "kv.sock"), Event(), Event()

    def held() -> None:
        with claim(endpoint("kv", socket)) as claimed:
            hold(Memfds(), claimed, HolderInfo("kv", None, MACHINE), stop=lambda: 0, ready=ready.set)
            assert finish.wait(PATIENCE)

    thread = Thread(target=held)
    thread.start()
    assert ready.wait(PATIENCE)
    result = ask("release", "--socket", socket, "--wait", "100ms", "--json")
    finish.set()
    thread.join(PATIENCE)
    assert (result.status, result.document["gone"]) == (4, False)


def test_release_of_memory_in_use_over_ipc_exits_with_4(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """The client is named; --force reports what was lost."""
    start()
    importer = start("importer", export="block", notices=1)
    importer.read_line()
    result = ask("release", "kv")
    assert (result.status, result.out) == (4, "")
    assert f"in use by process {importer.pid}" in result.err
    assert "--force" in result.err
    assert ask("release", "kv", "--json").document["error"]["exit_code"] == 4
    document = ask("release", "kv", MEMTOPO_FORCE="1", MEMTOPO_GRACE="200ms", MEMTOPO_JSON="1").document
    assert importer.read_line()["grace"] == 0.2
    assert (document["gone"], [each["pid"] for each in document["lost"]]) == (True, [importer.pid])


@pytest.mark.parametrize("command", ["show", "check", "release"])
def test_an_unheld_layout_exits_with_3_and_the_nearest_name(
    ask: Callable[..., Any], start: Callable[..., Any], command: str
) -> None:
    start(name="weights-server")
    result = ask(command, "weight-server")
    assert (result.status, result.out) == (3, "")
    assert "no layout 'weight-server' is held" in result.err
    assert "did you mean 'weights-server'?" in result.err
    assert ask(command, "weight-server", "--json").document["error"]["exit_code"] == 3


@pytest.mark.parametrize("command", ["show", "check", "release"])
def test_socket_flag_finds_a_layout_by_path(
    ask: Callable[..., Any], start: Callable[..., Any], tmp_path: Path, command: str
) -> None:
    """A name given as well has to match."""
    path = tmp_path / "else.sock"
    start(socket=str(path))
    result = ask(command, "kw", "--socket", path)
    assert result.status == 3
    assert "is 'kv', not 'kw'" in result.err
    assert ask(command, "kv", MEMTOPO_SOCKET=str(path)).status == 0
    if command != "release":
        assert ask(command, path).status == 0
        assert ask("ls", "--socket", path).out.splitlines()[1].split()[0] == "kv"
    assert ask(command, "--socket", tmp_path / "nobody.sock").status == 3


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["show"], "missing argument 'NAME'", "--socket PATH"),
        (["check", "k.v"], "'k.v' is not a layout's name", "--socket accepts a path"),
        (["release", "kv", "--grace", "10"], "'10' has no unit", "write 10s"),
        (["release", "kv", "--grace", "soon"], "'soon' is not a duration", "memtopo: error"),
        (["release", "kv", "--wait", "1 min"], "'1 min' is not a valid form of a duration", "write 1m"),
        (["show", "kv", "--allow-uid", "me"], "invalid value for '--allow-uid'", "see 'memtopo show --help'"),
        (["show", "kv", "--socket", ""], "'' is not a path for a socket", "write a path"),
    ],
)
def test_wrong_usage_of_held_layouts_exits_with_2_before_any_request(
    ask: Callable[..., Any], arguments: list[str], message: str, hint: str
) -> None:
    result = ask(*arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err.lower() or message in result.err
    assert hint in result.err


def test_a_runtime_directory_open_to_others_exits_with_4(ask: Callable[..., Any], runtime: Path) -> None:
    """The message contains the command that closes it."""
    (runtime / "memtopo").mkdir()
    (runtime / "memtopo").chmod(0o755)
    for command in (["ls"], ["show", "kv"]):
        result = ask(*command)
        assert (result.status, result.out) == (4, "")
        assert "chmod 700" in result.err


def test_a_stopped_holder_is_listed_with_the_reason(ask: Callable[..., Any], start: Callable[..., Any]) -> None:
    """Showing it exits with 4."""
    holder = start()
    holder.send(signal.SIGSTOP)
    remedy = f"the holder is stopped (state T); continue it with 'kill -CONT {holder.pid}'"
    (entry,) = json.loads(ask("ls", "--json").out)["layouts"]
    assert (entry["state"], entry["pid"], entry["hint"]) == ("unreachable", holder.pid, remedy)
    limited = ["release", "kv", "--wait", "100ms"]
    for command, request, seconds in (["show", "kv"], "status", 5), (limited, "release", 0.1):
        result = ask(*command)
        assert (result.status, result.out) == (4, "")
        assert f"no answer to '{request}' within {seconds} s" in result.err
        assert remedy in result.err
    holder.send(signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_layout_of_another_user_is_for_a_command_that_trusts_that_user(
    ask: Callable[..., Any], start: Callable[..., Any], shared: Path
) -> None:
    os.chown(shared, NOBODY, NOBODY)
    path = shared / "kv.sock"
    start(socket=str(path), uid=NOBODY, allow_uids=[0])
    trust = f"--allow-uid={NOBODY}"
    spec = ROOT / "specs/hold.yaml"
    for words, answer in (
        (["switch", path, "asleep"], "has no states"),
        (["plan", path, spec], "does not send its spec"),
        (["change", path, spec], "does not send its spec"),
        (["diff", "kv", spec, "--socket", path], "does not send its spec"),
        *((words, "") for words in (["show", path], ["check", path], ["metrics", "--socket", path])),
        (["release", "--socket", path], ""),
    ):
        refused, allowed = ask(*words), ask(*words, trust)
        assert (refused.status, f"{NOBODY}" in refused.err) == (4, True), refused
        assert (allowed.status, answer in allowed.err) == (4 if answer else 0, True), allowed
    start(socket=str(path), uid=NOBODY, allow_uids=[0])
    for name in ("ls", "metrics", "who"):
        words = [name, "--socket", f"{shared}/", *(["--json"] if name != "metrics" else [])]
        assert ask(*words).out != ask(*words, trust).out
