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

# A room is a whole package or a module at the top. Its modules import from it and from rooms on lower floors, late
# imports included.
FLOORS: list[set[str]] = [
    {"common", "vulkan"},
    {"diagnostics", "driver", "storage"},
    {"language", "machine"},
    {"drivers", "geometry", "native"},
    {"kinds", "testing"},
    {"plans", "spec"},
    {"planner", "rules"},
    {"executor", "sharing"},
    {"probe", "usage"},
    {"session"},
    {"run"},
    {"records"},
    {"output"},
    {"api"},
    {"cli"},
    {"", "__main__", "allocators", "pytest_plugin", "torch"},
]

_WITHOUT_RECORDS = {"", "__main__", "allocators", "pytest_plugin", "torch", "vulkan"}

# Packages, and the rooms or modules that may import each. Pydantic validates what people write; what opens no driver
# cannot reach one, so that a dry run stays dry.
IMPORTERS: dict[str, set[str]] = {
    "cuda": {"allocators", "drivers.cuda"},
    "cupy": {"allocators"},
    "numba": {"allocators"},
    "rmm": {"allocators"},
    "memtopo.drivers.cuda": {"cli", "drivers.cuda", "drivers.target", "probe"},
    "memtopo.drivers.sim": {"api", "drivers.sim", "drivers.target", "sharing", "testing"},
    "memtopo.drivers.target": {"api", "cli", "output", "probe", "records", "run", "session", "sharing"},
    "vulkan": {"vulkan"},
    "yaml": {"language"},
    "msgspec": {room for floor in FLOORS for room in floor} - _WITHOUT_RECORDS,
    "pydantic": {"diagnostics", "kinds", "language", "machine", "output", "spec"},
    "pytest": {"pytest_plugin"},
    "ray": {"run.nodes"},
    "torch": {"torch"},
    "vllm": {"torch.vllm", "torch.vllm_plugin"},
    "pydantic_core": {"language", "session"},
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
    room = module.partition(".")[0]
    return room if room in FLOOR else None


def inside(name: str, package: str) -> bool:
    """Return true for a package and for what is in it."""
    return f"{name}.".startswith(f"{package}.")


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
    below = name.partition(".")[2]
    while below not in MODULES:
        below = below.rpartition(".")[0]
    return below


def violations(module: str, text: str, package: tuple[str, ...] = ("memtopo",)) -> list[str]:
    """The imports of a module that the tables do not allow."""
    room = room_of(module)
    if room is None:
        return [f"{module} has no floor"]
    names = set(imported(text, package))
    rooms = {room_of(resolved(name)) for name in names if inside(name, "memtopo")} - {room}
    upward = {other for other in rooms if other is None or FLOOR[other] >= FLOOR[room]}
    foreign = {name.partition(".")[0] for name in names} - {"memtopo", *sys.stdlib_module_names, *IMPORTERS}
    known = {each for each in IMPORTERS if any(inside(name, each) for name in names)}
    strangers = foreign | {each for each in known if not any(inside(module, one) for one in IMPORTERS[each])}
    return [f"{module} imports {name}" for name in sorted(map(str, upward or strangers))]


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


def test_every_allowance_of_a_package_is_used() -> None:
    uses = {module: imported(file.read_text(), package_of(file)) for module, file in MODULES.items()}
    used = {
        package: {
            room
            for room in rooms
            if any(inside(name, package) for module in uses if inside(module, room) for name in uses[module])
        }
        for package, rooms in IMPORTERS.items()
    }
    assert used == IMPORTERS


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [
        ("common.units", "import memtopo.cli", ("memtopo", "common")),
        ("language.reader", "from memtopo import planner", ("memtopo", "language")),
        ("language.reader", "from memtopo import applied", ("memtopo", "language")),
        ("language.reader", "def late():\n    from memtopo.spec import Spec", ("memtopo", "language")),
        ("language.reader", "if TYPE_CHECKING:\n    import memtopo.spec", ("memtopo", "language")),
        ("drivers.sim.files", "from memtopo.drivers.cuda import calls", ("memtopo", "drivers", "sim")),
        ("drivers.sim.files", "from ..cuda import calls", ("memtopo", "drivers", "sim")),
        ("driver.ledger", "from memtopo.drivers import sim", ("memtopo", "driver")),
        ("geometry.groups", "import cuda.bindings.driver", ("memtopo", "geometry")),
        ("planner", "import requests", ("memtopo",)),
        ("planner", "from memtopo.drivers import target", ("memtopo",)),
        ("rules.paths", "def late():\n    from memtopo.drivers.sim import SimDriver", ("memtopo", "rules")),
        ("attic", "", ("memtopo",)),
    ],
)
def test_an_import_that_is_not_allowed_is_found(module: str, text: str, package: tuple[str, ...]) -> None:
    assert len(violations(module, text, package)) == 1


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [
        ("diagnostics.model", "from memtopo.diagnostics import CODES", ("memtopo", "diagnostics")),
        (
            "drivers.sim.files",
            "from memtopo.driver.types import gpu\nfrom .arena import x",
            ("memtopo", "drivers", "sim"),
        ),
        ("drivers.cuda.calls", "import cuda.bindings.driver\nimport os", ("memtopo", "drivers", "cuda")),
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
