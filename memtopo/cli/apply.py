"""`memtopo apply`: build a spec, check it, report, and take it down; with `--hold` keep it until it is released.

With `--on ray` the spec is of several nodes, and is placed on a cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec import Struct
from msgspec.structs import replace

from memtopo.cli import options
from memtopo.cli.options import Settings, machine_names, settings, variable_words
from memtopo.cli.process import Interrupted, Stopper
from memtopo.cli.results import RunOutput, RunPage, run_output
from memtopo.cli.service import HoldOptions, claimed_holder, start_detached
from memtopo.cli.specs import RunOptions, load, print_diagnostics, valid
from memtopo.common.errors import Stopped, UsageError
from memtopo.drivers.target import LOCAL, of_another_host, of_node, of_nodes
from memtopo.language.entries import names_nodes
from memtopo.output import plain
from memtopo.output.progress import activity, progress
from memtopo.plans.report import Report
from memtopo.run.apply import Application
from memtopo.session.composition import Composition, Holding, RunRequest
from memtopo.sharing.endpoints import is_folder

if TYPE_CHECKING:  # imported where they are used: most layouts import nothing from outside, and are of one host
    from memtopo.run.nodes.cluster import PlacedAgents, RayCluster
    from memtopo.sharing.producers import Producers


_CHECK = "Extent of the check: none; fast: queries, and samples of the bytes; full: every byte, by kernels."


@options.grouped
def apply_command(
    spec: options.SpecFile,
    *,
    machine: options.MachineNames = None,
    given: options.Set = None,
    check: Annotated[Literal["none", "fast", "full"], options.option("--check", _CHECK)] = "fast",
    hold: HoldOptions,
    run: RunOptions,
    report: RunPage = None,
    every: options.Every = False,
    as_json: options.AsJson = False,
    context: typer.Context = None,  # type: ignore[assignment]
) -> int:
    """Build a spec, check it, report, and take it down.

    With --hold the layout stays and serves its exports until a signal, 'memtopo release NAME' or --for.
    """
    output = run_output(report, run.trace, as_json=as_json, every=every)
    holding, holders = _holding(hold), _bindings(run, hold.terms)
    request_of = partial(run.request, check=check)
    if run.on is not None:
        return OnNodes(run.on, run, spec, machine, settings(given), holding, request_of, output).apply()
    _refuse_typed({"--gpus": run.gpus}, "clusters", hint="add --on ray")
    if holding and hold.detach:
        if holding.ready_fd is not None:
            raise UsageError("--detach reports by its end that the layout is served", hint="omit --ready-fd")
        from memtopo.cli.held import show_command

        status, path = start_detached(context.obj, spec, holding.log)
        return show_command(socket=path, as_json=True) if path and as_json else status
    return _applied(load(spec, machine, settings(given), one_host=True), request_of, holders, holding, output)


def _holding(given: HoldOptions) -> HoldOptions | None:
    """Return the options of `--hold`, or None without it. Raises `UsageError` for options that need it."""
    if given.hold:
        return given
    values: dict[str, object] = {
        "--for": given.lasting,
        "--socket": None if given.socket and is_folder(given.socket) else given.socket,
        "--metrics": given.metrics,
        "--log": given.log,
        "--ready-fd": given.ready_fd,
        "--reload": given.reload or None,
        "--detach": given.detach or None,
    }
    _refuse_typed(values, "held layouts", hint="add --hold")
    return None


def _refuse_typed(values: Mapping[str, object], of: str, hint: str) -> None:
    """Raise `UsageError` for an option that has a value, and is only for something that is not requested.

    The variables may be set for other commands, or by a memtopo that started this one.
    """
    for flag in (flag for flag, value in values.items() if value is not None):
        if f"MEMTOPO_{flag.removeprefix('--').replace('-', '_').upper()}" not in os.environ:
            raise UsageError(f"{flag} is for {of} only", hint=hint)


def _applied(
    loaded: Composition,
    request_of: Callable[[Composition], RunRequest],
    bound: BoundHolders,
    holding: HoldOptions | None,
    output: RunOutput,
) -> int:
    """Claim the layout's name if it is to be held, start its producers, apply until a signal, and show the report.

    Returns the exit status.
    """
    with activity("plan"):
        loaded = loaded.held_part if holding else loaded
        request = request_of(loaded)
    print_diagnostics(loaded)
    with Stopper(ending=True) as stopper:  # around the report too: a second signal must not cut it off
        imports = bound.values or request.geometry.imports_from_outside
        application = Application(
            loaded,
            request,
            partial(bound.producers, loaded, stopper.signal) if imports else None,
            bound.allow_uids,
            bound.silence,
            stopper.signal,
            partial(progress, simulated=request.machine.simulated),
            lambda text: plain.print_lines([text], sys.stderr),
        )
        with claimed_holder(holding, loaded, request) if holding else nullcontext() as holder:
            report = application.run(holder)
        return output.show(report)


class BoundHolders(Struct, frozen=True):
    """Values of `--with` by the name of a holder, users that are trusted, and seconds that a holder may be silent.

    A name that the spec does not use is an error if it was `typed` on the command line; the variable may be set for
    several specs. Sockets of holders that have no value may be in the `folder`.
    """

    values: Mapping[str, str]
    allow_uids: Sequence[int]
    silence: float
    typed: bool
    folder: str | None

    @contextmanager
    def producers(self, loaded: Composition, stop: Callable[[], int]) -> Iterator[Producers]:
        """Start the producers that a layout imports from. Raises `MemtopoError`, `Interrupted`."""
        from memtopo.sharing import producers

        geometry, target = loaded.geometry, loaded.target
        if self.typed and (unused := producers.unused(self.values, geometry)):
            raise UsageError(f"--with: {unused[0]}", hint=unused[1])
        used = producers.holders(geometry)
        bound = {name: producers.resolve(name, value) for name, value in self.values.items() if name in used}
        if self.folder:
            bound = producers.in_folder(self.folder, used) | bound
        machine = target.machine if target.simulated else None
        with ExitStack() as stack:
            try:
                with activity("start producers"):
                    started = stack.enter_context(
                        producers.start_producers(
                            geometry, bound, machine, name=target.name, stop=stop, patience=self.silence
                        )
                    )
            except Stopped as error:
                raise Interrupted(stop()) from error
            yield started


def _bindings(run: RunOptions, terms: Holding) -> BoundHolders:
    """The bindings of the values of `--with`, and of `--socket` if it is a folder. Raises `UsageError`."""
    given, socket = run.bound or [], terms.socket
    typed = given != os.environ.get("MEMTOPO_WITH", "").split()
    values = {}
    for text in given if typed else variable_words("MEMTOPO_WITH"):
        name, _, value = text.partition("=")
        if not (name and value):
            hint = "write --with NAME=/path/to/socket, or --with 'NAME=COMMAND'"
            raise UsageError(f"--with {text!r} names neither a socket nor a program", hint=hint)
        values[name] = value
    return BoundHolders(values, terms.allow_uids, run.silence, typed, socket if socket and is_folder(socket) else None)


_PATIENCE = 120.0
"""Seconds that a cluster has to place the agents."""


class OnNodes(Struct, frozen=True):
    """Options of an apply on the nodes of a cluster at an address. `request_of` makes the request of a loaded spec."""

    address: str
    run: RunOptions
    spec: str
    machines: list[str] | None
    settings: Settings
    holding: HoldOptions | None
    request_of: Callable[[Composition], RunRequest]
    output: RunOutput

    def apply(self) -> int:
        """Apply the spec, and show the report; with recorded machines on simulators. Returns the exit status.

        Raises `UsageError` for options that are for one host, such as bound holders.
        """
        from memtopo.run.nodes.cluster import require_ray

        self._require_several()
        require_ray(self.address)
        real = all((of_node(name) or ("", name))[1] == LOCAL for name in machine_names(self.machines))
        with Stopper(ending=True) as stopper:
            loaded = None if real else load(self.spec, self.machines, self.settings)
            document = loaded.document if loaded else self.settings.read(self.spec)
            nodes = tuple(loaded.geometry.nodes) if loaded else names_nodes(document)
            if not nodes:
                message = f"the processes of {document.name!r} are on no nodes"
                raise UsageError(message, hint="write 'nodes: [a, b]' in a process, or omit --on")
            if loaded and not loaded.target.simulated:
                raise UsageError("some nodes have recorded machines, and others real ones", hint="record all, or none")
            with self._connected(nodes, stopper.signal, real=real) as (ray, placed):
                if loaded is None:
                    from memtopo.run.nodes.driver import local_machines

                    with activity("plan"):  # with the machines of the nodes, and the trials that are needed there
                        machines = local_machines(placed, document)
                        each = {name: of_another_host(LOCAL, own, simulated=False) for name, own in machines.items()}
                        loaded = valid(Composition.of(document, replace(of_nodes(each), name=LOCAL), self.spec))
                report = self._drive(ray, placed, loaded, stopper.signal)
            return self.output.show(report)

    def _require_several(self) -> None:
        flags: dict[str, object] = {"--with": self.run.bound, "--trace": self.output.trace, "--from": self.run.source}
        if held := self.holding:
            flags |= {"--metrics": held.metrics, "--log": held.log, "--reload": held.reload, "--detach": held.detach}
            flags["--ready-fd"] = held.ready_fd is not None
        if flag := next((flag for flag, given in flags.items() if given), None):
            raise UsageError(f"{flag} is for layouts of one host", hint="omit it with --on")

    @contextmanager
    def _connected(
        self, nodes: Sequence[str], stop: Callable[[], int], *, real: bool
    ) -> Iterator[tuple[RayCluster, PlacedAgents]]:
        """Connect to the cluster, and start an agent for each node."""
        from memtopo.run.nodes.cluster import connected

        with ExitStack() as stack:
            with activity("connect"):
                ray = stack.enter_context(connected(self.address))
                gpus = 0
                if real:
                    gpus = ray.gpus_per_node() if self.run.gpus is None else self.run.gpus
                placed = stack.enter_context(ray.place(nodes, gpus=gpus, patience=_PATIENCE, stop=stop))
            yield ray, placed

    def _drive(self, ray: RayCluster, placed: PlacedAgents, loaded: Composition, stop: Callable[[], int]) -> Report:
        from memtopo.run.nodes.driver import NodesRun, hosts, node_tasks

        if number := stop():
            raise Interrupted(number)
        terms = self.holding.terms if self.holding else None
        on, request = hosts(placed, terms), self.request_of(loaded)
        print_diagnostics(loaded)
        targets = {node: loaded.target.nodes.get(node, loaded.target) for node in placed.nodes}
        machines = {node: (each.name, each.machine) for node, each in targets.items()}
        tasks = node_tasks(request, loaded.document, machines, timeout=self.run.silence, holding=terms)

        def print_serving(sockets: Mapping[str, str], front: str | None) -> None:
            name = request.plan.name
            lines = [f"holding {name} on node {node}, {on[node]}: {sockets[node]}" for node in sockets]
            lines += [f"holding {name} at {front}; release it on all nodes with 'memtopo release {name}'"] * bool(front)
            plain.print_lines(lines, sys.stderr)

        with progress(simulated=request.machine.simulated) as shown:
            run = NodesRun(ray, placed, request, tasks, stop=stop, serving=print_serving, progress=shown)
            return run.run(on)
