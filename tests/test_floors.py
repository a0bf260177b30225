"""The floor plan: the rooms that a room may import from, and the rooms that may import a third-party package."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

# A module imports from its own room and from rooms on lower floors. Its room is the longest name of the table that is a
# prefix of its own: `driver` is the boundary, `driver.sim` and `driver.cuda` are rooms of their own.
FLOORS: list[set[str]] = [
    {"common", "vulkan"},
    {"diagnostics", "driver"},
    {"language", "machine", "output.diagram.model"},
    {"driver.cuda", "driver.sim", "geometry", "machine.queries", "plans.progress", "plans.report"},
    {"kinds", "machine.target"},
    {"geometry.build", "output.diagram", "plans", "sharing", "spec"},
    {"machine.probe", "planner", "rules", "sharing.holder", "usage"},
    {"executor", "plans.saved", "plans.trace", "sharing.external"},
    {"output", "run", "sharing.programs", "sharing.simulated_producer"},
    {"run.processes", "sharing.producers"},
    {"run.nodes"},
    {"api", "cli"},
    {"", "__main__"},
]

# Third-party packages, and the rooms that may import each; pydantic validates what is read from a file.
IMPORTERS: dict[str, set[str]] = {
    "cuda": {"driver.cuda"},
    "vulkan": {"vulkan"},
    "yaml": {"language"},
    "pydantic": {
        "diagnostics", "kinds", "language", "machine", "output", "plans.saved", "plans.trace", "run.nodes",
        "sharing", "spec",
    },
    "ray": {"run.nodes"},
    "pydantic_core": {"language"},
    "rich": {"output"},
    "typer": {"cli"},
}  # fmt: skip

ROOT = Path(__file__).parent.parent / "memtopo"
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def module_name(file: Path) -> str:
    """The dotted name of a file below memtopo; empty for the package itself."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sorted(ROOT.rglob("*.py"))}


def room_of(module: str) -> str | None:
    """The room of the table that a module below memtopo belongs to."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in FLOOR), None)


@cache
def imported(text: str, package: tuple[str, ...]) -> tuple[str, ...]:
    """Every dotted name that a file imports, wherever in it; `package` is what relative imports start from."""
    return tuple(_imported(ast.parse(text), package))


def _imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *((node.module,) if node.module else ())))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def resolved(name: str) -> str:
    """The module below memtopo that an imported dotted name is, or is defined in."""
    inside = name.partition(".")[2]
    while inside not in MODULES:
        inside = inside.rpartition(".")[0]
    return inside


def violations(module: str, text: str, package: tuple[str, ...] = ("memtopo",)) -> list[str]:
    """The imports of a module that the tables do not allow."""
    room = room_of(module)
    if room is None:
        return [f"{module} has no floor"]
    names = set(imported(text, package))
    rooms = {room_of(resolved(name)) for name in names if name.split(".")[0] == "memtopo"} - {room}
    upward = {other for other in rooms if other is None or FLOOR[other] >= FLOOR[room]}
    foreign = {name.split(".")[0] for name in names} - {"memtopo"} - sys.stdlib_module_names
    strangers = {name for name in foreign if room not in IMPORTERS.get(name, ())}
    return [f"{module} imports {name}" for name in sorted(map(str, upward | strangers))]


def package_of(file: Path) -> tuple[str, ...]:
    return ("memtopo", *file.relative_to(ROOT).parent.parts)


def test_modules_import_only_from_their_room_and_from_lower_floors() -> None:
    assert len(MODULES) > len(FLOOR)
    found = [violations(module, file.read_text(), package_of(file)) for module, file in MODULES.items()]
    assert [each for of_module in found for each in of_module] == []


def test_modules_import_one_another_in_no_cycle() -> None:
    needs: Mapping[str, set[str]] = {
        module: {resolved(name) for name in imported(file.read_text(), package_of(file)) if name[:8] == "memtopo."}
        - {module}
        for module, file in MODULES.items()
    }
    tuple(TopologicalSorter(needs).static_order())


def test_a_room_has_one_floor_and_at_least_one_module() -> None:
    assert len(FLOOR) == sum(map(len, FLOORS))
    assert {room_of(module) for module in MODULES} == set(FLOOR)


def test_every_allowance_of_a_third_party_package_is_used() -> None:
    used: dict[str, set[str | None]] = {}
    for module, file in MODULES.items():
        for name in imported(file.read_text(), package_of(file)):
            used.setdefault(name.split(".")[0], set()).add(room_of(module))
    assert {package: used[package] for package in IMPORTERS} == IMPORTERS


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [
        ("common.units", "import memtopo.cli", ("memtopo", "common")),
        ("language.reader", "from memtopo import planner", ("memtopo", "language")),
        ("language.reader", "from memtopo import applied", ("memtopo", "language")),
        ("language.reader", "def late():\n    from memtopo.spec import Spec", ("memtopo", "language")),
        ("language.reader", "if TYPE_CHECKING:\n    import memtopo.spec", ("memtopo", "language")),
        ("driver.sim.files", "from memtopo.driver.cuda import calls", ("memtopo", "driver", "sim")),
        ("driver.sim.files", "from ..cuda import calls", ("memtopo", "driver", "sim")),
        ("driver.ledger", "from memtopo.driver import sim", ("memtopo", "driver")),
        ("geometry.build", "import cuda.bindings.driver", ("memtopo", "geometry")),
        ("planner", "import requests", ("memtopo",)),
        ("attic", "", ("memtopo",)),
    ],
)
def test_an_import_that_is_not_allowed_is_found(module: str, text: str, package: tuple[str, ...]) -> None:
    assert len(violations(module, text, package)) == 1


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [
        ("diagnostics.model", "from memtopo.diagnostics.codes import CODES", ("memtopo", "diagnostics")),
        (
            "driver.sim.files",
            "from memtopo.driver.types import gpu\nfrom .arena import x",
            ("memtopo", "driver", "sim"),
        ),
        ("driver.cuda.calls", "import cuda.bindings.driver\nimport os", ("memtopo", "driver", "cuda")),
        ("cli.app", "import memtopo.output.json", ("memtopo", "cli")),
    ],
)
def test_an_import_that_is_allowed_is_no_violation(module: str, text: str, package: tuple[str, ...]) -> None:
    assert violations(module, text, package) == []


def test_the_design_shows_the_same_floors() -> None:
    shown: dict[int, set[str]] = {}
    floor = -1
    for line in (ROOT.parent / "DESIGN.md").read_text().splitlines():
        found = re.match(r"    floor ([0-9]+) +(.*)", line)
        floor = int(found[1]) if found else floor if line.startswith(" " * 13) else -1
        if floor >= 0:
            words = re.sub(r"\([^)]*\)", "", found[2] if found else line)
            shown.setdefault(floor, set()).update(words.replace(",", " ").replace("memtopo", "").split())
    assert [shown.get(floor, set()) | (rooms & {""}) for floor, rooms in enumerate(FLOORS)] == FLOORS
