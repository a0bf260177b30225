"""The engine knows no kind of entry by name: each other module that names one has a reason here."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from memtopo.kinds import KINDS, Kind
from memtopo.kinds.exports import EXPORTABLE

ROOT = Path(__file__).parent.parent / "memtopo"
APART = ("driver", "drivers", "api", "native", "records", "torch", "allocators", "testing")
"""Rooms that name kinds by their purpose: the driver's objects, specs that are written, and the methods of the API."""

CLASSES = {kind.group.__name__ for kind in KINDS} - {"Group"}
ENGLISH = {"access", "bind", "export", "external", "map", "range"}
"""Words of the language that are English words or words of the wire protocol too."""

WORDS = {kind.section for kind in KINDS} | {kind.group.noun for kind in KINDS if hasattr(kind.group, "noun")}
WORDS -= ENGLISH
MODULES = {kind.__class__.__module__ for kind in KINDS}
STATE = {"ranges", "chunks", "mappings", "buffers"}
"""Attributes of a layout that are of one kind; the others have tables beside their steps."""

COMMON = ("chunks", "ranges", "exports")
"""Sections that much of the package is about."""
MOST = 20
"""Modules that may name one of the other kinds, its own among them."""

REASONS = {
    "common/arguments": "names of arguments",
    "geometry/groups": "placements are made of chunks and ranges; the wire protocol has a word for each kind",
    "geometry/model": "placements map chunks into ranges, and chunks take shares of memory",
    "kinds/__init__": "the registry of kinds, which are resolved with shares of chunks, imports and dma-bufs last",
    "kinds/access/grants": "access is to chunks in ranges",
    "kinds/dmabuf": "a dma-buf is of the addresses of chunks, ranges or buffers",
    "kinds/chunks/entry": "resolves sizes and numbers of chunks",
    "kinds/mappings/fill": "chunks are mapped into ranges",
    "kinds/exportable": "a dma-buf is of the addresses of chunks, ranges or buffers",
    "cli/held": "tensors are loaded into exports of chunks",
    "run/saving": "chunks that are mapped nowhere are mapped to be copied",
    "kinds/kind": "what is mapped as chunks are is of a class of theirs",
    "kinds/imports/entry": "imports are of what is exported",
    "kinds/chunks/support": "a module of chunks",
    "kinds/chunks/pools": "a module of chunks",
    "kinds/mappings/placements": "chunks are mapped into ranges",
    "kinds/ranges/elastic_steps": "chunks are mapped in elastic ranges",
    "kinds/states/groups": "a state takes memory from chunks that are mapped into ranges",
    "kinds/states/folders": "a module of states, which take memory from chunks",
    "language/fields": "an entry of a section may be the name of its chunk alone",
    "kinds/views": "the identity of an import is that of what its export is of",
    "probe/supervisor": "a trial imports what another process exports, in terms of the driver",
    "probe/__init__": "trials are named after what the driver can do",
    "probe/trial_table": "trials are named after what the driver can do",
    "probe/trials": "trials are named after what the driver can do",
    "machine/__init__": "an attribute of devices is called managed memory, and a trial multicast",
    "output/diagram/build/__init__": "draws exports",
    "output/diagram/build/memory": "an import has the mark of what its export is of",
    "output/diagram/build/ranges": "draws ranges",
    "output/diagram/tables": "lists the chunks that are mapped into ranges",
    "output/held": "lists the exports of a held layout",
    "output/monitoring": "metrics of what programs allocate in heaps",
    "sharing/messages": "a status has what programs allocate in heaps",
    "output/diagram/terminal": "draws ranges",
    "output/diagram/notation": "a program allocates in heaps",
    "output/diagram/panel": "heads the column of chunks that are mapped into ranges",
    "kinds/resources": "reserves ranges, in which memory of several kinds is mapped",
    "planner": "states are plans of their own, and streams that wait are awaited last",
    "session/saved": "chunks take shares of memory",
    "plans/transition": "mappings beside one another are unmapped by one call; lists the exports that a change touches",
    "rules/__init__": "multicast objects are planned, and not built where none was tried",
    "rules/whole_layout": "addresses of all ranges together, and rules between chunks, ranges, mappings and exports",
    "run/heaps": "allocates in heaps, and puts them to sleep",
    "run/process_run": "reports the addresses of ranges",
    "run/planned_calls": "a file that pinned memory is of is not mapped for a list of calls",
    "run/layout_plans": "finds the exports that a change touches",
    "run/transition": "a limit of elastic chunks may be too low for those that are mapped",
    "run/leaks": "looks for handles of chunks that are open after their release (facts 27, 51, 52)",
    "run/verification/external": "waits for semaphores and reads external memory, in one order",
    "run/verification/isolation": "looks at the holes and ends of ranges, and tries access to what is mapped into them",
    "run/verification/verifier": "records events and waits for them in the rounds of verification",
    "session/contracts": "compares imports with the exports of other specs",
    "sharing/client": "requests have a key 'exports'",
    "sharing/offers": "serves exports",
    "sharing/external": "a producer offers memory and semaphores",
    "sharing/holder/changes": "notices have a key 'exports'",
    "sharing/holder/clients": "notices have a key 'exports'",
    "sharing/holder/commits": "requests to write and commit have a key 'exports'",
    "sharing/holder/responses": "the request to let go has a key 'exports'",
    "sharing/terms": "compares an offer of memory or a semaphore with its declaration (facts 53, 55)",
    "sharing/producers": "a simulated producer makes the memory and semaphores of another API",
}


@cache
def named(text: str) -> tuple[str, ...]:
    """Kinds that a module names: by an import, a class, a word of the language, or the state of a layout."""
    return tuple(_named(ast.parse(text)))


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if {module, module.removesuffix(".steps")} & MODULES:
                yield module
                yield from (f"{module} {each.name.lower()}" for each in names)
            case ast.Name(id=name) if name in CLASSES:
                yield name
            case ast.Constant(value=str(word)) if word in WORDS:
                yield repr(word)
            case ast.Attribute(value=ast.Name(id="layout") | ast.Attribute(attr="layout" | "_layout"), attr=name):
                if name in STATE:
                    yield f"layout.{name}"


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT).with_suffix("").as_posix()
        module = "memtopo." + name.removesuffix("/__init__").removesuffix("/steps").replace("/", ".")
        if name.partition("/")[0] not in APART and module not in MODULES:
            yield name, file


@cache
def every_module() -> Mapping[str, frozenset[str]]:
    """Kinds that each module of the package names, but for records, which write specs of all kinds."""
    files = (file for file in ROOT.rglob("*.py") if file.parent.name != "records")
    return {file.relative_to(ROOT).as_posix(): frozenset(named(file.read_text())) for file in files}


@pytest.mark.parametrize("kind", [each for each in KINDS if each.section not in COMMON], ids=lambda each: each.section)
def test_a_kind_is_named_in_at_most_twenty_modules(kind: Kind) -> None:
    module, state = kind.__class__.__module__, f"layout.{kind.section}"
    noun = getattr(kind.group, "noun", "")
    alone = [each.__class__.__module__ for each in KINDS].count(module) == 1
    modules = {module, f"{module}.steps"}
    words = {state, repr(kind.section), kind.group.__name__, repr(noun), *(modules if alone else ())}

    def named_in(found: frozenset[str]) -> bool:
        """An import from a module of several kinds names the kind whose noun is in what is imported."""
        imports = (each.split() for each in found if " " in each and "'" not in each)
        return bool(found & words) or any(where in modules and noun in what for where, what in imports)

    found = sorted(name for name, kinds in every_module().items() if named_in(kinds))
    assert 1 < len(found) <= MOST, found


def test_every_module_that_names_a_kind_has_a_reason() -> None:
    found = {name: sorted(set(named(file.read_text()))) for name, file in modules()}
    assert {name: kinds for name, kinds in found.items() if kinds and name not in REASONS} == {}


def test_every_reason_is_needed() -> None:
    found = {name for name, file in modules() if any(named(file.read_text()))}
    assert set(REASONS) - found == set()


@pytest.mark.parametrize(
    "text",
    [
        "from memtopo.kinds.ipc import BufferGroup",
        "from memtopo.kinds.ipc.steps import AllocateBuffer",
        "def size(group):\n    return group.size if isinstance(group, BufferGroup) else 0",
        "SECTIONS = ('buffers',)",
        "def address(layout):\n    return layout.buffers['b']",
    ],
)
def test_a_name_of_a_kind_is_found(text: str) -> None:
    assert named(text)


def test_imports_know_no_kind_of_the_objects_by_name() -> None:
    kinds = {kind.__class__.__module__ for kind in EXPORTABLE.values()}
    classes = {kind.group.__name__ for kind in EXPORTABLE.values()}
    words = {repr(word) for kind in EXPORTABLE.values() for word in (kind.section, kind.group.noun)}
    modules = sorted((ROOT / "kinds/imports").glob("*.py"))
    assert modules
    for module in modules:
        assert set(named(module.read_text())) & (kinds | classes | words) == set(), module
