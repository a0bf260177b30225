"""Diagnostics: the codes of all, and in modules their model, messages and explanations.

A released code never changes its meaning.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Severity = Literal["error", "warning"]

GROUPS = {
    "MT0": "Reading the text",
    "MT1": "Form of the entries",
    "MT2": "Names and references",
    "MT3": "Arithmetic of the layout",
    "MT4": "Capabilities of the machine",
    "MT6": "Sharing between processes",
    "MT7": "Managed, pinned and external memory, dma-bufs, multicast",
    "MT8": "States, elastic ranges and changes",
    "MT9": "Parameters",
    "MT5": "Probably unintended",
}
"""Titles of the groups of codes, by prefix."""

_WARNINGS = ("MT501", "MT502", "MT503", "MT504", "MT505", "MT507", "MT705", "MT718", "MT721", "MT814", "MT907")
_FILES = sorted(os.listdir(Path(__file__).with_name("explanations")))

CODES: dict[str, Severity] = {
    name.removesuffix(".md"): "warning" if name.startswith(_WARNINGS) else "error"
    for prefix in GROUPS
    for name in _FILES
    if name.startswith(prefix)
}
"""Severity of each code that has a file in `explanations`, group by group."""


def read_page(name: str) -> str:
    """Return the text of a page of the documentation, which a wheel has in this package, and a checkout in `docs/`."""
    packed = Path(__file__).with_name(name)
    return (packed if packed.is_file() else packed.parents[2] / "docs" / name).read_text("utf-8")
