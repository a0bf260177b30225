"""Why something that has no chunks is not mapped, granted or exported: VMM does not describe it."""

from __future__ import annotations

from typing import Literal

from memtopo.diagnostics.model import At, Diagnostic, Path
from memtopo.spec import Spec

Use = Literal["map", "access", "export"]

KINDS = {"managed": "managed memory", "external": "an external object", "semaphores": "a semaphore"}
"""What the entries of a section are."""

_ONLY = {
    "map": "and only chunks are mapped, into ranges",
    "access": "and access is granted to ranges",
    "export": "which no other process can be handed",
}
_WHY: dict[tuple[str, Use], tuple[str, str]] = {
    ("managed", "map"): (
        "it has an address from the start, and is no chunk that VMM could map (fact 60)",
        "use it where it is, or declare a chunk",
    ),
    ("managed", "access"): (
        "cuMemGetAccess of it answers 0: VMM access does not describe it (fact 60)",
        "say who uses it with 'attach', 'prefer' and 'accessed_by'",
    ),
    ("managed", "export"): (
        "the driver has no handle of it, and legacy IPC refuses it with INVALID_VALUE (fact 60)",
        "declare a chunk with 'handles: fd'",
    ),
    ("external", "map"): (
        "the driver maps its buffers itself, at addresses of their own (fact 53)",
        "name the parts that are used under 'buffers'",
    ),
    ("external", "access"): (
        "a mapped buffer has no access of its own: its GPU reads and writes it (fact 53)",
        "leave it out",
    ),
    ("external", "export"): (
        "the driver has no handle of it, and legacy IPC refuses it with INVALID_VALUE (fact 53)",
        "have its producer hand it to the other process as well",
    ),
    ("semaphores", "map"): ("a semaphore is no memory", "leave it out"),
    ("semaphores", "access"): ("a semaphore is no memory", "leave it out"),
    ("semaphores", "export"): (
        "the driver imports semaphores and exports none",
        "have its producer hand it to the other process as well",
    ),
}


def explained(spec: Spec, name: str, use: Use, path: Path, faults: list[Diagnostic], at: At = "value") -> bool:
    """Whether a name is, or may be, of what VMM does not describe; where it is, MT706 says why it cannot be used so."""
    for section, kind in KINDS.items():
        if name in getattr(spec, section) or (section, name) in spec.left_out:
            note, help = _WHY[section, use]
            told = f"{name!r} is {kind}, {_ONLY[use]}"
            faults.append(Diagnostic("MT706", told, path, at, notes=(note,), help=help))
            return True
    return any(spec.may_have(section, name) for section in KINDS)
