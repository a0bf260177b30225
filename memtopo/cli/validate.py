"""`memtopo validate`: find every fault of a spec on a machine. Needs no GPU where the machine is a recorded one."""

from __future__ import annotations

import sys

from memtopo.cli.loading import INVALID, load
from memtopo.cli.options import AsJson, MachineName, SpecFile
from memtopo.diagnostics import has_errors
from memtopo.render import json, plain


def command(spec: SpecFile, machine: MachineName = "local", as_json: AsJson = False) -> int:
    """Find every fault of a spec, without building anything."""
    loaded = load(spec, machine)
    faults, document = loaded.validated.diagnostics, loaded.document
    if as_json:
        plain.print_lines(json.dumps(json.faults(faults, document, loaded.target.name)).splitlines())
    else:
        loaded.show_faults(sys.stdout)
        if not has_errors(faults):
            plain.print_lines([f"{document.name}: ok on {loaded.target.name}"])
    return INVALID if has_errors(faults) else 0
