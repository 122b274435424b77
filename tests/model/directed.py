"""One run that is described in a few moves: for mistakes that show only in a few of millions of orders."""

from typing import NamedTuple

from tests.model.checker import Checker, Counterexample, State, Transition
from tests.model.monitor import Violation

CARRIED_OUT = "is carried out"
DELAYED = "is delayed, the answer lost"


class Move(NamedTuple):
    """A part of a run: a client goes on until its next request has this text, and then `how` happens to that request.

    If `how` is empty, the request is not made yet. Without a text, the client goes on until its operation has ended. A
    move without a client is that of a delayed PUT.
    """

    client: str
    text: str = ""
    how: str = ""


def follow(checker: Checker, script: tuple[Move, ...]) -> None:
    """Carry out the moves, then all that is left to do; raise with the transitions that led to a violation."""
    state = checker.initial()
    path: list[Transition] = []
    try:
        for move in script:
            begun = None if not move.client else state.positions["abcdefgh".index(move.client)].operation
            while (transition := _next(checker, state, move, begun)) is not None:
                path.append(transition)
                state = checker.apply(state, transition)
                if move.text and move.text in str(transition.action):
                    break
        while left := [each for each in checker.enabled(state) if each.how in (CARRIED_OUT, "comes late")]:
            path.append(left[0])
            state = checker.apply(state, left[0])
        checker.check(state, is_end=True)
    except Violation as violation:
        raise Counterexample(checker, violation, tuple(path)) from violation


def _next(checker: Checker, state: State, move: Move, begun: tuple[int, int] | None) -> Transition | None:
    """Return the next transition of a move, None if the move has ended."""
    enabled = checker.enabled(state)
    if begun is None:
        (late,) = (each for each in enabled if each.how == "comes late" and move.text in str(each.action))
        return late
    position = state.positions[begun[0]]
    if position.operation != begun or not position.todo:
        if move.text:
            raise LookupError(f"the operation ends without {move}")
        return None
    own = [each for each in enabled if each.client == begun[0] and each.action is not None]
    wanted = [each for each in own if move.text and move.text in str(each.action)]
    if not wanted:
        return next(each for each in own if each.how == CARRIED_OUT)
    return next(each for each in wanted if each.how == move.how) if move.how else None
