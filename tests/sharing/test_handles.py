from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable

import pytest

from memtopo.sharing import Client, ExchangeError, Secret, connect, endpoint
from tests.sharing.holding import Holder, Process, fds, until
from tests.sharing.shelves import OFFERS, secret

MEMORY = "memory of the shelf"


def test_a_descriptor_is_the_memory(client: Client) -> None:
    """What is written through a handle is seen through another one of the same export, and each is closed on exec"""
    (hot,) = client.handles("hot")
    (again,) = client.handles("hot")
    assert hot.fd is not None
    assert again.fd is not None
    assert hot.fd != again.fd
    os.pwrite(hot.fd, b"M", 0)
    assert os.pread(again.fd, len(MEMORY), 0).decode() == "Memory of the shelf"
    assert not os.get_inheritable(hot.fd)
    hot.close()
    again.close()


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.name)
@pytest.mark.parametrize("batch", [1, 2, 64, 253, 1000])
def test_a_whole_export(client: Client, offer: object, batch: int) -> None:
    """An export is all its handles in their order, whatever the batch: descriptors, or secrets with their offsets"""
    known = client.offers()[offer.name]  # type: ignore[attr-defined]
    assert known == offer
    index = 0
    for index, handle in enumerate(client.handles(known.name, batch=batch), 1):
        handle.close()
        assert (handle.fd is None) == (known.via in {"fabric", "ipc"})
        if handle.secret:
            assert handle.secret.reveal() == secret(known.name, index - 1)
            assert handle.offset == 512 * (index - 1)
    assert index == known.count


@pytest.mark.parametrize(("first", "count", "taken"), [(0, 0, 0), (999, None, 1), (10, 20, 20), (1000, None, 0)])
def test_a_part(client: Client, first: int, count: int | None, taken: int) -> None:
    """A part of an export is handles from one on, counted from 0"""
    found = list(client.handles("page", first, count))
    for each in found:
        each.close()
    assert len(found) == taken


@pytest.mark.parametrize(("first", "count"), [(1001, None), (-1, None), (0, 1001), (999, 2), (5, -1)])
def test_what_is_not_there(client: Client, first: int, count: int | None) -> None:
    """A part that is not there is told at once, and the connection goes on"""
    with pytest.raises(ExchangeError, match="'page' has 1,000 handles") as told:
        client.handles("page", first, count)
    assert told.value.code == "range"
    assert client.status().name == "kv"


def test_an_unknown_export(holder: Holder, client: Client) -> None:
    """An export that is not there is told at once, naming both ends and what was probably meant"""
    with pytest.raises(ExchangeError, match=f"holder: process {holder.pid} .* client: process {os.getpid()}") as told:
        client.handles("pages")
    assert (told.value.code, told.value.exit_code, told.value.hint) == ("unknown", 4, "did you mean 'page'?")


def test_a_handle_that_cannot_be_made(client: Client) -> None:
    """Where the driver refuses a handle, the importer is told why, and the connection goes on"""
    with pytest.raises(ExchangeError, match=r"cuMemExportToShareableHandle: broken\.0 cannot be had") as told:
        list(client.handles("broken"))
    assert (told.value.code, told.value.hint) == ("failed", "ask for another")
    assert client.status().importers == ()


def test_what_is_not_taken_is_closed(holder: Holder, client: Client) -> None:
    """Who stops in the middle has closed what lay in flight"""
    before = fds()
    found = client.handles("page", batch=100)
    next(found).close()
    assert fds() == before + 99
    found.close()  # type: ignore[attr-defined]
    assert fds() == before
    until(lambda: holder.fds() == holder.idle + 1)


def test_secrets_are_not_shown(client: Client) -> None:
    """A secret is in no repr, text, format, JSON or pickle"""
    handle = next(client.handles("woven"))
    for text in (repr(handle), str(handle), f"{handle.secret}", f"{handle.secret!r:>20}", f"{handle.secret!s}"):
        assert "<secret>" in text
        assert "woven" not in text
    for write in (json.dumps, pickle.dumps):
        with pytest.raises(TypeError):
            write(handle.secret)
    assert not hasattr(handle.secret, "__dict__")


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_secret_has_its_size(length: int) -> None:
    """A handle of another length is none"""
    with pytest.raises(ValueError, match=f"a handle of {length} bytes"):
        Secret(b"x" * length)


def test_8000_handles_under_a_limit_of_256(start: Callable[..., Process]) -> None:
    """8,000 handles go to one client under a limit of 256 open files, on both ends, where each is closed in time"""
    start(pages=8000, limit=256)
    importer = start("importer", limit=256)
    told = importer.said()
    assert (told["taken"], told["files"]) == (8000, [MEMORY])
    assert told["fds"] < 20


def test_a_limit_that_can_be_raised(start: Callable[..., Process]) -> None:
    """Who keeps 8,000 descriptors has its soft limit raised, as far as the hard one goes"""
    start(pages=8000)
    told = start("importer", keep=True, limit=256, hard=10000).said()
    assert told["taken"] == 8000
    assert told["fds"] > 8000


def test_a_limit_that_cannot(start: Callable[..., Process]) -> None:
    """Where the hard limit is too low, the error says which limit, what it is, and what it has to be"""
    start()
    told = start("importer", keep=True, limit=256).said()
    assert "the limit of open files is 256, of which 19" in told["error"]
    assert "RLIMIT_NOFILE" in told["hint"]


def test_a_holder_with_too_low_a_limit(start: Callable[..., Holder]) -> None:
    """A holder that could serve nobody does not begin, and says which limit is too low"""
    told = start(limit=40).begun
    assert "the limit of open files is 40" in told["error"]
    assert told["exit_code"] == 4


def test_three_clients_at_once(start: Callable[..., Process]) -> None:
    """1,000 handles go to each of three processes at once; the status names all three, and their ends free it all"""
    holder = start()
    importers = [start("importer") for _ in range(3)]
    assert [each.said()["taken"] for each in importers] == [1000] * 3
    with connect(endpoint("kv")) as client:
        found = client.status().importers
        assert {each.pid for each in found} == {each.pid for each in importers}
        assert {(each.handles, each.bytes, each.bound) for each in found} == {(1000, 1000 * 4096, False)}
        for each in importers:
            each.go_on()
            assert each.ended() == 0
        until(lambda: client.status().importers == ())
    until(lambda: holder.fds() == holder.idle)  # type: ignore[attr-defined]
