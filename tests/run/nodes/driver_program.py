"""A driver of a run on simulated nodes of a Ray cluster; it prints its report.

Arguments: the spec's file, the cluster's address for RAY_ADDRESS, and JSON with `timeout`, `check`, `crash`,
`socket` to hold the layout there, and `lasting`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from memtopo.cli.process import Stopper
from memtopo.common.decoding import encode
from memtopo.language import read_file
from memtopo.language.entries import nodes_of
from memtopo.machine import Cluster
from memtopo.plans.report import Report
from memtopo.run.nodes.cluster import connected
from memtopo.run.nodes.driver import NodesRun, hosts, node_tasks
from memtopo.session.composition import Holding
from memtopo.spec import read
from tests.helpers.machines import with_fabric
from tests.helpers.nodes import node_request

CRASHING = str(Path(__file__).with_name("crashing_worker.py"))


def run(spec: Path, options: dict[str, Any]) -> Report:
    nodes = nodes_of(read(read_file(spec).root, frozenset())[0])
    machines = {node: ("fabric", with_fabric(2)) for node in nodes}
    cluster = Cluster({node: machine for node, (_, machine) in machines.items()})
    request, document = node_request(spec, cluster, options.get("check", "fast"))
    holding = Holding(str(options["socket"]), options.get("lasting")) if options.get("socket") else None
    tasks = node_tasks(
        request, document, machines, timeout=float(options.get("timeout", 30)), holding=holding,
        worker=[sys.executable, "-P", CRASHING, json.dumps(options["crash"]), str(os.getpid())]
        if "crash" in options
        else (),
    )  # fmt: skip
    with connected("ray") as ray, Stopper() as stopper, ray.place(nodes, gpus=0, patience=120) as placed:
        run = NodesRun(ray, placed, request, tasks, stop=stopper.signal, serving=print_serving)
        return run.run(hosts(placed))


def print_serving(sockets: object, _front: object) -> None:
    sys.stderr.write(f"serving {json.dumps(sockets)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    os.environ["RAY_ADDRESS"] = sys.argv[2]
    sys.stdout.buffer.write(encode(run(Path(sys.argv[1]), json.loads(sys.argv[3]))))
