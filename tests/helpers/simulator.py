"""The simulator: its differences from hardware by the method of a call, as in docs/simulator.md, and its memory."""

from __future__ import annotations

import os
import re

from memtopo.drivers.sim import SimDriver
from tests.helpers.command_line import ROOT


def _listed(heading: str) -> dict[str, str]:
    section = (ROOT / "docs/simulator.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))


STRICTER, LAXER, DOCUMENTED = map(_listed, ("Stricter", "Laxer", "From documentation"))


def resident_bytes(sim: SimDriver) -> int:
    """Bytes of the system's memory behind simulated memory; untouched memory does not count."""
    arena, files = sim.process.arena, sim.process.files
    found = [os.fstat(fd) for fd in (*files._open, *([arena._fd] if arena._close.alive else ()))]
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())
