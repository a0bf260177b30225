"""A conductor whose workers crash as MEMTOPO_CRASH requests; it prints its report.

Arguments: the spec's file, the machine's name, seconds of silence after which a process counts as dead, and
`rehearse` to go through the states of the spec, without other checks.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from memtopo.cli.process import Stopper
from memtopo.drivers import target
from memtopo.language import SpecText, read_file
from memtopo.plans.report import Report
from memtopo.run import processes
from memtopo.session.composition import Composition

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("signalled_worker.py")))


def run(spec: str, machine: str, timeout: float, *, rehearse: bool) -> bytes:
    found, document = target.resolve(machine), read_file(spec)
    options = {"check": "none" if rehearse else "fast", "rehearse": rehearse, "machine_facts": None}
    request = Composition.of(document, found).request(None, **options)
    with Stopper() as stopper:
        ensemble = processes.Ensemble(request, SpecText.of(document), found.machine, timeout, worker=WORKER)
        report = replace(processes.apply(ensemble, stop=stopper.signal), machine=request.machine)
    return TypeAdapter(Report).dump_json(report)


if __name__ == "__main__":
    sys.stdout.buffer.write(run(sys.argv[1], sys.argv[2], float(sys.argv[3]), rehearse="rehearse" in sys.argv[4:]))
