"""A network that is slow, breaks, or cuts answers off: nothing is torn, and what was acknowledged is not lost.

The same writers and readers as those that are killed, through toxiproxy. An operation may fail, by an error that says
so; what it has sent may still arrive, long after.
"""

import os
import subprocess
import sys
import time
import traceback

import pytest
from obstore.store import S3Store

from integration import large, toxics
from integration.breaking import read_plainly, repair
from integration.chaos.driver import Report
from integration.chaos.network import TOXICS, plan_through, run_through
from integration.chaos.plan import Plan
from integration.conftest import Bucket
from integration.large import Order, Work
from integration.server import answers
from integration.toxics import Proxy, toxic
from parts_store import PartsStore
from parts_store.errors import AmbiguousWriteError, StorageError


def require_clean(report: Report) -> Report:
    """Print a report, and require that there were reads and writes, and no violations."""
    print(report)
    assert report.violations == []
    assert report.reads > 0
    assert report.writes > 0
    return report


@pytest.mark.parametrize("name", TOXICS)
def test_a_bad_network_tears_and_loses_nothing(bad_network: Proxy, bucket: Bucket, name: str) -> None:
    _, pause, is_bad = TOXICS[name]
    # obstore repeats some requests by itself, also such that may have arrived: here the writer has to.
    least = {"reads": 1, "writes": 1, "unanswered": int(is_bad)}
    plan = plan_through(bad_network, bucket, "writers", 0, [name], seconds=3, seed=1, pause=pause, least=least)
    report = require_clean(run_through(bad_network, plan, [name]))
    assert (report.unanswered > 0) == is_bad


def test_all_network_faults_together_tear_and_lose_nothing(bad_network: Proxy, bucket: Bucket) -> None:
    least = {"reads": 1, "writes": 1, "unanswered": 1}
    plan = plan_through(bad_network, bucket, "full", 2, list(TOXICS), seconds=8, seed=1, pause=2, least=least)
    report = require_clean(run_through(bad_network, plan, list(TOXICS)))
    assert report.unanswered > 0


WITH_TOXIPROXY = """
import time
from integration.toxics import supervised
with supervised() as api:
    print(api, flush=True)
    time.sleep(600)
"""


@pytest.mark.usefixtures("toxiproxy")
def test_toxiproxy_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", WITH_TOXIPROXY]
    with subprocess.Popen(command, cwd=toxics.ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        api = parent.stdout.readline().strip()
        assert answers(f"{api}/version")
        parent.kill()
    deadline = time.monotonic() + 300
    while answers(f"{api}/version"):
        assert time.monotonic() < deadline, "toxiproxy outlives the tests"
        time.sleep(0.1)


# --- large parts, and slow links --------------------------------------------------------------------------------------

MB = 1_000_000
LARGE = [100 * MB, *([1000 * MB] if os.environ.get("PARTS_STORE_LARGE") else [])]


@pytest.mark.parametrize("nbytes", LARGE)
@pytest.mark.parametrize("large_parts", [1, 2])
def test_large_parts_are_written_and_read_without_needless_copies(
    bucket: Bucket, nbytes: int, large_parts: int
) -> None:
    tail_nbytes = nbytes if large_parts == 2 else 16
    large.create(PartsStore(bucket.store()), tail_nbytes)
    options = Plan.options_of(bucket.server, client_options={"timeout": "10 minutes"})
    chunk_nbytes = 16 + nbytes + tail_nbytes
    works: list[tuple[Work, int]] = [("write", 1), ("read", 1), ("write", 7), ("read", 7)]
    costs = [large.run(Order(work, bucket.name, options, chunk_nbytes, first)) for work, first in works]
    for what, cost in zip(("created", "read", "overwritten", "read again"), costs, strict=True):
        print(f"{large_parts} large parts of {nbytes // MB} MB, {what}: {cost.seconds:.1f} s, {cost.chunks:.2f} chunks")
    assert all(cost.is_right for cost in costs)
    assert {key for key in bucket.list_keys() if ".parts-txn" in key} == set()
    # The value itself, and at most a second one: the parts that it was read as, or the staged copy of one of them.
    assert max(cost.chunks for cost in costs) <= 2.5


@pytest.mark.parametrize("is_there", [False, True], ids=["create", "overwrite"])
def test_timeout_is_named_and_leaves_no_half_written_chunk(
    bad_network: Proxy, bucket: Bucket, *, is_there: bool
) -> None:
    direct = PartsStore(bucket.store())
    large.create(direct, tail_nbytes=16)
    old = b"o" * 1000 if is_there else None
    new = b"n" * (3 * MB // 2)
    if old is not None:
        direct.set_sync(large.KEY, large.PROTOTYPE.buffer.from_bytes(old))
    # 100 kB each second: a quarter of a minute for the chunk.
    bad_network.poison(toxic("bandwidth", "upstream", rate=100))

    def write(timeout: str) -> None:
        options = Plan.options_of(bad_network.server, client_options={"timeout": timeout})
        PartsStore(S3Store(bucket.name, **options)).set_sync(large.KEY, large.PROTOTYPE.buffer.from_bytes(new))

    with pytest.raises((StorageError, AmbiguousWriteError)) as raised:
        write("500ms")
    assert "client_options={'timeout':" in "".join(traceback.format_exception(raised.value))
    # What was cut off in the middle is not there, and what is there is whole.
    assert read(direct) == old
    assert repair(direct).is_clean
    assert read(direct) == old
    assert read_plainly(direct.store, large.KEY, [".head", "", ".tail"]) == old
    assert {key for key in bucket.list_keys() if ".parts-txn" in key} == set()

    # 1 MB each second.
    bad_network.poison(toxic("bandwidth", "upstream", rate=1000))
    write("300s")
    assert read(direct) == new
    assert read_plainly(direct.store, large.KEY, [".head", "", ".tail"]) == new


def read(store: PartsStore) -> bytes | None:
    found = store.get_sync(large.KEY)
    return None if found is None else found.to_bytes()
