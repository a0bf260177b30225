"""Writes docs/simulated-calls.md: simulated functions of the driver with their evidence, and all other functions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType

from docs.make_fact_index import PAGE as FACTS
from docs.make_fact_index import calls, links
from memtopo import machine
from memtopo.driver.functions import plain_name
from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import METHODS as PROTOCOL
from memtopo.testing.abi import exported
from memtopo.testing.calls import Calls
from memtopo.testing.program import FUNCTIONS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "simulated-calls.md"
DIFFERENCES = ROOT / "docs" / "simulator.md"
COUNTS = ROOT / "tests" / "differential" / "traces" / "counts.json"

OWN = ("cuGetErrorName", "cuGetErrorString", "cuGetProcAddress")
"""Functions that the library answers without the simulator."""
CHECKS = ("cuCtxGetCurrent", "cuDeviceGet", "cuDeviceTotalMem", "cuMemPoolGetAccess")
"""Functions that others call to check an argument."""
RECORDED = re.compile(r"driver_get_version|device_(?!primary)\w+")
"""Methods of the protocol that return what the record of a machine has."""

GROUPS: Mapping[str, str] = {
    "graphs and capture": r"cuGraph(?!ics)|GraphMem|UserObject|[Cc]apture",
    "kernels, modules and libraries": r"cu(Func|Kernel|Launch|Library|Link|Module|Occupancy|Param)",
    "graphics": r"cuGraphics",
    "arrays, textures, surfaces and tensor maps": r"Array|Tex|Surf|TensorMap|[AHD]to[A]|Ato[DH]|Sparse",
    "green contexts and parts of GPUs": r"Green|DevResource|DevSm",
    "contexts": r"cuCtx|PrimaryCtx",
    "devices": r"cuDevice|cuFlushGPUDirect",
    "copies and fills in several dimensions, between contexts, and in batches": r"cuMem(cpy|set)",
    "other calls for memory": r"cu(Mem|Pointer)",
    "streams and events": r"cu(Stream|Event)",
    "fabrics and logical endpoints": r"cu(LogicalEndpoint|Fabric)",
    "checkpoints, core dumps and logs": r"cu(Checkpoint|Coredump|Logs)",
    "tables of the driver for NVIDIA's libraries": r"cuGetExportTable",
}
"""Groups of functions that are not simulated. A function is in the first one whose expression is found in its name."""

HEAD = """\
# Simulated functions

The simulator implements {simulated} of the {functions} functions of the CUDA driver; the answers of {compared} match
those of GPUs in {calls} recorded calls: {kinds}.

The list covers the functions of CUDA 13 in all versions that programs can call. `make docs` writes this page.

## Simulated

| source | functions | how the simulator answers |
|---|---|---|
{answers}

The recorded calls come from the [random sequences](hardware.md#random-sequences-of-calls) in
`tests/differential/traces` of the repository. Each sequence counts up to the first call that the simulator answers
differently; [the list of differences](simulator.md) explains these calls. The traces contain few calls for memory
pools. The column of facts links to the entries of [driver-facts.md](driver-facts.md) that name the function.
"""

MEANINGS: Mapping[str, str] = {
    "measured": "according to the driver facts; contract tests, which also run on GPUs, test it",
    "recorded": "with the values in the record of the machine",
    "documented": "according to NVIDIA's reference; not tried on hardware",
    "composed": "by calls of the functions listed in its row",
    "own": "with state of the simulator, such as the current context",
}

REST = """\

## Not simulated

{own} need no simulator.
The {rest} other functions are not simulated: `cuGetProcAddress` finds them, and a call returns NOT_SUPPORTED. Functions
for OpenGL, EGL and VDPAU, which are not declared in `cuda.h`, are absent.

| group | functions | names |
|---|---|---|
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Text of the page."""
    counts, every = _counts(), sorted({plain_name(name) for name in exported()})
    by_gpus = {gpus: sum(found.values()) for gpus, found in counts.items()}
    answers = Counter(_answers(name)[0] for name in methods())
    rest = [name for name in every if name not in methods() and name not in OWN]
    head = HEAD.format(
        simulated=len(methods()),
        functions=len(every),
        calls=f"{sum(by_gpus.values()):,}",
        compared=len({name for found in counts.values() for name in found}),
        kinds=" and ".join(f"{number:,} on {gpus}" for gpus, number in by_gpus.items()),
        answers="\n".join(f"| {kind} | {answers[kind]} | {text} |" for kind, text in MEANINGS.items()),
    )
    own = ", ".join(f"`{name}`" for name in OWN[:-1]) + f" and `{OWN[-1]}`"
    rows = "\n".join([*_heading(counts), *(_row(name, counts) for name in sorted(methods()))])
    return f"{head}\n{rows}\n{REST.format(own=own, rest=len(rest))}" + "".join(_group(*each) for each in _grouped(rest))


@cache
def methods() -> Mapping[str, str]:
    """Method that answers each simulated function, by its name without a version."""
    return {each.name: each.method for each in FUNCTIONS.values()}


@cache
def differences() -> Mapping[str, tuple[str, ...]]:
    """Sections of docs/simulator.md with a row of a function, by its name."""
    found: dict[str, dict[str, None]] = {}
    for section in re.split(r"^## ", DIFFERENCES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        for cell in re.findall(r"^\| (`.+?`) \| ", section, re.MULTILINE):
            for name in re.findall(r"`(\w+)`", cell):
                function = name if name.startswith("cu") else call_name(name)
                found.setdefault(function, {})[section.partition("\n")[0]] = None
    return {name: tuple(sections) for name, sections in found.items()}


def _counts() -> Mapping[str, Counter[str]]:
    """Recorded calls by function, of each machine: `2 × H200`."""
    found: dict[str, Counter[str]] = {}
    for each in json.loads(COUNTS.read_text(encoding="utf-8")).values():
        gpus = machine.load(each["machine"]).devices
        name = gpus[0].name.removeprefix("NVIDIA ").partition(" ")[0]
        found.setdefault(f"{len(gpus)} × {name}", Counter()).update(each["calls"])
    return found


def _heading(counts: Mapping[str, Counter[str]]) -> list[str]:
    columns = ["function", "source", *(f"calls, {gpus}" for gpus in counts), "facts", "differences"]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def _row(name: str, counts: Mapping[str, Counter[str]]) -> str:
    kind, made = _answers(name)
    answers = f"{kind}: {', '.join(f'`{each}`' for each in made)}" if made else kind
    numbers = [f"{found[name]:,}" if found[name] else "" for found in counts.values()]
    facts = links(_facts().get(name, []), FACTS.name)
    sections = ", ".join(f"[{each.lower()}](simulator.md#{_slug(each)})" for each in differences().get(name, ()))
    return f"| `{name}` | {' | '.join([answers, *numbers, facts, sections])} |"


def _answers(name: str) -> tuple[str, list[str]]:
    """What the answers of a function rest on, and the functions that it is composed of."""
    method = methods()[name]
    if name.startswith("cuMulticast"):
        return "documented", []
    if (method in PROTOCOL and RECORDED.fullmatch(method)) or method == "device_compute_capability":
        return "recorded", []
    if name in map(call_name, PROTOCOL):
        return "measured", []
    used = set(_names(getattr(Calls, method).__code__))
    made = sorted(each for each in methods() if methods()[each] in used and each != name and each not in CHECKS)
    return ("composed", made) if made else ("own", [])


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, also those of functions within it and of private methods."""
    yield from code.co_names
    private = [getattr(Calls, name) for name in code.co_names if name.startswith("_") and hasattr(Calls, name)]
    for each in [*code.co_consts, *(method.__code__ for method in private)]:
        if isinstance(each, CodeType):
            yield from _names(each)


@cache
def _facts() -> Mapping[str, list[int]]:
    """Numbers of the facts that name a function in any of its versions."""
    found: dict[str, set[int]] = {}
    for name, numbers in calls(FACTS.read_text(encoding="utf-8")).items():
        found.setdefault(plain_name(name), set()).update(numbers)
    return {name: sorted(numbers) for name, numbers in found.items()}


def _grouped(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in names:
        groups[next(group for group, pattern in GROUPS.items() if re.search(pattern, name))].append(name)
    return iter(groups.items())


def _group(group: str, names: list[str]) -> str:
    return f"| {group} | {len(names)} | {', '.join(f'`{name}`' for name in names)} |\n"


def _slug(heading: str) -> str:
    return heading.lower().replace(" ", "-")


if __name__ == "__main__":
    main()
