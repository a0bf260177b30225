"""Specs of the command line: loading on a machine, printing of diagnostics, and requests with a picture."""

from __future__ import annotations

import sys
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from memtopo.cli.options import Settings, absolute_path, duration, one_target, option
from memtopo.cli.process import RefusedSpec
from memtopo.common.errors import Unavailable, UsageError
from memtopo.drivers.target import Target, of_nodes, recorded
from memtopo.language import Document
from memtopo.language.entries import names_nodes
from memtopo.output import plain
from memtopo.output.diagram.build import build_diagram
from memtopo.output.humanize import machine as described
from memtopo.output.progress import activity
from memtopo.plans.report import Check
from memtopo.session import saved
from memtopo.session.composition import Composition, Revise, Revision, RunRequest, revision
from memtopo.session.machines import own_targets, with_needed_trials
from memtopo.session.saved import SavedPlan


def load(
    spec: str,
    machines: list[str] | None,
    given: Settings,
    *,
    one_host: bool = False,
    dry: bool = False,
    on: Target | None = None,
) -> Composition:
    """Load a valid spec, or a saved plan, on a machine: on the target if there is one.

    If it is `dry`, nothing is made of it: without `machines`, a saved plan is on the machine that it was made on, and a
    spec on the first one that it names where there is no GPU.

    Raises `RefusedSpec` for an invalid spec, `Unavailable` for an unknown machine, `UnreadablePlan` for a damaged
    plan, and `UsageError` for an empty name, for a saved plan with settings, and with `one_host` for a spec with nodes.
    """
    if not spec:
        raise UsageError("SPEC is empty", hint="name a file, or - for standard input")
    plan = saved.open_saved(spec)
    if plan:
        given.refuse_for_plan(spec)
    document = replace(plan.spec.read(), plan=spec) if plan else given.read(spec)
    if one_host and (nodes := names_nodes(document)):
        message = f"the processes of {document.name!r} are on nodes: {', '.join(nodes)}"
        raise UsageError(message, hint=f"start it on a Ray cluster: memtopo apply {document.name} --on ray")
    with activity("plan"):  # the driver may take seconds to start, as trials do
        target = on or (made_on(plan) if plan and dry and not machines else _target(machines, document, plan, dry=dry))
        loaded = loaded_on(target, document, spec, plan)
    if plan and not plan.is_of(loaded.target.machines):
        plain.print_message(f"the plan {spec!r} was made for another machine: {described(plan.machine)}")
    return loaded


def loaded_on(target: Target, document: Document, spec: str, plan: SavedPlan | None = None) -> Composition:
    """Validate a spec on a machine, with the trials that it needs. Raises `RefusedSpec`."""
    return valid(Composition.of(document, with_needed_trials(target, document), spec, plan))


def valid(composition: Composition) -> Composition:
    """Return a spec that has no error. Raises `RefusedSpec`."""
    if not composition.valid:
        raise RefusedSpec(composition)
    return composition


def made_on(plan: SavedPlan) -> Target:
    """The recorded machine of a saved plan, or those of its nodes."""
    nodes = {node: recorded(node, machine) for node, machine in plan.nodes.items()}
    return replace(of_nodes(nodes), name=plan.machine.name) if nodes else recorded(plan.machine.name, plan.facts)


def _target(machines: list[str] | None, document: Document, plan: SavedPlan | None, *, dry: bool) -> Target:
    """The machine of a spec or a saved plan. Raises `Unavailable`."""
    try:
        return one_target(machines)
    except Unavailable as error:
        found, wrong = ({}, []) if machines or plan else own_targets(document)
        own = tuple(found.values())
        if wrong and not own:
            raise Unavailable(wrong[0].escaped().message, hint=wrong[0].help) from error
        if own and dry:
            plain.print_message(f"using {own[0].name}, the first machine of the spec, because {error.message}")
            return own[0]
        if plan and not machines and plan.machine.simulated:
            error.hint = f"the plan is for {plan.machine.name}: use --machine {plan.machine.name}"
        elif own:
            error.hint = f"the spec is for {own[0].name}: use --machine {own[0].name}"
        raise


def print_diagnostics(composition: Composition) -> None:
    """Print the diagnostics of a spec with their source lines, to stderr."""
    if not composition.diagnostics:
        return
    from memtopo.output.diagnostics import text

    width, colour = plain.width(sys.stderr), plain.colour(sys.stderr)
    lines = text(composition.diagnostics, composition.document, width=width, colour=colour)
    plain.print_lines(lines, sys.stderr, styled=True)


_CLUSTERS = [("ray", "that of RAY_ADDRESS, or of this host"), ("ray://", "another one: ray://HOST:PORT")]
_WITH = (
    "Bind a holder that the spec names to a socket, or to a program to start, which finds its socket's path in "
    "MEMTOPO_SOCKET."
)
_LIMIT = "Limit for a silent process (a starting one: ten times that, up to 60s), a semaphore, and a commit."
_FROM = "Restore the bytes that 'memtopo save' wrote to a folder, before the layout is served."
_REHEARSE = "Also switch through all states of the spec and back, and check each."
_CLUSTER = (
    "Apply a spec with nodes on a Ray cluster: ray for the cluster of RAY_ADDRESS or of this host, or ray://HOST:PORT."
)
On = Annotated[
    str | None, option("--on", _CLUSTER, "CLUSTER", autocompletion=lambda: _CLUSTERS, show_default="this host")
]
_GPUS = "With --on: GPUs of each node."
Gpus = Annotated[int | None, option("--gpus", _GPUS, "N", min=0, show_default="as many as each has")]
_TRACE = "Write a line of JSON for each driver call, for 'memtopo trace'; of several processes into a folder, "


class RunOptions(Struct, frozen=True):
    """Options of a run: its holders, its limit of time, its cluster, and its trace."""

    bound: Annotated[list[str] | None, option("--with", _WITH, "NAME=SOCKET|COMMAND")] = None
    timeout: Annotated[str, option("--timeout", _LIMIT, "TIME")] = "30s"
    rehearse: Annotated[bool, option("--rehearse", _REHEARSE)] = False
    source: Annotated[str | None, option("--from", _FROM, "FOLDER")] = None
    on: On = None
    gpus: Gpus = None
    trace: Annotated[str | None, option("--trace", f"{_TRACE}a file for each.", "FILE")] = None

    @property
    def silence(self) -> float:
        """Seconds of `--timeout`. Raises `UsageError`, also for 0."""
        if not (found := duration(self.timeout)):
            raise UsageError("--timeout must be greater than 0", hint="write --timeout 30s")
        return found

    def request(self, composition: Composition, check: Check) -> RunRequest:
        """The request to apply a spec. Raises `StalePlan` if a saved plan does not agree with it, and `NeverTried`."""
        if self.trace:
            from memtopo.driver.trace_files import process_file, require_replaceable

            processes = composition.geometry.processes
            if not processes:
                require_replaceable(self.trace)
            for process in processes:
                require_replaceable(process_file(self.trace, process), link=False)
        request = composition.request(
            check=check,
            timeout=self.silence,
            rehearse=self.rehearse,
            source=None if self.source is None else absolute_path(self.source, "--from"),
            trace=None if self.trace is None else absolute_path(self.trace, "--trace"),
        )
        return _pictured(request, composition.target)


def revise(target: Target) -> Revise:
    """Return the function that validates changes of a held layout on a machine."""

    def revised(source: str, before: RunRequest) -> Revision:
        found = revision(source, before, target)
        return replace(found, request=_pictured(found.request, target))

    return revised


def _pictured(request: RunRequest, target: Target) -> RunRequest:
    return replace(request, picture=build_diagram(request.geometry, target.machines))
