"""The objects and requests of a commit of many small arrays on a real S3 server, against VirtualiZarr's writer."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import icechunk
import pytest

from benchmarks.archive import sources
from benchmarks.archive.contestants import ADOPT, IN_OUR_REPOSITORY, Contestant
from benchmarks.archive.sources import Archive
from integration.conftest import Bucket
from integration.proxy import CountingProxy
from integration.server import Server
from parts_store.store.repositories import open_repository

FILES, VARIABLES = 5, 4
# Time, y and x.
COORDINATES = 3


def commit(bucket: Bucket, name: str, contestant: Contestant, files: Sequence[Path]) -> tuple[Counter[str], set[str]]:
    """Write a group for each file, and commit; return the PUT requests of the commit by folder, and the new keys."""
    with CountingProxy(bucket.server.endpoint) as proxy:
        behind = Server(proxy.endpoint, bucket.server.access_key, bucket.server.secret_key)
        options: dict[str, Any] = {**behind.options, "client_options": {"allow_http": True}}
        place = f"s3://{bucket.name}/{name}"
        session = open_repository(place, virtual=[files[0].parent], **options).writable_session("main")
        for file in files:
            contestant.write(contestant.parse([file]), session, file.stem, None)
        before = bucket.list_keys()
        proxy.requests.clear()
        session.commit("adopted")
        requests = Counter(f"{each.kind} {each.key.split('/')[1]}" for each in proxy.requests if each.kind == "put")
        return requests, bucket.list_keys() - before


@pytest.mark.parametrize(
    ("rows", "manifests"),
    [
        # One reference for each chunk, as VirtualiZarr writes them.
        pytest.param(6, VARIABLES + COORDINATES, id="36 chunks"),
        # A reference and an index for each array, in a manifest each.
        pytest.param(10, 2 * VARIABLES + COORDINATES, id="100 chunks"),
    ],
)
def test_commit_of_small_arrays_writes_manifests_and_nothing_else(
    bucket: Bucket, tmp_path: Path, rows: int, manifests: int
) -> None:
    archive = Archive("groups", files=FILES, variables=VARIABLES, steps=1, rows=rows, columns=rows)
    sources.write_files(archive, tmp_path / "files")
    files = [sources.path_of(tmp_path / "files", number) for number in range(FILES)]
    theirs, their_keys = commit(bucket, "theirs", IN_OUR_REPOSITORY, files)
    ours, our_keys = commit(bucket, "ours", ADOPT, files)
    # No index, and no coordinate, is an object of its own.
    assert not [key for key in our_keys if key.startswith("ours/chunks/")]
    assert ours["put manifests"] == len([key for key in our_keys if "/manifests/" in key]) == FILES * manifests
    # Everything else is the same: a snapshot, a log of the transaction, and the repository.
    others = {kind: count for kind, count in ours.items() if kind != "put manifests"}
    assert others == {kind: count for kind, count in theirs.items() if kind != "put manifests"}
    # The time in the first file is 0, the fill value, so that xarray writes no chunk of it for VirtualiZarr.
    assert theirs["put manifests"] == FILES * (VARIABLES + COORDINATES) - 1
    assert len(our_keys) - len(their_keys) == ours["put manifests"] - theirs["put manifests"]


def test_bytes_of_a_repository_are_fewer_than_those_of_plain_references(bucket: Bucket, tmp_path: Path) -> None:
    archive = Archive("groups", files=FILES, variables=VARIABLES, steps=1, rows=10, columns=10)
    sources.write_files(archive, tmp_path / "files")
    files = [sources.path_of(tmp_path / "files", number) for number in range(FILES)]
    icechunk.set_logs_filter("error")
    nbytes = {}
    for name, contestant in (("theirs", IN_OUR_REPOSITORY), ("ours", ADOPT)):
        _, keys = commit(bucket, name, contestant, files)
        nbytes[name] = sum(len(bucket.read(key)) for key in keys)
    assert nbytes["ours"] < nbytes["theirs"]
