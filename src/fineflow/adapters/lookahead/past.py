"""What a function changes of the world around it, as it was before the function began.

A walk changes nothing of others. From the first change of a container on, one of the walk's own stands for it there,
with what it had in it, and gets the changes.

Stock runs the function between two walks, so a later walk may find a list longer, or a counter higher, than the
function found it. What the first walk found to be changed is remembered, and later walks read that. One that meets
another change can trust nothing that it has read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fineflow.adapters.lookahead.objects import first_value
from fineflow.adapters.lookahead.reachable import held_by
from fineflow.adapters.lookahead.values import NULL, SCALARS, Cell, Stop, unknown

if TYPE_CHECKING:
    from fineflow.adapters.lookahead.walk import Walk


class AlreadyChanged(Stop):
    """Stock may have made this change already."""


class Past:
    """The state before one run of a function, as far as walks need it."""

    def __init__(self) -> None:
        self.first = True
        self.contents: dict[int, tuple[Any, Any]] = {}  # containers, with a copy of each, by id
        self.values: dict[tuple[int, str], tuple[Any, Any]] = {}  # attributes and variables

    def keep(self, place: Any, name: str, value: Any, *, new: bool) -> None:
        """Notes that the function assigns to an attribute or variable whose value is this one. Raises AlreadyChanged.

        new: stock has not seen the place yet.
        """
        if (id(place), name) not in self.values:
            self._check(new)
            self.values[id(place), name] = place, value

    def keep_content(self, container: Any, *, new: bool) -> None:
        """Notes that the function changes a container, which has its first content now. Raises and new: as above."""
        self._check(new)
        self.contents[id(container)] = container, copy.copy(container)

    def _check(self, new: bool) -> None:
        if not (self.first or new):
            raise AlreadyChanged("changes something that it may have changed already")


_MOST = 2000  # elements of a container for which one of the walk's own stands

_ITERATOR = type(iter(list[Any]()))

Content = Callable[[Any], list[Any] | None]
"""Returns what is in a container; None if that is not known."""


class Changes:
    """The changes that a function makes in one walk. Those of what the walk did not create are only noted.

    tainted: containers that may have any content by now, by id. outside: some of these are not the walk's own.
    written: names of resources that declared functions have written.
    """

    def __init__(self, walk: Walk, past: Past) -> None:
        self.walk, self._past = walk, past
        self.tainted: dict[int, Any] = {id(changed): changed for changed, _ in past.contents.values()}
        self.outside = bool(past.contents)
        self.written = set[str]()
        self._given: dict[int, Any] = {}  # containers of data that the function was given
        self._moved: dict[int, Any] = {}  # those of the tainted ones whose elements may have other places
        self._grown: dict[int, Any] = {}  # those that may have other elements besides
        self._replaced: dict[int, set[Any]] = {}  # keys of elements of theirs, NULL for any of them
        self._views: dict[int, list[tuple[list[Any], Content, Any]]] = {}  # of containers, by their id
        self._copies: dict[int, Any] = {}  # of containers that the function changes, by their id
        self._stand_ins: dict[int, Any] = {}  # these containers, by the ids of the copies
        self._iterators: dict[int, tuple[Any, Any]] = {}  # over such containers, and those over the copies, by id
        self._kept: set[int] = set()  # those that only this walk has found to be changed
        self._assigned: dict[tuple[int, str], tuple[Any, Any]] = {}  # attributes and variables of others
        self._results: list[Any] = []  # results of components that stock has not seen yet
        self._in_results: set[int] = set()  # what these refer to

    def leave(self) -> None:
        """Lets go of the walk, as ``Walk.leave`` does of what refers to it."""
        self._views.clear()
        del self.walk

    @property
    def of_others(self) -> bool:
        """True if the function changes something that the walk did not create."""
        return self.outside or bool(self._assigned)

    def given(self, value: Any) -> Any:
        """Registers a container of data that the function was given, or that is part of a document; returns it.

        The function may change it: that touches no component. Other containers may be part of one.
        """
        if type(value) in (list, dict):
            self._given[id(value)] = value
        return value

    def result(self, value: Any) -> Any:
        """Registers the result of a component that stock has not seen yet, or an object that the walk has made."""
        if not unknown(value) and type(value) not in SCALARS:
            self._results.append(value)
        return value

    def taint(self, value: Any, *, moves: bool = False, grows: bool = True) -> None:
        """Notes that a container may have any content from now on.

        moves: its elements may have other places, too. grows: there may be more of them.
        """
        if self.walk.owns(value) and self.walk.tries.ignores(value):
            self.note(value)
            return
        self.walk.tries.changes(value)  # raises Stop for what is fixed
        if moves:
            self._moved[id(value)] = value
        if grows:
            self._grown[id(value)] = value
        for made, *_ in self._views.get(id(value), ()):
            self.taint(made, moves=moves, grows=grows)
        if not self.walk.owns(value):
            if id(value) not in self._past.contents:
                self._past.keep_content(value, new=self._is_new(value))
            if id(value) in self._copies:
                self.taint(self._copies[id(value)], moves=moves, grows=grows)
            else:
                self._kept.add(id(value))
            self._change_of_others(value)
        self.tainted[id(value)] = value

    def _change_of_others(self, value: Any) -> None:
        if self._given.get(id(value)) is not value:
            self.walk.host.changes(value)
        self.outside = True
        self.walk.tasks.changes(value)

    def note(self, value: Any, *given: Any) -> None:
        """Notes a change of a container, if it stands for one that the walk did not create. given: what it gets.

        Others may have that one, so something unknown may be a part of it.
        """
        if id(value) in self._stand_ins:
            self._change_of_others(self._stand_ins[id(value)])
            self.walk.aliases.add(*given)

    def stands_in(self, value: Any) -> bool:
        """Returns True for a container that stands for one that the walk did not create."""
        return id(value) in self._stand_ins

    def target(self, value: Any) -> Any:
        """Returns the container that a change of this one is made in: one of the walk's own if that is possible.

        It is if the walk knows what is in it, the function makes the change for certain, and nothing goes on beside it.
        """
        walk, value = self.walk, self.seen(value)
        if type(value) not in (list, dict, set) or walk.owns(value) or id(value) in self.tainted:
            return value
        if walk.unsure or walk.tries.recording or walk.tasks.any_open or len(value) > _MOST:
            return value
        views = self._views.pop(id(value), [])
        self.taint(value, moves=True)
        self._kept.discard(id(value))
        own = self.seen(value)
        if views:
            self._views[id(own)] = [(made, content, own) for made, content, _ in views]
        return own

    def moved(self, value: Any) -> bool:
        """Returns True for a list whose elements may have moved: a loop over it meets others than it would have."""
        return id(value) in self._moved

    def grown(self, value: Any) -> bool:
        """Returns True for a list that may have more elements than the walk knows."""
        return id(value) in self._grown

    def replaces(self, value: Any, key: Any) -> None:
        """Notes that an element of a container is another one from now on."""
        self.taint(value, grows=type(value) is not list)
        self._replaced.setdefault(id(value), set()).add(key if type(key) is int and key >= 0 else NULL)

    def replaced(self, value: Any, number: int) -> bool:
        """Returns True if this element of a list may be another one by now."""
        keys = self._replaced.get(id(value), ()) if self._replaced else ()
        return number in keys or NULL in keys

    def view(self, owner: Any, content: Content) -> list[Any]:
        """Returns a list that shows what is in a container, also after a change. content: makes it, None if unknown."""
        made: list[Any] = self.walk.own(content(owner))
        self._views.setdefault(id(owner), []).append((made, content, owner))
        return made

    def renew(self, owner: Any) -> None:
        """Notes that a container of the walk's own has another content by now."""
        for made, content, _ in self._views.get(id(owner), ()):
            if (now := content(owner)) is None:
                self.taint(made, moves=True)
            else:
                made[:] = now

    def _is_new(self, value: Any) -> bool:
        while self._results:
            self._in_results |= held_by(self._results.pop()) or set()
        return id(value) in self._in_results

    def change(self, obj: Any) -> None:
        """Notes that an object that the walk did not create has other attributes from now on.

        A text is the name of a resource that no component is.
        """
        self.walk.tasks.changes(obj)
        self.outside = True
        if type(obj) is not str:
            self.walk.host.changes(obj)
            self.tainted[id(obj)] = obj

    def assign(self, place: Any, name: str, value: Any, before: Any) -> None:
        """Notes an assignment to an attribute of an object, or to a variable, that the walk did not create.

        place: the object, the globals of a module, or a cell. before: its value now.
        """
        if self.walk.tries.aside:
            return
        self.walk.tasks.changes(place)
        self._past.keep(place, name, before, new=self._is_new(place))
        now = self.assigned(place, name, before)
        self.walk.tries.assigns(place, name, now)
        self._assigned[id(place), name] = place, self.walk.aliases.one_of(value, now) if self.walk.unsure else value

    def forget(self, place: Any, name: str, before: Any) -> None:
        """Notes that an assignment may not have been made."""
        if isinstance(place, Cell):
            place.value = self.walk.aliases.one_of(place.value, before)
        elif self.walk.created(place):
            object.__setattr__(place, name, self.walk.aliases.one_of(first_value(place, name), before))
        else:
            now = self.assigned(place, name, before)
            self._assigned[id(place), name] = place, self.walk.aliases.one_of(now, before)

    def assigned(self, place: Any, name: str, otherwise: Any) -> Any:
        """Returns what the walk has noted for an attribute or variable, or its first value: NULL if it had none.

        otherwise: what is returned where the function assigns nothing.
        """
        key = id(place), name
        found = self._assigned.get(key) or self._past.values.get(key)
        value = otherwise if found is None else found[1]
        if not unknown(value):
            self.walk.tasks.read(place, name)
        return value

    @property
    def assigned_to(self) -> set[int]:
        """The places to which this walk, or one before it, has noted an assignment, by id."""
        return {number for number, _ in (*self._assigned, *self._past.values)}

    def seen(self, value: Any) -> Any:
        """Returns a value as the function finds it: of a container that it changes, the one that stands for it."""
        found = self._past.contents.get(id(value))
        if found is None or id(value) in self._kept or found[0] is not value:
            return value
        if id(value) not in self._copies:
            if self._given.get(id(value)) is not value:
                self.walk.host.changes(value)  # from here on rather than from where it is: the copy is the walk's own
            own = self._copies[id(value)] = self.walk.stands(copy.copy(found[1]))
            self._stand_ins[id(own)] = value
        return self._copies[id(value)]

    def iterated(self, source: Any) -> Any:
        """Returns an iterator as it goes on: over the list that stands for its own, once one does."""
        if id(source) in self._iterators:
            return self._iterators[id(source)][1]
        if not self._past.contents or type(source) is not _ITERATOR:
            return source
        state: Any = source.__reduce__()
        _, (container, *_), *number = state
        own = self.seen(container)
        if own is container or not number or number[0] > len(own):
            return source
        made = self.walk.stands(iter(own))
        made.__setstate__(number[0])
        self._iterators[id(source)] = source, made
        return made

    def so_far(self) -> Callable[[], None]:
        """Returns a function after which nothing else has been changed: what comes is believed to change nothing."""
        outside, assigned, changed = self.outside, dict(self._assigned), dict(self.walk.host.changed)

        def back() -> None:
            self.outside, self._assigned, self.walk.host.changed = outside, assigned, changed

        return back
