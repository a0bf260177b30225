"""Marks by which a service knows a fault again, though the lines above it have changed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from memtopo.output.places import Placed
from memtopo.output.verdicts import from_top


def fingerprints(faults: Iterable[Placed]) -> Iterator[str]:
    """One mark for each fault, made of its file, its code and its path in the spec; equal ones are numbered."""
    seen: Counter[str] = Counter()
    for fault in faults:
        diagnostic = fault.diagnostic
        known = diagnostic.path or diagnostic.message
        thing = repr((from_top(fault.file), diagnostic.code, known))
        yield hashlib.sha256(f"{thing} {seen[thing]}".encode(errors="surrogateescape")).hexdigest()[:32]
        seen[thing] += 1
