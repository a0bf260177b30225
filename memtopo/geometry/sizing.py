"""Sizes: granularities of a machine, and rounding to them."""

from __future__ import annotations

from collections.abc import Iterable

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import Location, Properties
from memtopo.machine import Machine

_PLAIN = 2 << 20


def granule(machine: Machine, properties: Properties) -> int:
    """Minimum granularity in bytes of chunks with exactly these properties, or of plain ones if it was not recorded."""
    entry = machine.granularity(properties) or machine.granularity(Properties(properties.location))
    return entry.minimum if entry else _PLAIN


def size_error(
    code: str, what: str, amount: int, unit: int, path: Path, note: str, *, rounding: bool = False
) -> Diagnostic:
    """Return the diagnostic of a size or offset that is not a multiple of its granule, with the nearest multiples.

    The help mentions `round: up` for an entry that may have it (`rounding`).
    """
    down = amount - amount % unit
    near = f"{exact(down)} or {exact(down + unit)}" if down else exact(unit)
    over = f" ({rounded(amount % unit)} over)" if down else ""
    message = f"{what}: {exact(amount)} is no multiple of {exact(unit)}{over}"
    help = f"write {near}" + (", or 'round: up'" if rounding else "")
    return Diagnostic(code, message, path, notes=(note,), help=help)


def granularity_note(unit: int, locations: Iterable[Location]) -> str:
    """Note about the granularity of chunks at some locations."""
    names = ", ".join(str(location) for location in dict.fromkeys(locations))
    return f"the granularity of chunks with these properties on {names} is {exact(unit)} on this machine"


def rounded_to_multiple(amount: int, unit: int, *, rounding: bool) -> int | None:
    """Bytes rounded up to a multiple of a granule; without `rounding`, None if they are not a multiple."""
    if amount % unit == 0:
        return amount
    return amount + unit - amount % unit if rounding else None
