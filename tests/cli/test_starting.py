"""Imports of a cold start: the list of modules that are imported late, and what needs them."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys

import pytest

from memtopo.cli.app import COMMANDS, program
from memtopo.cli.process import applies_here, option_values
from memtopo.spec import SECTIONS
from tests.helpers.command_line import QUICKSTART, ROOT, environment

# Modules that the validation of a correct spec does not import, and what imports them.
LATE = {
    "rich": "tables and drawings of plan, apply and probe; 60 ms",
    "cuda": "--machine local",
    "memtopo.drivers.cuda": "--machine local",
    "memtopo.drivers.sim": "apply on a recorded machine",
    "memtopo.machine.queries": "--machine local and probe",
    "memtopo.planner": "plan and apply, and validate of a saved plan",
    "memtopo.kinds.step": "the planner, as all steps of kinds",
    "memtopo.kinds.chunks.steps": "the planner",
    "memtopo.kinds.layout": "the executor",
    "memtopo.session.saved": "plan and apply, and validate of a saved plan",
    "memtopo.plans.report": "plan and apply",
    "memtopo.output.schemas": "memtopo schema; pydantic's generator of schemas is slow to import",
    "memtopo.diagnostics.explanations": "memtopo explain",
    "memtopo.output.diagnostics": "a spec with errors",
    "memtopo.output.json": "--json",
    "memtopo.cli.apply": "another command",
}

# Modules that an apply of chunks and ranges does not import, and what imports them.
LATE_IN_APPLY = {
    "memtopo.output.json": "--json",
    "memtopo.output.diagnostics": "a spec with errors or warnings",
    "memtopo.sharing.claims": "--hold",
    "memtopo.sharing.client": "--hold, and imports from held layouts",
    "memtopo.sharing.messages": "--hold, and imports from held layouts",
    "memtopo.sharing.status": "--hold, and imports from held layouts",
    "logging": "transfers between files and memory, by way of concurrent.futures",
    "memtopo.driver.trace": "--trace",
    "memtopo.language.parameters": "parameters",
    "memtopo.run.verification.external": "imports from producers, and grants to the host",
    "memtopo.run.verification.full": "--check full",
    "memtopo.run.verification.replicas": "--check full",
    "memtopo.kinds.external.steps": "external memory and semaphores",
    "memtopo.kinds.ipc.steps": "buffers and events",
    "memtopo.kinds.managed.steps": "managed memory",
    "memtopo.kinds.multicast.steps": "multicast objects",
    "memtopo.kinds.pinned.steps": "page-locked memory",
    "memtopo.kinds.pools.steps": "pools and allocations",
    "memtopo.kinds.ranges.elastic_steps": "elastic ranges",
    "memtopo.kinds.states.steps": "states",
}
MOST_MODELS = 39
"""Models of pydantic: entries of the sections, and recorded machines."""

# Modules that the plan of a spec does not import, and what imports them.
LATE_IN_PLAN = {
    "memtopo.records": "replay, diff and draw of records",
    "memtopo.sharing.client": "plan of a change",
    "memtopo.sharing.messages": "plan of a change",
    "memtopo.cli.held": "plan of a change",
}
SCRIPT = """
import sys
from memtopo.cli import main
try:
    main()
except SystemExit as stopped:
    print(stopped.code or 0, *sys.modules)
"""


def status_and_imports(*arguments: str) -> list[str]:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def imports_of(command: str) -> set[str]:
    status, *imported = status_and_imports(command, QUICKSTART, "--machine", "h200x2")
    assert status == "0"
    return set(imported)


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return imports_of("validate")


@pytest.mark.parametrize(
    "line", ["--version", "--help", "-h", "pln", "--no-such", "completion bash --line 'memtopo pl'"]
)
def test_help_completion_and_errors_of_usage_import_no_other_command(line: str) -> None:
    words = shlex.split(line)
    _, *imported = status_and_imports(*words)
    own = {f"memtopo.cli.{COMMANDS[words[0]][0]}"} if words[0] in COMMANDS else set()
    commands = {f"memtopo.cli.{module}" for module, _ in COMMANDS.values()}
    assert not (commands - own) & set(imported)
    assert not {"pydantic", "yaml", "rich"} & set(imported)


def test_the_version_is_printed_without_an_import() -> None:
    _, *imported = status_and_imports("--version")
    assert {name for name in imported if name.startswith("memtopo")} == {
        "memtopo", "memtopo.cli", "memtopo.common"
    }  # fmt: skip
    assert not {"typing", "enum", "re"} & set(imported)


def test_the_help_of_all_commands_has_the_first_line_of_each() -> None:
    group = program()
    for name, (_, summary) in COMMANDS.items():
        assert group.commands[name].get_short_help_str(80) == summary


@pytest.mark.parametrize("name", LATE)
def test_validation_imports_only_what_it_uses(imported: set[str], name: str) -> None:
    """One valid spec on a recorded machine."""
    assert "memtopo.rules" in imported
    assert name not in imported


def test_apply_imports_only_what_its_entries_and_options_need() -> None:
    imported = imports_of("apply")
    assert "memtopo.kinds.chunks.steps" in imported
    assert not imported & LATE_IN_APPLY.keys()


def test_plan_imports_nothing_of_held_layouts_and_records() -> None:
    imported = imports_of("plan")
    assert "memtopo.planner" in imported
    assert not imported & LATE_IN_PLAN.keys()


CLASSES = """
import sys
from dataclasses import is_dataclass
from memtopo.cli import main
try:
    main()
except SystemExit:
    from pydantic import BaseModel
own = [module for name, module in [*sys.modules.items()] if name.startswith("memtopo.")]
found = {each for module in own for each in vars(module).values() if isinstance(each, type)}
own = [each for each in found if each.__module__.startswith("memtopo.")]
models = [each for each in own if issubclass(each, BaseModel)]
print(sum(map(is_dataclass, own)), len(models), *sorted({each.__module__.split(".")[1] for each in models}))
"""


@pytest.mark.parametrize("command", ["validate", "plan", "apply"])
def test_no_record_is_a_dataclass_and_only_entries_and_machines_are_models(command: str) -> None:
    """A class that the library of dataclasses makes takes a millisecond, one of pydantic three."""
    line = [sys.executable, "-c", CLASSES, command, QUICKSTART, "--machine", "h200x2"]
    done = subprocess.run(line, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    dataclasses, models, *rooms = done.stdout.splitlines()[-1].split()
    assert dataclasses == "0"
    assert int(models) <= MOST_MODELS
    assert rooms == ["kinds", "language", "machine", "spec"]


def test_cuda_is_initialised_before_the_imports_of_an_apply_to_this_machine() -> None:
    local = status_and_imports("apply", QUICKSTART, "-mlocal")
    assert local.index("cuda.bindings.driver") < local.index("typer")
    assert "cuda" not in imports_of("apply")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["apply", "x", "--machine", "local"], ["local"]),
        (["-m", "a", "--machine=b", "-mc", "-m=d"], ["a", "b", "c", "d"]),
        (["--machines", "x", "-", "--", ""], []),
        (["--machine"], [""]),
    ],
)
def test_values_of_an_option_are_found_without_the_parser(words: list[str], values: list[str]) -> None:
    assert option_values(words, "--machine", "-m") == values


@pytest.mark.parametrize(
    ("line", "variable", "here"),
    [
        ("apply s", "", True), ("apply s -m h200x2 -m local", "", True), ("apply s --machine local", "h200x2", True),
        ("apply s", "h200x2", False), ("apply s -m local -mh200x2", "", False), ("plan s", "", False),
        ("apply s --help", "", False), ("apply -h", "", False),
    ],
)  # fmt: skip
def test_the_last_machine_of_an_apply_is_this_one(
    line: str, variable: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMTOPO_MACHINE", variable)
    assert applies_here(line.split()) == here


@pytest.mark.parametrize("name", LATE | LATE_IN_APPLY | LATE_IN_PLAN)
def test_every_late_module_exists(name: str) -> None:
    assert importlib.util.find_spec(name) or name == "cuda"


def test_no_validator_is_built_for_an_absent_or_empty_section() -> None:
    script = """
from memtopo import spec
spec.read({"memtopo": "1", "name": "x", "devices": {"a": "0"}, "ranges": "", "chunks": {}})
print(spec._adapter.cache_info().currsize)
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert len(SECTIONS) > 1


def test_garbage_is_seldom_collected_and_not_at_the_end() -> None:
    script = """
import gc, sys
from memtopo.cli import app, main
sys.argv = ["memtopo"]
app.run = lambda arguments: print(gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count() > 0)
try:
    main()
except SystemExit:
    print(gc.get_freeze_count() > 10_000)
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "True 200000 False\nTrue\n"
