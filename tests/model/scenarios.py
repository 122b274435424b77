"""Who meets whom: the scenarios that are explored completely, those that take minutes, and those that are sampled."""

from typing import Any

from tests.model.clients import Operation
from tests.model.patched import Patch
from tests.model.scenario import Scenario
from tests.model.values import HEADED, SHARD, SINGLE

# Data of different lengths, so that every index is another; but that of D is the same as that of A.
A = SHARD.value(b"A", b"AA")
B = SHARD.value(b"BBB", b"B")
C = SHARD.value(b"CC", b"CCC")
D = SHARD.value(b"D", b"DD")
# With a hole; the data of H and J is the same, in different slots.
H = SHARD.value(None, b"HH")
J = SHARD.value(b"HH", None)
A3, B3, C3 = HEADED.value(b"A", b"AA"), HEADED.value(b"BBB", b"B"), HEADED.value(b"CC", b"CCC")

R = Operation("read")
P = Operation("read", view="first byte")
X = Operation("read", view="exists")
Z = Operation("read", view="size")
S = Operation("read", view=(0, 1))
S0 = Operation("read", view=(0,))
S1 = Operation("read", view=(1,))
DEL = Operation("delete")
FIX = Operation("repair")


def W(value: bytes) -> Operation:  # noqa: N802
    """A write that does not know whether there is a chunk."""
    return Operation("write", value)


def O(value: bytes) -> Operation:  # noqa: E743, N802
    """A write from the point on where it has found that there is one."""
    return Operation("overwrite", value)


def N(value: bytes) -> Operation:  # noqa: N802
    """A write only if there is none."""
    return Operation("write if absent", value)


def M(mark: bytes) -> Operation:  # noqa: N802
    """A read-modify-write."""
    return Operation("change", mark=mark)


def make(name: str, *clients: list[Operation], **options: Any) -> Scenario:
    return Scenario(name, tuple(tuple(each) for each in clients), **options)


LATE: dict[str, Any] = {"faults": 1, "has_late_puts": True}
AGAIN: dict[str, Any] = {"repeats_writes": True, "ends_tidy": False}
CONTENT: dict[str, Any] = {"has_unique_etags": False, "leaves_nothing": False}
# At rest there are the dead writer's copy, the last writer's copy, that it has finished, and that the one before has.
# The next writer adds two objects before it removes two.
BOUNDED: dict[str, Any] = CONTENT | {"most_beside": 6, "most_beside_at_rest": 4}
FULL: dict[str, Any] = {"level": "full", "allows_damage": True}
# What a delete may do to a chunk that is created meanwhile: the callers break their promise.
BROKEN: dict[str, Any] = {"allows_damage": True, "allows_lasting_damage": True}
EXCLUSIVE: dict[str, Any] = {"level": "exclusive"}
LOCAL: dict[str, Any] = {"is_local": True, "has_conditions": False}
# A reader of a local disk tries often, and what it saw the times before makes another state of it.
PATIENCE = Patch("reading", "attempts = 4 * least if has_journal else least + 1", "attempts = least + 1")
IMPATIENT: dict[str, Any] = LOCAL | {"patches": (PATIENCE,)}

# Explored completely by every test run.
EXHAUSTIVE = [
    # Level "writers", ETags that never come back.
    make("overwrite || sharded read", [O(A)], [S], initial=C),
    make("overwrite || sharded read x2", [O(A)], [S, S], initial=C),
    make("hole, other slot: overwrite || sharded, full, sharded", [O(A)], [S0, R, S0], initial=H),
    make("overwrite x2 || sharded read x2", [O(A), O(B)], [S, S], initial=C),
    make("hole: overwrite || read, sharded read", [O(A)], [R, S], initial=H),
    make("hole comes: overwrite || sharded read x2", [O(H)], [S, S], initial=C),
    make("hole moves: overwrite || sharded read x2", [O(J)], [S, S], initial=H),
    make("hole goes and comes: || sharded read x2", [O(A), O(H)], [S, S], initial=J),
    make("hole, one slot: overwrite x2 || sharded read of one x2", [O(A), O(H)], [S1, S1], initial=J),
    make("orphans with a hole || sharded read", [W(A)], [S], orphans=H),
    make("create with a hole || sharded read x2", [W(H)], [S, S]),
    make("delete, create || sharded read x2", [DEL, W(A)], [S, S], initial=C),
    make("overwrite || delete || sharded read x2", [O(A)], [DEL], [S, S], initial=C),
    make("write || write over a chunk", [W(A)], [W(B)], initial=C),
    make("overwrite of untagged || sharded read x2", [O(A)], [S, S], initial=C, is_tagged=False),
    make("overwrite || read, partial read", [O(A)], [R, P], initial=C),
    make("overwrite || size, exists || partial read, read", [O(A)], [Z, X], [P, R], initial=C),
    make("create || exists, size, read", [W(A)], [X, Z, R]),
    make("write if absent || write if absent || read", [N(A)], [N(B)], [R]),
    make("write if absent || write", [N(A)], [W(B)]),
    make("write if absent || write over orphans", [N(A)], [W(B)], orphans=C),
    make("write if absent x2 over orphans || read", [N(A)], [N(B)], [R], orphans=C),
    make("write if absent || read x2 over a chunk", [N(A)], [R, R], initial=C),
    make("write if absent || delete || read", [N(A)], [DEL], [R], initial=C),
    make("write if absent, lost answers", [N(A)], [N(B)], faults=1),
    make("3 parts: overwrite || read", [O(A3)], [R], layout=HEADED, initial=C3),
    make("3 parts: overwrite || sharded read x2", [O(A3)], [S, S], layout=HEADED, initial=C3),
    make("1 part: write || write || read", [W(A)], [W(B)], [R], layout=SINGLE, initial=C),
    make("1 part: change || change || read", [M(b"x")], [M(b"y")], [R], layout=SINGLE, initial=C),
    make("1 part: change || write || delete", [M(b"x")], [W(B)], [DEL], layout=SINGLE, initial=C),
    make("1 part: change || change, lost answers", [M(b"x")], [M(b"y")], layout=SINGLE, initial=C, faults=2),
    make("1 part: write if absent || write || read", [N(A)], [W(B)], [R], layout=SINGLE),
    make("crashes: write x2 || read x2", [W(A), W(B)], [R, R], initial=C, crashes=(0,)),
    make("crashes: overwrite x2 || sharded read", [O(A), O(B)], [S], initial=C, crashes=(0,)),
    make("crashes: create, delete, create || read x2", [W(A), DEL, W(B)], [R, R], crashes=(0,)),
    # A delete next to writes: the anchor alone.
    make("delete: write || delete || read", [W(A)], [DEL], [R], initial=C),
    make("delete: create || delete || read", [W(A)], [DEL], [R]),
    make("delete: overwrite || overwrite || delete", [O(A)], [O(B)], [DEL], initial=C),
    make("delete: write || write || delete over orphans", [W(A)], [W(B)], [DEL], orphans=C),
    make("delete: write || delete || delete", [W(A)], [DEL], [DEL], initial=C),
    make("delete: write || delete, lost answers", [W(A)], [DEL], initial=C, faults=1, loses_deletes=True),
    make("delete: two first creates || delete", [W(A)], [W(B)], [DEL], **BROKEN),
    # Read-modify-write.
    make("change || change of nothing", [M(b"x")], [M(b"y")]),
    make("change || change over orphans", [M(b"x")], [M(b"y")], orphans=C),
    make("change || write", [M(b"x")], [W(B)], initial=C),
    make("change || overwrite", [M(b"x")], [O(B)], initial=C),
    make("change || create", [M(b"x")], [W(B)]),
    make("change || create over orphans", [M(b"x")], [W(B)], orphans=C),
    make("change || delete, write again", [M(b"x")], [DEL, W(C)], initial=C),
    make("change || delete || read", [M(b"x")], [DEL], [R], initial=C),
    make("change || change, lost answers", [M(b"x")], [M(b"y")], initial=C, faults=1),
    make("change keeps the anchor's bytes", [M(b"-")], [M(b"x")], initial=H),
    make("change of untagged || change", [M(b"x")], [M(b"y")], initial=C, is_tagged=False),
    # Level "exclusive".
    make("exclusive: crashes, overwrite x2 || read x2", [W(A), W(B)], [R, R], initial=C, crashes=(0,), **EXCLUSIVE),
    make("exclusive: crashes, write x2 || sharded", [W(A), W(B)], [S], crashes=(0,), **EXCLUSIVE),
    make("exclusive: create, delete, create || read x2", [W(A), DEL, W(B)], [R, R], crashes=(0,), **EXCLUSIVE),
    make("exclusive: change x2 || read x2", [M(b"x"), M(b"y")], [R, R], initial=C, crashes=(0,), **EXCLUSIVE),
    make("exclusive: write, write, lost answers || read", [W(A), W(B)], [R], faults=2, **EXCLUSIVE),
    make(
        "exclusive: no conditions, crashes || read x2",
        [W(A), W(B)],
        [R, R],
        crashes=(0,),
        has_conditions=False,
        **EXCLUSIVE,
    ),
    make(
        "exclusive: no conditions, deletes || read x2",
        [W(A), DEL, W(B)],
        [R, R],
        crashes=(0,),
        has_conditions=False,
        **EXCLUSIVE,
    ),
    make("exclusive: no conditions, lost || read", [W(A), W(B)], [R], faults=2, has_conditions=False, **EXCLUSIVE),
    # ETags that come back with the bytes.
    make("content: write || delete || read", [W(B)], [DEL], [R], initial=A, **CONTENT),
    # Beside a writer that died, and of which nobody knows that it did.
    make("content: dead writer, overwrite x5", [O(A), O(B), O(A), O(A), O(B)], initial=A, registered=B, **BOUNDED),
    make("content: dead writer, overwrite x3 || read", [O(A), O(B), O(A)], [R], initial=A, registered=B, **BOUNDED),
    # So much time passes that a repair, or another writer, takes one that stalled for dead.
    make("stall: overwrite || repair", [O(A)], [FIX], initial=C, stalls=1),
    make("stall: change || repair", [M(b"x")], [FIX], initial=C, stalls=1),
    make("stall, content: create || repair", [W(A)], [FIX], stalls=1, **CONTENT),
    # Level "full".
    make("full: create || delete || read", [W(A)], [DEL], [R], **FULL),
    make("full: write || delete || read", [W(A)], [DEL], [R], initial=C, **FULL),
    make("full: write || delete || delete", [W(A)], [DEL], [DEL], initial=C, **FULL),
    make("full: write || delete, lost answers", [W(A)], [DEL], initial=C, faults=1, **FULL),
    make("full: overwrite || delete, late PUT", [O(A)], [DEL], initial=C, **LATE, **AGAIN, **FULL),
    make("full: change || write", [M(b"x")], [W(B)], initial=C, **FULL),
    make("full, content: B || delete over A", [O(B)], [DEL], initial=A, **(FULL | CONTENT)),
    # Local disks.
    make("local: overwrite || read, partial read", [W(A)], [R, P], initial=C, **LOCAL),
    make("local: overwrite || partial read x2 || read", [W(A)], [P, P], initial=C, **LOCAL),
    make("local: create, delete, crashes || read", [W(A), DEL], [R], crashes=(0,), **LOCAL),
    make("local: overwrite x2, crashes || overwrite", [W(A), W(B)], [W(C)], initial=C, crashes=(0,), **LOCAL),
    make("local: overwrite || size x2", [W(A)], [Z, Z], initial=C, **LOCAL),
    make("local: write if absent || write || delete", [N(A)], [W(B)], [DEL], **LOCAL),
    make("local: create || exists, read || partial read", [W(A)], [X, R], [P], **LOCAL),
    make(
        "local: 3 parts, overwrite, crash || overwrite",
        [W(A3)],
        [W(B3)],
        layout=HEADED,
        initial=C3,
        crashes=(0,),
        **LOCAL,
    ),
    make("local: 1 part, write || write || read", [W(A)], [W(B)], [R], layout=SINGLE, initial=C, **LOCAL),
    # A repair beside living writers.
    make("repair: interrupted || read x2", [FIX], [R, R], initial=C, interrupted=A),
    make("repair: interrupted || change", [FIX], [M(b"x")], initial=C, interrupted=A),
    make("repair: interrupted || delete || read", [FIX], [DEL], [R], initial=C, interrupted=A),
    make("repair: all well || create", [FIX], [W(A)]),
    make("repair, full: interrupted || delete", [FIX], [DEL], initial=C, interrupted=A, **FULL),
    make("repair, local: orphans || create", [FIX], [W(A)], orphans=C, **LOCAL),
    # Old versions of MinIO.
    make("MinIO: write || delete || read", [W(A)], [DEL], [R], initial=C, ignores_match_of_missing=True, **CONTENT),
    make(
        "MinIO: overwrite || overwrite, full || delete",
        [O(A)],
        [DEL],
        initial=C,
        ignores_match_of_missing=True,
        **(FULL | CONTENT),
    ),
]

# Larger ones.
DEEP = [
    make("change || overwrite twice to and fro", [M(b"x")], [O(A), O(C)], initial=C),
    make("lost answers: create || create", [W(A)], [W(B)], faults=1),
    make("create || create || read", [W(A)], [W(B)], [R]),
    make("repair, local: all well || overwrite", [FIX], [W(A)], initial=C, **IMPATIENT),
    make("content: B || A over A", [O(B)], [O(A)], initial=A, **CONTENT),
    make("local: overwrite || read", [W(A)], [R], initial=C, **IMPATIENT),
    make("local: overwrite || read, size", [W(A)], [R, Z], initial=C, **IMPATIENT),
    make("create || create || sharded read", [W(A)], [W(B)], [S]),
    make("create || create || sharded read, hole", [W(H)], [W(B)], [S]),
    make("create || overwrite of nothing || read", [W(A)], [O(B)], [R]),
    make("overwrite || overwrite || read", [O(A)], [O(B)], [R], initial=C),
    make("overwrite x2 || sharded read, two ranges", [O(A), O(B)], [S], initial=C, merges_ranges=False),
    make("overwrite || sharded read x2, retries 2", [O(A)], [S, S], initial=C, retries=2),
    make("overwrite || overwrite || sharded read", [O(A)], [O(B)], [S], initial=C),
    make("write || write || read over a chunk", [W(A)], [W(B)], [R], initial=C),
    make("overwrite || overwrite of untagged || read", [O(A)], [O(B)], [R], initial=C, is_tagged=False),
    make("overwrite || overwrite over orphans || read", [O(A)], [O(B)], [R], orphans=C),
    make("3 parts: create || create", [W(A3)], [W(B3)], layout=HEADED),
    make("3 parts: overwrite || overwrite", [O(A3)], [O(B3)], layout=HEADED, initial=C3),
    make("crashes: overwrite x2 || overwrite", [O(A), O(B)], [O(C)], initial=C, crashes=(0,)),
    make("crashes: overwrite x2 || sharded read x2", [O(A), O(B)], [S, S], initial=C, crashes=(0,)),
    make("crashes: change x2 || change", [M(b"x"), M(b"y")], [M(b"z")], initial=C, crashes=(0,)),
    make("lost answers: overwrite || overwrite", [O(A)], [O(B)], initial=C, faults=1),
    make("lost answers: write || write", [W(A)], [W(B)], initial=C, faults=1),
    make("late PUT: create || create", [W(A)], [W(B)], **LATE),
    make("late PUT: overwrite || overwrite", [O(A)], [O(B)], initial=C, **LATE),
    make("change || change || read", [M(b"x")], [M(b"y")], [R], initial=C),
    make("change, read || overwrite, lost answers", [M(b"x"), R], [O(B)], initial=C, faults=1),
    make("change || overwrite || read", [M(b"x")], [O(B)], [R], initial=C),
    make("change || overwrite, lost answers", [M(b"x")], [O(B)], initial=C, faults=1),
    make("change || overwrite, late PUT", [M(b"x")], [O(B)], initial=C, **LATE),
    make("change || create, lost answers", [M(b"x")], [W(B)], faults=1),
    make("change || change, late PUT", [M(b"x")], [M(b"y")], initial=C, **LATE),
    make("content: B || A over A || read", [O(B)], [O(A)], [R], initial=A, **CONTENT),
    make("content: D || A over A, one index", [O(D)], [O(A)], initial=A, **CONTENT),
    make("content: H || J, one anchor", [O(H)], [O(J)], initial=H, **CONTENT),
    make("content: create || create", [W(A)], [W(B)], **CONTENT),
    make("content: create || the same create", [W(A)], [W(A)], **CONTENT),
    make("content: 3 parts, constant header", [O(A3)], [O(B3)], layout=HEADED, initial=A3, **CONTENT),
    make("content: B || A over A, lost answers", [O(B)], [O(A)], initial=A, faults=1, **CONTENT),
    make("content: B || A over A, late PUT", [O(B)], [O(A)], initial=A, **LATE, **AGAIN, **CONTENT),
    make("content: change || change", [M(b"x")], [M(b"y")], initial=A, **CONTENT),
    make("content: change || overwrite", [M(b"x")], [O(B)], initial=A, **CONTENT),
    make("content: crashes, B, A || A", [O(B), O(A)], [O(A)], initial=A, crashes=(0,), **CONTENT),
    make("content: dead writer, A, B || A", [O(A), O(B)], [O(A)], initial=A, registered=B, **CONTENT),
    make("content: dead writer, B || A || read", [O(B)], [O(A)], [R], initial=A, registered=B, **CONTENT),
    make("stall x2: overwrite || repair", [O(A)], [FIX], initial=C, stalls=2),
    make("stall: overwrite || overwrite || repair", [O(A)], [O(B)], [FIX], initial=C, stalls=1),
    make("stall, lost answers: overwrite || repair", [O(A)], [FIX], initial=C, stalls=1, faults=1),
    make("stall, content: overwrite || repair", [O(B)], [FIX], initial=A, stalls=1, **CONTENT),
    make("stall, content: change || repair", [M(b"x")], [FIX], initial=A, stalls=1, **CONTENT),
    make("stall, content: B || A", [O(B)], [O(A)], initial=A, stalls=1, **CONTENT),
    make("stall, content: interrupted, repair || A", [FIX], [O(A)], initial=A, interrupted=B, stalls=1, **CONTENT),
    make(
        "stall, exclusive: write x2, crash || repair",
        [W(A), W(B)],
        [FIX],
        initial=C,
        crashes=(0,),
        stalls=1,
        **EXCLUSIVE,
    ),
    make("full: create || delete || create", [W(A)], [DEL], [W(B)], **FULL),
    make("full: write || delete || write", [W(A)], [DEL], [W(B)], initial=C, **FULL),
    make("full: change || delete || change", [M(b"x")], [DEL], [M(b"y")], initial=C, **FULL),
    make("local: overwrite || read x2", [W(A)], [R, R], initial=C, **IMPATIENT),
    make("local: overwrite || read, sharded read", [W(A)], [R, S], initial=C, **IMPATIENT),
    make("local: overwrite || sharded read x2", [W(A)], [S, S], initial=C, **IMPATIENT),
    make("local: overwrite || sharded read, two ranges", [W(A)], [S], initial=C, merges_ranges=False, **IMPATIENT),
    make("local: overwrite || sharded read", [W(A)], [S], initial=C, **IMPATIENT),
    make("local: hole goes || sharded read x2", [W(A)], [S, S], initial=H, **IMPATIENT),
    make("local: overwrite, delete, crashes || read", [W(A), DEL], [R], initial=C, crashes=(0,), **IMPATIENT),
    make("local: overwrite || overwrite || read", [W(A)], [W(B)], [R], initial=C, **IMPATIENT),
    make("local: change || write || delete", [M(b"x")], [W(B)], [DEL], initial=C, **IMPATIENT),
    make("local: change || change, crashes", [M(b"x")], [M(b"y")], initial=C, crashes=(0,), **IMPATIENT),
    make("local: change to delete || change", [M(b"!")], [M(b"x")], initial=C, **IMPATIENT),
    make("local: 3 parts, overwrite || read", [W(A3)], [R], layout=HEADED, initial=C3, **IMPATIENT),
    make(
        "local: exclusive, overwrite x2, crash || read x2",
        [W(A), W(B)],
        [R, R],
        initial=C,
        crashes=(0,),
        level="exclusive",
        **IMPATIENT,
    ),
    make("repair: interrupted || overwrite || read", [FIX], [O(B)], [R], initial=C, interrupted=A),
    make("repair: interrupted || overwrite || sharded read", [FIX], [O(B)], [S], initial=C, interrupted=A),
    make("repair: interrupted || repair || overwrite", [FIX], [FIX], [O(B)], initial=C, interrupted=A),
    make("repair: all well || overwrite x2", [FIX], [O(A), O(B)], initial=C),
    make("repair, content: interrupted || overwrite", [FIX], [O(B)], initial=A, interrupted=B, **CONTENT),
    make("repair, content: interrupted || A", [FIX], [O(A)], initial=A, interrupted=B, **CONTENT),
    make("repair, content: interrupted || B, A", [FIX], [O(B), O(A)], initial=A, interrupted=B, **CONTENT),
    make("repair, content: orphans || create", [FIX], [W(A)], orphans=A, **CONTENT),
]

# Too large to be explored completely.
RANDOM = [
    make("3 parts: three writers, four reads", [W(A3)], [W(B3)], [O(C3)], [R, R], [R, S], layout=HEADED, faults=2),
    make(
        "four writes, crashes, sharded reads",
        [O(A), W(H)],
        [O(C), O(A)],
        [S, S],
        [R, S],
        initial=C,
        faults=2,
        crashes=(0, 1),
    ),
    make(
        "two ranges, holes",
        [O(A), O(H)],
        [O(J), O(B)],
        [S, S, S],
        [S1, S0, S],
        initial=C,
        merges_ranges=False,
        crashes=(0,),
    ),
    make("late PUTs", [O(A), O(B)], [O(B), W(A)], [R, S], initial=C, faults=2, has_late_puts=True),
    make(
        "changes, writes, deletes",
        [M(b"x"), M(b"y")],
        [O(A), M(b"z")],
        [DEL, W(C)],
        [R, S],
        initial=C,
        faults=1,
        crashes=(1,),
    ),
    make(
        "content: five writes, crashes, repair",
        [O(A), O(B)],
        [O(B), O(A)],
        [O(A)],
        [R, S],
        [FIX],
        initial=A,
        faults=1,
        crashes=(0, 1),
        **CONTENT,
    ),
    make(
        "content: late PUTs",
        [O(A), O(B)],
        [O(B), O(A)],
        [O(A)],
        [R, S],
        initial=A,
        faults=2,
        has_late_puts=True,
        **AGAIN,
        **CONTENT,
    ),
    make(
        "content: changes",
        [M(b"x"), O(B)],
        [O(B), M(b"y")],
        [M(b"z")],
        [R, S],
        initial=A,
        faults=1,
        crashes=(0,),
        **CONTENT,
    ),
    make(
        "content: dead writer, eight writes, late PUTs",
        [O(A), O(B), O(A)],
        [O(B), O(A), O(B)],
        [O(A), O(A)],
        [R, S],
        initial=A,
        registered=B,
        faults=2,
        has_late_puts=True,
        rewrites=True,
        **AGAIN,
        **CONTENT,
    ),
    make(
        "content: dead writer, five writes, crashes, stalls",
        [O(A), O(B)],
        [M(b"y"), O(B)],
        [O(A)],
        [R],
        [FIX],
        initial=A,
        registered=B,
        crashes=(0, 1),
        stalls=2,
        **CONTENT,
    ),
    make(
        "stalls: five writes, crashes, repairs",
        [W(A), O(B)],
        [O(B), M(b"y")],
        [O(A)],
        [R, S],
        [FIX, FIX],
        initial=A,
        crashes=(0, 1),
        stalls=2,
    ),
    make(
        "full: three writes, three deletes, crashes",
        [W(A), W(B)],
        [W(B)],
        [DEL, DEL],
        [DEL],
        [R, R],
        faults=1,
        rewrites=True,
        crashes=(0, 2),
        **FULL,
    ),
    make(
        "full, content: four writes, two deletes",
        [W(A), W(B)],
        [W(B)],
        [O(A)],
        [DEL, DEL],
        [R, R],
        initial=A,
        crashes=(0, 3),
        **(FULL | CONTENT),
    ),
    make(
        "repair: interrupted, crashes",
        [FIX, FIX],
        [O(B), W(A)],
        [M(b"x")],
        [R, S],
        initial=C,
        interrupted=A,
        faults=1,
        crashes=(0, 1),
    ),
    make(
        "local: everything, crashes",
        [W(A), DEL],
        [M(b"x"), W(B)],
        [N(C), M(b"!")],
        [R, S, P],
        [S, Z, X],
        initial=C,
        crashes=(0, 1),
        **LOCAL,
    ),
]

# What the protocol does not promise, and its documents say so: each of these has to be found, or they say too little.
LIMITS = [
    make("two first creates || delete", [W(A)], [W(B)], [DEL]),
    make("a create whose answer was lost || delete || read", [W(A)], [DEL], [R], faults=1),
    make("a late create after a delete", [W(A), DEL], **LATE),
    make("repair: orphans || create", [FIX], [W(A)], orphans=C),
    make("a delete after a read || change", [M(b"!")], [M(b"x")], initial=C),
    make("content: change || change, the anchor's bytes stay", [M(b"-")], [M(b"x")], initial=H, **CONTENT),
    make("exclusive: a late PUT without conditions", [W(A), W(B)], has_conditions=False, **LATE, **EXCLUSIVE),
    make("MinIO: change || delete", [M(b"x")], [DEL], initial=C, ignores_match_of_missing=True, **CONTENT),
    make("overwrite || overwrite, promised to be exclusive", [W(A)], [W(B)], initial=C, **EXCLUSIVE),
]
