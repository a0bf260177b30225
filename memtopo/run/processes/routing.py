"""Handles on their way from one worker to another, through the coordinator; each is in flight once."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memtopo.common.errors import MemtopoError
from memtopo.run.processes.worker_process import Member
from memtopo.sharing.wire import Packet

_OWN = ""
"""For whom the coordinator itself asks."""


class Router:
    """Hears the workers, and passes on what they ask of one another."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._answer: Packet | None = None

    def heard(self, seconds: float) -> Iterator[tuple[Member, Packet | None]]:
        """What the workers say of themselves, within the time; None from one that is gone."""
        poll = select.poll()
        by_fd = {member.link.fileno(): member for member in self._members.values() if not member.gone}
        for fd, member in by_fd.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if member.link.waiting else 0))
        for fd, _ in poll.poll(seconds * 1000):
            member = by_fd[fd]
            member.link.flush()
            yield from self._drain(member)

    def ask(self, label: str, export: str, first: int, count: int, turn: Callable[[], None]) -> Packet:
        """Handles for the coordinator; `turn` hears the workers once. Raises `MemtopoError`."""
        member = self._members[label]
        member.owes()
        member.link.send({"do": "handles", "export": export, "first": first, "count": count, "for": _OWN})
        while self._answer is None:
            if member.over:
                raise MemtopoError(f"process {label} is gone")
            turn()
        answer, self._answer = self._answer, None
        if error := answer.message.get("error"):
            answer.close()
            raise MemtopoError(f"process {label} does not give {export}: {error}")
        return answer

    def _drain(self, member: Member) -> Iterator[tuple[Member, Packet | None]]:
        while not member.gone:
            try:
                packet = member.link.receive()
            except BlockingIOError:
                return
            if packet and "ask" in packet.message:
                self._forward(member, packet.message)
            elif packet and "got" in packet.message:
                member.answered()
                self._return(packet)
            else:
                yield member, packet

    def _forward(self, asker: Member, message: dict[str, Any]) -> None:
        holder = self._members.get(message["of"])
        if holder is None or holder.gone:
            asker.link.send({"got": asker.label, "error": "it is gone"})
            return
        asker.asked()
        holder.owes()
        fields = {"export": message["ask"], "first": message["first"], "count": message["count"]}
        holder.link.send({"do": "handles", "for": asker.label, **fields})

    def _return(self, packet: Packet) -> None:
        asker = self._members.get(packet.message["got"])
        if asker is None:
            self._answer = packet
            return
        asker.served()
        fds, packet.fds = packet.fds, []
        asker.link.send({key: value for key, value in packet.message.items() if key != "memtopo"}, fds)
