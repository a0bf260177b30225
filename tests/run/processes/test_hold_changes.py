"""Changes of held layouts of several processes: switches, other specs, refusals, and the death of a process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from memtopo.common.errors import ExchangeError
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.child_process import PATIENCE
from tests.helpers.processes import workers
from tests.helpers.reports import tallies
from tests.run.processes.test_hold import ended, holding, memtopo

SLEEPING = Path(__file__).with_name("sleeping.yaml")


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def memory(client: Client) -> dict[str, int]:
    """MiB of the layout by location, as its metrics have them."""
    found = client.statistics()
    assert found
    return {each.location: each.bytes >> 20 for each in found.memory}


def changed(text: str) -> str:
    """Source of a changed spec, as clients send it."""
    assert text in SLEEPING.read_text()
    return json.dumps({"spec": SLEEPING.read_text().replace(text, text.replace("count: 2", "count: 1"))})


def test_a_held_layout_of_several_processes_is_switched_and_changed() -> None:
    """Handles of an export are refused while its memory is gone, and a switch while an importer has some."""
    with holding(SLEEPING) as process:
        with connect(endpoint("sleeping")) as client:
            for handle in client.handles("server.w"):
                handle.close()
            with pytest.raises(ExchangeError, match=r"4 of server\.w"):
                client.switch("asleep")
        assert memtopo("switch", "sleeping", "asleep").returncode == 0
        with connect(endpoint("sleeping")) as client:
            status = client.status()
            assert (status.layout_state, status.generation) == ("asleep", 2)
            assert memory(client) == {"host:0": 8}
            with pytest.raises(ExchangeError) as absent:
                list(client.handles("server.w"))
            assert absent.value.code == "absent"
            with pytest.raises(ExchangeError, match="in state 'asleep'"):
                client.change(changed("page: {location: gpu1, size: 2MiB, count: 2}"))
            returned = client.switch("awake", full=True).checks
            assert (returned.different, "fingerprint" in tallies(returned)) == (0, True)
            done = client.change(changed("page: {location: gpu1, size: 2MiB, count: 2}"), generation=3)
            assert (done.checks.different, client.status().generation) == (0, 4)
            assert memory(client) == {"gpu0": 8, "gpu1": 2, "host:0": 8}
            assert "fingerprint" not in tallies(done.checks)
            same = client.change(json.dumps({"spec": SLEEPING.read_text()}), full=True)
            assert tallies(same.checks)["fingerprint"].looked_at > 0
            assert len(list(client.handles("server.w"))) == 4
            assert not client.check().different
        released = memtopo("release", "sleeping", "--json")
        assert (released.returncode, json.loads(released.stdout)["outcome"]) == (0, "ok")
        report = ended(process)
    assert report["plan"]["memory"]["gpu1"] == 4 << 20


def test_a_change_to_other_processes_is_refused() -> None:
    with holding(SLEEPING) as process:
        with connect(endpoint("sleeping")) as client:
            other = json.dumps({"spec": SLEEPING.read_text().replace("engine:", "reader:")})
            with pytest.raises(ExchangeError, match="process 'reader' is not one of the layout"):
                client.change(other)
            assert client.status().generation == 1
        os.kill(workers(process.pid)[-1], signal.SIGKILL)
        with pytest.raises(ExchangeError), connect(endpoint("sleeping")) as client:
            client.switch("asleep")
        out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    assert (process.returncode, report["outcome"]) == (4, "failed")
    assert "killed by SIGKILL" in report["failure"]["error"]
    assert [each["outcome"] for each in report["processes"]] == ["taken down", "died"]


POOL = """
memtopo: 1
name: pool
processes:
  server:
    ranges: {kv: {size: 64MiB, elastic: true}}
    chunks: {page: {location: gpu0, size: 2MiB, count: {min: 2, max: 4}, handles: fd}}
    access: {kv: {gpu0: rw}}
    exports: {page: {chunk: page, via: fd}}
  other:
    chunks: {own: {location: gpu1, size: 2MiB}}
"""


def test_an_export_is_removed_once_no_client_has_objects_of_it(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL)
    removed = json.dumps({"spec": POOL.replace("exports: {page:", "exports: {more:")})
    with holding(file) as process:
        with connect(endpoint("pool")) as other:
            with connect(endpoint("pool")) as client:
                blocks, _ = client.lend("server.page", 4)
                for each in blocks:
                    each.handle.close()
                client.seal("server.page", {each.number: each.epoch for each in blocks[:3]}, "prompt")
                with pytest.raises(ExchangeError, match=r"4 of server\.page, 8 MiB.* did not release"):
                    other.change(removed)
            other.change(removed, wait=PATIENCE)
            assert lends(other, "server.more", 4)
        assert memtopo("release", "pool").returncode == 0
        assert ended(process)["outcome"] == "ok"


def lends(client: Client, export: str, count: int) -> bool:
    """Return whether a client is lent so many objects of an export."""
    blocks, _ = client.lend(export, count)
    for block in blocks:
        block.handle.close()
    return len(blocks) == count
