"""Differences of the simulator from hardware, by the method of a call, as docs/simulator.md lists them."""

from __future__ import annotations

import re

from tests.helpers.command_line import ROOT


def _listed(heading: str) -> dict[str, str]:
    section = (ROOT / "docs/simulator.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))


STRICTER, LAXER, DOCUMENTED = map(_listed, ("Stricter", "Laxer", "From documentation"))
