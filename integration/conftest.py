"""A real S3 server for all integration tests, a bucket for each test, and a user with read access only."""

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.deleteobjects import DeleteObject
from obstore.store import S3Store

from integration import azurite, toxics
from integration.server import Server, supervised

# A fixture, and hooks of pytest, which it finds here.
from tests.conftest import pipeline  # noqa: F401
from tests.effort import (  # noqa: F401
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_xdist_auto_num_workers,
)

READ_ONLY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": ["arn:aws:s3:::*"]}],
}


@pytest.fixture
def large_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small parts count as too large for the tag of the anchor, so that overwrites have staged copies."""
    monkeypatch.setattr("parts_store.transactions.protocol_choice.MAX_EMBEDDED", 0)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket for one test, and clients for it."""

    name: str
    server: Server
    client: Minio

    def store(self, prefix: str | None = None, *, user: Server | None = None) -> S3Store:
        """Return the bucket as an obstore store, for the given user or for the user with all rights."""
        user = user or self.server
        return S3Store(
            self.name,
            prefix=prefix,
            **user.options,
            virtual_hosted_style_request=False,
            # Busy machines make a request take long, too.
            client_options={"allow_http": True, "timeout": "300s"},
        )

    def read(self, key: str) -> bytes:
        """Return an object, read with MinIO's own client."""
        response: Any = self.client.get_object(self.name, key)
        try:
            data: bytes = response.read()
            return data
        finally:
            response.close()
            response.release_conn()

    def list_keys(self) -> set[str]:
        """Return the keys of all objects, listed with MinIO's own client."""
        return {str(each.object_name) for each in self.client.list_objects(self.name, recursive=True)}


def _client(server: Server) -> Minio:
    host, secure = _host(server)
    return Minio(host, access_key=server.access_key, secret_key=server.secret_key, secure=secure)


def _host(server: Server) -> tuple[str, bool]:
    scheme, _, host = server.endpoint.partition("://")
    return host.rstrip("/"), scheme == "https"


@pytest.fixture(scope="module")
def azure() -> Iterator[azurite.Azurite]:
    """Return an emulator of Azure."""
    with azurite.supervised() as server:
        if server is None:
            pytest.skip(azurite.why_missing() or "")
        yield server


@pytest.fixture(scope="session", autouse=True)
def own_environment() -> Iterator[None]:
    """Hide the AWS account and the proxy of the caller from the tests and their processes."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1,localhost")
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with supervised() as server:
        yield server


@contextmanager
def new_bucket(server: Server) -> Iterator[Bucket]:
    """Create a bucket, and remove it with all its objects when the block ends."""
    client = _client(server)
    name = f"parts-store-{secrets.token_hex(8)}"
    client.make_bucket(name)
    try:
        yield Bucket(name, server, client)
    finally:
        stored = (DeleteObject(str(each.object_name)) for each in client.list_objects(name, recursive=True))
        assert not list(client.remove_objects(name, stored))
        client.remove_bucket(name)


@pytest.fixture
def bucket(server: Server) -> Iterator[Bucket]:
    with new_bucket(server) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def reader(server: Server) -> Iterator[Server]:
    """Return the same server, with a user that may read and list everything and write nothing."""
    host, secure = _host(server)
    admin = MinioAdmin(endpoint=host, credentials=StaticProvider(server.access_key, server.secret_key), secure=secure)
    name, secret = f"reader-{secrets.token_hex(4)}", secrets.token_hex(16)
    with ExitStack() as stack:
        admin.policy_add(name, policy=READ_ONLY)
        stack.callback(admin.policy_remove, name)
        admin.user_add(name, secret)
        stack.callback(admin.user_remove, name)
        admin.attach_policy([name], user=name)
        yield Server(server.endpoint, name, secret)


@pytest.fixture(scope="session")
def toxiproxy() -> Iterator[str]:
    with toxics.supervised() as api:
        if api is None:
            pytest.skip("no Go to build toxiproxy with")
        yield api


@pytest.fixture
def bad_network(toxiproxy: str, bucket: Bucket) -> Iterator[toxics.Proxy]:
    if not bucket.server.endpoint.startswith("http://127.0.0.1:"):
        pytest.skip("the server at PARTS_STORE_S3_ENDPOINT is not on this machine")
    with toxics.proxied(toxiproxy, bucket.server) as proxy:
        yield proxy
