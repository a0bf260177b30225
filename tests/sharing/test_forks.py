"""Children that holders and importers fork: what is served belongs to the holder alone, and a lease to the importer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import NoLayout
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.holders import Holder, Process, gone, until

in_thread_or_not = pytest.mark.parametrize("thread", [True, False], ids=["serve", "hold"])


def forked(holder: Process) -> int:
    """Let a holder fork, and return its child."""
    assert holder.process.stdin
    holder.process.stdin.write(b"\n")
    holder.process.stdin.flush()
    child: int = holder.read_line()["child"]
    return child


@in_thread_or_not
def test_a_child_that_exits_leaves_socket_lock_and_connections_to_its_parent(
    tmp_path: Path, start: Callable[..., Any], *, thread: bool
) -> None:
    where = tmp_path / "kv"
    holder = start("forking_holder", where=str(where), thread=thread, lasting=False)
    assert holder.read_line()
    with connect(endpoint(socket=str(where))) as before:
        assert gone(forked(holder))
        assert sorted(each.name for each in tmp_path.glob("kv*")) == ["kv", "kv.lock"]
        assert before.status().pid == holder.pid
        with connect(endpoint(socket=str(where))) as client:
            assert client.status().pid == holder.pid


@in_thread_or_not
def test_a_child_that_lives_on_keeps_neither_name_nor_connections_of_a_dead_holder(
    tmp_path: Path, start: Callable[..., Any], *, thread: bool
) -> None:
    where = endpoint(socket=str(tmp_path / "kv"))
    holder = start("forking_holder", where=where.path, thread=thread, lasting=True)
    assert holder.read_line()
    with connect(where) as client:
        child = forked(holder)
        holder.process.kill()
        holder.ended()
        until(client.gone)
    with pytest.raises(NoLayout):
        connect(where)
    with claim(where) as claimed, claimed.listen():
        assert not gone(child)
        holder.close_input()
        until(lambda: gone(child))
        assert sorted(each.name for each in tmp_path.glob("kv*")) == ["kv", "kv.lock"]


def test_a_child_that_lives_on_keeps_no_handle_of_objects_that_are_lent(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    """It would pin the memory."""
    where = endpoint(socket=str(tmp_path / "kv"))
    holder = start("forking_holder", where=where.path, thread=False, lasting=True)
    assert holder.read_line()
    with connect(where) as client:
        blocks, _ = client.lend("pool", 2)
        for each in blocks:
            each.handle.close()
        folders = [Path("/proc", str(pid), "fd") for pid in (holder.pid, forked(holder))]
        assert [sum("shelf" in str(fd.readlink()) for fd in folder.iterdir()) for folder in folders] == [3, 1]
        holder.close_input()


def importers(client: Client) -> list[int | None]:
    return [each.pid for each in client.status().importers]


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "dies"])
def test_a_child_that_lives_on_keeps_no_lease_of_its_parent(
    start: Callable[..., Any], client: Client, *, leaves: bool
) -> None:
    importer = start("forking_importer", lasting=True, leaves=leaves)
    lines = [importer.read_line() for _ in range(1 + leaves)]
    if not leaves:
        assert importers(client) == [importer.pid]
        importer.process.kill()
        importer.ended()
    until(lambda: not importers(client))
    assert not gone(next(each["child"] for each in lines if "child" in each))


def test_a_child_that_leaves_the_block_of_its_parent_does_not_end_its_lease(
    start: Callable[..., Any], client: Client
) -> None:
    importer = start("forking_importer", lasting=False, leaves=False)
    assert gone(importer.read_line()["child"])
    assert importers(client) == [importer.pid]


def test_a_lease_ends_though_a_process_forked_outside_of_python_has_its_descriptor(
    holder: Holder, client: Client
) -> None:
    del holder
    with connect(endpoint("kv")) as importer:
        next(importer.handles("page")).close()
        copy = os.dup(importer.fileno())
    until(lambda: not importers(client))
    os.close(copy)
