"""Passwords, keys and signatures, of any characters, are in nothing that is raised, logged or printed."""

import contextlib
import io
import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from obstore.store import HTTPStore, MemoryStore
from virtualizarr.manifests import ChunkManifest

import parts_store as ps
from parts_store.cli import main
from parts_store.errors import PartsStoreError, StoreConfigError
from parts_store.manifests import PartsArray
from tests.effort import examples
from tests.s3_server import BUCKET, S3Server, refusal

# Around every secret, so that a piece of it is found as well, and nothing else is.
MARK: Final = "Zq7x"
CLIENT: Final[dict[str, Any]] = {"allow_http": True, "timeout": "200ms"}
HASTY: Final[dict[str, Any]] = {"retry_config": {"max_retries": 0}, "client_options": CLIENT}
NOWHERE: Final = "127.0.0.1:1"
ATTEMPTS: Final = settings(max_examples=examples(15))
FEW: Final = settings(ATTEMPTS, max_examples=examples(5))

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
secrets = st.builds(lambda text: f"{MARK}{text}{MARK}", printable)
in_urls = secrets | secrets.map(lambda text: quote(text, safe=""))
# Characters that have a meaning in URLs. The first three are enough for the fast checks.
HARD: Final = (
    *("?@#@/", 'a "b" c@', "p/w:1&x=2[", "p@ss", "p/w", 'a "b" c', "a'b", "?x=1&y", "#", "%2F%"),
    *("://", "a:1/b@c", "\\", "a b@", "<&>", "</", "12/x", "[", "]"),
)


def with_examples(test: Callable[..., None]) -> Callable[..., None]:
    """Try hard secrets besides random ones: three in the fast checks, all in the others."""
    for text in HARD[: max(3, examples(len(HARD)))]:
        test = example(f"{MARK}{text}{MARK}")(test)
    return test


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and everything that can be reached from it, also what a traceback does not show."""
    if error is None:
        return
    yield error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from chain(each)
    yield from chain(error.__cause__)
    yield from chain(error.__context__)


class Logs(logging.Handler):
    """Everything that is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # zarr's event loop tells that it is used.
        self.lines.append(f"{record.getMessage()} {record.args}")


def everything_told(act: Callable[[], object]) -> str:
    """All that a call raises, returns, prints and logs; what is raised is an error of ours."""
    out, logs, told = io.StringIO(), Logs(), []
    root = logging.getLogger()
    level = root.level
    root.addHandler(logs)
    root.setLevel(logging.DEBUG)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            returned = act()
            told += [repr(returned), str(returned), getattr(returned, "_repr_html_", str)()]
            told.append(repr(list(getattr(returned, "__dict__", {}).values())))
    except SystemExit:
        # What argparse says is printed.
        pass
    except PartsStoreError as error:
        told += traceback.format_exception(error)
        for each in chain(error):
            told += [str(each), repr(each), repr(each.args), *getattr(each, "__notes__", [])]
    finally:
        root.setLevel(level)
        root.removeHandler(logs)
    return "\n".join([*told, out.getvalue(), *logs.lines])


def require_hidden(*acts: Callable[[], object]) -> None:
    for act in acts:
        told = everything_told(act)
        leaks = [line for line in told.splitlines() if MARK in line]
        assert not leaks, leaks[-1]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Some of these addresses may be taken for paths.
    monkeypatch.chdir(tmp_path)
    # Icechunk would ask a service which region this machine is in.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("repository")
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder))).writable_session("main")


URLS: Final = {
    "https password": f"https://user:{{}}@{NOWHERE}/folder/file.h5",
    "http password": f"http://user:{{}}@{NOWHERE}/folder/file.h5",
    "https user and password": f"https://{{}}:x@{NOWHERE}/folder/file.h5",
    "signature": f"https://{NOWHERE}/folder/file.h5?X-Amz-Credential=AKID&X-Amz-Signature={{}}&X-Amz-Date=1",
    "SAS": "az://container/folder/file.h5?sv=2020&sig={}&se=2030",
    "S3 secret": "s3://AKID:{}@bucket/folder/file.h5",
    "unknown scheme": "ftp://user:{}@host/folder/file.h5",
    "unknown scheme, query": "gopher://host/file?token={}",
    "local": "file://user:{}@host/folder/file.h5",
}


def options_for(url: str) -> dict[str, Any]:
    """Options with which nothing but this machine is asked."""
    keys = {"access_key_id": "AKID", "secret_access_key": "x", "region": "x", "endpoint": f"http://{NOWHERE}"}
    account = {"account_name": "x", "account_key": "AAAA", "endpoint": f"http://{NOWHERE}"}
    return {**HASTY, **(keys if url.startswith("s3") else account if url.startswith("az") else {})}


def read(store: ps.PartsStore) -> object:
    return store.get_sync("a/zarr.json")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("url", URLS)
@ATTEMPTS
@with_examples
@given(in_urls)
def test_secret_in_a_url_is_in_no_message(session: Any, url: str, secret: str) -> None:
    text = URLS[url].format(secret)
    folder, options = text.replace("/file.h5", ""), options_for(text)
    require_hidden(
        lambda: ps.PartsStore.from_url(text, **options),
        lambda: read(ps.PartsStore.from_url(folder, **options)),
        lambda: ps.PartsStore.from_url(folder, read_only=True, **options).verify(),
        lambda: ps.adopt(text, into=session, **options),
        lambda: ps.open_repository(text, create=False, **options),
        lambda: ps.open_repository("repository", virtual=[folder], create=False, **options),
        lambda: ps.copy(ps.PartsStore.from_url(text, **options), ps.PartsStore(MemoryStore())),
    )


@pytest.mark.slow
@pytest.mark.parametrize("url", ["https password", "signature", "SAS", "S3 secret", "unknown scheme", "local"])
@FEW
@with_examples
@given(in_urls)
def test_a_secret_in_a_url_is_never_printed(tmp_path: Path, url: str, secret: str) -> None:
    text, out = URLS[url].format(secret), str(tmp_path / "out")
    options = {name: value for name, value in options_for(text).items() if isinstance(value, str)}
    hasty = ["-o", 'retry_config={"max_retries": 0}']
    hasty += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    require_hidden(
        lambda: main(["verify", text, *hasty]),
        lambda: main(["verify", text, "--debug", *hasty]),
        lambda: main(["inspect", text, "--json", *hasty]),
        lambda: main(["copy", text, out, *hasty]),
        lambda: main(["check", text, *hasty]),
        lambda: main(["explain", text, "a", "...", *hasty]),
        lambda: main(["repair", text, *hasty]),
        lambda: main(["adopt", text, out, *hasty]),
        lambda: main(["adopt", text, out, "--copy", *hasty]),
        lambda: main([text, "verify"]),
        lambda: main(["verify", "folder", text]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("url", ["https password", "SAS", "S3 secret", "local"])
def test_a_secret_in_the_url_of_a_repository_is_never_printed(tmp_path: Path, url: str) -> None:
    # Icechunk asks a server that is not there many times.
    text = URLS[url].format(f"{MARK}{HARD[1]}{MARK}")
    keys = [
        part
        for name, value in options_for("s3://").items()
        if isinstance(value, str)
        for part in ("-o", f"{name}={value}")
    ]
    (tmp_path / "file.h5").write_bytes(b"no HDF5")
    require_hidden(lambda: main(["adopt", str(tmp_path / "file.h5"), text, *keys]))
    assert [path.name for path in tmp_path.iterdir()] == ["file.h5"]


@ATTEMPTS
@with_examples
@given(in_urls)
def test_secret_in_a_callers_store_is_in_no_message(secret: str) -> None:
    try:
        store = HTTPStore(f"https://user:{secret}@{NOWHERE}/folder?sig={secret}", **HASTY)
    except Exception:
        # obstore does not take every URL.
        return
    require_hidden(lambda: ps.PartsStore(store), lambda: read(ps.PartsStore(store)), lambda: ps.PartsStore(secret))  # type: ignore[arg-type] # it is refused


@ATTEMPTS
@with_examples
@given(in_urls)
def test_secret_in_a_reference_is_in_no_message(secret: str) -> None:
    location = f"https://user:{quote(secret, safe='')}@{NOWHERE}/folder/file"
    memory = zarr.storage.MemoryStore()
    metadata: Any = zarr.create_array(memory, shape=(4,), chunks=(4,), dtype="uint8", compressors=None).metadata
    entries: Any = {"0": {"path": location, "offset": 0, "length": 4}}
    array = PartsArray(metadata, [ChunkManifest(entries)])
    registered = HTTPStore(f"https://user:{quote(secret, safe='')}@{NOWHERE}", **HASTY)
    require_hidden(
        lambda: array,
        lambda: np.asarray(array),
        lambda: np.asarray(array.with_registry({"https://other/": MemoryStore()})),
        lambda: np.asarray(array.with_registry({f"https://user:{quote(secret, safe='')}@{NOWHERE}": registered})),
        lambda: array.with_registry({location: secret}),
        lambda: array.with_registry(secret),
    )


OPTIONS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "access_key_id": lambda secret: {"access_key_id": secret, "secret_access_key": "x"},
    "secret_access_key": lambda secret: {"access_key_id": "x", "secret_access_key": secret},
    "session_token": lambda secret: {"access_key_id": "x", "secret_access_key": "y", "session_token": secret},
    "aws_token": lambda secret: {"access_key_id": "x", "secret_access_key": "y", "aws_token": secret},
    "config": lambda secret: {"config": {"aws_access_key_id": secret, "aws_secret_access_key": secret}},
    "headers": lambda secret: {
        "skip_signature": True,
        "client_options": {"default_headers": {"Authorization": secret}},
    },
    "proxy": lambda secret: {"skip_signature": True, "client_options": {"proxy_url": f"http://u:{secret}@{NOWHERE}"}},
    "plain proxy": lambda secret: {"proxy_url": f"http://u:{secret}@{NOWHERE}"},
    "endpoint": lambda secret: {"skip_signature": True, "endpoint": f"http://u:{secret}@{NOWHERE}"},
    "no endpoint": lambda secret: {"skip_signature": True, "endpoint": f"u:{secret}@{NOWHERE}"},
    "unknown": lambda secret: {"password": secret},
    "of a wrong type": lambda secret: {"access_key_id": [secret], "secret_access_key": {"x": secret}},
    "client": lambda secret: {"client_options": secret},
    "nested": lambda secret: {"client_options": {"nonsense": {"token": secret}}},
}
OF_OTHERS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "az://c/x": lambda secret: {"account_name": "x", "account_key": secret},
    "az://c/y": lambda secret: {"account_name": "x", "sas_key": f"sv=1&sig={secret}", "endpoint": f"http://{NOWHERE}"},
    "az://c/z": lambda secret: {"account_name": "x", "bearer_token": secret, "endpoint": f"http://{NOWHERE}"},
    "gs://b/x": lambda secret: {"service_account_key": json.dumps({"private_key": secret, "client_email": "x"})},
    "gs://b/y": lambda secret: {"service_account_path": f"/tmp/{secret}".replace("\0", "")},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("option", [*OPTIONS, *OF_OTHERS])
@ATTEMPTS
@with_examples
@given(secrets)
def test_secret_in_an_option_is_in_no_message(option: str, secret: str) -> None:
    url = option if "://" in option else "s3://bucket/folder"
    given_options = (OPTIONS.get(option) or OF_OTHERS[option])(secret)
    base = {"endpoint": f"http://{NOWHERE}", "region": "us-east-1"} if url.startswith("s3") else {}
    options: dict[str, Any] = {**base, "retry_config": {"max_retries": 0}, **given_options}
    options.setdefault("client_options", CLIENT)
    require_hidden(
        lambda: ps.PartsStore.from_url(url, **options),
        lambda: read(ps.PartsStore.from_url(url, **options)),
        lambda: ps.PartsStore.from_url(url, **options).verify(),
    )


@pytest.mark.slow
@FEW
@with_examples
@given(secrets)
def test_a_secret_on_the_command_line_is_never_printed(secret: str) -> None:
    def lines() -> Iterator[list[str]]:
        for given_options in (
            ["-o", f"secret_access_key={secret}"],
            ["-o", f"nonsense={secret}"],
            ["-o", f"url={secret}"],
            ["-o", f"={secret}"],
            ["-o", secret],
            ["-o", f"client_options={{{secret}"],
            [f"secret_access_key={secret}"],
            [secret],
            [f"--secret={secret}"],
            [f"--opt=url={secret}", f"--optio={secret}"],
        ):
            local = [
                "-o",
                f"endpoint=http://{NOWHERE}",
                "-o",
                "access_key_id=x",
                "-o",
                'retry_config={"max_retries": 0}',
            ]
            yield ["verify", "s3://bucket", *local, *given_options]
            yield ["inspect", *given_options, "s3://bucket", *local]

    require_hidden(*(lambda line=line: main(line) for line in lines()))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.mark.slow
@FEW
@with_examples
@given(st.builds(lambda text: f"{MARK}{text}{MARK}", st.text("abcXYZ019+/=@:&?#% \"'<>", max_size=12)))
def test_secret_repeated_by_a_server_is_in_no_message(server: S3Server, secret: str) -> None:
    options = {**server.options(), "secret_access_key": secret, "session_token": secret, **HASTY}
    for message in (f"bad token {secret}", f"Authorization: Bearer {secret}", f"http://u:{secret}@h/x", quote(secret)):
        for status in (403, 404, 500):
            code = "NoSuchBucket" if status == 404 else None
            server.before = lambda _, status=status, code=code, message=message: refusal(status, code, message)
            require_hidden(
                lambda: read(ps.PartsStore.from_url(f"s3://{BUCKET}", **options)),
                lambda: ps.PartsStore.from_url(f"s3://{BUCKET}", **options).verify(),
            )


@pytest.mark.parametrize(
    "url", ["s3://bucket/run@2024/x", "gs://b/a@b/c@d", "abfss://container@account.dfs.core.windows.net/x@y"]
)
def test_url_without_a_secret_is_printed_unchanged(url: str) -> None:
    with pytest.raises(PartsStoreError) as caught:
        ps.PartsStore.from_url(url, nonsense=1, retry_config=HASTY)
    assert "nonsense" in str(caught.value)
    with pytest.raises(PartsStoreError) as caught:
        ps.PartsStore.from_url(url, account_key="not base64", service_account_key="{", region="a b")
    assert caught.value.__context__ is None


@pytest.mark.parametrize("url", ["s3:/KEY:hunter2pw@b/x", "https:/u:hunter2pw@h", "s3:K:hunter2pw@b"])
def test_a_password_in_a_mistyped_url_is_not_shown_and_makes_no_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigError, match="'://' behind its scheme") as caught:
        ps.PartsStore.from_url(url)
    assert "hunter2pw" not in str(caught.value)
    assert not list(tmp_path.iterdir())
