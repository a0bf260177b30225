"""Merging of the reports of all nodes of a run: one outcome, and for each node what was built, checked and left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.decoding import decode
from memtopo.common.errors import Exit, outcome
from memtopo.common.units import rounded, summed
from memtopo.plans.report import Failure, Leak, Left, NodeReport, PhaseTime, ProcessReport, Report
from memtopo.run.nodes.agent import NodeResult
from memtopo.run.nodes.hub import RunEnd
from memtopo.run.reports import report_on, sum_of_checks, sum_of_left
from memtopo.session.composition import RunRequest


class NodeEnd(Struct, frozen=True, dict=True):
    """End of a node: the result of its agent, or the cause for which the agent was lost.

    The node of a lost agent is `reachable`, or it may be dead or cut off; `left` are workers that did not end.
    """

    result: NodeResult | None = None
    cause: str = ""
    reachable: bool = True
    left: tuple[int, ...] = ()

    @property
    def followed(self) -> bool:
        """True if the node took down because of others; a failure in its own report follows from theirs."""
        return self.result is not None and bool(self.result.cause)

    @property
    def died(self) -> bool:
        """True if the agent or a process of the node died."""
        processes = self.report.processes if self.report else ()
        return self.result is None or any(each.outcome == "died" for each in processes)

    @property
    def of_lost(self) -> str:
        """Outcome of the node and its processes where the agent is lost: ended, if nothing of them can be left."""
        return "ended" if self.reachable and not self.left else "lost"

    @cached_property
    def report(self) -> Report | None:
        """Report of the node's processes, if there is one."""
        found = self.result.report if self.result else ""
        return decode(found, Report) if found else None


def merged_nodes(
    request: RunRequest,
    ends: Mapping[str, NodeEnd],
    order: Sequence[RunEnd],
    hosts: Mapping[str, str],
    interrupted: int,
) -> Report:
    """Merge the ends of all nodes; its outcome is the worst. `order` has the nodes in the order of their ends."""
    reports = {node: end.report for node, end in ends.items() if end.report}
    leaks = (*(leak for report in reports.values() for leak in report.leaks), *_leaks(request, ends))
    checks = sum_of_checks([report.checks for report in reports.values() if report.checks])
    failure = _failure(ends, order)
    codes = [*_statuses(ends.values()), Exit.FAILED] if failure else ()
    found = outcome(leaks, signal=interrupted or None, as_declared=not (checks and checks.different), codes=codes)
    failed = found[1] != 0
    return report_on(
        request,
        found,
        times=tuple(_times(list(reports.values()))),
        checks=checks,
        failure=None if interrupted else failure,
        leaks=leaks,
        left=sum_of_left([_on_node(node, report.left) for node, report in reports.items() if report.left]),
        notes=tuple(dict.fromkeys((*request.notes(), *(note for each in reports.values() for note in each.notes)))),
        processes=tuple(_processes(request, ends, failed=failed)),
        nodes=tuple(_node(request, node, end, hosts.get(node, ""), failed=failed) for node, end in ends.items()),
    )


def _statuses(ends: Iterable[NodeEnd]) -> Iterator[int]:
    """Exit statuses of the nodes that failed."""
    for end in ends:
        if end.result and end.result.error:
            yield end.result.exit_code
        if end.report and end.report.failure:
            yield end.report.exit_code


def _failure(ends: Mapping[str, NodeEnd], order: Sequence[RunEnd]) -> Failure | None:
    """Failure of the node that ended first because of one; the others followed it.

    A death comes before failures: an import from what died may fail on another node before it is known.
    """
    causes = {end.node: end.cause for end in reversed(order) if end.cause}
    first = [end.node for end in order if end.cause]
    for node in sorted(dict.fromkeys([*first, *ends]), key=lambda node: not ends[node].died):
        end = ends[node]
        if end.followed:
            continue
        if end.report and end.report.failure:
            return end.report.failure
        if end.result and end.result.error:
            return Failure(f"node {node}", end.result.error, hint=end.result.hint)
        if end.result is None:
            meaning = "the other nodes took down what they had built"
            return Failure(f"node {node}", f"its agent is lost: {end.cause}", meaning)
        if node in causes:
            return Failure(f"node {node}", causes[node])
    found = (end.result.cause for end in ends.values() if end.result and end.result.cause)
    return next((Failure("work with the other nodes", cause) for cause in found), None)


def _leaks(request: RunRequest, ends: Mapping[str, NodeEnd]) -> Iterator[Leak]:
    """Leaks that a lost node may have: workers that did not end, or all that its processes create."""
    for node, end in ends.items():
        if end.left:
            pids = ", ".join(map(str, end.left))
            yield Leak(f"node {node}: processes {pids}", "they did not end after their agent was lost")
        elif not end.reachable:
            held = [f"{rounded(size)} of {place}" for place, size in _memory(request, node).items()]
            labels = ", ".join(request.geometry.nodes[node])
            what = f"node {node}: {', '.join(held) or 'what was built'} of {labels}"
            yield Leak(what, f"lost, not known to be taken down: {end.cause}")


def _memory(request: RunRequest, node: str) -> dict[str, int]:
    return dict(summed(request.plan.processes[label].memory for label in request.geometry.nodes[node]))


def _processes(request: RunRequest, ends: Mapping[str, NodeEnd], *, failed: bool) -> Iterator[ProcessReport]:
    reports = {each.name: each for end in ends.values() if end.report for each in end.report.processes}
    for label in request.geometry.processes:
        found = reports.get(label)
        if found is None:
            end = ends[request.geometry.node_of(label) or ""]
            lost = end.result is None
            outcome = end.of_lost if lost else "failed"
            yield ProcessReport(label, 0, outcome, f"with its agent: {end.cause}" if lost else None)
        else:
            yield replace(found, outcome="taken down") if failed and found.outcome == "ok" else found


def _node(request: RunRequest, node: str, end: NodeEnd, host: str, *, failed: bool) -> NodeReport:
    report = end.report
    left = _on_node(node, report.left) if report and report.left else None
    labels = tuple(request.geometry.nodes[node])
    if report:
        ok = {"ok", "interrupted"} | ({"failed"} if end.followed else set())
        outcome = "taken down" if failed and report.outcome in ok else report.outcome
        return NodeReport(node, host, outcome, None, labels, _memory(request, node), report.checks, left)
    if end.result:
        return NodeReport(node, host, "failed", end.result.error, labels)
    return NodeReport(node, host, end.of_lost, end.cause, labels, _memory(request, node))


def _on_node(node: str, left: Left) -> Left:
    """Resources left on a node, with the node in the names of its devices."""
    return replace(left, memory=tuple(replace(each, device=f"{node}/{each.device}") for each in left.memory))


def _times(reports: Sequence[Report]) -> Iterator[PhaseTime]:
    """Phases of all nodes, which go through them together: the sums of the steps, and the longest time."""
    merged: dict[str, PhaseTime] = {}
    for each in (each for report in reports for each in report.times):
        before = merged.get(each.phase, PhaseTime(each.phase, 0, 0.0, each.began, each.ended))
        steps, seconds = before.steps + each.steps, max(before.seconds, each.seconds)
        began, ended = min(before.began, each.began), max(before.ended, each.ended)
        merged[each.phase] = PhaseTime(each.phase, steps, seconds, began, ended)
    yield from merged.values()
