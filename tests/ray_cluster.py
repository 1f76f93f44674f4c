"""A Ray cluster of a head, which takes no jobs, and nodes of two CPUs, in processes of this machine.

python -m tests.ray_cluster       prints its address; then, per line of input, does as told, and prints it again:
                                  "kill" a node, "add" one, "restart" everything, the head first
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

NODES = CPUS = 2


class Cluster:
    """The test's end of it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def tell(self, what: str) -> None:
        """Do something to it; a cluster that is started again has another address."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        self.address = self.process.stdout.readline().strip()


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster until the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield Cluster(process, process.stdout.readline().strip())
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    from ray.cluster_utils import Cluster as Nodes

    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}

    def started() -> tuple[Nodes, list[object]]:
        cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        return cluster, [cluster.add_node(num_cpus=CPUS, **small) for _ in range(NODES)]

    cluster, nodes = started()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
        elif line.strip() == "restart":
            cluster.remove_node(cluster.head_node, allow_graceful=False)
            cluster.shutdown()
            cluster, nodes = started()
        else:
            nodes.append(cluster.add_node(num_cpus=CPUS, **small))
        print(cluster.address, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
