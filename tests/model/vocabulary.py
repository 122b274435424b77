"""The language that scenarios are written in: one line for each, what each client does and on which store.

`overwrite first || read, delete; over third, local` has two clients, of which the second has two operations.
"""

from typing import Any, Final

from tests.model.patched import Patch
from tests.model.scenario import Operation, Scenario
from tests.model.values import HEADED, SHARD, SINGLE, Layout

# The inner chunks of the shards that are written.
SHARDS: Final[dict[str, tuple[bytes | None, bytes | None]]] = {
    # These have different lengths, so that every index is another one.
    "first": (b"A", b"AA"),
    "second": (b"BBB", b"B"),
    "third": (b"CC", b"CCC"),
    # Other data, and the same index as `first`.
    "same-index": (b"D", b"DD"),
    # One of the two inner chunks is missing. The data of both shards is the same.
    "hole-at-start": (None, b"HH"),
    "hole-at-end": (b"HH", None),
}
LAYOUTS: Final = {"one part": SINGLE, "three parts": HEADED}
# Operations that take no value.
OPERATIONS: Final = {
    "read": Operation("read"),
    "read byte": Operation("read", view="first byte"),
    "exists": Operation("read", view="exists"),
    "size": Operation("read", view="size"),
    "sharded read": Operation("read", view=(0, 1)),
    "read slot 0": Operation("read", view=(0,)),
    "read slot 1": Operation("read", view=(1,)),
    "delete": Operation("delete"),
    "repair": Operation("repair"),
}
# What is there at the beginning: a shard follows these words.
BEGINNINGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "over": ("initial", {}),
    # Without tags.
    "over untagged": ("initial", {"is_tagged": False}),
    # Its anchor contains the other parts.
    "over embedded": ("initial", {"is_embedded": True}),
    "orphans": ("orphans", {}),
    "interrupted": ("interrupted", {}),
    "dead writer": ("registered", {}),
}
# A reader of a local disk makes many attempts, each of which multiplies the number of states.
FEWER_ATTEMPTS: Final = Patch("read_journaled", "attempts = 4 * least", "attempts = least + 1")
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "exclusive": {"level": "exclusive"},
    "full": {"level": "full", "allows_damage": True},
    "local": {"is_local": True, "has_conditions": False},
    "fewer attempts": {"patches": (FEWER_ATTEMPTS,)},
    "no conditions": {"has_conditions": False},
    # ETags that come back with the bytes; a writer may then leave its copy to others.
    "equal ETags": {"has_unique_etags": False, "leaves_nothing": False},
    "leaves nothing": {"leaves_nothing": True},
    # At rest there are the copies of the dead writer and of the last writer, and the marks of the last two writers.
    # The next writer adds two objects before it removes two.
    "few leftovers": {"most_beside": 6, "most_beside_at_rest": 4},
    # The anchor of an overwrite contains the other parts.
    "embeds": {"embeds": True},
    "two ranges": {"merges_ranges": False},
    "retries": {"retries": 2},
    "one fault": {"faults": 1},
    "two faults": {"faults": 2},
    "lost deletes": {"loses_deletes": True},
    "late PUT": {"faults": 1, "has_late_puts": True},
    "late PUTs": {"faults": 2, "has_late_puts": True},
    "repeated write": {"repeats_writes": True, "ends_tidy": False},
    "rewrites": {"rewrites": True},
    "stall": {"stalls": 1},
    "stalls": {"stalls": 2},
    # Old versions of MinIO.
    "MinIO": {"ignores_match_of_missing": True},
    # The callers break their promise, and a delete may damage a chunk that is created at the same time.
    "broken promise": {"allows_damage": True, "allows_lasting_damage": True},
}


def scenario(text: str) -> Scenario:
    """Return the scenario that a line describes, which is also its name."""
    program, _, said = text.partition("; ")
    words = said.split(", ") if said else []
    layout = next((LAYOUTS[each] for each in words if each in LAYOUTS), SHARD)
    options: dict[str, Any] = {"layout": layout}
    for each in words:
        kind, _, last = each.rpartition(" ")
        if kind in BEGINNINGS:
            field, more = BEGINNINGS[kind]
            options |= {field: layout.value(*SHARDS[last]), **more}
        elif kind == "crashes":
            options["crashes"] = tuple(map("abcd".index, last))
        elif each not in LAYOUTS:
            options |= OPTIONS[each]
    clients = [tuple(operation(each, layout) for each in client.split(", ")) for client in program.split(" || ")]
    return Scenario(text, tuple(clients), **options)


def operation(text: str, layout: Layout = SHARD) -> Operation:
    """Return the operation that some words describe."""
    if text in OPERATIONS:
        return OPERATIONS[text]
    name, last = text.rsplit(" ", 1)
    match name:
        case "change" | "change slot":
            # A mark, or the number of an inner chunk and a mark: `!` removes it, on a local disk `~` does.
            return Operation(name, mark=last.encode())
        case "write" | "overwrite" | "write if absent":
            return Operation(name, layout.value(*SHARDS[last]))
        case _:
            raise ValueError(text)


def scenarios(text: str) -> list[Scenario]:
    """Return the scenarios of a text, each on its line; an indented line continues the one before."""
    joined = text.strip().replace("\n  ", " ")
    return [scenario(line) for line in joined.splitlines() if line and not line.startswith("#")]
