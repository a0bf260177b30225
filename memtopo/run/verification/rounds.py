"""Verification of one process's memory, in rounds that all processes of a layout go through together."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import DriverError, LocationKind
from memtopo.executor import STRIDE, Execution, StepCount, StepFailed, failing
from memtopo.geometry.groups import from_outside
from memtopo.kinds.step import Finding
from memtopo.kinds.views import Member, MemoryGroup, mapped_memory, recorded_events
from memtopo.machine import Machine
from memtopo.plans.report import Rate
from memtopo.run.reports import FindingTally
from memtopo.run.verification.isolation import PERMITTED, CopyFailed, permissions, refusals
from memtopo.run.verification.samples import SampleVerifier
from memtopo.run.verification.verifier import Unsignalled, VerificationContext, Verifier
from memtopo.session.composition import RunRequest

if TYPE_CHECKING:  # imported where it is used: a fast check of memory on GPUs needs none of it
    from memtopo.run.verification.replicas import Replica

FORBIDDEN = "forbidden, on a replica"

UNSAFE = "an access is not as declared, and a kernel that accesses memory without access ends the process"
"""Reason to verify nothing by kernels (fact 24), nor host memory by copies (fact 40)."""


class Verification:
    """Goes through the rounds of all verifiers, and counts their findings. Raises `StepFailed` or `Stopped`."""

    def __init__(self, request: RunRequest, driver: KernelDriver, execution: Execution, findings: FindingTally) -> None:
        self._request, self._driver, self._execution, self._findings = request, driver, execution, findings

    @property
    def safe(self) -> bool:
        """Return whether every access is as declared, so that no kernel or copy of host memory ends the process.

        Copies of GPU memory are safe in any case (fact 23).
        """
        as_declared = not (self._findings.differs("access") or self._findings.differs(PERMITTED))
        return as_declared or (self._request.check != "full" and not self._context.on_host)

    @property
    def rounds(self) -> int:
        """Number of rounds, the same in every process of the layout."""
        return len(self._rounds)

    @property
    def volume(self) -> int:
        """Number of bytes that this process fills and verifies."""
        return sum(verifier.volume for verifier in self._verifiers)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """Measured rates."""
        verifiers: Iterable[Verifier] = self.__dict__.get("_verifiers", ())  # none before the first round
        return tuple(rate for verifier in verifiers for rate in verifier.rates())

    def try_permitted(self) -> None:
        """Try granted accesses by calls of the driver, before any process writes: queries may report them falsely.

        A fast check tries those to host memory alone, and finds others as it copies.
        """
        groups = self._request.geometry.every
        if self._findings.differs("access") or not any(each.memory and not from_outside(each) for each in groups):
            return
        self._findings.add(permissions(self._context, host_only=self._request.check != "full"))

    def write(self, index: int) -> None:
        """Write this process's part of a round."""
        if index == 0 and self.volume:
            self._execution.progress.volume("verify", self.volume)
        verifier, own = self._rounds[index]
        if verifier.verbs[0]:
            with self._counting_missed(verifier, own), self._timed(verifier.verbs[0], verifier.written(own)):
                verifier.write(own)

    def read(self, index: int) -> None:
        """Read what all processes wrote in a round."""
        verifier, own = self._rounds[index]
        with self._counting_missed(verifier, own), self._timed(verifier.verbs[1], verifier.expected(own)):
            self._findings.add(self._advancing(verifier, own))
        if own == 0:
            for count, why in verifier.not_verified():
                self._findings.not_checked(verifier.aspect, count, why)

    def try_forbidden(self) -> None:
        """Try forbidden accesses: by calls that the driver refuses, and on replicas by kernels, which end a process.

        Call it between the first fill of a full check and its verification, which then shows that the layout is intact.
        Raises `StepFailed` or `Stopped`.
        """
        from memtopo.run.verification import replicas

        # Of several processes, only the first with an access builds its replica.
        tries = replicas.replicas(self._request.geometry)
        for label, geometry in self._request.processes.items():
            if label == self._request.process:
                break
            for tried in replicas.replicas(geometry):
                tries.pop(tried, None)
        with self._execution.timed("forbid", len(tries), announce=False):
            with failing("try of forbidden accesses"):
                self._findings.add(refusals(self._context))
            if self._request.machine_facts is None:
                self._findings.not_checked(FORBIDDEN, len(tries), "no process could be started")
            else:
                self._try(tries, self._request.machine_facts)
        for why, count in replicas.without_replica(self._request.geometry, self._context.own_memory).items():
            if count:
                self._findings.not_checked(FORBIDDEN, count, why)

    def rehearse(self, without: Mapping[str, Container[Hashable]], *, write: bool) -> None:
        """Write or read the memory of all processes, `without` resources of each by label.

        Raises `StepFailed` or `Stopped`.
        """
        memory = self._context.memory.items()
        kept = {label: [each.only(partial(_is_kept, without[label])) for each in own] for label, own in memory}
        if verifier := self._of(kept):
            with failing("rehearsal of the states"):
                verifier.write(0) if write else self._findings.add(verifier.read(0))

    def _of(self, memory: Mapping[str, Sequence[MemoryGroup]]) -> Verifier | None:
        if self._request.check == "none":
            return None
        # Neither its objects nor its bytes are among the steps of the phase that it is a part of.
        advance = self._execution.progress.advance
        context = replace(self._context, memory=memory, events=dict.fromkeys(memory, ()), advance=lambda _: advance(0))
        return _of_bytes(context, full=self._request.check == "full")

    def verify_only(self, created: Container[Hashable]) -> None:
        """Write and read the memory of some resources; no other memory is written. Raises `StepFailed` or `Stopped`."""
        own = self._context.memory[self._request.process]
        verifier = self._of({self._request.process: [each.only(created.__contains__) for each in own]})
        if verifier is None or not self.safe or not verifier.expected(0):
            return
        with self._counting_missed(verifier, 0):
            verifier.write(0)
            self._findings.add(verifier.read(0))

    def skip(self, why: str) -> None:
        """Count everything as not checked."""
        for verifier in self._verifiers:
            if count := verifier.expected(0):
                self._findings.not_checked(verifier.aspect, count, why)

    @cached_property
    def _rounds(self) -> list[tuple[Verifier, int]]:
        """Verifier of each round, and the index of the round among that verifier's own."""
        return [(verifier, index) for verifier in self._verifiers for index in range(verifier.rounds)]

    @cached_property
    def _verifiers(self) -> list[Verifier]:
        """Verifiers that the layout needs, the same in all processes."""
        request, context = self._request, self._context
        if request.check == "none":
            return []
        full = request.check == "full"
        found = [_of_bytes(context, full=full)]
        runs = [run for own in context.memory.values() for each in own for run in each.runs]
        if any(grant.location.kind is not LocationKind.GPU for run in runs for grant in run.grants):
            from memtopo.run.verification.external import HostAccessVerifier

            found.append(HostAccessVerifier(context, kernels=full))
        if any(geometry.produced for geometry in request.processes.values()):
            from memtopo.run.verification.external import ExternalVerifier, SharedFileVerifier

            layout = self._execution.layout
            found.append(ExternalVerifier(request.geometry, self._driver, layout, self._poll))
            found.append(SharedFileVerifier(request.geometry, self._driver, layout, kernels=full))
        return found

    @cached_property
    def _context(self) -> VerificationContext:
        request = self._request
        members = {label: Member(each, label, request.siblings) for label, each in request.processes.items()}
        return VerificationContext(
            process=request.process,
            memory={label: mapped_memory(each, request.machine_facts) for label, each in members.items()},
            events={label: list(recorded_events(each)) for label, each in members.items()},
            driver=self._driver,
            layout=self._execution.layout,
            raise_if_stopped=self._execution.raise_if_stopped,
            advance=self._execution.progress.advance,
            seed=request.seed,
            simulated=request.machine.simulated,
        )

    def _try(self, tries: dict[Replica, Path], machine: Machine) -> None:
        from memtopo.run.verification import replicas

        visible = tuple(location.id for location in self._request.geometry.visible)
        host = replicas.ReplicaHost(machine, self._request.machine.simulated, visible)
        for replica, result in replicas.try_all(tries, host, self._poll):
            if result.why_not:
                self._findings.not_checked(FORBIDDEN, 1, result.why_not)
            else:
                finding = Finding(FORBIDDEN, replica.subject, replicas.ENDS_PROCESS, result.seen, tries[replica])
                self._findings.add([finding])

    def _poll(self) -> None:
        self._execution.progress.advance(0)
        self._execution.raise_if_stopped()

    def _advancing(self, verifier: Verifier, index: int) -> Iterator[Finding]:
        """Findings of a round, of which those of objects that are read are reported as progress."""
        left = 0 if self.volume else verifier.expected(index)
        read = 0
        for finding in verifier.read(index):
            yield finding
            read += finding.times
            if read >= STRIDE:
                self._execution.progress.advance(min(read, left))
                left, read = left - min(read, left), 0
        self._execution.progress.advance(min(read, left))

    def _timed(self, verb: str, steps: int) -> AbstractContextManager[StepCount]:
        return self._execution.timed(verb, steps, announce=not self.volume)

    @contextmanager
    def _counting_missed(self, verifier: Verifier, index: int) -> Iterator[None]:
        """Raise a driver error as `StepFailed`, and count what the round had still to read as not checked."""
        before = self._findings.observed(verifier.aspect)
        try:
            yield
        except (Unsignalled, DriverError) as error:
            path = error.path if isinstance(error, Unsignalled) else ()
            why = error.message if path else f"the driver reported {error.message}"
            if isinstance(error, CopyFailed) and not self._findings.differs("access"):  # which would be the reason
                self._findings.add(error.refusal)
            missed = verifier.expected(index) - (self._findings.observed(verifier.aspect) - before)
            self._findings.not_checked(verifier.aspect, max(0, missed), why)
            raise StepFailed(None, verifier.action, error, path) from error


def _is_kept(gone: Container[Hashable], resource: Hashable) -> bool:
    return resource not in gone


def _of_bytes(context: VerificationContext, *, full: bool) -> Verifier:
    """Verifier of all bytes by kernels, or of samples by copies."""
    if not full:
        return SampleVerifier(context)
    from memtopo.run.verification.full import FullVerifier

    return FullVerifier(context)
