"""Record what a store does to the files of a folder: every change, and every synchronisation."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


class KilledError(BaseException):
    """The writer was killed: nothing that it does from now on has an effect."""


@dataclass(frozen=True, slots=True)
class Create:
    """A new file."""

    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at the end of a file."""

    inode: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """A new folder."""

    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Rename:
    """A file that gets another name, in place of what had that name."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Link:
    """A second name of a file."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A removed file, or a removed empty folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Synced:
    """A file or folder that is on the disk."""

    inode: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A call of the store that has returned."""


type Event = Create | Write | MakeFolder | Rename | Link | Remove | Synced | Returned


@dataclass(slots=True)
class Recorder:
    """What happens below a folder, in its order. Inodes are numbers of our own: the real ones are used again."""

    root: str
    events: list[Event] = field(default_factory=list)
    # The numbers of the files and folders, by their real inodes.
    numbers: dict[int, int] = field(default_factory=dict)
    # How many more events there are before the writer is killed, None if it is not.
    lives: int | None = None

    def number(self, path: str | int) -> int:
        """Return the number of a file or folder."""
        return self.numbers.setdefault(_inode(path), len(self.numbers))

    def renumber(self, path: str | int) -> int:
        """Return a new number for a new file or folder, whose inode may have been used before."""
        self.numbers[_inode(path)] = number = 1 + max(self.numbers.values(), default=-1)
        return number

    def relative(self, path: str) -> str | None:
        return os.path.relpath(path, self.root) if path.startswith(f"{self.root}/") else None

    def live(self) -> None:
        """Raise if the writer is dead, or dies before the next event."""
        if self.lives is not None:
            if self.lives <= 0:
                raise KilledError
            self.lives -= 1

    @contextlib.contextmanager
    def recording(self, *, lives: int | None = None) -> Iterator[None]:
        """Record what happens within the block; kill the writer after so many events."""
        self.lives = lives
        with contextlib.ExitStack() as patches:
            for name in ("open", "writev", "replace", "link", "unlink", "mkdir", "rmdir", "fsync"):
                real = getattr(os, name)
                watched = getattr(self, f"_{name}")
                patches.enter_context(mock.patch.object(os, name, _bound(watched, real)))
            try:
                yield
            finally:
                self.lives = None

    def _open(self, real: Any, path: Any, flags: int, *args: Any, **options: Any) -> int:
        is_new = bool(flags & os.O_CREAT) and self.relative(os.fspath(path)) is not None and not os.path.lexists(path)
        if is_new:
            self.live()
        descriptor: int = real(path, flags, *args, **options)
        if is_new:
            self.events.append(Create(str(self.relative(path)), self.renumber(descriptor)))
        return descriptor

    def _writev(self, real: Any, descriptor: int, buffers: Any) -> int:
        self.live()
        nbytes: int = real(descriptor, buffers)
        self.events.append(Write(self.number(descriptor), b"".join(buffers)[:nbytes]))
        return nbytes

    def _replace(self, real: Any, source: str, target: str) -> None:
        self._change(lambda: real(source, target), Rename(str(self.relative(source)), str(self.relative(target))))

    def _link(self, real: Any, source: str, target: str) -> None:
        self._change(lambda: real(source, target), Link(str(self.relative(source)), str(self.relative(target))))

    def _unlink(self, real: Any, path: str) -> None:
        self._change(lambda: real(path), Remove(str(self.relative(path))))

    def _rmdir(self, real: Any, path: str) -> None:
        self._change(lambda: real(path), Remove(str(self.relative(path))))

    def _mkdir(self, real: Any, path: str, *args: Any) -> None:
        self.live()
        real(path, *args)
        self.events.append(MakeFolder(str(self.relative(path)), self.renumber(path)))

    def _fsync(self, real: Any, descriptor: int) -> None:
        self.live()
        real(descriptor)
        self.events.append(Synced(self.number(descriptor)))

    def _change(self, change: Callable[[], None], event: Event) -> None:
        self.live()
        change()
        self.events.append(event)


def _inode(path: str | int) -> int:
    return os.stat(path).st_ino  # noqa: PTH116 - of a descriptor, too


def _bound(watched: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: watched(real, *args, **options)


type Tree = dict[str, bytes | None]
"""The files of a folder by their paths, and its folders, which are None."""


def tree_of(folder: Path) -> Tree:
    """Return what a folder contains."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def write_tree(folder: Path, tree: Tree) -> None:
    """Make a folder with this content."""
    folder.mkdir(parents=True)
    for path, data in sorted(tree.items()):
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
