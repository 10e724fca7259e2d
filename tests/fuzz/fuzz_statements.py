"""Statements of random programs besides changes: calls, lazy iterators, coroutines, configs, patches."""

from __future__ import annotations

import random
from collections.abc import Callable

from fuzz_blocks import managed, streamed
from fuzz_targets import TARGETS, Target
from fuzz_ways import aliased, by_class, by_handler, by_library, by_special_method, within
from fuzz_writer import Writer


def calls(g: Writer) -> None:
    """One or two calls that are sure."""
    for _ in range(g.random.randint(1, 2)):
        name = g.name("u")
        g.write(f"{name} = {g.asked(g.text())}")
        if g.chance(0.5):
            g.write(f"out.append({name})")
        g.unknown.append(name)


def changed(g: Writer) -> None:
    """Something is changed, in some way, and read by calls."""
    target: Target = g.random.choice(TARGETS)(g)
    before = g.random.random()
    if before < 0.4:
        calls(g)
    if before < 0.15:
        target.read(g, target.one)
    name = target.one
    if target.one not in g.globals and not target.one.startswith(("context", "turn")) and g.chance(0.35):
        name = aliased(g, target.one, target.other)
    act = target.act(g, name)
    if name != target.one and g.chance(0.6):
        g.write(act(g.pick(["'x'", g.result()])))
    else:
        way: Callable[..., None] = g.random.choice((by_library, by_special_method, by_class, by_handler))
        way(g, within(g, act, name) if name != target.one else act)
    if g.chance(0.2):
        calls(g)
    target.read(g, target.one)
    if g.chance(0.2):
        target.read(g, target.other)


_LAZY = """\
out.append(any(map(lambda x: {ask_x} > "m", items)))
out.append(all({ask_x} > "c" for x in items))
out.append(next((x for x in items if {grade_x} == "yes"), "none"))
out.append(next(iter([{ask_x} for x in items])))
out.append(list(zip([1, 2], ({ask_x} for x in items))))
out.append(list(zip(({ask_x} for x in items), [1, 2])))
out.append(list(itertools.islice(({ask_x} for x in items), 2)))
out.append(list(itertools.takewhile(lambda x: {grade_x} == "yes", items)))
out.append(list(itertools.takewhile(lambda x: x > "c", ({ask_x} for x in items))))
out.append(list(itertools.dropwhile(lambda x: {grade_x} == "yes", items)))
out.append(str({grade_q}) in ({grade_x} for x in items))
lazy = ({ask_x} for x in items)
lazy = map(lambda x: {ask_x}, items); out.append(next(lazy))
lazy = filter(lambda x: {grade_x} == "yes", items); out.append(next(lazy, "none"))
a, *b = ({ask_x} for x in items[:2]); out.append(a)
lazy = iter(lambda: {ask_len}, "never"); out.append(next(lazy))
out.append(list(iter(lambda: {ask_out}, "ember apple"))[:0]) if not question else None
out.append(min(({ask_x} for x in items), default=""))
out.append(dict(zip("ab", map(lambda x: {ask_x}, items))))
out.append(max(map(lambda x: {ask_x}, items[:2])))
out.append([y for x in items for y in ({ask_x},) if y > "m"])
out.append(sum(1 for x in items if {grade_x} == "yes"))
out.append("yes" in map(lambda x: {grade_x}, items))
out.append(list(enumerate(map(lambda x: {ask_x}, items[:2]))))
out.append(functools.reduce(lambda a, x: a if a > "g" else {ask_x}, items, ""))
out.append(set(itertools.chain([{ask_q}], ({ask_x} for x in items[:1]))))
out.append(list(itertools.chain(({ask_x} for x in items[:1]), map(lambda x: {ask_x}, items[1:2]))))
lazy = itertools.tee({ask_x} for x in items[:2])[0]; out.append(next(lazy))
lazy = itertools.cycle({ask_x} for x in items); out.append(next(lazy))
out.append(sorted(({ask_x} for x in items[:2]), key=lambda x: {ask_x}))
out.append(x if (x := {grade_q}) == "yes" and {ask_q} else "no")
out.append({grade_q} == "yes" and {ask_q})
out.append({grade_q} == "yes" or {ask_q})
out.append({ask_q} < {grade_q} < {ask_len})
out.append(list(itertools.zip_longest([1], ({ask_x} for x in items[:2]))))
out.append(list(map(lambda x, y: {ask_x}, items, [1])))
out.append(isinstance(({ask_x} for x in items), list))
out.append(list(itertools.starmap(lambda n, x: {ask_x}, enumerate(items))))
out.append(next(itertools.starmap(lambda x, y: {ask_x}, zip(items, [1, 2]))))
one = functools.partial(lambda n, x: {ask_x}, 1); out.append([one(x) for x in items] if callable(one) else {ask_q})
one = functools.partial(lambda x, y: {ask_x}, y=items); out.append(list(map(one, items[:2]))); items.append("z")
one = functools.partial(lambda x: {ask_x}); out.append(isinstance(one, functools.partial) or {ask_q})
one = functools.partial(fetch, {ask_q}); out.append([one(), one(), *map(fetch, items)])
out.append(next(map(fetch, items))); out.append(any(fetch(x) for x in map(functools.partial(fetch), items)))
out.append(any(map(functools.partial(lambda y, x: {ask_x} > "m", out), items)))
lazy = reversed([{ask_x} for x in items[:2]]); out.append(next(lazy))
out.append(list(filter(None, ({ask_x} for x in items[:2]))))
""".splitlines()
_LOOPS = [
    "for i, x in enumerate({grade_y} for y in items):\n    if x == 'yes':\n        out.append(i)\n        break",
    "for x in map(lambda y: {grade_y}, items):\n    if x == 'yes':\n        break",
    "def lazy():\n    for x in items:\n        yield {grade_x}\nfor x in lazy():\n    if x == 'yes':\n        break",
    "def lazy():\n    yield {ask_q}\n    yield {ask_len}\nout.append(next(lazy()))",
    "def lazy():\n    yield {ask_q}\n    yield from ({ask_x} for x in items)\nfor x, _ in zip(lazy(), 'ab'):\n    out.append(x)",
    "for x in items:\n    if {grade_x} == 'yes':\n        out.append(x)\n        continue\n    out.append({ask_x})",
    "for x in items:\n    y = {grade_x}\n    if y == 'yes':\n        return {{'out': [x]}}\nout.append({ask_q})",
    "for x in items:\n    if {grade_x} == 'no':\n        break\nelse:\n    out.append({ask_q})",
    "while {grade_len} == 'yes' and len(out) < 3:\n    out.append({ask_len})",
    "for x in itertools.count():\n    if {grade_x} == 'yes' or x > 3:\n        break\nout.append(x)",
    "try:\n    number_of = int({number_q})\nexcept ValueError:\n    log.info('handled')\n    return {{'out': ['no number']}}\nout.append([{ask_x} for x in items])",
    "if {grade_q} == 'yes':\n    return {{'out': [{ask_q}]}}",
    "if not {ask_q}.startswith('a'):\n    raise LookupError('not found')\nout.append({ask_len})",
    "lazy = ({ask_x} for x in items)\nout.append(next(lazy))\nitems.clear()\nout.append(next(lazy, 'none'))",
    "@functools.lru_cache\ndef cached(x):\n    return {ask_x}\nout.append([cached('a'), cached('a'), cached('b')])",
    "class Lazy:\n    @functools.cached_property\n    def answer(self):\n        return {ask_q}\nlazy = Lazy()\nout.append([lazy.answer, lazy.answer])",
]


def lazy(g: Writer) -> None:
    """Calls in what is evaluated lazily, or not at all."""
    if g.chance(0.5):
        calls(g)
    template = g.pick([*_LAZY, *_LOOPS, *_LOOPS])
    sync = "lambda" in template or "def " in template or "(" in template
    forms = {
        f"{chain}_{name}": g.asked(given, chain, sync=sync)
        for chain in ("ask", "grade", "number")
        for name, given in (("x", "str(x)"), ("y", "y"), ("q", g.text()), ("len", "str(len(out))"), ("out", "str(out)"))
    }
    g.write(template.format(**forms))


_TASKS = [
    "later = ask.ainvoke({{'text': {t}}})\nif {grade} == 'yes':\n    out.append(await later)\nelse:\n    later.close()",
    "async def search():\n    return await ask.ainvoke({{'text': {t}}})\nlater = search()\nif {grade} == 'yes':\n    out.append(await later)\nelse:\n    later.close()",
    "later = asyncio.create_task(ask.ainvoke({{'text': {t}}}))\nlater.cancel()\nwith suppress(asyncio.CancelledError):\n    await later",
    "later = asyncio.create_task(ask.ainvoke({{'text': {t}}}))\nout.append({ask})\nout.append(await later)",
    "out += await asyncio.gather(ask.ainvoke({{'text': {t}}}), ask.ainvoke({{'text': question}}))",
    "out += await asyncio.gather(*[ask.ainvoke({{'text': x}}) for x in items])",
    "async with asyncio.TaskGroup() as group:\n    tasks = [group.create_task(ask.ainvoke({{'text': x}})) for x in items]\nout += [task.result() for task in tasks]",
    "async def answers():\n    for x in items:\n        yield await ask.ainvoke({{'text': x}})\nasync for x in answers():\n    out.append(x)\n    if x > 'c':\n        break",
    "out.append(await asyncio.to_thread(ask.invoke, {{'text': {t}}}))",
    "out.append(await asyncio.shield(ask.ainvoke({{'text': {t}}})))",
    "later = asyncio.ensure_future(ask.ainvoke({{'text': {t}}}))\nawait asyncio.sleep(0)\nout.append(await later)",
    "lock = asyncio.Lock()\nasync with lock:\n    out.append({ask})",
    "async def one(x):\n    return await ask.ainvoke({{'text': x}})\nout += [await one(x) for x in items if x > 'b']",
    "done, _ = await asyncio.wait([asyncio.create_task(ask.ainvoke({{'text': {t}}}))])\nout += [task.result() for task in done]",
    "limit = asyncio.Semaphore(1)\nasync def one(x):\n    async with limit:\n        return await ask.ainvoke({{'text': x}})\nout += await asyncio.gather(*map(one, items))",
    "class Later:\n    def __await__(self):\n        return ask.ainvoke({{'text': {t}}}).__await__()\nout.append(await Later())",
    "later = ask.ainvoke({{'text': {t}}})\nout.append({ask})\nout.append(await later)",
    "for each in asyncio.as_completed([ask.ainvoke({{'text': {t}}})]):\n    out.append(await each)",
]


def tasks(g: Writer) -> None:
    """Coroutines and tasks: awaited at once, later, in another order, or never."""
    if not g.awaits:
        return lazy(g)
    g.write(g.pick(_TASKS).format(t=g.text(), grade=g.asked(g.text(), "grade"), ask=g.asked(g.text())))
    return None


def task_and_change(g: Writer) -> None:
    """A coroutine is made, then something changes, then it is awaited."""
    if not g.awaits:
        return changed(g)
    target: Target = g.random.choice(TARGETS)(g)
    act = target.act(g, target.one)
    later, k = g.name("later"), g.name("job")
    read = f"texts({g.search(target.one, 'question')})" if target.found == "store" else ""
    if target.found == "retriever":
        read = f"texts(await {target.one}.ainvoke(question))"
    read = read or f"await ask.ainvoke({{'text': str({g.pick(target.reads).format(a=target.one)})}})"
    g.write(f"async def {k}():\n    return {read}")
    made = g.pick(
        ["{k}()", "asyncio.create_task({k}())", "asyncio.ensure_future({k}())", "asyncio.gather({k}())", "group"]
    )
    if made == "group":
        g.write(
            f"async with asyncio.TaskGroup() as group:\n    {later} = group.create_task({k}())\n    {act(repr('in'))}"
        )
    else:
        g.write(f"{later} = {made.format(k=k)}")
    if g.chance(0.5):
        calls(g)
    g.write(act("'later'"))
    g.write(f"out.append(await {later})")
    if g.chance(0.3):
        g.write(f"async def {k}b():\n{g.declared(act('1'))}    {act(repr('task'))}")
        g.write(
            g.pick(
                [
                    f"await {k}b()",
                    f"await asyncio.gather({k}b(), {k}b())",
                    f"await asyncio.create_task({k}b())",
                    f"{k}c = {k}b(); {k}c.close()",
                ]
            )
        )
        target.read(g, target.one)
    return None


_CONFIGS = [
    'out.append({c}.invoke({{"text": {t}}}, config={{"configurable": {{"which": {label}}}}}))',
    'out.append({c}.with_config(configurable={{"which": {label}}}).invoke({{"text": {t}}}))',
    'out.append({c}.invoke({{"text": {t}}}, {{"configurable": {{"which": "b" if {u} > "c" else "a"}}}}))',
    'settings = {{"configurable": {{"which": {label}}}}}\nout.append({c}.invoke({{"text": {t}}}, settings))',
    'out.append({c}.invoke({{"text": {t}}}, config={{"tags": [{u}]}}))',
    'out.append({c}.invoke({{"text": {t}}}, config={{"configurable": {{"which": "b"}}}}))\nout.append({c}.invoke({{"text": {t}}}))',
    'out.append([{c}.invoke({{"text": {t}}}, {{"configurable": {{"which": x}}}}) for x in "ab"])',
    'out.append({c}.batch([{{"text": {t}}}, {{"text": question}}], {{"configurable": {{"which": {label}}}}}))',
    'out.append((ChatPromptTemplate.from_template("bound: {{text}}") | w.model.bind(stop=[{u}[:1]]) | StrOutputParser()).invoke({{"text": {t}}}))',
    'out.append(ask.batch([{{"text": ask.invoke({{"text": x}})}} for x in items]))',
    'out.append(ask.with_config(run_name={u}).invoke({{"text": {t}}}))',
    'out.append(ask.with_fallbacks([RunnableLambda(lambda x: "fallback")]).invoke({{"text": {t}}}))',
    'out.append(risky.with_fallbacks([ask]).invoke({{"text": {t}}}))',
    'out.append(list(ask.stream({{"text": {t}}}))[:1])',
    'out.append(RunnableParallel(a=ask, b=grade).invoke({{"text": {t}}}))',
    'out.append(RunnablePassthrough.assign(k=ask).invoke({{"text": {t}}}))',
]


def configured(g: Writer) -> None:
    """Calls with a config, perhaps of results; batches; chains made on the way."""
    if g.chance(0.5):
        calls(g)
    template = g.pick(_CONFIGS)
    u = g.result() if "{u}" in template else ""
    label = g.result("label") if "{label}" in template else ""
    g.write(template.format(c="choosing", t=g.text(), u=u, label=label))
    calls(g)


_PATCHES = [
    "with mock.patch.object(RunnableSequence, '{m}', RunnableSequence.{m}):\n    out.append({ask})",
    "own = RunnableSequence.{m}\ndef spy(self, *args, **named):\n    return own(self, *args, **named)\nwith mock.patch.object(RunnableSequence, '{m}', spy):\n    out.append({ask})\n    out.append({other})",
    "with mock.patch.dict({d}, {{'k': {u}}}):\n    out.append({asks_d})",
    "with mock.patch.object({k}, 'limit', {u}):\n    out.append({asks_k})",
    "own = RunnableSequence.{m}\nRunnableSequence.{m} = lambda self, *args, **named: own(self, *args, **named)\ntry:\n    out.append({ask})\n    out.append({other})\nfinally:\n    RunnableSequence.{m} = own",
]


def patched(g: Writer) -> None:
    """A mock, or another instrumentation, of a component's method or of the program's own objects."""
    d, k = g.name("dict"), g.name("Conf")
    g.define(f"{d} = {{}}\nclass {k}: limit = 1")
    method = "ainvoke" if g.awaits else "invoke"
    g.write(
        g.pick(_PATCHES).format(
            m=method, d=d, k=k, ask=g.asked(g.text()), other=g.asked(g.text()), u=g.result(),
            asks_d=g.asked(f"str({d})"), asks_k=g.asked(f"str({k}.limit)"),
        )
    )  # fmt: skip
    calls(g)


def heavy(g: Writer) -> None:
    """Something that takes a while to compute before calls."""
    if "DATA = " not in "\n".join(g.top):
        g.define('DATA = json.dumps([{"n": i, "t": "word " * 5} for i in range(20000)])')
    g.write(
        g.pick(
            [
                "rows = json.loads(DATA)",
                "rows = sorted(DATA)",
                'rows = re.findall("[a-z]+", DATA)',
                "rows = [int(x) for x in range(9000)]",
            ]
        )
    )
    g.write(f"for each in range({g.random.randint(3, 8)}):")
    g.write(f"    if {g.asked('str(each)', 'grade')} == 'maybe':\n        break")


def nested(g: Writer) -> None:
    """Other statements inside an if, a loop, a with, a try, a helper or a closure."""
    form = g.pick(["if", "if known", "for", "with", "try", "def", "while"])
    if form == "if":
        head = f"if {g.asked(g.text(), 'grade')} == 'yes':"
    elif form == "if known":
        head = f"if len({g.pick(g.known)}) % 2:"
    elif form == "for":
        item = g.name("x")
        head = f"for {item} in items[:2]:"
    elif form == "with":
        head = g.pick(["with suppress(ValueError):", "with contextlib.nullcontext():", "with threading.Lock():"])
    elif form == "try":
        head = "try:"
    elif form == "while":
        count = g.name("n")
        g.write(f"{count} = 0")
        head = f"while {count} < 2:"
    else:
        name = g.name("inner")
        head = f"{'async ' * g.awaits}def {name}(given, out=out):"
    with g.inside(head):
        if g.globals and form == "def":
            pass
        if form == "for":
            g.known.append(item)
        if form == "while":
            g.write(f"{count} += 1")
        if form == "def":
            g.known.append("given")
            at = len(g.lines)
        for _ in range(g.random.randint(1, 2)):
            statement(g)
        if form == "def" and (found := g.declared("\n".join(g.lines[at:]))):
            g.lines.insert(at, "    " * (g.indent - 1) + found.rstrip("\n"))
    if form == "try":
        g.write(g.pick(["except ValueError:\n    log.info('handled')", "finally:\n    log.info('finally')"]))
    if form == "def":
        call = f"{name}({g.pick(g.known)})"
        g.write(f"await {call}" if g.awaits else call)
    g.write(f"out.append({g.asked(g.text())})")


def logged(g: Writer) -> None:
    """An effect of the program's own."""
    g.write(g.pick([f'log.info("text %s", {g.text()})', f"log.warning({g.result()})", f"out.append({g.text()})"]))


_AROUND = [
    "out.append({env})",
    'out.append({env})\nos.environ["FUZZ"] = {u}\nout.append({env})',
    'out.append({env})\nos.environ.update(FUZZ="x" if {grade} == "yes" else "y")\nout.append({env})',
    "with mock.patch.dict(os.environ, FUZZ={u}):\n    out.append({env})\nout.append({env})",
    "out.append({var})",
    "token = VAR.set({u})\nout.append({var})\nVAR.reset(token)\nout.append({var})",
    "contextvars.copy_context().run(VAR.set, {u})\nout.append({var})",
    "with open(FILE) as file:\n    out.append({read})",
    "with open(FILE) as file:\n    out.append([{line} for line in file])",
    'with open(FILE, "a") as file:\n    file.write({u})\nwith open(FILE) as file:\n    out.append({read})',
    "made = Settings(style={env})\nmade.style = {u}\nout.append({made})",
    'made = Settings(style=os.environ["FUZZ"], size={number})\nout.append({made})',
    'made = Settings(**{{k: v for k, v in [("style", os.getenv("FUZZ")), ("size", None)] if v}})\nout.append({made})',
]


def around(g: Writer) -> None:
    """Reads what is around the program, and perhaps changes it: the environment, a context variable, a file."""
    g.define(
        "FILE = os.path.join(tempfile.gettempdir(), f'fuzz-{os.getpid()}')\n"
        "open(FILE, 'w').write('first\\nsecond')\nos.environ['FUZZ'] = 'set'\n"
        "VAR = contextvars.ContextVar('VAR', default='unset')\n"
        "class Settings(BaseModel):\n    style: str = 'plain'\n    size: int = 3\n"
        "    @classmethod\n    def of(cls, names):\n        return cls(**{k: v for k, v in names.items() if k in cls.model_fields})"
    )
    forms = {
        "env": g.asked('os.environ["FUZZ"]'), "var": g.asked("VAR.get()"), "read": g.asked("file.read()"),
        "line": g.asked("line"), "made": g.asked('f"{made.style} {made.size}"'), "u": g.result("ask"),
        "grade": g.asked(g.text(), "grade"), "number": f"len({g.text()})",
    }  # fmt: skip
    g.write(g.pick(_AROUND).format(**forms))


_KEEPING = [
    "@functools.lru_cache(maxsize={size})\ndef {kept}(x='a', *, y=1):\n    log.info(f'make {{x}} {{y}}')\n    return [str(x), str(y)]",
    "@functools.cache\ndef {kept}(x='a', *, y=1):\n    return {{'x': x, 'y': y}}",
    "@functools.lru_cache(typed=True)\ndef {kept}(x='a', *, y=1):\n    return Counter([x, y])",
    "class K{kept}:\n    @functools.lru_cache\n    def of(self, x='a', *, y=1):\n        return [x, y]\n{kept} = K{kept}().of",
    "class K{kept}:\n    @functools.cached_property\n    def of(self):\n        log.info('made')\n        return ['a']\n"
    "K{kept} = K{kept}()\ndef {kept}(x='a', *, y=1):\n    return K{kept}.of",
]
_KEPT = [
    "out.append({read})",
    "out.append([{read}, {other}])",
    "{kept}('b')\nout.append({other})",
    "{kept}(1, y=2)\n{kept}(True, y=2)\n{kept}(1.0, y=2)\nout.append({read})",
    "out.append({read})\nif hasattr({kept}, 'cache_clear'):\n    {kept}.cache_clear()\nout.append({read})",
    "made = {kept}()\nmade.update({{'z': {u}}}) if hasattr(made, 'update') else made.append({u})\nout.append({read})",
    "{kept}('b')\n{kept}('c')\n{kept}('d')\nout.append({other})",
]
_AGAIN = [
    "@tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise={flag})\n{how}def {name}(x):\n    return {ask}",
    "@tenacity.retry(stop=tenacity.stop_after_attempt(3), retry=tenacity.retry_if_exception_type(ValueError))\n"
    "{how}def {name}(x):\n    log.info('try')\n    tried.append(x)\n    int({number})\n    return str(tried)",
    "@tenacity.retry(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda v: v > 'f'))\n"
    "{how}def {name}(x):\n    return {ask}",
    "@traceable\n{how}def {name}(x):\n    tried.append(x)\n    return {ask}",
    "@traceable(process_inputs=lambda given: tried.append('seen') or given)\n{how}def {name}(x):\n    return {ask}",
]


def kept(g: Writer) -> None:
    """Results that caches of ``functools`` keep, across calls of the program."""
    name = g.name("kept")
    g.define(g.pick(_KEEPING).format(kept=name, size=g.random.choice([1, 2, 128])))
    for _ in range(g.random.randint(1, 2)):
        forms = {"read": g.asked(f"str({name}())"), "other": g.asked(f"str({name}('b'))"), "u": g.result("ask")}
        g.write(g.pick(_KEPT).format(kept=name, **forms))


def again(g: Writer) -> None:
    """Helpers under decorators of packages, which may call them again."""
    name, awaits = g.name("helper"), g.awaits
    g.define("tried = []")
    forms = {"ask": g.asked("str(x)"), "number": g.asked("str(x)", "number"), "flag": g.chance(0.5)}
    g.define(g.pick(_AGAIN).format(name=name, how="async " * awaits, **forms))
    calls = [f"{'await ' * awaits}{name}({text})" for text in (g.text(), "'again'")]
    g.write(
        f"try:\n    out.append([{', '.join(calls)}])\nexcept Exception as error:\n    out.append(type(error).__name__)"
    )
    g.write(f"out.append({g.asked('str(tried)')})")


_BOX = "{{'k': 'one', 'n': 1, 'log': ['a', 'b']}}"
_BOXES = {
    "state": "",
    "{h}": "{h} = " + _BOX,
    "{h}['in']": "{h} = {{'in': " + _BOX + "}}",
    "{h}.box": "class K{h}:\n    def __init__(self):\n        self.box = "
    + _BOX
    + "\n        self.also = [self.box]\n{h} = K{h}()",
    "{h}()": "def {h}(box=" + _BOX + "):\n    return box",
    "{h}b()": "def {h}():\n    box = " + _BOX + "\n    return lambda: box\n{h}b = {h}()",
}
_STORES = [
    "{a}['n'] += 1",
    "{a}['new'] = {x}",
    "{a}.update(m={x})",
    "{a}.update({{'k': {x}}})",
    "{a}['log'].append({x})",
    "{a}['log'] += [{x}, 'c']",
    "{a}['log'].pop(0) if {a}['log'] else None",
    "{a}['log'][-1:] = [{x}]",
    "{a}['log'] = [*{a}['log'], {x}]",
    "{a}.pop('m', None)",
    "{a}.setdefault('m', {x})",
    "{a}.setdefault('list', []).append({x})",
    "{a}['d'] = 5\ndel {a}['d']",
    "for k in list({a}):\n    {a}[k] = {a}[k] * 2 if len(str({a}[k])) < 9 else {a}[k]",
    "for k, v in {a}.items():\n    {a}[k] = v\n    out.append(k)",
    "for each in {a}['log']:\n    if len({a}['log']) < 5:\n        {a}['log'].append(each + '+')\n    out.append({each})",
    "for each in {a}['log']:\n    out.append({each})\n    {a}['log'].remove(each)",
    "shown = {a}.items(); {a}['i'] = {x}; out.append([k for k, _ in shown])",
    "back = reversed({a}['log']); {a}['log'].append({x}); out.append(list(back))",
    "add = {a}['log'].append; add({x}); add('z')",
    "other = {a}; other['o'] = {x}; out.append(other is {a})",
    "boxes = [{a}, {{'k': 'mine', 'n': 0, 'log': []}}]; boxes[0]['n'] += 1; boxes[{grade} == 'yes']['n'] += 1",
    "if {grade} == 'yes':\n    {a}['m'] = 1\nelse:\n    {a}['log'].append('no')",
    "try:\n    {a}['t'] = int({number})\nexcept ValueError:\n    {a}['t'] = {x}",
    "try:\n    {a}['log'].remove('none')\nexcept ValueError:\n    {a}['log'].insert(0, {x})",
    "try:\n    {a}['e'] = {ask}\nexcept Exception as error:\n    {a}['e'] = str(error)",
    "(lambda box, k='by': box.__setitem__(k, 1) if False else box.update({{k: 1}}))({a})",
    "{a}['self'] = len({a}); {a}['copy'] = dict({a})['k']",
    "{a}['log'].sort(); {a}['log'].reverse()",
    "{a}['log'].extend({a}['log'][:1])",
]
_LOOKS = [
    *("{a}['k']", "{a}['n']", "len({a})", "sorted(map(str, {a}))", "'m' in {a}", "{a}.get('m', 'none')"),
    *("{a}['log']", "[str(v) for v in {a}.values()]", "{{k: v for k, v in {a}.items() if k != 'items'}}", "{a}"),
    *(
        "len({a}['log'])",
        "{a}['log'][-1:]",
        "'a' in {a}['log']",
        "not {a}['log']",
        "{a}.get('e')",
        "[*{a}['log'], 'z']",
    ),
]


def stored(g: Writer) -> None:
    """Items of a dict that the program got, or that somebody else has, are changed; it and its other keys are read."""
    box, name = g.pick(list(_BOXES)), g.name("held")
    a = box.format(h=name)
    if a == "state":
        g.write("state['k'], state['n'], state['log'] = 'one', 1, ['a', 'b']")
    else:
        g.define(_BOXES[box].format(h=name))
    for _ in range(g.random.randint(1, 3)):
        if g.chance(0.4):
            calls(g)
        store = g.pick(_STORES)
        forms = {
            "x": g.pick(["'x'", "str(len(out))", g.result("ask")]) if "{x}" in store else "",
            "grade": g.asked(g.text(), "grade"), "number": g.asked(g.text(), "number"),
            "ask": g.asked(g.text()), "each": g.asked("str(each)"),
        }  # fmt: skip
        g.write(store.format(a=a, **forms))
        for _ in range(g.random.randint(1, 3)):
            g.write(f"out.append({g.asked(f'str({g.pick(_LOOKS).format(a=a)})')})")


KINDS: tuple[tuple[Callable[[Writer], object], int], ...] = (
    (changed, 10), (lazy, 4), (tasks, 4), (task_and_change, 3), (configured, 2), (calls, 3), (logged, 2), (patched, 1),
)  # fmt: skip


def statement(g: Writer) -> None:
    """Writes one statement of any kind."""
    kinds = [*KINDS, (nested, 3 if g.nested < 2 else 0)]
    chosen = g.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    chosen(g)


def program(seed: int) -> str:
    """Returns the source of the program with this seed."""
    first = Writer(seed, "sync").random
    mode, form = first.choice(["sync", "sync", "async"]), first.choice(["lambda", "lambda", "graph"])
    g = Writer(seed, mode)
    for _ in range(g.random.randint(1, 3)):
        statement(g)
    if g.chance(0.02):
        heavy(g)
    apart = random.Random(f"around {seed}")  # so that programs of known seeds stay what they are
    if apart.random() < 0.2:
        around(g)
    for each in (kept, again):
        if apart.random() < 0.12:
            each(g)
    for each, share in ((stored, 0.2), (managed, 0.15), (streamed, 0.1)):
        if random.Random(f"{each.__name__} {seed}").random() < share:
            each(g)
    calls(g)
    return g.source("function" if form == "lambda" and apart.random() < 0.2 else form)
