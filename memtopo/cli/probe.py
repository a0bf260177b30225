"""`memtopo probe`: read the machine's properties, and try what it advertises; `memtopo machines`: the recorded ones."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace

from memtopo import machine as machines
from memtopo import probe
from memtopo.cli import options
from memtopo.cli.options import AsJson, MachineName, argument, option, recorded_machines
from memtopo.cli.process import Interrupted, Stopper
from memtopo.cli.results import ProbePage, pages, require_writable, save, show, write_report
from memtopo.common.errors import Exit, UsageError
from memtopo.common.units import parse_size, parsed
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.machine import Machine
from memtopo.machine.queries import anonymous
from memtopo.output import plain
from memtopo.output.progress import progress
from memtopo.probe.diagnosis import ignored_devices, is_mig
from memtopo.probe.report import probe_report

FORMS = ("text", "json", "markdown")

_MEASURE = "Also measure every pair and the host: 512 MiB on each GPU, a second for each pair."
_AGAINST = "Report differences from a recorded machine; exit with 7 if it does not fit this one."


def _patterns() -> options.Values:
    """Models and recorded machines that a draft may be like."""
    from memtopo.machine.drafts import models

    return [*((name, model.name) for name, model in models().items()), *recorded_machines()]


Name = Annotated[str | None, argument("NAME|FILE", "Show only this machine.", autocompletion=recorded_machines)]

_LIKE = "Model or recorded machine with which the draft is equal: a100-80gb, h200x8."


def probe_command(
    machine: MachineName = "local",
    output: Annotated[str | None, option("--output -o", "Record the machine in a file.", "FILE")] = None,
    identify: Annotated[bool, option("--identify", "Keep UUIDs, bus ids and the host's name.")] = False,
    bandwidth: Annotated[bool, option("--bandwidth", _MEASURE)] = False,
    against: Annotated[str | None, option("--against", _AGAINST, "NAME|FILE", autocompletion=recorded_machines)] = None,
    form: Annotated[str | None, options.format_option("text, json or markdown.", FORMS, "MEMTOPO_PROBE_FORMAT")] = None,
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
    if form == "markdown":
        plain.print_lines(pages("ci").page_lines(pages("probe").page(result)))
    else:
        show(result, lambda: pages("probe").page(result), as_json=form == "json")
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
    if found.simulated:
        return probed
    # Devices that this process cannot use, and properties that the driver does not report.
    from memtopo.drivers.cuda import inaccessible_devices

    notes = [f"this process is not permitted to open {file}" for file in inaccessible_devices()]
    if ignored := ignored_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), len(found.machine.devices)):
        notes.append(f"CUDA_VISIBLE_DEVICES: the driver ignores {ignored!r}")
    notes += [
        f"gpu{n} is a MIG instance, a part of a GPU: it has no peers, and its NVLinks are not reported"
        for n, device in enumerate(found.machine.devices)
        if is_mig(device)
    ]
    return replace(probed, notes=(*notes, *probed.notes))


def machines_command(
    name: Name = None,
    draft: Annotated[str | None, option("--draft", "Write an estimate of a machine to NAME.json.", "NAME")] = None,
    gpus: Annotated[int | None, option("--gpus", "GPUs of the draft.", "NUMBER", min=1, max=256)] = None,
    memory: Annotated[str | None, option("--memory", "Memory of each GPU of the draft: 80GiB.", "SIZE")] = None,
    like: Annotated[str | None, option("--like", _LIKE, "MODEL|NAME|FILE", autocompletion=_patterns)] = None,
    as_json: AsJson = False,
) -> int:
    """List the recorded machines, show one, or write a draft.

    A draft has the published figures of --like, a model or a recorded machine, and no trial: results of 'validate'
    on it name the features that were not tried.
    """
    if draft is not None:
        return _write_draft(draft, gpus, memory, like)
    if given := [flag for flag, value in (("--gpus", gpus), ("--memory", memory), ("--like", like)) if value]:
        raise UsageError(f"{given[0]} describes a draft", hint="name it, with its GPUs: --draft NAME --gpus 8")
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


def _write_draft(name: str, gpus: int | None, memory: str | None, like: str | None) -> int:
    from memtopo.machine import drafts

    if gpus is None:
        described = f"--memory {memory}" if memory else f"--like {like or next(iter(drafts.models()))}"
        hint = f"such as: memtopo machines --draft {name} --gpus 8 {described}"
        raise UsageError("the draft has no number of GPUs", hint=hint)
    if memory is None and like is None:
        hint = f"add --memory 80GiB, or --like with one of {', '.join([*drafts.models(), *machines.shipped()])}"
        raise UsageError("the draft has no memory of a GPU", hint=hint)
    file = name if machines.is_file(name) else f"{name}.json"
    if Path(file).exists():
        raise UsageError(f"{file!r} exists", hint="name another draft, or remove the file")
    size = parsed(parse_size, memory, "--memory") if memory else None
    if size and (size.in_granules or not size.amount):
        raise UsageError(f"--memory {memory} is no amount of memory", hint="write --memory 80GiB")
    save(file, machines.dump(drafts.draft(gpus, size.amount if size else None, like)))
    plain.print_message(f"an estimate, which nobody has tried: memtopo validate SPEC --machine {file}")
    return 0


def _table(known: dict[str, Machine]) -> Any:
    from memtopo.output.blocks import Table, columns
    from memtopo.output.humanize import devices

    rows = [
        (name, devices(device.name for device in each.devices), each.driver.name, each.recorded or "not known")
        for name, each in known.items()
    ]
    return Table(columns("machine", "GPUs", "driver", "recorded"), rows)
