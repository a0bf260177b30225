"""`memtopo validate`: find every fault of a spec on a machine. Needs no GPU where the machine is a recorded one."""

from __future__ import annotations

import sys

from memtopo.cli.loading import INVALID, load, show_faults
from memtopo.cli.options import AsJson, MachineName, SpecFile
from memtopo.diagnostics import has_errors
from memtopo.render import json, plain


def command(spec: SpecFile, machine: MachineName = "local", as_json: AsJson = False) -> int:
    """Find every fault of a spec, without building anything."""
    validated, found = load(spec, machine)
    if as_json:
        document = json.faults(validated.diagnostics, validated.document, found.name)
        plain.print_lines(json.dumps(document).splitlines())
    else:
        show_faults(validated, sys.stdout)
        if not has_errors(validated.diagnostics):
            plain.print_lines([f"{validated.document.name}: ok on {found.name}"])
    return INVALID if has_errors(validated.diagnostics) else 0
