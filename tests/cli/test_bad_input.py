"""Every command in every bad situation: one readable line, the right exit code, no secret, no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

import parts_store as ps
from tests.cli.places import (
    DAMAGED,
    WRONG,
    break_document,
    call,
    contents,
    make_file,
    make_repository,
    make_store,
    require_one_line,
)

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
# No server listens on port 9 of this machine.
NOWHERE = "http://127.0.0.1:9"
RETRIES = ["-o", 'retry_config={"max_retries": 0}']
OPTIONS = [
    *("-o", f"endpoint={NOWHERE}", "-o", f"secret_access_key={SECRET}", "-o", "access_key_id=a-user"),
    *("-o", "region=us-east-1", *RETRIES),
]

# The arguments of each command for a URL; `{out}` is a path for output, `{good}` an undamaged store.
COMMANDS = {
    "inspect": ["inspect", "{url}"],
    "inspect --sizes": ["inspect", "{url}", "--sizes"],
    "explain": ["explain", "{url}", "a", "0"],
    "verify": ["verify", "{url}"],
    "repair": ["repair", "{url}"],
    "copy": ["copy", "{url}", "{out}"],
    "copy --path": ["copy", "{url}", "{out}", "--path", "a"],
    "adopt": ["adopt", "{url}", "{out}"],
    "adopt-in-place": ["adopt-in-place", "{url}"],
    "check": ["check", "{url}"],
    "bench": ["bench", "{url}"],
}


def missing(folder: Path) -> str:
    return str(folder / "nowhere")


def missing_url(folder: Path) -> str:
    return f"file://{folder}/nowhere"


def file(folder: Path) -> str:
    (folder / "text").write_text("text")
    return str(folder / "text")


def empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def not_zarr(folder: Path) -> str:
    (folder / "texts/more").mkdir(parents=True)
    (folder / "texts/text").write_text("text")
    (folder / "texts/more/text").write_text("text")
    return str(folder / "texts")


def corrupt_repository(folder: Path) -> str:
    repository = make_repository(folder / "repository")
    (repository / "repo").write_bytes(b"not a repository")
    return str(repository)


def lost_snapshot(folder: Path) -> str:
    repository = make_repository(folder / "repository")
    for each in (repository / "snapshots").iterdir():
        each.write_bytes(b"not a snapshot")
    return str(repository)


def no_network(folder: Path) -> str:
    return "s3://bucket/data"


def no_scheme(folder: Path) -> str:
    return f"ftp://user:{SECRET}@host/data?signature={SECRET}"


def password(folder: Path) -> str:
    return f"https://user:{SECRET}@127.0.0.1:9/data?signature={SECRET}"


PLACES: list[Callable[[Path], str]] = [
    missing,
    missing_url,
    file,
    empty,
    not_zarr,
    corrupt_repository,
    lost_snapshot,
    no_network,
    no_scheme,
    password,
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("place", "debug"),
    [*((place, []) for place in PLACES), *((place, ["--debug"]) for place in (no_network, no_scheme, password))],
    ids=lambda each: each.__name__ if callable(each) else "".join(each),
)
@pytest.mark.parametrize("command", COMMANDS)
def test_url_that_cannot_be_opened_is_one_line(
    command: str,
    place: Callable[[Path], str],
    debug: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command in ("check", "bench") and place in (empty, not_zarr, lost_snapshot):
        pytest.skip("this is no question to a server")
    url = place(tmp_path)
    before = contents(tmp_path)
    words = [each.format(url=url, out=tmp_path / "out") for each in COMMANDS[command]]
    options = OPTIONS if place is no_network else RETRIES if place is password else []
    result = call([*words, *options, *debug], capsys)
    assert (result.code, result.out) == (WRONG, ""), result
    *traced, line = result.err.splitlines(keepends=True)
    require_one_line(line)
    assert bool(traced) == bool(debug)
    assert SECRET not in result.err
    assert contents(tmp_path) == before


@pytest.mark.sampled(35)
@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "explain", "copy", "copy --path"])
@pytest.mark.parametrize(
    "document",
    [
        "{",
        "[]",
        '{"zarr_format": 3, "node_type": "array"}',
        '{"zarr_format": 3, "node_type": "array", "storage_transformers": [{"name": "unknown"}]}',
        '{"zarr_format": 3, "node_type": "array", "storage_transformers": [{"name": "concat-parts"}]}',
    ],
    ids=["no JSON", "a list", "incomplete", "unknown transformer", "no parts"],
)
def test_damaged_array_is_reported(
    command: str, document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_store(tmp_path / "store", break_document)
    (folder / "a/zarr.json").write_text(document)
    words = [each.format(url=folder, out=tmp_path / "out") for each in COMMANDS[command]]
    result = call(words, capsys)
    if result.code == 0:
        # An array that cannot be opened can be copied byte by byte, and `verify` checks arrays with parts only.
        assert command in ("copy", "copy --path", "verify", "repair")
        assert "transformer" not in document
        return
    assert result.code == DAMAGED, result
    if command in ("explain", "copy", "copy --path"):
        assert result.out == ""
        require_one_line(result.err)
    else:
        assert result.err == ""
        assert "\n  a: damaged: " in result.out or "\nnot understood: a: " in result.out


@pytest.mark.slow
def test_destination_that_cannot_be_written_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("text")
    make_file(tmp_path / "t.nc")
    calls: list[list[str | Path]] = [
        ["copy", folder, tmp_path / "text"],
        ["copy", folder, tmp_path / "text", "--create-repository"],
        ["copy", folder, "https://127.0.0.1:9/data"],
        ["copy", folder, "s3://bucket/data", *OPTIONS],
        ["copy", folder, folder],
        ["adopt", tmp_path / "t.nc", tmp_path / "text"],
        ["adopt", tmp_path / "t.nc", "gs://bucket/data"],
    ]
    for words in calls:
        result = call(words, capsys)
        assert (result.code, result.out) == (WRONG, ""), (words, result)
        require_one_line(result.err)
        assert SECRET not in result.err
    assert ps.PartsStore.from_url(folder).verify().is_clean
