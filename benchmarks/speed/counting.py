"""Count the requests of every peer, with a proxy between the peer and the server.

The proxy is a process of its own, which this module is when it is run: zarrs keeps Python's lock while it waits.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.places import Bucket
from benchmarks.speed.archives import ARCHIVE_PEERS
from benchmarks.speed.layouts import COUNTED, TIFF
from benchmarks.speed.measuring import RANDOM_READS, Result, prepare
from benchmarks.speed.peers import Peer, folder_of
from benchmarks.speed.work import KNOWN_SHARD, Operation
from integration.proxy import CountingProxy
from integration.server import Server

WHERE = "requests"
OPERATIONS: tuple[Operation, ...] = ("first write", "read", *KNOWN_SHARD, "random reads, unknown shards", "64 points")
# Requests of these operations are reported for one read.
_READS = {"random reads, known shard": RANDOM_READS, "random tiles": RANDOM_READS, "random reads, unknown shards": 16}


class _Counter:
    """A proxy in another process, and how many requests have passed it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        # Popen gives both pipes, because both were asked for.
        assert process.stdin is not None
        assert process.stdout is not None
        self._asked, self._told = process.stdin, process.stdout
        self.endpoint = self._told.readline().strip()

    def count(self) -> int:
        """Return how many requests have passed since the last call."""
        self._asked.write("\n")
        self._asked.flush()
        return int(self._told.readline())


@contextmanager
def _counter(endpoint: str) -> Iterator[_Counter]:
    command = [sys.executable, "-m", "benchmarks.speed.counting", endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield _Counter(process)


def count_requests(place: Bucket, peers: Sequence[Peer]) -> Iterator[Result]:
    """Return how many requests each peer makes, for 16 shards of 64 inner chunks."""
    with _counter(place.server.endpoint) as counter:
        behind = Bucket(Server(counter.endpoint, place.server.access_key, place.server.secret_key), place.prefix)
        cases = [(operation, COUNTED, peer) for operation in OPERATIONS for peer in peers]
        tiles: Operation = "random tiles"
        for operation, layout, peer in (*cases, *((tiles, TIFF, peer) for peer in ARCHIVE_PEERS.values())):
            if peer.is_limit or not peer.does(operation, behind):
                continue
            own = behind.below(folder_of(f"counted-{operation}-{peer.name}"))
            try:
                with peer.configured():
                    task = prepare(operation, peer, own, layout, 0, set())
                    counter.count()
                    task.run()
            except Exception as error:
                print(f"  {peer.name} cannot do '{operation}': {str(error)[:150]}", file=sys.stderr)
                continue
            count = counter.count() / _READS.get(operation, 1)
            yield Result(WHERE, layout.name, operation, peer.name, count, "requests")


def main(endpoint: str) -> None:
    """Serve a proxy until standard input closes; for every line on it, print how many requests have passed."""
    with CountingProxy(endpoint) as proxy:
        print(proxy.endpoint, flush=True)
        for _ in sys.stdin:
            print(len(proxy.requests), flush=True)
            proxy.requests.clear()


if __name__ == "__main__":
    main(sys.argv[1])
