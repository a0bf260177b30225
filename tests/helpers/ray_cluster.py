"""A Ray cluster of several nodes on this host, until standard input ends; it prints the address.

Arguments: the number of nodes besides the head, which has no processor for agents, and `--gpu` to give each of them one
GPU of this host. Each line of input adds a node, as after the death of one, and is answered by a line.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

WITHOUT: dict[str, Any] = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
"""Processes of a head node that no layout needs: the dashboard, the monitor of logs, and that of the autoscaler."""


def main(nodes: int, *, gpu: bool = False) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0} | WITHOUT)
    try:
        for number in range(nodes):
            own: dict[str, Any] = {"num_gpus": 1, "env_vars": {"CUDA_VISIBLE_DEVICES": str(number)}} if gpu else {}
            add(cluster, **own)
        cluster.wait_for_nodes()
        answer(cluster.address)
        for _ in sys.stdin:
            add(cluster, wait=True)  # for this one: the cluster still counts the node that has died
            answer("added")
    finally:
        cluster.shutdown()


def add(cluster: Cluster, *, wait: bool = False, **options: Any) -> None:
    cluster.add_node(wait=wait, num_cpus=1, object_store_memory=80 << 20, **options)


def answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), gpu="--gpu" in sys.argv)
