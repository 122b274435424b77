"""Steps that are carried out on a real disk, and can be paused or killed between any two of their requests."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from parts_store.backends import local_locks
from parts_store.backends.local_disk import LocalBackend
from parts_store.engine.steps import Done, Lock, Outcome, Refused, StepRequest, Steps, Trial, Wait


@dataclass
class Paused[T]:
    """Steps on a disk, of which as many requests are made as asked for."""

    steps: Steps[T]
    backend: LocalBackend
    releases: list[Callable[[], None]] = field(default_factory=list)
    waiting: tuple[StepRequest, ...] = ()
    has_ended: bool = False

    def __post_init__(self) -> None:
        self._advance(None)

    def _advance(self, outcomes: tuple[Outcome, ...] | None) -> None:
        try:
            self.waiting = next(self.steps) if outcomes is None else self.steps.send(outcomes)
        except StopIteration:
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self.has_ended, self.waiting = True, ()
        while self.releases:
            self.releases.pop()()

    def step(self) -> bool:
        """Make the next batch of requests; return whether that is possible: not if a lock is held by another."""
        if self.has_ended:
            return False
        outcomes = tuple(self._perform(request) for request in self.waiting)
        if isinstance(self.waiting[0], Lock) and outcomes == (Refused(),):
            return False
        self._advance(outcomes)
        return True

    def _perform(self, request: StepRequest) -> Outcome:
        if isinstance(request, Lock):
            release = self.backend.lock(request)
            if release is None:
                return Refused()
            self.releases.append(release)
            return Done()
        assert not isinstance(request, Wait | Trial)
        return self.backend.perform_sync(request)

    def go_until(self, kind: type[StepRequest], count: int = 1) -> None:
        """Stop before the given batch of this kind, or at a lock that is held, or at the end."""
        while not self.has_ended:
            if isinstance(self.waiting[0], kind):
                count -= 1
                if not count:
                    return
            if not self.step():
                return

    def finish(self) -> None:
        while self.step():
            pass

    def kill(self) -> None:
        """Give the locks back as the kernel does: their files stay."""
        self.has_ended = True
        self.steps.close()
        self.releases.clear()
        close_descriptors()


def close_descriptors() -> None:
    """Close all lock files of this process, which leaves them on the disk, and forget its locks."""
    for descriptor in [*local_locks._descriptors._open]:
        local_locks._descriptors._open.remove(descriptor)
        os.close(descriptor)
    local_locks.shared_locks.after_fork_in_child()
