"""A conductor whose workers crash as MEMTOPO_CRASH requests; it prints its report.

Arguments: the spec's file, the machine's name, seconds of silence after which a process counts as dead, and
`rehearse` to go through the states of the spec, without other checks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from memtopo.cli.process import Stopper
from memtopo.common.decoding import encode
from memtopo.drivers import target
from memtopo.language import SpecText, read_file
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
    return encode(report)


if __name__ == "__main__":
    sys.stdout.buffer.write(run(sys.argv[1], sys.argv[2], float(sys.argv[3]), rehearse="rehearse" in sys.argv[4:]))
