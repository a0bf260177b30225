"""Draws the line of the floor plan: who may import whom, and who may import which package."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

# A module imports only from rows below its own. A package counts as one module, but for what stands in driver/: the
# boundary, the simulator and the CUDA driver are three. Modules of the lowest row may import one another, in no circle.
FLOORS: list[tuple[str, set[str]]] = [
    ("0", {"units", "durations", "codes", "errors", "diagnostics", "pause", "text", "version"}),
    ("1", {"driver", "picture"}),
    ("1b", {"source", "machine", "report", "complaints", "explain"}),
    ("1c", {"fields"}),
    ("1d", {"entries"}),
    ("2", {"spec", "layout", "driver.sim", "driver.cuda", "vulkan", "wording", "facts"}),
    ("3", {"geometry", "steps", "target"}),
    ("4", {"rules", "remarks", "picturing", "exchange", "ignoring", "contents", "folding", "importing", "migrating"}),
    ("5", {"planner", "validation", "shelf", "attaching"}),
    ("6", {"executor", "proof", "children", "checking", "counting", "diagnosing", "synchronizing"}),
    ("6b", {"proving", "remnants"}),
    ("7", {"hold", "probe", "applying", "saved"}),
    ("7b", {"processes", "serving"}),
    ("7c", {"playing"}),
    ("7d", {"producers"}),
    ("8", {"render", "drawing"}),
    ("8b", {"schemas"}),
    ("9", {"api"}),
    ("9b", {"__init__"}),
    ("9c", {"cli"}),
    ("9d", {"__main__"}),
]

# Each package from elsewhere, and the modules that may import it; pydantic reads what was written to a file.
IMPORTERS: dict[str, set[str]] = {
    "cuda": {"driver.cuda"},
    "vulkan": {"vulkan"},
    "yaml": {"source"},
    "pydantic": {"spec", "entries", "fields", "machine", "complaints", "saved", "schemas", "processes", "picturing"},
    "pydantic_core": {"fields"},
    "rich": {"render"},
    "typer": {"cli"},
    "click": {"cli"},
}

ROOT = Path(__file__).parent.parent / "memtopo"
FILES = sorted(ROOT.rglob("*.py"))
ROW = {module: row for row, (_, modules) in enumerate(FLOORS) for module in modules}


def owner(parts: tuple[str, ...]) -> str:
    """The module of the table that a dotted name under memtopo belongs to."""
    if parts[:1] == ("driver",) and ".".join(parts[:2]) in ROW:
        return ".".join(parts[:2])
    return parts[0] if parts else "__init__"


def module_of(file: Path) -> str:
    return owner(file.relative_to(ROOT).with_suffix("").parts)


def imports(text: str, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every dotted name that a file imports, wherever in the file; `package` is what its dots are counted from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = above + tuple((node.module or "").split(".") if node.module else ())
            yield from ((*base, alias.name) for alias in node.names)


def own_and_foreign(module: str, text: str, package: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """The memtopo modules and the packages from elsewhere that a file of `module` imports."""
    names = set(imports(text, package))
    own = {_target(name[1:]) for name in names if name[0] == "memtopo"} - {module}
    foreign = {name[0] for name in names} - {"memtopo"} - sys.stdlib_module_names
    return own, foreign


def _target(parts: tuple[str, ...]) -> str:
    found = owner(parts)
    return found if found in ROW or (ROOT / found).exists() or (ROOT / f"{found}.py").exists() else "__init__"


def faults(module: str, text: str, package: tuple[str, ...] = ("memtopo",)) -> list[str]:
    """What a file of `module` imports and may not."""
    if module not in ROW:
        return [f"{module} is on no floor"]
    own, foreign = own_and_foreign(module, text, package)
    upward = {other for other in own if ROW.get(other, len(FLOORS)) >= max(ROW[module], 1)}
    strangers = {name for name in foreign if module not in IMPORTERS.get(name, ())}
    return [f"{module} imports {name}" for name in sorted(upward | strangers)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_from_below(file: Path) -> None:
    """Every module is on a floor, imports from lower floors only, and leaves a foreign package to its one importer"""
    package = ("memtopo", *file.relative_to(ROOT).parent.parts)
    assert faults(module_of(file), file.read_text(), package) == []


def test_the_lowest_floor_has_no_circles() -> None:
    """Modules of the lowest floor may import one another, in no circle"""
    files = {name: ROOT / f"{name}.py" for name in FLOORS[0][1]}
    needs = {name: own_and_foreign(name, file.read_text(), ("memtopo",))[0] for name, file in files.items()}
    tuple(TopologicalSorter(needs).static_order())


def test_no_module_has_two_floors() -> None:
    """A module stands on one floor"""
    assert len(ROW) == sum(len(modules) for _, modules in FLOORS)


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [
        ("units", "import memtopo.cli", ("memtopo",)),
        ("source", "from memtopo import planner", ("memtopo",)),
        ("source", "from memtopo import applied", ("memtopo",)),
        ("source", "def late():\n    from memtopo.spec import Spec", ("memtopo",)),
        ("source", "if TYPE_CHECKING:\n    import memtopo.spec", ("memtopo",)),
        ("spec", "import memtopo.layout", ("memtopo",)),
        ("driver.sim", "from memtopo.driver.cuda import calls", ("memtopo", "driver", "sim")),
        ("driver.sim", "from ..cuda import calls", ("memtopo", "driver", "sim")),
        ("driver", "from memtopo.driver import sim", ("memtopo", "driver")),
        ("steps", "import cuda.bindings.driver", ("memtopo", "steps")),
        ("planner", "import requests", ("memtopo",)),
        ("attic", "", ("memtopo",)),
    ],
)
def test_a_stray_import_is_found(module: str, text: str, package: tuple[str, ...]) -> None:
    """An import from the same floor or above, of another's package, or by a module without a floor is a fault"""
    assert len(faults(module, text, package)) == 1


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [
        ("diagnostics", "from memtopo.codes import CODES", ("memtopo",)),
        ("source", "from memtopo.source.places import Node", ("memtopo", "source")),
        ("driver.sim", "from memtopo.driver.types import gpu\nfrom .memory import Arena", ("memtopo", "driver", "sim")),
        ("driver.cuda", "import cuda.bindings.driver\nimport os", ("memtopo", "driver", "cuda")),
        ("__init__", "import memtopo.api", ("memtopo",)),
    ],
)
def test_what_may_be_imported_is_no_fault(module: str, text: str, package: tuple[str, ...]) -> None:
    """A module may import from below, from itself, and the package that is its own"""
    assert faults(module, text, package) == []


def test_the_design_has_the_same_plan() -> None:
    """DESIGN.md shows each module on the floor where this table has it, and no others"""
    shown: dict[str, set[str]] = {}
    row = ""
    for line in (ROOT.parent / "DESIGN.md").read_text().splitlines():
        found = re.match(r"    floor (\S+) +(.*)", line)
        row = found[1] if found else row if line.startswith(" " * 14) else ""
        if row:
            words = re.sub(r"\([^)]*\)", "", found[2] if found else line)
            shown.setdefault(row, set()).update(words.replace(",", " ").split())
    assert shown == dict(FLOORS)
