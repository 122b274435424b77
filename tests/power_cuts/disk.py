"""What may be on a disk after a power cut, by POSIX: everything that was synchronised, and any of the rest.

Every name that was made or removed since its folder was last synchronised is on the disk or not, each independently of
all others and of their order. A rename makes a new name and removes an old one: the old one is never removed alone. Of
a file that was not synchronised since it was written, nothing, a part or everything is on the disk.
"""

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.power_cuts.recording import (
    Create,
    Event,
    Link,
    MakeFolder,
    Recorder,
    Remove,
    Rename,
    Returned,
    Synced,
    Tree,
    Write,
)


@dataclass(slots=True, eq=False)
class Entry:
    """A change of one name in a folder: the file or folder that it leads to, None if it was removed."""

    name: str
    inode: int | None
    # The new name that a rename makes, if this is the removal of the old one.
    after: "Entry | None" = None


@dataclass(slots=True)
class Disk:
    """The files and folders as programs see them, and what is surely on the disk."""

    root: int
    # By inode: the names in each folder that are on the disk, and later changes of names.
    folders: dict[int, dict[str, int]] = field(default_factory=dict)
    pending: dict[int, list[Entry]] = field(default_factory=dict)
    # By inode: the bytes of each file, and how many of them are on the disk.
    files: dict[int, bytes] = field(default_factory=dict)
    synced: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, recorder: Recorder, tree: Tree) -> "Disk":
        """Return a disk with a recorder's folder, of which everything is on the disk."""
        disk = cls(recorder.number(recorder.root))
        disk.folders[disk.root] = {}
        for path, data in sorted(tree.items()):
            inode = recorder.number(f"{recorder.root}/{path}")
            folder, name = disk.find(path)
            disk.folders[folder][name] = inode
            if data is None:
                disk.folders[inode] = {}
            else:
                disk.files[inode], disk.synced[inode] = data, len(data)
        return disk

    def copy(self) -> "Disk":
        """Return a disk that changes apart from this one."""
        return copy.deepcopy(self)

    def names(self, folder: int) -> dict[str, int]:
        """Return the names that programs see in a folder."""
        return _changed(self.folders[folder], self.pending.get(folder, ()))

    def find(self, path: str) -> tuple[int, str]:
        """Return the folder that a path is in, and the name there."""
        *folders, name = path.split("/")
        at = self.root
        for each in folders:
            at = self.names(at)[each]
        return at, name

    def apply(self, event: Event) -> None:
        """Carry out an event."""
        match event:
            case Create(path, inode):
                self.files[inode], self.synced[inode] = b"", 0
                self._change(path, inode)
            case MakeFolder(path, inode):
                self.folders[inode] = {}
                self._change(path, inode)
            case Write(inode, data):
                self.files[inode] += data
            case Link(source, target):
                folder, name = self.find(source)
                self._change(target, self.names(folder)[name])
            case Rename(source, target):
                folder, name = self.find(source)
                new = self._change(target, self.names(folder)[name])
                self._change(source, None, after=new)
            case Remove(path):
                self._change(path, None)
            case Synced(inode) if inode in self.files:
                self.synced[inode] = len(self.files[inode])
            case Synced(inode):
                self._sync_folder(inode)
            case Returned():
                pass

    def _change(self, path: str, inode: int | None, after: Entry | None = None) -> Entry:
        folder, name = self.find(path)
        entry = Entry(name, inode, after)
        self.pending.setdefault(folder, []).append(entry)
        return entry

    def _sync_folder(self, folder: int) -> None:
        done = self.pending.pop(folder, [])
        self.folders[folder] = _changed(self.folders[folder], done)
        needed = [each.after for each in done if each.after is not None]
        # A rename is never half done: with the old name removed, the new one is on the disk.
        for other, entries in self.pending.items():
            first = [each for each in entries if each in needed]
            self.folders[other] = _changed(self.folders[other], first)
            self.pending[other] = [each for each in entries if each not in needed]

    def states(self, limit: int, rng: random.Random) -> Iterator[Tree]:
        """Yield every content that the disk may have; at random so many of them if there are more than the limit."""
        changes = [(folder, each) for folder, entries in self.pending.items() for each in entries]
        unsynced = [inode for inode, data in self.files.items() if self.synced[inode] < len(data)]
        lengths = [self._lengths(inode) for inode in unsynced]
        choices: Iterator[Sequence[int]] = itertools.product(*[(0, 1)] * len(changes), *lengths)
        count = 2 ** len(changes)
        for each in lengths:
            count *= len(each)
        if count > limit:
            choices = ([rng.choice(each) for each in [*[(0, 1)] * len(changes), *lengths]] for _ in range(limit))
        for choice in choices:
            taken = [change for change, is_taken in zip(changes, choice, strict=False) if is_taken]
            if self._is_possible([entry for _, entry in taken]):
                yield self._tree(taken, dict(zip(unsynced, choice[len(changes) :], strict=True)))

    def _lengths(self, inode: int) -> tuple[int, ...]:
        start, stop = self.synced[inode], len(self.files[inode])
        return tuple(sorted({start, (start + stop) // 2, stop}))

    def _is_possible(self, taken: Sequence[Entry]) -> bool:
        """Return whether no rename has removed the old name without making the new one."""
        waiting = [entry for entries in self.pending.values() for entry in entries]
        return all(each.after is None or each.after not in waiting or each.after in taken for each in taken)

    def _tree(self, taken: Sequence[tuple[int, Entry]], lengths: dict[int, int]) -> Tree:
        tree: Tree = {}
        at = [("", self.root)]
        while at:
            path, folder = at.pop()
            for name, inode in _changed(self.folders[folder], [each for of, each in taken if of == folder]).items():
                below = f"{path}{name}"
                if inode in self.folders:
                    tree[below] = None
                    at.append((f"{below}/", inode))
                else:
                    tree[below] = self.files[inode][: lengths.get(inode, len(self.files[inode]))]
        return tree

    @property
    def seen(self) -> Tree:
        """What programs see."""
        return self._tree([(folder, each) for folder, entries in self.pending.items() for each in entries], {})


def _changed(names: dict[str, int], entries: Sequence[Entry]) -> dict[str, int]:
    result = dict(names)
    for entry in entries:
        if entry.inode is None:
            result.pop(entry.name, None)
        else:
            result[entry.name] = entry.inode
    return result
