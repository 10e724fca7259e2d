"""Random LCEL chains: a hypothesis strategy of specifications, which ``random_steps.build`` makes chains of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from random_draws import NEVER, Drawing
from random_functions import (
    CONDITIONS,
    CONDITIONS_OF_TEXT,
    FAILING_OF_DICT,
    PURE_OF_DICT,
    PURE_OF_DOCS,
    PURE_OF_TEXT,
    PURE_OF_TEXTS,
    SPLITTING,
)
from random_steps import Spec

INPUT = {"question": "which town is the capital of France", "topic": "towns"}
OTHERS = (
    {"question": "cheese, of Italy", "topic": "food"},
    {"question": "Lyon or Rome\nor neither", "topic": "a town"},
)

MULTI_QUERY = ("multi", "multi o", "multi compressed", "multi o compressed")
TEXT, TEXTS, DOCS, DATA = "text", "texts", "docs", "data"

Keys = dict[str, str]  # name -> TEXT, TEXTS, DOCS or DATA


@dataclass
class Chain:
    """A specification, and what is known of it.

    concurrent: stock runs user code of it side by side. several: it has branches that run side by side. chance: when
    it is a matter of chance how far other steps get beside one that fails: NEVER; in ASYNC calls, where the other
    branches go on in the background; ALWAYS among the elements of a map, of which those that have begun go on.
    """

    spec: Spec
    concurrent: bool = False
    several: bool = False
    chance: str = NEVER

    @property
    def streams_differ(self) -> bool:
        """Whether streams of it are a matter of chance in stock.

        Chunks of JSON cannot be added, so each replaces the dict that is there so far, and which keys are left of
        branches side by side is a race.
        """
        return self.several and "json" in repr(self.spec)

    @property
    def changes(self) -> bool:
        """Whether user code changes in place what others read."""
        return any(word in repr(self.spec) for word in ("change a key", "change documents", "add a key"))


class _Steps(Drawing):
    """Draws steps, by what they are given and what they make of it."""

    # --- from dict to dict ---

    def stages(self, keys: Keys, count: int) -> tuple[Spec, Keys]:
        """Several steps from dict to dict, and the keys behind them."""
        parts: list[Spec] = []
        for _ in range(count):
            part, keys = self.stage(keys)
            parts.append(part)
        return (parts[0] if len(parts) == 1 else ("sequence", *parts)), keys

    def stage(self, keys: Keys) -> tuple[Spec, Keys]:
        if not self.more():
            return ("same",), keys
        kind = self.pick(*["assign"] * 5, "parallel", *["opaque"] * 2, "picks", *["branch"] * 2, "fallbacks", "wrapped")
        if kind == "assign":
            branches, made = self.branches(keys)
            return ("assign", branches), {**keys, **made}
        if kind == "parallel":
            branches, made = self.branches(keys, kept=True)
            kept = (("question", ("pick", "question")), ("topic", ("getter", "topic")))
            return ("parallel", kept + branches), {"question": TEXT, "topic": TEXT, **made}
        if kind == "opaque":
            return self.opaque(), keys
        if kind == "picks":
            kept_keys = [key for key in keys if key in ("question", "topic") or self.draw(st.booleans())]
            return ("picks", tuple(kept_keys)), {key: keys[key] for key in kept_keys}
        if kind == "branch":
            arms = [(self.condition(keys), *self.stage(keys)) for _ in range(self.pick(1, 1, 2))]
            other, common = self.stage(keys)
            for _, _, found in arms:
                common = {key: kind for key, kind in common.items() if found.get(key) == kind}
            return ("branch", tuple((test, arm) for test, arm, _ in arms), other), common
        if kind == "fallbacks":
            with self.catching():
                inner, found = self.stages(keys, self.pick(1, 2))
            other, spare = self.stage(keys)
            return ("fallbacks", inner, other), {key: kind for key, kind in found.items() if spare.get(key) == kind}
        return self.wrapped(lambda: self.stages(keys, self.pick(1, 2)))

    def opaque(self) -> Spec:
        self.concurrent |= self.beside
        if self.failing():
            return "opaque", self.next(), self.pick("raise", "raise at first"), self.turns()
        calm = ("log", "log", "set a context variable", "new dict")
        wild = () if self.beside else ("add a key", "change a key", "change documents")
        return "opaque", self.next(), self.pick(*calm, *wild), self.turns()

    def wrapped(self, inner: Any) -> tuple[Spec, Any]:
        if self.pick("config", "retry") == "config":
            spec, found = inner()
            return ("config", spec), found
        with self.catching():
            spec, found = inner()
        return ("retry", spec, self.pick(2, 3)), found

    def condition(self, keys: Keys) -> Spec:
        self.left -= 1
        kind = self.pick("if", "if", "if text", "ask", "asks user")
        if self.failing():
            return self.pick(
                ("failing", self.pick(*FAILING_OF_DICT)), ("asks user", self.next(), "raise", True)
            )  # the second is not counted as concurrent: it ends the call
        if kind == "if text":
            return "sequence", self.getter(self.of_kind(keys, TEXT)), ("if text", self.pick(*CONDITIONS_OF_TEXT))
        if kind == "ask" and self.left > 0:
            asked, _ = self.ask(self.of_kind(keys, TEXT), parsers=("text", "pure"))
            return "sequence", asked, ("if text", self.pick(*CONDITIONS_OF_TEXT))
        if kind == "asks user":
            self.concurrent |= self.beside
            return "asks user", self.next(), "log", self.draw(st.booleans())
        return "if", self.pick(*CONDITIONS)

    # --- from dict to one value ---

    def branches(self, keys: Keys, *, kept: bool = False) -> tuple[tuple[tuple[str, Spec], ...], Keys]:
        count = self.pick(1, 1, 2, 3)
        found: list[tuple[str, Spec]] = []
        made: Keys = {}
        with self.side_by_side(kept or count > 1):
            for _ in range(count):
                spec, kind = self.branch(keys)
                name = f"k{self.next()}"
                found.append((name, spec))
                made[name] = kind
        return tuple(found), made

    def of_kind(self, keys: Keys, *kinds: str) -> tuple[str, ...]:
        return tuple(key for key, kind in keys.items() if kind in kinds)

    def getter(self, keys: tuple[str, ...]) -> Spec:
        return self.pick("pick", "getter"), self.pick(*keys)

    def branch(self, keys: Keys) -> tuple[Spec, str]:
        """A step from dict to one value, and what that value is."""
        more = self.more()
        kinds = ["pick", "pure", "of text", "note"]
        if more:
            kinds += ["ask"] * 5 + ["retrieve"] * 2 + ["map"] * 3
            kinds += ["nested", "history", "branch", "fallbacks", "wrapped"]
        kinds += ["of texts"] * 2 if self.of_kind(keys, TEXTS) else []
        kinds += ["of docs"] * 2 if self.of_kind(keys, DOCS) else []
        spec, kind = getattr(self, "_" + self.pick(*kinds).replace(" ", "_"))(keys)
        return spec, kind

    def _pick(self, keys: Keys) -> tuple[Spec, str]:
        key = self.pick(*keys)
        return self.getter((key,)), keys[key]

    def _pure(self, keys: Keys) -> tuple[Spec, str]:
        if self.failing():
            return ("failing", self.pick(*FAILING_OF_DICT)), TEXT
        return ("pure", self.pick(*PURE_OF_DICT)), TEXT

    def _of_text(self, keys: Keys) -> tuple[Spec, str]:
        text, kind = self.text()
        return ("sequence", self.getter(self.of_kind(keys, TEXT)), text), kind

    def _of_texts(self, keys: Keys) -> tuple[Spec, str]:
        return ("sequence", self.getter(self.of_kind(keys, TEXTS)), ("of texts", self.pick(*PURE_OF_TEXTS))), TEXT

    def _of_docs(self, keys: Keys) -> tuple[Spec, str]:
        return ("sequence", self.getter(self.of_kind(keys, DOCS)), ("of docs", self.pick(*PURE_OF_DOCS))), TEXT

    def _note(self, keys: Keys) -> tuple[Spec, str]:
        return ("note", *self.noted()), TEXT

    def _retrieve(self, keys: Keys) -> tuple[Spec, str]:
        return ("sequence", self.getter(self.of_kind(keys, TEXT)), self.retriever()), DOCS

    def _history(self, keys: Keys) -> tuple[Spec, str]:
        return ("history", self.pick(*self.of_kind(keys, TEXT)), self.draw(st.booleans())), TEXT

    def _nested(self, keys: Keys) -> tuple[Spec, str]:
        first, found = self.stage(keys)
        second, value = self.branch(found)
        return ("sequence", first, second), value

    def _branch(self, keys: Keys) -> tuple[Spec, str]:
        arms = [(self.condition(keys), *self.branch(keys)) for _ in range(self.pick(1, 1, 2))]
        other, kind = self.branch(keys)
        spec = "branch", tuple((test, arm) for test, arm, _ in arms), other
        return spec, kind if all(kind == found for _, _, found in arms) else DATA

    def _fallbacks(self, keys: Keys) -> tuple[Spec, str]:
        with self.catching():
            inner, kind = self.branch(keys)
        others = [self.branch(keys) for _ in range(self.pick(1, 1, 2))]
        spec = "fallbacks", inner, *(other for other, _ in others)
        return spec, kind if all(kind == found for _, found in others) else DATA

    def _wrapped(self, keys: Keys) -> tuple[Spec, str]:
        return self.wrapped(lambda: self.branch(keys))

    def _ask(self, keys: Keys) -> tuple[Spec, str]:
        return self.ask(self.of_kind(keys, TEXT, TEXTS))

    def _map(self, keys: Keys) -> tuple[Spec, str]:
        """A list, by a function or by a parser, and something done with each of its elements."""
        source = self.pick("split", "split", "ask", "ask", *(self.of_kind(keys, TEXTS, DOCS)))
        if source == "split":
            found: Spec = "sequence", self.getter(self.of_kind(keys, TEXT)), ("split", self.pick(*SPLITTING))
        elif source == "ask":
            found, _ = self.ask(self.of_kind(keys, TEXT), parsers=("list", "split"))
        else:
            found = self.getter((source,))
        of_docs = keys.get(source) == DOCS
        with self.side_by_side(mapped=True):
            each, kind = (("content of doc",), TEXT) if of_docs and self.pick(False, True) else self.text()
        if of_docs and each != ("content of doc",):
            each = "sequence", ("content of doc",), each
        return ("sequence", found, ("map", each)), TEXTS if kind == TEXT else DATA

    # --- from text to one value ---

    def text(self) -> tuple[Spec, str]:
        """A step from text to one value, and what that value is."""
        more = self.more()
        kinds = ["of text", "of text", "remark", "same"]
        if more:
            kinds += ["ask"] * 3 + ["retrieve", "two", "two", "branch", "fallbacks", "wrapped", "map"]
        kind = self.pick(*kinds)
        if kind == "of text":
            return ("of text", self.pick(*PURE_OF_TEXT)), TEXT
        if kind == "remark":
            return ("remark", *self.noted(text=True)), TEXT
        if kind == "ask":
            asked, made = self.ask(("item",))
            return (("sequence", ("named",), asked) if self.pick(False, True) else asked), made
        if kind == "retrieve":
            return ("sequence", self.retriever(), ("of docs", self.pick(*PURE_OF_DOCS))), TEXT
        if kind == "two":
            first, made = self.text()
            second, last = self.text() if made == TEXT else (("same",), made)
            return ("sequence", first, second), last
        if kind == "branch":
            arm, made = self.text()
            other, found = self.text()
            spec = "branch", ((("if text", self.pick(*CONDITIONS_OF_TEXT)), arm),), other
            return spec, made if made == found else DATA
        if kind == "fallbacks":
            with self.catching():
                arm, made = self.text()
            other, found = self.text()
            return ("fallbacks", arm, other), made if made == found else DATA
        if kind == "wrapped":
            return self.wrapped(self.text)
        if kind == "map":
            with self.side_by_side(mapped=True):
                each, made = self.text()
            return ("sequence", ("split", self.pick(*SPLITTING)), ("map", each)), TEXTS if made == TEXT else DATA
        return ("same",), TEXT

    # --- components ---

    def retriever(self) -> Spec:
        kind = self.pick("plain", "plain", "custom", "compressed", *MULTI_QUERY)
        return "retriever", kind, self.pick(1, 2, 4), self.turns()

    def ask(
        self,
        keys: tuple[str, ...],
        parsers: tuple[str, ...] = ("text", "text", "text", "json", "list", "pure", "split"),
    ) -> tuple[Spec, str]:
        said = self.pick(*parsers)
        word = {"json": "JSON", "list": "LIST", "split": "LIST"}.get(said, self.pick("explain", "related to"))
        wrap = self.pick("", "", "", "", "bind", "config", "retry", "fallbacks", "chain fallbacks")
        if self.failing():
            word = self.pick("FAIL", f"FLAKY {self.next()} {word}")
        used = tuple(dict.fromkeys(self.pick(*keys) for _ in range(self.pick(1, 1, 2))))
        kind = {"text": TEXT, "pure": TEXT, "list": TEXTS, "split": TEXTS}.get(said, DATA)
        return ("ask", word, used, self.draw(st.booleans()), wrap, said, self.turns()), kind


@st.composite
def chains(draw: Any, size: int = 25) -> Chain:
    """Chains of up to about ``size`` steps, from the dict ``INPUT`` to a dict or to one value."""
    drawing = _Steps(draw, size)
    spec, keys = drawing.stages({"question": TEXT, "topic": TEXT}, drawing.pick(2, 3, 4, 5))
    if drawing.pick(False, False, True):
        last, _ = drawing.branch(keys)
        spec = ("sequence", spec, last)
    return Chain(spec, drawing.concurrent, drawing.several, drawing.chance)
