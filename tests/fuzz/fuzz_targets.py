"""What random programs change, and how they read it afterwards by calls of components."""

from __future__ import annotations

from collections.abc import Callable

from fuzz_writer import Writer


class Target:
    """Two objects of a kind, ``one`` and ``other``.

    acts: statements that change ``{a}`` with the text ``{x}``. reads: expressions of a text that depends on ``{a}``.
    ``found``: it is searched.
    """

    def __init__(self, one: str, other: str, acts: list[str], reads: list[str], found: str = "") -> None:
        self.one, self.other, self.acts, self.reads, self.found = one, other, acts, reads, found

    def act(self, g: Writer, name: str) -> Callable[[str], str]:
        """What changes the object of this name: a statement, by the text that it uses."""
        chosen = g.pick(self.acts)
        return lambda x: chosen.format(a=name, x=x)

    def read(self, g: Writer, name: str) -> None:
        """Writes calls that depend on the object."""
        if self.found:
            for _ in range(g.random.randint(1, 2)):
                call = g.search(name, g.text()) if self.found == "store" else g.invoke(name, g.text())
                g.write(f"out.append(texts({call}))")
            return
        read = g.pick(self.reads).format(a=name)
        kind = g.random.random()
        if kind < 0.35:
            g.write(f"out.append({g.asked(f'str({read})')})")
        elif kind < 0.5:
            variable = g.name()
            g.write(f'{variable} = f"{{{read}}} {{{g.pick(g.known)}}}"')
            g.write(f"out.append({g.asked(variable)})")
        elif kind < 0.7:
            g.write(f"if {read}:")
            g.write(f"    out.append({g.asked(g.text())})")
            g.write(f"else:\n    out.append({g.asked(g.text())})")
        elif kind < 0.85:
            g.write(f"for each in str({read})[:3]:")
            g.write(f"    out.append({g.asked('each')})")
        else:
            g.write(f"while len(str({read})) > 9 and len(out) < 9:")
            g.write(f"    out.append({g.asked('str(len(out))')})")
        g.write(f"out.append({g.asked(g.text())})")


def store(g: Writer) -> Target:
    a, b = g.name("store"), g.name("store")
    g.define(f'{a}, {b} = w.store("one {a}", "two"), w.store("one {b}", "three")')
    g.change.append(f'{a}.add_texts(["changed"])')
    acts = [
        "{a}.add_texts([{x}])",
        "{a}.add_documents([Document({x})])",
        "{a}.store.clear()",
        "{a}.delete(list({a}.store)[:1])",
    ]
    return Target(a, b, acts, [], "store")


def retriever(g: Writer) -> Target:
    a, b = g.name("found"), g.name("found")
    g.define(f'{a}, {b} = w.retriever("one {a}", "two"), w.retriever("one {b}", "three")')
    g.change.append(f'{a}.documents.append(Document("changed"))')
    acts = [
        "{a}.documents.append(Document({x}))",
        "{a}.documents.clear()",
        "{a}.k = 1",
        "{a}.documents[0].page_content = {x}",
        "{a}.documents = {a}.documents[1:]",
    ]
    return Target(a, b, acts, [], "retriever")


def a_list(g: Writer) -> Target:
    a, b = g.name("list"), g.name("list")
    where = g.define if g.chance(0.5) else g.write
    full = g.pick(["[]", '["one"]', '["one", "two"]'])
    where(f"{a}, {b} = {full}, {full}")
    acts = [
        "{a}.append({x})",
        "{a}.extend([{x}])",
        "{a}.insert(0, {x})",
        "{a}[:] = [{x}]",
        "{a}.clear()",
        "{a}[len({a}):] = [{x}, {x}]",
        "{a}.reverse(); {a}.append({x})",
        "operator.iadd({a}, [{x}])",
        "list.append({a}, {x})",
    ]
    return Target(a, b, acts, ["{a}", "len({a})", "{a}[-1:]", "not {a}", "sorted({a})[:1]", "[*{a}]"])


def a_dict(g: Writer) -> Target:
    a, b = g.name("dict"), g.name("dict")
    where = g.define if g.chance(0.5) else g.write
    full = g.pick(["{}", "{'k': 'one'}", "defaultdict(str, k='one')", "collections.OrderedDict(k='one')"])
    where(f"{a}, {b} = {full}, {full}")
    acts = [
        "{a}[{x}] = 1",
        "{a}['k'] = {x}",
        "{a}.update(k={x})",
        "{a}.pop('k', None)",
        "{a}.clear()",
        "{a}.setdefault({x}, 2)",
        "{a} |= {{'k': {x}}}" if False else "{a}.update({{'z': {x}}})",
        "operator.setitem({a}, 'k', {x})",
    ]
    return Target(
        a,
        b,
        acts,
        ["{a}.get('k')", "len({a})", "list({a})[-1:]", "'k' in {a}", "not {a}", "dict({a})", "[*{a}.values()]"],
    )


def a_set(g: Writer) -> Target:
    a, b = g.name("set"), g.name("set")
    full = g.pick(["set()", "{'one'}"])
    (g.define if g.chance(0.5) else g.write)(f"{a}, {b} = {full}, {full}")
    acts = ["{a}.add({x})", "{a}.clear()", "{a}.update([{x}])", "{a}.discard('one')"]
    return Target(a, b, acts, ["len({a})", "sorted({a})", "'one' in {a}", "not {a}"])


def a_deque(g: Writer) -> Target:
    a, b = g.name("deque"), g.name("deque")
    full = g.pick(["deque(['one'], maxlen=3)", "deque()", "Counter(one=1)"])
    (g.define if g.chance(0.5) else g.write)(f"{a}, {b} = {full}, {full}")
    acts = (
        ["{a}.update([{x}])"]
        if "Counter" in full
        else ["{a}.append({x})", "{a}.appendleft({x})", "{a}.clear()", "{a}.extend([{x}])"]
    )
    return Target(a, b, acts, ["len({a})", "list({a})", "not {a}", "sorted({a})"])


_BODIES = {
    "plain": '''class {k}:
    kind = "none"
    def __init__(self):
        self.count, self.text, self.docs = 0, "one", ["one"]
    def bump(self, x):
        self.count += 1
        self.text = x
    def shown(self):
        return f"{{self.count}} {{self.text}}"''',
    "slots": '''class {k}:
    __slots__ = ("count", "text", "docs")
    kind = "none"
    def __init__(self):
        self.count, self.text, self.docs = 0, "one", ["one"]
    def bump(self, x):
        self.count += 1
        self.text = x
    def shown(self):
        return f"{{self.count}} {{self.text}}"''',
    "property": '''class {k}:
    kind = "none"
    def __init__(self):
        self._count, self._text, self.docs = 0, "one", ["one"]
    @property
    def count(self):
        return self._count
    @count.setter
    def count(self, value):
        self._count = value
    @property
    def text(self):
        return self._text.strip()
    @text.setter
    def text(self, value):
        self._text = value
    def bump(self, x):
        self._count += 1
        self._text = x
    def shown(self):
        return f"{{self.count}} {{self.text}}"''',
    "dataclass": '''@dataclasses.dataclass
class {k}:
    count: int = 0
    text: str = "one"
    docs: list = dataclasses.field(default_factory=lambda: ["one"])
    kind = "none"
    def bump(self, x):
        self.count += 1
        self.text = x
    def shown(self):
        return f"{{self.count}} {{self.text}}"''',
}


def an_object(g: Writer) -> Target:
    a, b, k = g.name("box"), g.name("box"), g.name("Box")
    how = g.pick(list(_BODIES))
    g.define(_BODIES[how].format(k=k))
    (g.define if g.chance(0.7) else g.write)(f"{a}, {b} = {k}(), {k}()")
    g.change.append(f"{k}.kind = 'changed'")
    acts = [
        "{a}.count += 1",
        "{a}.text = {x}",
        "{a}.docs.append({x})",
        "{a}.docs.clear()",
        "{a}.bump({x})",
        "setattr({a}, 'text', {x})",
        "{a}.docs = [{x}]",
        "type({a}).bump({a}, {x})",
        "{a}.docs += [{x}]",
        "object.__setattr__({a}, 'text', {x})" if how != "property" else "{a}.text += {x}",
    ]
    if how == "plain":
        acts += [
            "{a}.__dict__['text'] = {x}",
            "{a}.new = {x}",
            "del {a}.text; {a}.text = {x}",
            "vars({a}).update(count=7)",
            "{a}.kind = {x}",
        ]
    reads = [
        "{a}.count",
        "{a}.text",
        "{a}.docs",
        "len({a}.docs)",
        "{a}.shown()",
        "getattr({a}, 'text')",
        "(not {a}.docs)",
        "hasattr({a}, 'new')",
        "{a}.kind",
    ]
    return Target(a, b, acts, reads)


def a_class(g: Writer) -> Target:
    k = g.name("Conf")
    g.define(f"class {k}:\n    limit = 1\n    text = 'one'\n    docs = []\nclass {k}b({k}):\n    pass")
    g.change.append(f"{k}.limit = 5")
    acts = [
        "{a}.limit += 1",
        "{a}.text = {x}",
        "{a}.docs.append({x})",
        "setattr({a}, 'text', {x})",
        "type.__setattr__({a}, 'limit', 9)",
        "{a}.new = {x}",
    ]
    return Target(
        k,
        k + "b",
        acts,
        [
            "{a}.limit",
            "{a}.text",
            "{a}().text",
            "len({a}.docs)",
            "getattr({a}, 'new', 'none')",
            "hasattr({a}, 'new')",
            "{a}b.limit" if False else "{a}.docs",
        ],
    )


def a_global(g: Writer) -> Target:
    a, b = g.name("turn"), g.name("turn")
    g.define(f"{a}, {b} = 0, 0")
    g.globals |= {a, b}
    g.change.append(f"{a} = 3")
    acts = ["{a} += 1", "{a} = len({x}) + {a}", "globals()['{a}'] = {x}", "globals().update({a}={x})"]
    return Target(a, b, acts, ["{a}", "not {a}", "globals()['{a}']", "globals().get('{a}')"])


def a_variable(g: Writer) -> Target:
    a, b = g.name("context"), g.name("context")
    g.define(f'{a}, {b} = contextvars.ContextVar("{a}", default="one"), contextvars.ContextVar("{b}", default="one")')
    return Target(a, b, ["{a}.set({x})"], ["{a}.get()"])


TARGETS: tuple[Callable[[Writer], Target], ...] = (
    *(store, store, store, retriever, retriever, a_list, a_list, a_dict, a_set, a_deque),
    *(an_object, an_object, an_object, a_class, a_class, a_global, a_variable),
)
