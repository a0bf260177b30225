"""`memtopo apply --on ray`: place a spec of several nodes on a cluster, apply it there, and report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memtopo.cli.options import Settings, machine_names
from memtopo.cli.process import Interrupted, Stopper
from memtopo.cli.results import RunOutput
from memtopo.cli.service import HoldOptions
from memtopo.cli.specs import RunOptions, load, print_diagnostics, valid
from memtopo.common.errors import UsageError
from memtopo.drivers.target import LOCAL, of_another_host, of_node, of_nodes
from memtopo.kinds.nodes import names_nodes
from memtopo.language import Document
from memtopo.output import plain
from memtopo.output.progress import activity, progress
from memtopo.plans.report import Report
from memtopo.session.composition import Composition
from memtopo.session.request import RunRequest

if TYPE_CHECKING:
    from memtopo.run.nodes.cluster import PlacedAgents, RayCluster

_PATIENCE = 120.0
"""Seconds that a cluster has to place the agents."""


@dataclass(frozen=True, slots=True)
class OnNodes:
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
                raise UsageError(message, hint="write 'nodes: [a, b]' in a process, or leave --on out")
            if loaded and not loaded.target.simulated:
                raise UsageError("some nodes have recorded machines, and others real ones", hint="record all, or none")
            with self._connected(nodes, stopper.signal, real=real) as (ray, placed):
                if loaded is None:
                    with activity("plan"):  # with the machines of the nodes, and the trials that are needed there
                        loaded = _loaded(placed, document, self.spec)
                report = self._drive(ray, placed, loaded, stopper.signal)
            return self.output.show(report)

    def _require_several(self) -> None:
        flags: dict[str, object] = {"--with": self.run.bound, "--trace": self.output.trace}
        if held := self.holding:
            flags |= {"--metrics": held.metrics, "--log": held.log, "--reload": held.reload, "--detach": held.detach}
            flags["--ready-fd"] = held.ready_fd is not None
        if flag := next((flag for flag, given in flags.items() if given), None):
            raise UsageError(f"{flag} is for layouts of one host", hint="leave it out with --on")

    @contextmanager
    def _connected(
        self, nodes: Sequence[str], stop: Callable[[], int], *, real: bool
    ) -> Iterator[tuple[RayCluster, PlacedAgents]]:
        """Connect to the cluster, and start an agent for each node."""
        from memtopo.run.nodes.cluster import connected

        with ExitStack() as stack:
            with activity("connect"):
                ray = stack.enter_context(connected(self.address))
                gpus = (ray.gpus_per_node() if self.run.gpus is None else self.run.gpus) if real else 0
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


def _loaded(placed: PlacedAgents, document: Document, spec: str) -> Composition:
    """A spec that is valid on the machines of the cluster. Raises `RefusedSpec`."""
    from memtopo.run.nodes.driver import local_machines

    machines = local_machines(placed, document)
    nodes = {node: of_another_host(LOCAL, machine, simulated=False) for node, machine in machines.items()}
    return valid(Composition.of(document, replace(of_nodes(nodes), name=LOCAL), spec))
