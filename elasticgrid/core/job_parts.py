"""A job's nodes or launches by id: those that may still change apart from those that are over for ever.

Every event that concerns a node makes a new mapping of them. A job that runs for days has had hundreds, so those that
are over are kept in a mapping of their own, which is copied only when one is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

_Part = TypeVar("_Part")


class Parts(msgspec.Struct, Generic[_Part], frozen=True, gc=False):
    """Parts of a job by id. As a whole it is read like a dictionary, what is over first.

    Attributes:
        present: what may still change, in the order it came.
        past: what will not change any more.
    """

    present: dict[str, _Part] = {}
    past: dict[str, _Part] = {}

    def __getitem__(self, name: str) -> _Part:
        """The part; KeyError when there never was such a one."""
        part = self.present.get(name)
        return self.past[name] if part is None else part

    def __contains__(self, name: str) -> bool:
        """Whether there ever was such a part."""
        return name in self.present or name in self.past

    def __iter__(self) -> Iterator[str]:
        """All ids."""
        yield from self.past
        yield from self.present

    def __len__(self) -> int:
        """How many there ever were."""
        return len(self.past) + len(self.present)

    def get(self, name: str) -> _Part | None:
        """The part, or None when there never was such a one."""
        part = self.present.get(name)
        return self.past.get(name) if part is None else part

    def values(self) -> Iterator[_Part]:
        """All parts."""
        yield from self.past.values()
        yield from self.present.values()

    def named(self, names: Iterable[str]) -> list[_Part]:
        """The parts with these ids, in their order; KeyError when there never was one of them."""
        present = self.present
        return [present[name] if name in present else self.past[name] for name in names]

    def with_part(self, name: str, part: _Part) -> Parts[_Part]:
        """With one that may still change added or replaced."""
        present = self.present.copy()
        present[name] = part
        return Parts(present, self.past)

    def settled(self, is_over: Callable[[_Part], bool]) -> Parts[_Part]:
        """With those of the present that are over among the past; the very same when there are none."""
        over = {name: part for name, part in self.present.items() if is_over(part)}
        if not over:
            return self
        present = {name: part for name, part in self.present.items() if name not in over}
        return Parts(present, {**self.past, **over})
