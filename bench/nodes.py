"""Cost of a barrier of nodes on a simulated Ray cluster, against calls of the same actors that do not wait.

    python bench/nodes.py [NODES] [ROUNDS]

Each agent makes the rounds at its own pace: a call of the hub that returns at once, and one that returns when all have
arrived. Prints the milliseconds of a round, of all agents together, and their ratio.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import ray
from ray.cluster_utils import Cluster

from memtopo.run.nodes import cluster as placing
from memtopo.run.nodes.cluster import RayAgent, RayCluster


class Rounds(RayAgent):
    """An agent that only meets others."""

    def meet(self, hub: Any, node: str, rounds: int, first: int) -> float:
        """Seconds of some barriers, with the numbers from `first` on."""
        start = time.perf_counter()
        for number in range(rounds):
            hub("arrive", node, first + number, (True, True)).result()
        return time.perf_counter() - start

    def call(self, hub: Any, rounds: int) -> float:
        """Seconds of some calls of the hub that do not wait."""
        start = time.perf_counter()
        for _ in range(rounds):
            hub("ends").result()
        return time.perf_counter() - start


def main(nodes: int = 6, rounds: int = 100) -> None:
    """Print the times of rounds on a cluster of this host."""
    placing.RayAgent = Rounds  # type: ignore[misc]  # placed as agents are
    local = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(nodes):
        local.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=local.address, log_to_driver=False)
    names = [f"n{number}" for number in range(nodes)]
    with RayCluster(ray).place(names, gpus=0, patience=300) as placed:
        agents = {name: node.agent for name, node in placed.nodes.items()}
        first, ratios = 1, []
        for turn in range(6):
            bare = max(each.result() for each in [agents[name]("call", placed.hub, rounds) for name in names])
            meets = [agents[name]("meet", placed.hub, name, rounds, first) for name in names]
            met = max(each.result() for each in meets)
            first += rounds
            if turn:  # the first one connects
                ratios.append(met / bare)
                print(f"{bare / rounds * 1e3:6.2f} ms bare, {met / rounds * 1e3:6.2f} ms a barrier")
        print(f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), {nodes} nodes")
    ray.shutdown()
    local.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
