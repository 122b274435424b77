"""The commands together: help, version, wrong calls."""

from importlib.metadata import version
from pathlib import Path

import pytest

from parts_store.cli.app import COMMANDS
from parts_store.cli.exits import EXIT_CODES
from tests.cli.places import OK, call, fails

NAMES = [command.__name__.replace("_", "-") for command in COMMANDS]
DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", NAMES)
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = call([command, "--help"], capsys)
    assert (result.code, result.err) == (OK, "")
    for option in ("--json", "--quiet", "--debug"):
        assert option in result.out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command_and_exit_code(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = call([flag], capsys).out
    assert all(f"\n  {name} " in said for name in NAMES)
    assert all(f"{code}  {meaning}\n" in said for code, meaning in EXIT_CODES.items())


def test_docs_page_names_every_command_and_exit_code() -> None:
    page = (DOCS / "cli.md").read_text()
    assert all(f"`{name}`" in page for name in NAMES)
    assert all(f"| {code} | {meaning}" in page for code, meaning in EXIT_CODES.items())


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--version"], capsys).out == f"parts-store {version('parts_store')}\n"


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "parts-store: Missing command (see parts-store --help)"),
        (["nothing"], "parts-store: No such command 'nothing' (see parts-store --help)"),
        (["verfy"], "parts-store: No such command 'verfy'. Did you mean 'verify'? (see parts-store --help)"),
        (["verify", "{}", "--prefx", "a"], "No such option: --prefx (Possible options: --prefix)"),
        (["repair", "{}", "--concurrency", "writer"], "is not one of 'exclusive', 'writers', 'full'"),
        (["explain", "{}", "images/imq"], "found nothing at 'images/imq'; did you mean 'images/img'?"),
        (["explain", "{}", "image/img"], "found nothing at 'image/img'; did you mean 'images/img'?"),
        (["inspect", "{}", "--prefix", "imges"], "found there below 'imges'; did you mean 'images'?"),
        (["verify", "{}", "--prefix", "imges/img"], "nothing was checked; did you mean 'images/img'?"),
        (["repair", "{}", "--prefix", "plian"], "nothing was checked; did you mean 'plain'?"),
        (["verify", "{}", "--prefix", "zzz"], "nothing was checked; `parts-store inspect` shows what is there"),
        (["copy", "{}", "{}2", "--path", "imags"], "found none at 'imags'; did you mean 'images'?"),
        (["copy", "{}", "{}2", "--path", "zzz"], "--path: expected an array or a group in "),
        (["verify"], "parts-store verify: Missing argument 'URL' (see parts-store verify --help)"),
        (["explain", "{}"], "Missing argument 'PATH'"),
        (["copy", "{}"], "Missing argument 'DESTINATION'"),
        (["verify", "{}", "--unknown"], "No such option: --unknown"),
        (["verify", "{}", "more"], "Got unexpected extra argument"),
        (["verify", "{}", "--prefix", "a/.parts-txn"], "prefix: expected the path of a group"),
        (["verify", "{}", "-o", "nonsense"], "option -o: expected NAME=VALUE"),
        (["verify", "{}", "-o", "=1"], "option -o: expected NAME=VALUE"),
        (["verify", "{}", "-o", "read_only=0"], "'read_only', which a command sets itself"),
        (["verify", "{}", "-o", "client_options={"], "option -o client_options: expected JSON"),
        (["verify", "{}", "-o", "no_such=1"], "options: expected obstore's options for file://, found no_such"),
        (["repair", "{}", "--concurrency", "some"], "Invalid value for '--concurrency'"),
        (["copy", "{}", "{}2", "--max-concurrency", "0"], "Invalid value for '--max-concurrency'"),
        (["bench", "{}", "--chunk", "0"], "Invalid value for '--chunk'"),
        (["bench", "{}", "--chunk", "60"], "--shard: expected a multiple of 60, the side of a chunk, found 1024"),
        (["bench", "{}", "--side", "100"], "--side: expected a multiple of 1024, the side of a shard, found 100"),
        (["bench", "{}", "--side", "9", "--chunk", "2", "--shard", "0"], "a multiple of 2, the side of a chunk"),
        (["inspect", "ftp://somewhere/data"], "url: expected a path, or one of"),
        (["inspect", "file://elsewhere/data"], "url: expected file:///path, on this machine"),
        (["inspect", "s3://"], "url: expected an address and options"),
    ],
)
def test_wrong_call_is_one_line(
    folder: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in fails([each.replace("{}", str(folder)) for each in arguments], capsys)
