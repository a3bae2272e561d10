"""A Ray cluster of several nodes on this machine, told by lines of input what to do.

``add CPUS`` starts a node and answers with its number, ``remove NUMBER`` kills one; it ends with
its input. Ray leaves files open and warns of its future, so it has a process of its own.
"""

import os
import sys

STORE = {"object_store_memory": 150 * 2**20}


def main() -> None:
    """Start a head without cores, say its address, and obey."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False} | STORE
    cluster = Cluster(initialize_head=True, head_node_args=head)
    print(cluster.address, flush=True)
    nodes = []
    for line in sys.stdin:
        order, number = line.split()
        if order == "add":
            nodes.append(cluster.add_node(num_cpus=int(number), **STORE))
            print(len(nodes) - 1, flush=True)
        else:
            cluster.remove_node(nodes[int(number)], allow_graceful=False)
            print("removed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
