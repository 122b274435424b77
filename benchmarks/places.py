"""Where benchmarks keep their arrays: folders of this machine, and prefixes of a MinIO that is started for them."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import urllib3
from minio import Minio
from obstore.store import LocalStore, S3Store

from integration import toxics
from integration.server import Server, supervised

BUCKET = "bench"


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder on a local disk."""

    folder: Path

    def below(self, name: str) -> "Disk":
        """Return a place inside this one."""
        return Disk(self.folder / name)

    def objects(self) -> LocalStore:
        """Return the place as a store of obstore."""
        return LocalStore(self.folder, mkdir=True)

    def clear(self) -> None:
        """Remove everything below."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A prefix in the bucket of an S3 server."""

    server: Server
    prefix: str

    def below(self, name: str) -> "Bucket":
        """Return a place inside this one."""
        return Bucket(self.server, f"{self.prefix}/{name}")

    def objects(self) -> S3Store:
        """Return the place as a store of obstore; its connections are kept and used again."""
        return objects(self.server, self.prefix)

    def clear(self) -> None:
        """Leave everything: the folder of the server is removed at the end."""


type Place = Disk | Bucket


def place_to_json(place: Place) -> dict[str, Any]:
    """Return a place in a form that another process can be given. The credentials of the server are in it."""
    if isinstance(place, Disk):
        return {"folder": str(place.folder)}
    return {"server": asdict(place.server), "prefix": place.prefix}


def place_from_json(found: dict[str, Any]) -> Place:
    """Return the place that `place_to_json` was given."""
    return Disk(Path(found["folder"])) if "folder" in found else Bucket(Server(**found["server"]), found["prefix"])


@lru_cache(maxsize=128)
def objects(server: Server, prefix: str) -> S3Store:
    """Return a prefix of the bucket as a store of obstore."""
    return S3Store(
        BUCKET,
        prefix=prefix,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region="us-east-1",
        client_options={"allow_http": True},
    )


@contextmanager
def minio() -> Iterator[Server]:
    """Start a MinIO that ends with the block, with an empty bucket."""
    with supervised() as server:
        # A MinIO that has just started may answer 503 and ask for a minute of patience; a second is enough.
        retry = urllib3.Retry(total=30, backoff_factor=0.1, status_forcelist=[503], respect_retry_after_header=False)
        client = Minio(
            server.endpoint.removeprefix("http://"),
            access_key=server.access_key,
            secret_key=server.secret_key,
            secure=False,
            http_client=urllib3.PoolManager(retries=retry),
        )
        if not client.bucket_exists(BUCKET):
            client.make_bucket(BUCKET)
        yield server


@contextmanager
def places(latencies: Mapping[str, int], disk: str) -> Iterator[dict[str, Place]]:
    """Start a MinIO and a proxy for each latency in milliseconds, and yield the places by their names."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="parts-store-speed-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(minio())
        os.environ |= {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        found: dict[str, Place] = {disk: Disk(folder)}
        api = stack.enter_context(toxics.supervised())
        for name, latency in latencies.items():
            seen = server
            if latency:
                if api is None:
                    continue
                proxy = stack.enter_context(toxics.proxied(api, server))
                proxy.poison(toxics.toxic("latency", "downstream", latency=latency))
                seen = proxy.server
            found[name] = Bucket(seen, name.replace(" ", "").replace("+", ""))
        yield found
