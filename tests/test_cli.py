"""`parts-store`: every command, what it prints, and its exit code, by producing each state on a local disk."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import zarr

import parts_store as ps
from parts_store import cli
from parts_store.cli import main
from parts_store.plan.keys import Chunk
from parts_store.plan.spec import ConcatParts

OK, DAMAGED, WRONG, UNTIDY = 0, 1, 2, 3
COMMANDS = ["demo", "inspect", "explain", "verify", "check", "repair"]
TWO = [ps.Part(""), ps.Part(".tail", size=2)]
SIDE = "a/.parts-txn/" + Chunk("a/c/0", ConcatParts([""]), "a").side_folder.rpartition("/")[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with an array of four chunks of two parts, and one without parts."""
    store = ps.PartsStore.from_url(tmp_path / "store")
    array = ps.create_array(store, "a", parts=TWO, shape=(16,), chunks=(4,), dtype="uint16", compressors=None)
    array[...] = np.arange(1, 17)
    zarr.create_array(store, name="plain", shape=(4,), chunks=(2,), dtype="uint8")[...] = 1
    return tmp_path / "store"


def leave_file(folder: Path) -> None:
    """What a dead writer leaves."""
    path = folder / SIDE / f"{'0a' * 16}.0"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")


def lose_part(folder: Path) -> None:
    (folder / "a/c/0.tail").unlink()


def lose_anchor(folder: Path) -> None:
    (folder / "a/c/0").unlink()


def break_document(folder: Path) -> None:
    (folder / "a/zarr.json").write_text("{")


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong call says, of which nothing goes to the output."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    assert code == WRONG
    assert printed.out == ""
    assert printed.err.startswith("parts-store")
    assert printed.err.count("\n") == 1
    assert printed.err.endswith("\n")
    return printed.err


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_json_and_tells_its_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"usage: parts-store {command}")
    assert "--json" in said
    assert "Exit codes: 0 all is well; 1 chunks are damaged; 2 the call is wrong" in said


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in COMMANDS)


# --- verify and repair -----------------------------------------------------------------------------------------------

STATES: list[tuple[str, Callable[[Path], None] | None, int, str]] = [
    ("in order", None, OK, "all in order"),
    ("leftovers", leave_file, UNTIDY, "nothing is damaged; a repair would tidy up"),
    ("orphans", lose_anchor, UNTIDY, "nothing is damaged; a repair would tidy up"),
    ("incomplete", lose_part, DAMAGED, "damaged"),
    ("not understood", break_document, DAMAGED, "damaged"),
]


@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize(("state", "spoil", "code", "last"), STATES, ids=[each[0] for each in STATES])
def test_verify_says_in_what_state_a_store_is_and_changes_nothing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    state: str,
    spoil: Callable[[Path], None] | None,
    code: int,
    last: str,
    as_json: bool,
) -> None:
    if spoil is not None:
        spoil(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["verify", str(folder), *(["--json"] if as_json else [])]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    if not as_json:
        assert printed.out.splitlines()[-1] == last
        return
    said = json.loads(printed.out)
    assert said == ps.PartsStore.from_url(folder).verify().to_json()
    assert said["damaged"] == (code == DAMAGED)
    assert said["tidy"] == (code == OK)
    assert [each["problem"] for each in said["findings"]] == (
        [] if state in ("in order", "not understood") else [state]
    )


@pytest.mark.parametrize(
    ("spoil", "options", "code"),
    [
        (None, [], OK),
        (leave_file, [], OK),
        (lose_anchor, [], OK),
        (lose_part, [], DAMAGED),
        (lose_part, ["--drop-incomplete"], OK),
        (lose_part, ["--retag"], DAMAGED),
        (break_document, ["--drop-incomplete"], DAMAGED),
        # Where no lock tells who is dead, what is young stays.
        (leave_file, ["--concurrency", "exclusive"], UNTIDY),
        (leave_file, ["--concurrency", "exclusive", "--min-age", "0"], OK),
        (lose_part, ["--concurrency", "exclusive", "--drop-incomplete", "--min-age=1h"], DAMAGED),
        (leave_file, ["--prefix", "a"], OK),
    ],
)
def test_repair_puts_right_what_it_may_and_verify_agrees(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None] | None,
    options: list[str],
    code: int,
) -> None:
    if spoil is not None:
        spoil(folder)
    assert main(["repair", str(folder), "--json", *options]) == code
    said = json.loads(capsys.readouterr().out)
    assert all(each["mended"] == (code == OK) for each in said["findings"])
    assert main(["verify", str(folder)]) == code


def test_verify_compares_checksums_only_if_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ps.PartsStore.from_url(tmp_path)
    codecs = [zarr.codecs.Crc32cCodec()]
    ps.create_array(store, "a", parts=TWO, shape=(4,), chunks=(4,), dtype="uint8", compressors=codecs)[...] = 7
    (tmp_path / "a/c/0").write_bytes(b"\0" * 6)
    assert main(["verify", str(tmp_path)]) == OK
    assert main(["verify", str(tmp_path), "--checksums"]) == DAMAGED
    assert "checksum: a/c/0: the bytes do not fit" in capsys.readouterr().out


def test_an_empty_store_is_in_order_and_says_that_nothing_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path)]) == OK
    assert capsys.readouterr().out.endswith("\nno arrays with parts\n")
    assert main(["repair", str(tmp_path)]) == OK
    assert list(tmp_path.iterdir()) == []


def test_the_workers_of_a_dask_scheduler_look(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []

    class Client:
        def __init__(self, address: str) -> None:
            addresses.append(address)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            addresses.append("closed")

        def map(self, function: Any, *arguments: Any, pure: bool) -> list[Any]:
            return [Future(function(*each)) for each in zip(*arguments, strict=True)]

    class Future:
        def __init__(self, value: Any) -> None:
            self.value = value

        def result(self) -> Any:
            return self.value

    lose_part(folder)
    monkeypatch.setitem(sys.modules, "distributed", type(sys)("distributed"))
    monkeypatch.setattr(sys.modules["distributed"], "Client", Client, raising=False)
    assert main(["verify", str(folder), "--dask", "tcp://here:1"]) == DAMAGED
    assert addresses == ["tcp://here:1", "closed"]
    monkeypatch.setitem(sys.modules, "distributed", None)
    capsys.readouterr()
    assert "distributed" in fails(["verify", str(folder), "--dask", "tcp://here:1"], capsys)


# --- inspect and explain ---------------------------------------------------------------------------------------------


def test_inspect_shows_the_arrays_with_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == OK
    assert capsys.readouterr().out == "a: shape [16], 4 chunks, parts '' (the rest), '.tail' (2)\n"
    assert main(["inspect", str(folder), "--json"]) == OK
    parts = [{"key_suffix": ""}, {"key_suffix": ".tail", "size": 2}]
    assert json.loads(capsys.readouterr().out) == {"a": {"shape": [16], "parts": parts, "chunks": 4}}
    assert main(["inspect", str(folder / "a"), "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"": {"shape": [16], "parts": parts, "chunks": 4}}
    assert main(["inspect", str(folder), "--prefix", "plain", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {}


def test_inspect_tells_what_it_does_not_understand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_document(folder)
    assert main(["inspect", str(folder)]) == DAMAGED
    assert capsys.readouterr().out.startswith("not understood: a: ")
    assert main(["inspect", str(folder), "--json"]) == DAMAGED
    assert list(json.loads(capsys.readouterr().out)["a"]) == ["problem"]


@pytest.mark.parametrize(
    ("selection", "chunks"),
    [
        (None, [0, 1, 2, 3]),
        ("...", [0, 1, 2, 3]),
        ("5", [1]),
        ("3:5", [0, 1]),
        (" 12 : ", [3]),
        ("::8", [0, 2]),
        (":2, ...", [0]),
    ],
)
def test_explain_shows_the_requests_of_a_read(
    folder: Path, capsys: pytest.CaptureFixture[str], selection: str | None, chunks: list[int]
) -> None:
    arguments = ["explain", str(folder), "a", *([] if selection is None else [selection])]
    assert main([*arguments, "--json"]) == OK
    said = json.loads(capsys.readouterr().out)
    keys = {each["key"] for each in said if each["kind"] == "get" and each["why"] == "data"}
    assert keys == {f"a/c/{chunk}{suffix}" for chunk in chunks for suffix in ("", ".tail")}
    assert all(set(each) == {"kind", "key", "start", "stop", "why"} for each in said)
    assert main(arguments) == OK
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    # Chunks are read at the same time, in any order.
    assert sorted(lines) == sorted([each["kind"].upper(), each["key"]] for each in said)


def test_the_demo_is_told_in_words_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from parts_store import demo

    monkeypatch.setattr(demo, "main", lambda folder: print(f"one\nto {folder}"))
    assert main(["demo", str(tmp_path)]) == OK
    assert capsys.readouterr().out == f"one\nto {tmp_path}\n"
    assert main(["demo", str(tmp_path), "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path), "said": ["one", f"to {tmp_path}"]}


# --- wrong calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "verify", "repair"])
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://somewhere/data", "url: expected a path, or one of"),
        ("file://elsewhere/data", "url: expected file:///path, on this machine"),
        ("s3://", "url: expected an address and options"),
        ("/nowhere/at/all", "url: expected"),
    ],
)
def test_a_wrong_address_is_one_line(command: str, url: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in fails([command, url], capsys)


@pytest.mark.parametrize("command", ["inspect", "verify", "repair"])
def test_what_is_not_there_is_not_made(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails([command, str(tmp_path / "typing error")], capsys)
    fails([command, f"file://{tmp_path}/typing error"], capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["inspect", "verify", "repair"])
def test_a_web_server_cannot_be_listed_or_repaired(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails([command, "http://127.0.0.1:9/data", "-o", 'client_options={"allow_http": true}'], capsys)
    assert ("read-only" if command == "repair" else "a store that can be listed") in said


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_a_prefix_without_arrays_in_parts_is_a_mistake(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for prefix in ("b", "plain"):
        said = fails([command, str(folder), "--prefix", prefix], capsys)
        assert f"prefix: expected an array with parts there, above or below, found '{prefix}'" in said
    assert main([command, str(folder), "--prefix", "a/c"]) == OK


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["explain", "{}", "b"], "b"),
        (["explain", "{}", ""], ""),
        (["explain", "{}", "a", "99"], "out of bounds"),
        (["explain", "{}", "a", "1,2,3"], ""),
        (["explain", "{}", "a", "x"], "expected integers, slices or '...', with commas, found 'x'"),
        (["explain", "{}", "a", "1:2:3:4"], "expected integers, slices"),
        (["explain", "{}", "a", "1,"], "expected integers, slices"),
        (["explain", "{}", "a", ""], "expected integers, slices"),
        (["explain", "{}"], "the following arguments are required: path"),
        (["verify"], "the following arguments are required: url"),
        (["verify", "{}", "--prefix", "a/.parts-txn"], "prefix: expected the path of a group"),
        (["verify", "{}", "--unknown"], "unrecognized arguments: --unknown"),
        (["verify", "{}", "-o", "nonsense"], "expected an option of obstore's as NAME=VALUE, found 'nonsense'"),
        (["verify", "{}", "-o", "=1"], "expected an option of obstore's as NAME=VALUE"),
        (["verify", "{}", "-o", "read_only=0"], "expected an option of obstore's as NAME=VALUE"),
        (["verify", "{}", "-o", "client_options={"], "expected JSON after client_options="),
        (["verify", "{}", "-o", "no_such=1"], "options: expected obstore's options for file://, found no_such"),
        (["repair", "{}", "--concurrency", "some"], "concurrency: expected one of 'exclusive', 'writers', 'full'"),
        (["nothing"], "invalid choice: 'nothing'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_a_wrong_call_is_one_line(
    folder: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in fails([each.replace("{}", str(folder)) for each in arguments], capsys)


# --- ages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("24h", 86400),
        ("0.5d", 43200),
        ("7d", 604800),
        ("10000000d", 864e9),
    ],
)
def test_an_age_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    options = cli._parser().parse_args(["repair", "somewhere", "--min-age", text])
    assert options.min_age.total_seconds() == seconds


def test_an_age_is_a_day_if_nobody_says_another() -> None:
    assert cli._parser().parse_args(["repair", "somewhere"]).min_age.total_seconds() == 86400


@pytest.mark.parametrize("text", ["", "h", "-1h", "1w", "1 h", "1h1", "1e3", "inf", "nan", "99999999999d", "\u0661h"])
def test_anything_else_is_no_age(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"expected a number with s, m, h or d, found {text!r}" in fails(["repair", ".", f"--min-age={text}"], capsys)


def test_a_great_age_is_older_than_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_file(folder)
    assert main(["repair", str(folder), "--concurrency", "exclusive", "--min-age", "10000000d"]) == UNTIDY


# --- progress --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_a_bar_is_shown_on_a_terminal_only_and_never_with_json(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, is_terminal in (([], True), (["--json"], True), ([], False)):
        leave_file(folder)
        errors = Terminal() if is_terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", errors)
        main([command, str(folder), *options])
        assert ("100%" in errors.getvalue()) == (is_terminal and not options)
        for path in (folder / SIDE).glob("*"):
            path.unlink()
        if (folder / SIDE).exists():
            (folder / SIDE).rmdir()
    # Without tqdm there is none, and all else is the same.
    monkeypatch.setitem(sys.modules, "tqdm", None)
    errors = Terminal()
    monkeypatch.setattr(sys, "stderr", errors)
    assert main([command, str(folder)]) == OK
    assert errors.getvalue() == ""


# --- as a program ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [[sys.executable, "-W", "error", "-m", "parts_store.cli"], [str(Path(sys.executable).parent / "parts-store")]],
)
def test_it_is_a_program_with_exit_codes_and_without_tracebacks(folder: Path, program: list[str]) -> None:
    lose_part(folder)
    damaged = subprocess.run([*program, "verify", str(folder)], capture_output=True, text=True, check=False)
    assert (damaged.returncode, damaged.stderr) == (DAMAGED, "")
    assert damaged.stdout.splitlines()[1] == "incomplete: a/c/0: no such object: a/c/0.tail"
    wrong = subprocess.run([*program, "verify", "ftp://x"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (WRONG, "")
    assert wrong.stderr.count("\n") == 1
