"""A Ray cluster of several nodes on this host, until standard input ends; it prints the address.

Arguments: the number of nodes besides the head. The head has no processor for agents.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main(nodes: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
        cluster.wait_for_nodes()
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
