from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable

import pytest

from memtopo.common.errors import ExchangeError
from memtopo.driver.handles import Handle, Secret, close_handles
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.holders import Holder, Process, until
from tests.helpers.memfd_exports import OFFERS, secret
from tests.helpers.processes import open_descriptors

MEMORY = "memory of the shelf"


def test_descriptors_of_an_export_share_its_memory_and_are_closed_on_exec(client: Client) -> None:
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
def test_an_export_is_all_its_handles_in_order_for_any_batch(client: Client, offer: object, batch: int) -> None:
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
def test_a_part_of_an_export_is_counted_from_0(client: Client, first: int, count: int | None, taken: int) -> None:
    found = list(client.handles("page", first, count))
    for each in found:
        each.close()
    assert len(found) == taken


@pytest.mark.parametrize(("first", "count"), [(1001, None), (-1, None), (0, 1001), (999, 2), (5, -1)])
def test_a_part_out_of_range_is_an_error_and_the_connection_goes_on(
    client: Client, first: int, count: int | None
) -> None:
    with pytest.raises(ExchangeError, match="'page' has 1,000 handles") as caught:
        client.handles("page", first, count)
    assert caught.value.code == "range"
    assert client.status().name == "kv"


def test_an_unknown_export_is_an_error_that_names_both_ends_and_the_nearest_name(
    holder: Holder, client: Client
) -> None:
    with pytest.raises(ExchangeError, match=f"holder: process {holder.pid} .* client: process {os.getpid()}") as caught:
        client.handles("pages")
    assert (caught.value.code, caught.value.exit_code, caught.value.hint) == ("unknown", 4, "did you mean 'page'?")


def test_closing_the_iterator_closes_handles_in_flight(holder: Holder, client: Client) -> None:
    before = open_descriptors()
    found = client.handles("page", batch=100)
    next(found).close()
    assert open_descriptors() == before + 99
    found.close()  # type: ignore[attr-defined]
    assert open_descriptors() == before
    until(lambda: holder.open_descriptors() == holder.idle + 1)


def test_a_handle_that_is_closed_already_keeps_no_other_open() -> None:
    before = open_descriptors()
    handles = [Handle(fd=os.memfd_create("x")) for _ in range(3)]
    handles[0].close()
    close_handles(handles)
    assert open_descriptors() == before


def test_secrets_appear_in_no_repr_text_format_json_or_pickle(client: Client) -> None:
    handle = next(client.handles("woven"))
    for text in (repr(handle), str(handle), f"{handle.secret}", f"{handle.secret!r:>20}", f"{handle.secret!s}"):
        assert "<secret>" in text
        assert "woven" not in text
    for write in (json.dumps, pickle.dumps):
        with pytest.raises(TypeError):
            write(handle.secret)
    assert not hasattr(handle.secret, "__dict__")


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"a handle of {length} bytes"):
        Secret(b"x" * length)


def test_a_client_reads_8000_handles_under_a_limit_of_256_open_files(start: Callable[..., Process]) -> None:
    start(pages=8000, limit=256)
    importer = start("importer", limit=256)
    report = importer.read_line()
    assert (report["taken"], report["files"]) == (8000, [MEMORY])
    assert report["fds"] < 20


def test_the_soft_limit_of_open_files_is_raised_up_to_the_hard_limit(start: Callable[..., Process]) -> None:
    start(pages=8000)
    report = start("importer", keep=True, limit=256, hard=10000).read_line()
    assert report["taken"] == 8000
    assert report["fds"] > 8000


def test_a_low_hard_limit_is_an_error_with_the_number_that_is_needed(start: Callable[..., Process]) -> None:
    start()
    report = start("importer", keep=True, limit=256).read_line()
    assert "the limit of open files is 256, and 19" in report["error"]
    assert "RLIMIT_NOFILE" in report["hint"]


def test_a_holder_that_could_serve_no_client_does_not_start(start: Callable[..., Holder]) -> None:
    report = start(limit=40).begun
    assert "the limit of open files is 40" in report["error"]
    assert report["exit_code"] == 4


def test_three_clients_at_once_get_1000_handles_each_and_free_them_at_their_end(start: Callable[..., Process]) -> None:
    holder = start()
    importers = [start("importer") for _ in range(3)]
    assert [each.read_line()["taken"] for each in importers] == [1000] * 3
    with connect(endpoint("kv")) as client:
        found = client.status().importers
        assert {each.pid for each in found} == {each.pid for each in importers}
        assert {(each.handles, each.bytes, each.bound) for each in found} == {(1000, 1000 * 4096, False)}
        for each in importers:
            each.close_input()
            assert each.ended() == 0
        until(lambda: client.status().importers == ())
    until(lambda: holder.open_descriptors() == holder.idle)  # type: ignore[attr-defined]
