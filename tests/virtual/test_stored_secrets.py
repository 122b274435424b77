"""Passwords and signatures in URLs of files are refused, and are in no object of a repository."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import icechunk
import pytest
import xarray as xr
import zarr
import zstandard

import parts_store as ps
from parts_store.cli import main
from parts_store.errors import PartsStoreError, SessionError, StoreConfigError
from parts_store.redaction import may_hold_secret

SECRET: Final = "Zq7x0123456789Zq7x"
HOST: Final = "127.0.0.1:1"
FOLDERS: Final = (f"https://{HOST}/data", "s3://bucket/data")
URLS: Final = {
    "S3 signature": f"https://{HOST}/data/f.nc?X-Amz-Credential=AKID&X-Amz-Signature={SECRET}&X-Amz-Date=1",
    "Azure signature": f"https://{HOST}/data/f.nc?sv=2020&sig={SECRET}",
    "other query": f"https://{HOST}/data/f.nc?{SECRET}",
    "password": f"https://user:{SECRET}@{HOST}/data/f.nc",
    "signature of an object": f"s3://bucket/data/f.nc?X-Amz-Signature={SECRET}",
    "password of a bucket": f"s3://key:{SECRET}@bucket/data/f.nc",
}
DOCUMENT: Final[dict[str, Any]] = {
    "shape": [100, 2],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes"}],
}
FRAME: Final = b"\x28\xb5\x2f\xfd"


def array(url: str) -> ps.manifests.PartsArray:
    manifest = {f"{day}.0": {"path": url, "offset": 2 * day, "length": 2} for day in range(100)}
    return ps.manifests.PartsArray(DOCUMENT, [manifest])


def dataset(url: str) -> xr.Dataset:
    return xr.Dataset({"t": (("day", "x"), array(url))})


def set_reference(url: str, session: icechunk.Session) -> None:
    store = ps.PartsStore.from_session(session)
    zarr.create_array(store, name="a", shape=(4,), chunks=(4,), dtype="uint8", compressors=None)
    store.set_parts("a/c/0", [ps.Reference(url, offset=0, length=4)])


WAYS: Final[dict[str, Callable[[str, icechunk.Session], object]]] = {
    "adopt": lambda url, session: ps.adopt(url, into=session),
    "adopt a list": lambda url, session: ps.adopt([url, f"https://{HOST}/data/g.nc"], into=session, concat_dim="time"),
    "dataset": lambda url, session: ps.to_icechunk(dataset(url), session),
    "one reference for each chunk": lambda url, session: ps.to_icechunk(dataset(url), session, shard_chunks=1),
    "manifests": lambda url, session: array(url).to_icechunk(session, path="a"),
    "reference": set_reference,
}


def stored(folder: Path) -> bytes:
    """Return the bytes of all objects below a folder, as they are and decompressed."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.append(path.read_bytes())
            if (start := found[-1].find(FRAME)) >= 0:
                found.append(zstandard.ZstdDecompressor().decompressobj().decompress(found[-1][start:]))
    return b"\n".join(found)


def open_repository(folder: Path) -> icechunk.Repository:
    return ps.open_repository(folder, virtual=FOLDERS)


def test_plain_url_is_found_in_the_objects(tmp_path: Path) -> None:
    """Otherwise the other tests would prove nothing."""
    session = open_repository(tmp_path).writable_session("main")
    ps.to_icechunk(dataset(f"https://{HOST}/data/{SECRET}.nc"), session)
    session.commit("plain")
    assert f"{HOST}/data/{SECRET}.nc".encode() in stored(tmp_path)
    assert FOLDERS[0].encode() in stored(tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("way", WAYS)
def test_a_url_with_a_secret_is_refused_and_not_stored(tmp_path: Path, url: str, way: str) -> None:
    session = open_repository(tmp_path).writable_session("main")
    with pytest.raises(
        (StoreConfigError, SessionError), match=r"URLs? without .* would be stored .*(; |: refer)"
    ) as caught:
        WAYS[way](URLS[url], session)
    assert SECRET not in f"{caught.value} {caught.value.args}"
    # Also if the caller goes on.
    session.commit("nothing", allow_empty=True)
    assert SECRET.encode() not in stored(tmp_path)


@pytest.mark.parametrize("url", URLS)
def test_a_folder_with_a_secret_is_refused_and_not_stored(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_repository(tmp_path / "repository")
    before = stored(tmp_path)
    with pytest.raises(StoreConfigError, match=r"virtual: expected URLs without a password.*pass credentials as"):
        ps.open_repository(tmp_path / "repository", virtual=[URLS[url]])
    with pytest.raises(StoreConfigError, match="virtual: expected URLs without"):
        ps.open_repository(tmp_path / "other", virtual=[URLS[url]])
    assert main(["adopt", URLS[url], str(tmp_path / "repository")]) == 2
    assert SECRET not in "".join(capsys.readouterr())
    assert stored(tmp_path) == before


@pytest.mark.parametrize("url", URLS)
def test_a_url_with_a_secret_is_not_copied(tmp_path: Path, url: str) -> None:
    options: dict[str, Any] = {"retry_config": {"max_retries": 0}}
    with pytest.raises(PartsStoreError) as caught:
        ps.adopt(URLS[url], into=ps.PartsStore.from_url(tmp_path), copy=True, skip_signature=True, **options)
    assert SECRET not in f"{caught.value} {caught.value.args}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://host/f.nc", False),
        ("https://host/f%3Fa=b.nc", False),
        ("https://host/f.nc?download=1", True),
        ("https://host/f.nc#part", True),
        ("ftp://user:password@host/f.nc", True),
        ("s3://bucket/what?.nc", False),
        ("s3://bucket/a?b=c&d=e", False),
        ("s3://bucket/a@b:c#1.nc", False),
        ("s3://bucket/a?X-Amz-Security-Token=abc", True),
        ("az://container/a?sv=1&sig=abc", True),
        ("abfs://container@account.dfs.core.windows.net/a", False),
        ("file:///data/a?b=c", False),
        ("/data/a?sig=b", False),
    ],
)
def test_which_urls_may_hold_a_secret(url: str, expected: bool) -> None:
    assert may_hold_secret(url) is expected
