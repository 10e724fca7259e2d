"""Statements of random programs with a body: ``with`` of the user's own context managers, and loops over streams.

Managers change something at their beginning or end, and perhaps only when the body fails; bodies fail, return, and read
what is changed. Streams are read to the end, in part, or never.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz_targets import TARGETS, Target
from fuzz_ways import within
from fuzz_writer import Writer

_CLASSES = """\
def __enter__(self):
    {f}('in')
    return 'in'
def __exit__(self, kind, error, trace):
    {f}('out')

def __enter__(self):
    return self
def __exit__(self, kind, error, trace):
    if kind:
        {f}('failed')

def __enter__(self):
    self.n = 1
    return self.n
def __exit__(self, kind, error, trace):
    {f}(self.n)
    return False

def __enter__(self):
    {f}('in')
def __exit__(self, kind, error, trace):
    {f}('out')
    return kind is ValueError

def __enter__(self):
    return 'in'
def __exit__(self, *error):
    if error[0] is None:
        {f}('went well')
""".removesuffix("\n").split("\n\n")
_GENERATORS = """\
{f}('in')
yield 'in'
{f}('out')

try:
    yield 'in'
finally:
    {f}('out')

try:
    yield 'in'
except ValueError:
    {f}('failed')
    raise

try:
    yield 'in'
except ValueError:
    {f}('failed')

try:
    try:
        yield given
    finally:
        {f}('out')
except LookupError:
    {f}('wrong')
    raise

try:
    yield 'in'
except Exception as error:
    {f}(str(error))
    raise LookupError(given)
else:
    {f}('else')

found = []
try:
    yield found
finally:
    {f}(len(found))

if given > 'c':
    {f}('in')
yield given

with threading.Lock():
    {f}('in')
yield 'in'
""".removesuffix("\n").split("\n\n")
_BODIES = [
    "out.append({ask})",
    "out.append({risky})",
    "if {grade} == 'yes':\n    raise ValueError('no')\nout.append({ask})",
    "if {grade} == 'yes':\n    return {{'out': out}}",
    "out.append({ask})\nout.append(str(entered))",
    "number_of = int({number})\nout.append(number_of)",
    "log.info('within')",
    "raise LookupError('none')",
]
_LOCKS = ("threading.Lock()", "threading.RLock()", "asyncio.Lock()")


def managed(g: Writer) -> None:
    """A ``with`` statement of the program's own, perhaps in a ``try``."""
    target: Target = g.random.choice(TARGETS)(g)
    act, made = _act(g, target), g.name("Manager")
    later = g.awaits and g.chance(0.5)
    kind = g.random.random()
    if kind < 0.45:
        _class(g, made, act, later)
    elif kind < 0.9:
        _generator(g, made, act, later)
    elif later or not g.chance(0.7):
        g.define(f"{made} = lambda given: {_LOCKS[2 if later else 1]}")
    else:
        g.define(f"{made}_lock = {_LOCKS[0]}\n{made} = lambda given: {made}_lock")
    if g.chance(0.4):
        target.read(g, target.one)
    given = g.result() if g.chance(0.3) else "question"
    tried = g.chance(0.5)
    if tried:
        g.write("try:")
        g.indent += 1
    with g.inside(f"{'async ' * later}with {made}({given}) as entered:"):
        if g.chance(0.3):
            g.write(act(g.pick(["'x'", "question"])))
        body = g.pick(_BODIES)
        forms = {name: g.asked(g.text(), name) for name in ("ask", "risky", "grade", "number") if f"{{{name}}}" in body}
        g.write(body.format(**forms))
        if g.chance(0.3):
            target.read(g, target.one)
    if tried:
        g.indent -= 1
        g.write("except (ValueError, LookupError):\n    log.info('handled')")
    target.read(g, target.one)


def _act(g: Writer, target: Target) -> Callable[[str], str]:
    """What changes the target, also from functions of the module."""
    act = target.act(g, target.one)
    return act if any(target.one in line for line in g.top) else within(g, act, target.one)


def _acting(g: Writer, act: Callable[[str], str]) -> str:
    """A function of the module that changes the target."""
    name = g.name("act")
    lines = "\n".join("    " + line for line in act("str(x)[:9]").split("\n"))
    g.define(f"def {name}(x):\n{g.declared(lines)}{lines}")
    return name


def _class(g: Writer, made: str, act: Callable[[str], str], later: bool) -> None:
    body = g.pick(_CLASSES).format(f=_acting(g, act))
    if later:
        body = body.replace("def __", "async def __a")
    g.define(f"class {made}:\n    def __init__(self, given):\n        self.given = given")
    g.define("\n".join("    " + line for line in body.split("\n")))


def _generator(g: Writer, made: str, act: Callable[[str], str], later: bool) -> None:
    body = g.pick(_GENERATORS).format(f=_acting(g, act))
    g.define(f"@contextlib.{'async' * later}contextmanager\n{'async ' * later}def {made}(given):")
    g.define("\n".join("    " + line for line in body.split("\n")))


_STREAMED = """\
for x in {stream}:
    out.append(x)

for x in {stream}:
    {f}(x)
    out.append(x)

for x in {stream}:
    out.append(x)
    if x > 'd':
        break
    {f}(x)

for x in {stream}:
    if x > 'h':
        return {{'out': [x]}}

for x in {stream}:
    out.append(x)
else:
    {f}('end')

for x in {stream}:
    out.append(x)
    out.append({ask})
    if len(out) > 3:
        break

lazy = {stream}

lazy = {stream}
{f}('between')
for x in lazy:
    out.append(x)

text = ''
try:
    for x in {stream}:
        text += x
except ValueError:
    {f}('failed')
out.append(text)

out.append(''.join([x for x in {stream}]))
""".removesuffix("\n").split("\n\n")
_CHAINS = [
    *(
        "ask",
        "ask",
        "risky",
        "w.model",
        "(ChatPromptTemplate.from_template('made: {{text}}') | w.model | StrOutputParser())",
    ),
    "(RunnablePassthrough.assign(more=ask) | ask)",
    "(ask | {f})",
    "(RunnablePassthrough() | ask)",
    "RunnableLambda(lambda x: {f}(x) or x['text'])",
]


def streamed(g: Writer) -> None:
    """A stream of a component, read in a loop or not at all."""
    target: Target = g.random.choice(TARGETS)(g)
    f = _acting(g, _act(g, target))
    if g.chance(0.4):
        target.read(g, target.one)
    chain = g.pick(_CHAINS).format(f=f)
    given = g.text() if chain == "w.model" else f"{{'text': {g.text()}}}"
    stream = f"{chain}.{'a' * g.awaits}stream({given})"
    if chain == "w.model":
        stream = f"(part.content {'async ' * g.awaits}for part in {chain}.{'a' * g.awaits}stream({given}))"
    text = g.pick(_STREAMED).format(stream=stream, f=f, ask=g.asked(g.text()))
    if g.awaits:
        text = text.replace("for x in", "async for x in")
    g.write(text)
    target.read(g, target.one)
