"""A holder that says nonsense, lies, or stops in the middle: an error that names both ends, and nothing is kept."""

from __future__ import annotations

import base64
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError
from memtopo.language import read_text
from memtopo.sharing.client import Client
from memtopo.sharing.connection import HolderConnection
from memtopo.sharing.held import held_machine, held_source
from memtopo.sharing.messages import TEXT_CHARACTERS
from memtopo.sharing.offers import Offer
from memtopo.sharing.sockets import LeaseName, lease_names
from memtopo.sharing.wire import LARGEST, layout_source
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import scripted
from tests.helpers.machines import invented
from tests.helpers.memfd_exports import GPU, MACHINE, POOL
from tests.helpers.processes import open_descriptors

PAGES = Offer("page", "chunk", "fd", 4, 4096, "gpu0", GPU)
BLOCKS = Offer("block", "buffer", "ipc", 2, 4096, "gpu0", GPU)
FRAME = Offer("frame", "memory", "opaque_fd", 1, 8192, "gpu0", GPU, ("dedicated",))
READY = Offer("ready", "semaphore", "timeline_fd", 1, 0, "any GPU")
OFFERS = {"ok": {"total": 4, "offers": [to_builtins(each) for each in (PAGES, BLOCKS, FRAME, READY)]}}
STATUS = {
    "ok": {
        "name": "kv", "pid": 1, "since": 1.0, "state": "serving", "deadline": None, "spec": None,
        "machine": to_builtins(MACHINE),
    }
}  # fmt: skip
NO_CHECKS = {"tallies": [], "differences": [], "different": 0}
NOBODY = {"ok": {"importers": [], "more": False}}
RELEASING = {"notice": "releasing", "grace": 2}
SECRET = base64.b64encode(b"s" * 64).decode()


def given(offer: Offer = PAGES, count: int = 4, first: int = 0, **changed: Any) -> Any:
    """An answer to `handles`."""
    each = {"offset": 0} if offer.descriptors else {"offset": 0, "secret": SECRET}
    return {"ok": {"offer": to_builtins(offer) | changed, "first": first, "handles": [each] * count}}


def importer(id: int) -> Any:
    """An importer of a number."""
    return {"id": id, "pid": 1, "uid": 1, "since": 1, "handles": 1, "bytes": 1, "bound": False, "taken": []}


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    """Every descriptor that came is closed."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def pages(client: Client) -> None:
    for handle in client.handles("page"):
        handle.close()


POOLS = {"ok": {"total": 1, "offers": [to_builtins(POOL)]}}


def lent(count: int, handles: int | None = None, epoch: int = 1) -> dict[str, Any]:
    """Answer that lends objects."""
    blocks = [{"number": number, "epoch": epoch} for number in range(count)]
    return {"ok": {"blocks": blocks, "handles": [{"offset": 0}] * (count if handles is None else handles), "total": 0}}


def borrow(client: Client) -> None:
    client.lend("pool", 2)


def blocks(client: Client) -> None:
    list(client.handles("block"))


def error_of(packets: list[tuple[Any, int]], act: Callable[[Client], Any]) -> ExchangeError:
    """The error of a client whose holder says just that, each packet with so many descriptors."""
    file = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with scripted(*((message, [file] * count) for message, count in packets)) as client:
            with pytest.raises(ExchangeError, match=f"process {os.getpid()} at /scripted.sock; client:") as error:
                act(client)
            assert client.fileno() < 0  # it is not talked to any more
    finally:
        os.close(file)
    assert error.value.exit_code == 4
    return error.value


@pytest.mark.parametrize(
    ("packets", "act"),
    [
        ([(OFFERS, 0), (given(), 3)], pages),
        ([(OFFERS, 0), (given(), 5)], pages),
        ([(OFFERS, 0), (given(), 0)], pages),
        ([(OFFERS, 0), (given(count=5), 5)], pages),
        ([(OFFERS, 0), (given(count=0), 0)], pages),
        ([(OFFERS, 0), (given(count=2), 2)], lambda client: list(client.handles("page", batch=1))),
        ([(OFFERS, 0), (given(count=2), 2)], lambda client: list(client.handles("page", batch=0))),
        ([(OFFERS, 0), (given(count=3), 3)], lambda client: list(client.handles("page", count=2))),
        ([(OFFERS, 0), (given(first=1), 4)], pages),
        ([(OFFERS, 0), (given(size=8192), 4), (OFFERS, 0)], pages),
        ([(OFFERS, 0), (given(gpu="ff" * 16), 4), (OFFERS, 0)], pages),
        ([(OFFERS, 0), (given(gpu=None), 4), (OFFERS, 0)], pages),
        ([(OFFERS, 0), (given(count=2), 2), (given(count=2, size=1), 2), (OFFERS, 0)], pages),
        ([(OFFERS, 0), (given(BLOCKS, 2), 2)], blocks),
        ([(OFFERS, 0), (given(PAGES, 2), 2), (OFFERS, 0)], blocks),
        ([(OFFERS, 0), ({"ok": given(BLOCKS)["ok"] | {"handles": [{"offset": 0, "secret": "AAAA"}]}}, 0)], blocks),
        ([(OFFERS, 0), ({"ok": given(BLOCKS)["ok"] | {"handles": [{"offset": 0, "secret": "é" * 88}]}}, 0)], blocks),
        ([(OFFERS, 0), ({"ok": given(BLOCKS)["ok"] | {"handles": [{"offset": -1, "secret": SECRET}]}}, 0)], blocks),
        ([(POOLS, 0), (lent(2), 1)], borrow),
        ([(POOLS, 0), (lent(2), 3)], borrow),
        ([(POOLS, 0), (lent(3), 3)], borrow),
        ([(POOLS, 0), (lent(0), 0)], borrow),
        ([(POOLS, 0), (lent(65), 65)], lambda client: client.lend("pool", 100)),
        ([(POOLS, 0), (lent(2, handles=1), 1)], borrow),
        ([(POOLS, 0), (lent(2, epoch=0), 2)], borrow),
        ([(POOLS, 0), ({"ok": {"blocks": 7, "handles": []}}, 0)], borrow),
        ([(OFFERS, 1)], Client.offers),
        ([({"ok": {"total": 3, "offers": []}}, 0)], Client.offers),
        ([({"ok": {"total": 1, "offers": [to_builtins(PAGES), to_builtins(BLOCKS)]}}, 0)], Client.offers),
        ([({"ok": {"total": 3, "offers": [to_builtins(PAGES)] * 2}}, 0)] * 3, Client.offers),
        ([({"ok": {"total": 1 << 62, "offers": [to_builtins(PAGES)]}}, 0)], Client.offers),
        ([({"ok": {"total": 1, "offers": [to_builtins(PAGES) | {"via": "smoke"}]}}, 0)], Client.offers),
        ([({"ok": {"total": 1, "offers": [to_builtins(PAGES) | {"count": 0}]}}, 0)], Client.offers),
        ([({"ok": {"total": 1, "offers": [7]}}, 0)], Client.offers),
        ([({"ok": 7}, 0)], Client.offers),
        ([({"ok": {}}, 0)], Client.offers),
        ([({"error": "no"}, 0)], Client.offers),
        ([({"error": {"code": 7}}, 0)], Client.offers),
        ([({"oh": {}}, 3)], Client.offers),
        ([({"notice": 7}, 0)], Client.offers),
        ([({"notice": "changing", "exports": [], "generation": 1}, 0)], Client.offers),
        ([({"notice": "changing", "exports": [7], "generation": 1, "deadline": 1}, 0)], Client.offers),
        ([({"notice": "changed", "exports": "page", "generation": 1, "state": None}, 0)], Client.offers),
        ([({"notice": "changed", "exports": [], "generation": 0, "state": None}, 0)], Client.offers),
        ([({"notice": "changed", "exports": [], "generation": 1, "state": 7}, 0)], Client.offers),
        ([({"notice": "dinner"}, 0)] * 1100, Client.offers),
        ([({"notice": "dinner"}, 1)], Client.offers),
        ([({"notice": "releasing", "grace": "soon"}, 0)], Client.offers),
        ([(RELEASING, 1)], Client.offers),
        ([(RELEASING, 0)] * 1100, Client.offers),
        ([({"ok": {"total": 3, "text": "abcd"}}, 0)], Client.source),
        ([({"ok": {"total": 3, "text": ""}}, 0)], Client.source),
        ([({"ok": {"total": 3, "text": "ab"}}, 0), ({"ok": {"total": 3, "text": ""}}, 0)], Client.source),
        ([({"ok": {"total": 1 << 40, "text": "ab"}}, 0)], Client.source),
        ([({"ok": {"total": 3, "text": "abc"}}, 1)], Client.source),
        ([({"ok": {"total": 3, "text": 7}}, 0)], Client.source),
        ([(OFFERS, 0)], Client.notice),
        ([(STATUS, 0), (OFFERS, 0), ({"ok": {"importers": [importer(2)] * 2, "more": False}}, 0)], Client.status),
        ([(STATUS, 0), (OFFERS, 0), ({"ok": {"importers": [importer(0)], "more": True}}, 0)], Client.status),
        ([(STATUS, 0), (OFFERS, 0), ({"ok": {"importers": [], "more": True}}, 0)], Client.status),
        ([({"ok": STATUS["ok"] | {"state": "asleep"}}, 0)], Client.status),
        ([({"ok": STATUS["ok"] | {"machine": None}}, 0)], Client.status),
        ([({"ok": {"tallies": [], "differences": [{}], "different": 1}}, 0)], Client.check),
        ([({"ok": {"name": "kv", "lost": [{}], "kept": []}}, 0)], Client.release),
    ],
)  # fmt: skip
def test_an_answer_unlike_the_offer_or_the_protocol_ends_the_connection(
    packets: list[tuple[Any, int]], act: Callable[[Client], Any]
) -> None:
    assert error_of(packets, act).code == "lie"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"garbage", "packet"),
        (b"[]", "packet"),
        (b"[" * 60000, "packet"),
        (b'{"memtopo":2,"ok":{}}', "version"),
        (b'{"ok":{}}', "version"),
        (b'{"memtopo":1,"ok":{"total":Infinity}}', "packet"),
        (b"x" * 65537, "packet"),
        (b"", "gone"),
    ],
)
@pytest.mark.parametrize("count", [0, 7])
def test_a_malformed_packet_ends_the_connection_and_its_descriptors_are_closed(
    data: bytes, code: str, count: int
) -> None:
    assert error_of([(data, count)], Client.offers).code == ("packet" if code == "gone" and count else code)


def test_a_malformed_packet_is_named_by_the_request_that_it_answers() -> None:
    assert "the answer to 'offers' is malformed: " in error_of([(b"garbage", 0)], Client.offers).message
    assert "a notice is malformed: " in error_of([(b"garbage", 0)], Client.notice).message
    soon = error_of([({"notice": "releasing", "grace": "soon"}, 0)], Client.offers).message
    assert soon.startswith("the holder cannot be trusted: ")
    assert "'grace'" in soon


@pytest.mark.parametrize(
    ("packets", "act"),
    [
        ([], Client.status),
        ([(STATUS, 0)], Client.status),
        ([(STATUS, 0), (OFFERS, 0)], Client.status),
        ([(OFFERS, 0)], pages),
        ([(OFFERS, 0), (given(count=3), 3)], pages),
        ([], Client.notice),
        ([], Client.check),
        ([], Client.release),
    ],
)
def test_a_connection_that_ends_early_is_gone(packets: list[tuple[Any, int]], act: Callable[[Client], Any]) -> None:
    assert error_of(packets, act).code == "gone"


def test_descriptors_lost_to_the_limit_of_open_files_are_an_error_about_that_limit() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with scripted((OFFERS, []), (given(), [file] * 4)) as client:
        client.offers()
        highest = max(map(int, os.listdir("/proc/self/fd")))
        fill = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]  # the free numbers below the limit
        while fill[-1] < highest:
            fill.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fill[-1] + 2, hard))
        try:
            with pytest.raises(ExchangeError) as error:
                client.exchange("handles", export="page", first=0, count=4)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for each in (file, *fill):
        os.close(each)
    assert error.value.code == "limit"


@pytest.mark.parametrize(("timeout", "given"), [(PATIENCE, 0), (0, None)])
def test_a_request_has_its_own_timeout_or_that_of_its_connection(timeout: float, given: float | None) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        client = HolderConnection(ours, "/silent.sock", timeout=timeout)
        with pytest.raises(ExchangeError, match=r"^no answer to 'check' within 0 s ") as error:
            client.exchange("check", timeout=given)
        assert (error.value.code, client.fileno(), client.gone()) == ("timeout", -1, True)
        with pytest.raises(ExchangeError, match=r"^'check' cannot be sent: the connection has ended "):
            client.exchange("check")


def test_a_request_that_a_signal_handler_interrupts_ends_the_connection() -> None:
    """The next request would be given the answer that comes late."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    main = threading.get_ident()

    def interrupt() -> None:
        theirs.recv(LARGEST)
        signal.pthread_kill(main, signal.SIGUSR1)

    interrupting, before = threading.Thread(target=interrupt), signal.signal(signal.SIGUSR1, signal.default_int_handler)
    with theirs, HolderConnection(ours, "/silent.sock", timeout=PATIENCE) as client:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            client.exchange("check")
        assert client.gone()
        interrupting.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("act", "code", "message"),
    [
        (lambda client: client.handles("page", 4, 1), "range", "has 4 handles, counted from 0; 4 to 5 do not exist"),
        (lambda client: client.handles("page", 2, 3), "range", "has 4 handles, counted from 0; 2 to 5 do not exist"),
        (lambda client: client.handles("page", 3, -1), "range", "has 4 handles, counted from 0; 3 to 2 do not exist"),
        (lambda client: client.handles("page", -1), "range", "has 4 handles, counted from 0; -1 to 4 do not exist"),
        (lambda client: client.handles("blok"), "unknown", "there is no export 'blok'"),
    ],
)
def test_handles_that_are_not_offered_are_an_error_before_any_request(
    act: Callable[[Client], Any], code: str, message: str
) -> None:
    with scripted((OFFERS, [])) as client, pytest.raises(ExchangeError) as error:
        act(client)
    assert error.value.code == code
    assert message in error.value.message
    assert error.value.hint == ("did you mean 'block'?" if code == "unknown" else None)


@pytest.mark.parametrize(
    ("answer", "act"),
    [
        (STATUS, Client.status),
        ({"ok": {"name": "kv", "lost": [], "kept": []}}, Client.release),
        (
            {"ok": {"name": "kv", "state": "awake", "checks": NO_CHECKS, "kept": []}},
            lambda client: client.switch("awake"),
        ),
    ],
)
@pytest.mark.parametrize(("length", "accepted"), [(128, True), (129, False)])
def test_the_name_of_a_layout_has_at_most_128_characters(
    answer: Any, act: Callable[[Client], Any], length: int, accepted: bool
) -> None:
    answer = {"ok": answer["ok"] | {"name": "x" * length}}
    with scripted((answer, []), (OFFERS, []), (NOBODY, [])) as client:
        if accepted:
            assert act(client).name == "x" * length
        else:
            with pytest.raises(ExchangeError, match="'name'"):
                act(client)


def test_a_notice_before_an_answer_is_kept() -> None:
    with scripted((RELEASING, []), (OFFERS, [])) as client:
        assert list(client.offers()) == ["page", "block", "frame", "ready"]
        assert client.notice() is not None


def test_a_thousand_notices_are_accepted_and_the_last_sixteen_kept() -> None:
    with scripted(*[({"notice": "releasing", "grace": grace}, []) for grace in range(1000)], (OFFERS, [])) as client:
        assert len(client.offers()) == 4
        notices = [client.notice() for _ in range(16)]
        assert [notice.grace for notice in notices if notice] == [float(grace) for grace in range(984, 1000)]
    too_many = scripted(*[(RELEASING, [])] * 1001, (OFFERS, []))
    with too_many as client, pytest.raises(ExchangeError, match="it sent more than 1,000 notices"):
        client.offers()


Sent = tuple[Any, list[int]]
"""A packet with its descriptors."""


def changes(*exports: list[str]) -> list[Sent]:
    """Return notices of changes of exports, from generation 2 on."""
    messages = ({"notice": "changed", "generation": at, "exports": each} for at, each in enumerate(exports, 2))
    return [(each, []) for each in messages]


def test_a_notice_of_a_change_that_is_read_late_names_the_exports_of_all_changes_before() -> None:
    """However many other notices came, and after those that came before it."""
    changed = changes(*([f"x{at % 20}"] for at in range(2, 42)))
    changing: list[Sent] = [({"notice": "changing", "generation": 1, "deadline": 1, "exports": ["x1"]}, [])]
    with scripted(changed[0], *changing, *changed[1:], *changing * 20, (OFFERS, [])) as client:
        client.offers()
        notices = [client.notice() for _ in range(16)]
        kinds = [notice.kind for notice in notices if notice]
        (of_all,) = (notice for notice in notices if notice and notice.kind == "changed")
        assert (kinds.count("changing"), kinds.index("changed")) == (15, 0)
        assert (of_all.generation, set(of_all.exports)) == (41, {f"x{at}" for at in range(20)})


def test_the_names_of_changes_that_are_read_late_are_bounded_over_all_requests() -> None:
    names = [[f"{at}-{each}-{'x' * 4000}" for each in range(15)] for at in range(18)]
    answer: Sent = (OFFERS, [])
    with scripted(*(packet for each in changes(*names) for packet in (each, answer))) as client:
        for _ in names[1:]:
            client.fresh_offers()
        with pytest.raises(ExchangeError, match="it sent notices that name more than 1,048,576 bytes of exports"):
            client.fresh_offers()


def test_the_reason_of_a_refusal_is_cut() -> None:
    error = {"error": {"code": "failed", "message": "m" * 401, "hint": "h" * 401}}
    with scripted((error, [])) as client:
        with pytest.raises(ExchangeError) as refused:
            client.offers()
        assert client.fileno() >= 0
    assert refused.value.message.startswith("m" * 400 + " (holder: ")
    assert (refused.value.code, refused.value.hint) == ("failed", "h" * 400)


@pytest.mark.parametrize("code", ["packet", "version", "request", "forbidden", "busy"])
def test_a_refusal_after_which_a_holder_ends_the_connection_ends_it_here_too(code: str) -> None:
    with scripted(({"error": {"code": code, "message": "no"}}, [])) as client:
        with pytest.raises(ExchangeError) as refused:
            client.offers()
        assert (refused.value.code, refused.value.hint, client.fileno()) == (code, None, -1)


def test_a_request_that_is_refused_beside_unread_packets_is_sent_once_more() -> None:
    unread: Sent = ({"error": {"code": "unread", "message": "read first"}}, [])
    with scripted(unread, (OFFERS, []), unread, unread, (OFFERS, [])) as client:
        assert len(client.offers()) == 4
        with pytest.raises(ExchangeError, match="read first"):
            client.fresh_offers()
        assert len(client.fresh_offers()) == 4


@pytest.mark.parametrize(
    ("pid", "namespace"),
    [(os.getpid(), "same"), (os.getpid() + 1, "another"), (0, "another")],
    ids=["own", "other", "none"],
)
def test_a_holder_that_has_another_number_for_itself_is_in_another_pid_namespace(pid: int, namespace: str) -> None:
    """Unless it names its own; here it has the number of this process, which is the other end."""
    status = {"ok": STATUS["ok"] | {"pid": pid}}
    with scripted((status, []), (OFFERS, []), (NOBODY, [])) as client:
        found = client.status()
    assert (found.pid_namespace, found.pid) == (namespace, os.getpid())


def test_the_correct_answers_of_these_tests_are_accepted() -> None:
    file = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    script = [(STATUS, []), (OFFERS, []), (NOBODY, []), (given(count=3), [file] * 3), (given(count=1, first=3), [file])]
    with scripted(*script, (given(BLOCKS, 2), [])) as client:
        assert client.status().offers == (PAGES, BLOCKS, FRAME, READY)
        pages(client)
        assert [handle.secret and handle.secret.reveal() for handle in client.handles("block")] == [b"s" * 64] * 2
    os.close(file)


def test_notices_are_counted_between_two_answers_and_between_two_readings() -> None:
    some: list[tuple[Any, list[int]]] = [(RELEASING, [])] * 501
    with scripted(*some, (OFFERS, []), *some, (STATUS, []), (NOBODY, []), *some, *some) as client:
        assert len(client.offers()) == 4
        assert client.status().name == "kv"
        for _ in range(16 + 2 * len(some)):
            assert client.notice()
        with pytest.raises(ExchangeError, match="the holder has ended the connection"):
            client.notice()


def test_a_notice_that_came_before_the_end_of_the_connection_is_read_after_it() -> None:
    with scripted((RELEASING, [])) as client:
        with pytest.raises(ExchangeError, match="the holder ended the connection before 'offers' was answered"):
            client.offers()
        notice = client.notice()
        assert notice
        assert notice.grace == 2
        with pytest.raises(ExchangeError, match="the holder has ended the connection"):
            client.notice()


def test_an_importer_has_its_name_until_it_closes_the_connection_that_its_holder_has_ended() -> None:
    """What it imported may still be mapped."""

    def names() -> list[LeaseName]:
        return [each for each in lease_names(Path("/proc/self/net/unix")).values() if each.layout == "scripted"]

    with scripted((OFFERS, []), (given(BLOCKS, 2), [])) as client:
        assert len(list(client.handles("block"))) == 2
        with pytest.raises(ExchangeError) as gone:
            client.check()
        assert (gone.value.code, client.fileno()) == ("gone", -1)
        assert [each.holder for each in names()] == [os.getpid()]
    assert names() == []


def offered(*offers: Offer, total: int, generation: int) -> Any:
    """An answer to `offers`."""
    return {"ok": {"total": total, "offers": [to_builtins(each) for each in offers], "generation": generation}}


def test_offers_of_two_generations_are_not_listed_together() -> None:
    packets = offered(PAGES, total=2, generation=1), offered(BLOCKS, total=2, generation=2)
    again = offered(PAGES, BLOCKS, total=2, generation=2)
    with scripted(*((each, []) for each in (*packets, again))) as client:
        with pytest.raises(ExchangeError, match="the layout was changed while its offers were received") as changed:
            client.offers()
        assert changed.value.code == "changed"
        assert (list(client.offers()), client.generation) == (["page", "block"], 2)


@pytest.mark.parametrize("made", [2, 1])
def test_handles_with_another_offer_are_a_change_and_no_lie_if_the_holder_offers_it_now(made: int) -> None:
    """Also of memory that the change has not made: an export that grows keeps what it has"""
    larger, file = replace(PAGES, size=8192), os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    answers = [given(larger), given(larger)]
    for each in answers:
        each["ok"]["generation"] = made
    packets = [
        (offered(PAGES, total=1, generation=1), []), (answers[0], [file] * 4),
        (offered(larger, total=1, generation=2), []), (answers[1], [file] * 4),
    ]  # fmt: skip
    with scripted(*packets) as client:
        with pytest.raises(ExchangeError, match="'page' was changed while its handles were received") as changed:
            pages(client)
        assert changed.value.code == "changed"
        pages(client)
        assert (client.offers()["page"].size, client.generations) == (8192, {"page": made})
    os.close(file)


@pytest.mark.parametrize(
    ("reports", "end", "outcome", "exit_code"),
    [
        (
            True,
            [{"notice": "ended", "outcome": "failed", "exit_code": 5, "reason": "left behind: a page"}],
            "failed",
            5,
        ),
        (True, [RELEASING], "died", 4),
        (False, [], None, None),
        (True, [b"garbage"], None, None),
    ],
)
def test_a_release_has_the_outcome_that_its_holder_reports(
    reports: bool, end: list[Any], outcome: str | None, exit_code: int | None
) -> None:
    """A holder that was to report, and has not, has died."""
    answer = {"ok": {"name": "kv", "lost": [], "kept": [], "reports": reports}}
    with scripted(*((each, []) for each in (answer, *end))) as client:
        done = client.release()
    assert (done.gone, done.outcome, done.exit_code) == (end != [b"garbage"], outcome, exit_code)


@pytest.mark.parametrize("read", [held_source, held_machine])
def test_a_holder_without_a_source_that_can_be_read_has_none_and_other_refusals_are_errors(
    read: Callable[[Client], Any],
) -> None:
    text = '{"spec": "memtopo: 1", "machine": "[]"}'
    answers: list[Any] = [
        {"error": {"code": "request", "message": "it is not known"}},
        {"ok": {"total": 0, "text": ""}},
        {"ok": {"total": len(text), "text": text}},
    ]
    for each in answers:
        with scripted((each, [])) as client:
            assert read(client) is None
    refused = {"error": {"code": "busy", "message": "later"}}
    text = layout_source(read_text(b"memtopo: 1\nname: kv\n", "/there/kv.yaml"), invented(1))
    parts = [text[first : first + TEXT_CHARACTERS] for first in range(0, len(text), TEXT_CHARACTERS)]
    with scripted(*(({"ok": {"total": len(text), "text": each}}, []) for each in parts)) as client:
        found = read(client)
    assert found == invented(1) if read is held_machine else (found[0].name, found[1]) == ("the holder", invented(1))
    with scripted((refused, [])) as client, pytest.raises(ExchangeError, match="later"):
        read(client)
