"""`memtopo probe`: read the machine's properties, and try what it advertises; `memtopo machines`: the recorded ones."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from memtopo import machine as machines
from memtopo import probe
from memtopo.cli import options
from memtopo.cli.options import AsJson, MachineName, argument, option, recorded_machines
from memtopo.cli.process import Interrupted, Stopper
from memtopo.cli.results import ProbePage, pages, require_writable, save, show, write_report
from memtopo.common.errors import Exit, UsageError
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.machine import Machine
from memtopo.machine.queries import anonymous
from memtopo.output import plain
from memtopo.output.progress import progress
from memtopo.probe.diagnosis import ignored_devices, is_mig
from memtopo.probe.report import ProbeReport, probe_report

FORMS = ("text", "json", "markdown")

Output = Annotated[str | None, option("--output -o", "Record the machine in a file.", "FILE")]
Identify = Annotated[bool, option("--identify", "Keep UUIDs, bus ids and the host's name.")]
_MEASURE = "Also measure every pair and the host: 512 MiB on each GPU, a second for each pair."
Bandwidth = Annotated[bool, option("--bandwidth", _MEASURE)]
_AGAINST = "Report differences from a recorded machine; exit with 7 if it does not fit this one."
AgainstName = Annotated[str | None, option("--against", _AGAINST, "NAME|FILE", autocompletion=recorded_machines)]
Form = Annotated[str | None, options.format_option("text, json or markdown.", FORMS, "MEMTOPO_PROBE_FORMAT")]
Name = Annotated[str | None, argument("NAME|FILE", "Show only this machine.", autocompletion=recorded_machines)]


def probe_command(
    machine: MachineName = "local",
    output: Output = None,
    identify: Identify = False,
    bandwidth: Bandwidth = False,
    against: AgainstName = None,
    form: Form = None,
    report: ProbePage = None,
    as_json: AsJson = False,
) -> int:
    """Read the machine's properties, and try what it advertises.

    Trials run in child processes, use a granule or two of memory, and leave nothing. The file of -o is a machine for
    --machine.
    """
    form = options.stdout_format(form, FORMS, as_json=as_json, hint="give one of them", of=" of a probe") or "text"
    require_writable(report)
    record = (against, machines.load(against)) if against else None
    probed = _probed(found := target.resolve(machine), bandwidth=bandwidth)
    kept = probed.machine if identify else anonymous(probed.machine)
    result = probe_report(probed, kept, found.name, simulated=found.simulated, against=record)
    if output is not None:
        save(output, machines.dump(kept))
    _show(result, form)
    if report is not None:
        write_report(report, result, lambda: pages("probe").full_page(result))
    if probed.left:
        return Exit.LEFT
    return Exit.STALE if result.against and not result.against.fits else Exit.OK


def _probed(found: Target, *, bandwidth: bool) -> probe.Probed:
    now = datetime.now(UTC).strftime("%Y-%m-%d") if not found.simulated else found.machine.recorded
    with Stopper(ending=True) as stopper, progress(simulated=found.simulated) as shown:
        try:
            probed = probe.probe(
                found.machine,
                simulated=found.simulated,
                date=now,
                stop=stopper.signal,
                bandwidth=bandwidth,
                progress=shown,
            )
        except probe.ProbeStopped as stopped:
            raise Interrupted(stopper.signal()) from stopped
    if stopper.signal():
        raise Interrupted(stopper.signal())
    return probed if found.simulated else replace(probed, notes=(*_limits(found.machine), *probed.notes))


def _limits(machine: Machine) -> list[str]:
    """Notes on devices that this process cannot use, and on properties that the driver does not report."""
    from memtopo.drivers.cuda import inaccessible_devices

    notes = [f"this process is not permitted to open {file}" for file in inaccessible_devices()]
    if ignored := ignored_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), len(machine.devices)):
        notes.append(f"CUDA_VISIBLE_DEVICES: the driver ignores {ignored!r}")
    notes += [
        f"gpu{n} is a MIG instance, a part of a GPU: it has no peers, and its NVLinks are not reported"
        for n, device in enumerate(machine.devices)
        if is_mig(device)
    ]
    return notes


def _show(result: ProbeReport, form: str) -> None:
    if form == "markdown":
        plain.print_lines(pages("markdown").page_lines(pages("probe").page(result)))
    else:
        show(result, lambda: pages("probe").page(result), as_json=form == "json")


def machines_command(name: Name = None, as_json: AsJson = False) -> int:
    """List the recorded machines, or show one."""
    if name is None:
        known = {each: machines.load(each) for each in machines.shipped()}
        show(known, lambda: _table(known), as_json=as_json)
        return 0
    if name == "local":
        raise UsageError("local is not a recorded machine", hint="'memtopo probe' shows this computer")
    machine = machines.load(name)
    if as_json:
        plain.print_document(machines.dump(machine).splitlines())
    else:
        from memtopo.output import console, probe

        console.show(probe.machine_page(machine, name))
    return 0


def _table(known: dict[str, Machine]) -> Any:
    from memtopo.output.blocks import Table, columns
    from memtopo.output.humanize import devices

    rows = [
        (name, devices(device.name for device in each.devices), each.driver.name, each.recorded or "not known")
        for name, each in known.items()
    ]
    return Table(columns("machine", "GPUs", "driver", "recorded"), rows)
