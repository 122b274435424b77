"""Find out whether a server does what the write protocol needs, with a small object that is removed again.

| request                               | expected | otherwise                                        |
|---------------------------------------|----------|--------------------------------------------------|
| PUT with metadata, if absent          | done     | the server does not implement conditional PUTs   |
| PUT, if absent                        | refused  | it ignores `If-None-Match`                       |
| HEAD                                  | metadata | it drops or changes user metadata                |
| PUT, if it has the ETag of the HEAD   | done     | it does not recognise its own ETag               |
| the same again                        | refused  | it ignores `If-Match`                            |
| DELETE                                |          |                                                  |

A thorough probe asks for more: conditions on GET, ranges from the end, whether ETags come back, and a listing.
"""

from binascii import a2b_base64
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from string import ascii_letters, digits
from typing import Final

from zarr.abc.store import SuffixByteRequest

from parts_store.engine import steps
from parts_store.engine.steps import Condition, Found, Outcome, Steps
from parts_store.errors import ServerFeatureError
from parts_store.format.keys import PROTOCOL_FOLDER, probe_key
from parts_store.format.tags import Tag
from parts_store.transactions.rules import MAX_EMBEDDED, Level

_WHY: Final = "what the server supports"
_ANSWERS: Final = {True: "yes", False: "no", None: "not asked"}
# As long as the longest tag, with every character of base64 in it: some servers keep less metadata, or change letters.
_EMBEDDED: Final = (a2b_base64(ascii_letters + digits + "+/") * MAX_EMBEDDED)[: MAX_EMBEDDED - 1]


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a store, as `PartsStore.check` reports them. None means that a feature was not probed."""

    # Whether PUTs with a condition are implemented at all.
    has_conditional_puts: bool | None = None
    # Whether a PUT with `If-None-Match` is refused if the object exists.
    refuses_create: bool | None = None
    # Whether a PUT with `If-Match` is refused if the object has another ETag, and accepted if it has this one.
    refuses_update: bool | None = None
    # Whether user metadata comes back, as long as a tag can be.
    keeps_metadata: bool | None = None
    # Whether a GET with `If-Match` is refused if the object has another ETag.
    refuses_read: bool | None = None
    # Whether the last bytes of an object can be asked for without knowing its size.
    has_suffix_ranges: bool | None = None
    # Whether two objects with the same bytes have different ETags.
    has_unique_etags: bool | None = None
    # Whether a listing shows an object that was just written.
    has_listing: bool | None = None
    # The supported levels of a store that needs nothing of a server; None if the server decides.
    serverless_levels: tuple[Level, ...] | None = None

    @property
    def has_conditions(self) -> bool:
        """Return whether writers can rely on conditional PUTs."""
        return bool(self.refuses_create and self.refuses_update)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the levels of `concurrency` at which arrays with several parts can be written."""
        if self.serverless_levels is not None:
            return self.serverless_levels
        if not self.keeps_metadata:
            return ()
        return tuple(Level) if self.has_conditions else (Level.EXCLUSIVE,)

    @property
    def supports_default(self) -> bool:
        """Return whether the default level, `"writers"`, is supported."""
        return Level.WRITERS in self.levels

    @property
    def missing_conditions(self) -> str:
        """Return which conditions on PUTs the server does not keep, in words."""
        if self.has_conditional_puts is False:
            return "it does not implement conditional PUTs"
        kept = {"If-None-Match": self.refuses_create, "If-Match": self.refuses_update}
        ignored = [name for name, is_kept in kept.items() if not is_kept]
        return f"it does not honour {' and '.join(ignored)} on PUT"

    @property
    def rows(self) -> dict[str, str]:
        """Return each feature and the answer, in words."""
        etags = {True: "unique", False: "by content", None: "not asked"}[self.has_unique_etags]
        return {
            "create of an existing object refused (If-None-Match on PUT)": _ANSWERS[self.refuses_create],
            "update of a changed object refused (If-Match on PUT)": _ANSWERS[self.refuses_update],
            "user metadata kept": _ANSWERS[self.keeps_metadata],
            "read of a changed object refused (If-Match on GET)": _ANSWERS[self.refuses_read],
            "ranges from the end": _ANSWERS[self.has_suffix_ranges],
            "ETags": etags,
            "listing": _ANSWERS[self.has_listing],
            "levels of concurrency": ", ".join(level.value for level in self.levels) or "none, only reading",
        }

    def to_json(self) -> dict[str, object]:
        """Return the answers as JSON."""
        names = [each.name for each in fields(self) if each.name != "serverless_levels"]
        return {name: getattr(self, name) for name in names} | {"levels": [level.value for level in self.levels]}

    def __str__(self) -> str:
        if self.serverless_levels is not None:
            levels = ", ".join(level.value for level in self.levels)
            works = f"every level of concurrency works ({levels})" if levels else "the store can only be read"
            return f"nothing needs checking here; {works}"
        width = max(map(len, self.rows))
        return "\n".join(f"{name:{width}}  {answer}" for name, answer in self.rows.items())


def require_features(features: Features, level: Level, parts: int, server: str) -> None:
    """Raise `ServerFeatureError` unless the server supports writing arrays with this many parts at this level."""
    if not features.keeps_metadata and parts > 1:
        lacks = "it drops or changes the user metadata of objects"
        needed = f"writing arrays with {parts} parts at any level, since parts of two writes could not be told apart"
        advice = "write arrays without parts, or with one part, or use a server that keeps user metadata"
        raise ServerFeatureError(server, lacks, needed, advice)
    # The level "exclusive" needs no conditions, but the server must answer requests that have one.
    if features.has_conditions or (level is Level.EXCLUSIVE and features.has_conditional_puts is not False):
        return
    advice = "open the store with concurrency='exclusive', and let one client at a time write each chunk"
    if features.has_conditional_puts is False:
        advice += "; add the option conditional_put='disabled'"
    raise ServerFeatureError(server, features.missing_conditions, f"concurrency={level.value!r}", advice)


def probe(
    new_generation: Callable[[], str], *, has_conditions: bool, path: str = "", is_thorough: bool = False
) -> Steps[Features]:
    """Return what the server supports; raise if it does not answer. No conditions are sent unless `has_conditions`.

    The object is written below `path`, where the caller is about to write anyway: it may be allowed nowhere else.
    """
    for repeat in range(steps.MAX_TRIES):
        if repeat:
            yield (steps.Wait(repeat),)
        # Each attempt has its own key, because a request without a response may be carried out later.
        key = probe_key(path, new_generation())
        asked = _ServerProbe(key, Tag(new_generation(), "c", (2,), None, _EMBEDDED), has_conditions, is_thorough)
        problem: Exception
        try:
            features: Features | None = yield from asked.run()
        except _UnansweredError as error:
            features, problem = None, error.args[0]
        yield from asked.remove()
        if features is not None:
            return features
        # obstore retries by itself. A further attempt only helps if the server has answered another request.
        if asked.was_refused or (repeat and not asked.was_answered):
            break
    problem.add_note(f"while {key!r} was written and read to find out what the server supports")
    raise problem


class _UnansweredError(Exception):
    """An error that says that a request of the probe got no response, or none that tells about features.

    Its only argument is the error of the request.
    """


@dataclass(slots=True)
class _ServerProbe:
    """One attempt to find out what the server supports."""

    key: str
    tag: Tag
    has_conditions: bool
    is_thorough: bool
    was_answered: bool = field(default=False)
    # The server refused a request for a reason that a retry does not change.
    was_refused: bool = field(default=False)

    def run(self) -> Steps[Features]:
        """Send the requests of the table one after the other, and return what they tell."""
        is_implemented = (yield from self._is_implemented()) if self.has_conditions else None
        if not is_implemented:
            yield from self._is_done(None, b"a1")
        refuses_create = is_implemented and not (yield from self._is_done(steps.IfAbsent(), b"a2"))
        first = yield from self._found(steps.Head(self.key, _WHY))
        refuses_update = is_implemented and (yield from self._is_done(first.unchanged, b"a3"))
        if refuses_update:
            refuses_update = not (yield from self._is_done(first.unchanged, b"a4"))
        features = Features(is_implemented, refuses_create, refuses_update, first.tag == self.tag)
        return (yield from self._more(features)) if self.is_thorough else features

    def remove(self) -> Steps[None]:
        """Delete the object; if that fails, a hidden object of two bytes remains."""
        for _ in range(2):
            (outcome,) = yield (steps.Trial(steps.Delete((self.key,), _WHY)),)
            if not isinstance(outcome, steps.Lost):
                return

    def _more(self, features: Features) -> Steps[Features]:
        now = yield from self._found(steps.Head(self.key, _WHY))
        last = yield from self._ask(steps.Get(self.key, SuffixByteRequest(1), _WHY))
        has_suffix_ranges = isinstance(last, Found) and len(memoryview(last.data)) == 1 and now.nbytes == 2
        pinned = yield from self._ask(steps.Get(self.key, None, _WHY, '"00000000000000000000000000000000"'))
        yield from self._is_done(None, b"a5")
        before = yield from self._found(steps.Head(self.key, _WHY))
        yield from self._is_done(None, b"a5")
        after = yield from self._found(steps.Head(self.key, _WHY))
        listed = yield from self._ask(steps.List(PROTOCOL_FOLDER, _WHY))
        keys = [entry.key for entry in listed.entries] if isinstance(listed, steps.Listed) else []
        return replace(
            features,
            refuses_read=isinstance(pinned, steps.Refused),
            has_suffix_ranges=has_suffix_ranges,
            has_unique_etags=before.unchanged != after.unchanged,
            has_listing=self.key in keys,
        )

    def _is_implemented(self) -> Steps[bool]:
        """Return whether a conditional PUT is carried out if its condition is met."""
        (outcome,) = yield (steps.Trial(self._put(steps.IfAbsent(), b"a1")),)
        if isinstance(outcome, steps.Failed) and isinstance(outcome.error, ServerFeatureError):
            self.was_answered = True
            return False
        return isinstance(self._checked(outcome), steps.Done)

    def _is_done(self, condition: Condition | None, data: bytes) -> Steps[bool]:
        return isinstance((yield from self._ask(self._put(condition, data))), steps.Done)

    def _put(self, condition: Condition | None, data: bytes) -> steps.Put:
        return steps.Put(self.key, data, self.tag, condition, _WHY)

    def _found(self, request: steps.Head) -> Steps[Found]:
        (outcome,) = yield (steps.Trial(request),)
        self._checked(outcome)
        if not isinstance(outcome, Found):
            raise _UnansweredError(TypeError(f"{self.key!r} was written, and a HEAD was answered with {outcome}"))
        return outcome

    def _ask(self, request: steps.TrialRequest) -> Steps[Outcome]:
        """Send a request and return its outcome. A GET or a listing may fail; if a PUT fails, the probe fails."""
        (outcome,) = yield (steps.Trial(request),)
        return self._checked(outcome) if isinstance(request, steps.Put) else outcome

    def _checked(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, steps.Failed):
            self.was_refused = True
            raise _UnansweredError(outcome.error)
        if isinstance(outcome, steps.Lost):
            raise _UnansweredError(outcome.error)
        self.was_answered = True
        return outcome


# What this process has found out about the servers of its stores, by bucket and prefix.
_known: dict[Hashable, Features] = {}
# The servers that were probed twice.
_confirmed: set[Hashable] = set()
_asking: dict[Hashable, object] = {}
# How often an operation waits 80 ms for the result of another operation, before it probes the server itself.
_MAX_LOOKS = 200


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """The server of a store, which is probed once for what it supports."""

    # Equal for all stores on the same bucket and prefix that send the same kind of requests. Its URL may have a secret.
    key: Hashable = field(repr=False)
    # For error messages, without secrets.
    address: str
    # Whether conditional PUTs may be sent.
    has_conditions: bool

    @property
    def known(self) -> Features | None:
        """Return what the server supports, None if it was not probed yet."""
        return _known.get(self.key)

    def learn(self, features: Features) -> None:
        """Remember what the server supports."""
        _known[self.key] = features

    def forget(self, features: Features) -> None:
        """Probe again before the next write, unless another operation has probed the server since."""
        if _known.get(self.key) is features:
            del _known[self.key]

    @property
    def is_confirmed(self) -> bool:
        """Return whether the server was probed a second time, because it lacked a feature the first time."""
        return self.key in _confirmed

    def confirm(self) -> None:
        """Remember that the server was probed a second time."""
        _confirmed.add(self.key)

    def features(self, new_generation: Callable[[], str], path: str) -> Steps[Features]:
        """Return what the server supports; probe it with an object below a path, unless this process already did."""
        me = object()
        for repeat in range(1, _MAX_LOOKS + 1):
            if (known := self.known) is not None:
                return known
            # Only one of several threads probes the server.
            if _asking.setdefault(self.key, me) is me:
                break
            yield (steps.Wait(min(repeat, 4)),)
        try:
            found = yield from probe(new_generation, has_conditions=self.has_conditions, path=path)
        finally:
            if _asking.get(self.key) is me:
                del _asking[self.key]
        self.learn(found)
        return found
