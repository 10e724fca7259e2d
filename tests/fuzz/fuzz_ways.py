"""The ways in which random programs get to a change: through library functions, operators, handlers, aliases.

Each is a function of the writer and of ``act``, which makes the statement of the change from the text that it uses.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz_writer import Writer

Act = Callable[[str], str]

# {f}: a function that changes something and returns its first argument. {u}: a result. {n}: a new name.
_CALLED = """\
{n} = list(map({f}, {u}.split()))
{n} = tuple(filter({f}, {u}[:2]))
{n} = min(map({f}, {u}), default="")
{n} = dict(zip({u}, map({f}, {u}[:3])))
{n} = sorted({u}, key={f})
{n} = max({u}, key={f}, default="")
{n} = list({u}); {n}.sort(key={f})
{n} = functools.reduce(lambda x, y: {f}(x + y), {u}[:3], "")
{n} = functools.reduce({f}, {u}[:3])
{n} = functools.reduce({f}, ["a", "b"], {u})
{n} = re.sub("[a-e]", lambda m: {f}(m.group(0)), {u})
{n} = re.compile("[a-e]").sub(lambda m: {f}("z"), {u})
{n} = json.loads("[1, 2]" if {u} else "[3]", parse_int={f})
{n} = json.loads('{{"k": "%s"}}' % {u}, object_hook={f})
{n} = json.loads('{{"k": "%s"}}' % {u}, object_pairs_hook={f})
{n} = json.dumps({{"k": {u}, "s": {{1}}}}, default=lambda x: {f}(str(x)))
{n} = defaultdict(lambda: {f}("made")); {n}[{u}]
{n} = Counter({f}(x) for x in {u}[:3])
{n} = {u}.join({f}(x) for x in "ab")
{n} = "-".join({f}(x) for x in {u}[:3])
{n} = [{u}]; {n}.extend({f}(x) for x in {u}[:2])
{n} = [{u}]; {n} += ({f}(x) for x in "ab")
{n} = sum(len({f}(x)) for x in {u}[:3])
{n} = any({f}(x) == "?" for x in {u}[:3])
{n} = set(map({f}, {u}[:3]))
{n} = list(itertools.starmap({f}, zip({u}[:2], "ab")))
{n} = list(itertools.accumulate({u}[:3], lambda x, y: {f}(y)))
{n} = [k for k, _ in itertools.groupby({u}[:3], {f})]
{n} = list(itertools.takewhile({f}, {u}[:3]))
{n} = list(itertools.dropwhile({f}, {u}[:3]))
{n} = list(itertools.filterfalse({f}, {u}[:3]))
{n} = list(itertools.chain.from_iterable(map({f}, {u}.split())))
{n} = heapq.nlargest(1, {u}[:3], key={f})
{n} = heapq.nsmallest(1, [{u}, "a"], key={f})
{n} = ["b"]; bisect.insort({n}, {u}, key={f})
{n} = functools.partial({f}, {u})()
{n} = functools.lru_cache({f})({u})
{n} = functools.cmp_to_key({f})({u}) < functools.cmp_to_key({f})("a") if False else {f}({u})
{n} = next(map({f}, [{u}]))
{n} = next(filter(None, map({f}, {u}.split())), "none")
{n} = contextvars.copy_context().run({f}, {u})
{n} = [*map({f}, {u}[:2])]
{n}, *_ = map({f}, {u}[:2] + "ab")
{n} = {{**{{{f}({u}): 1}}}}
{n} = (lambda x: {f}(x))({u})
{n} = [{f}(x) for x in {u}[:2]]
{n} = {{{f}(x): x for x in {u}[:2]}}
{n} = "yes" if {f}({u}) else "no"
{n} = {u} and {f}({u})
{n} = {u} == "?" or {f}({u})
{n} = str.translate({u}, collections.UserDict()) if not {f}({u}) else "t"
{n} = operator.call({f}, {u}) if hasattr(operator, "call") else {f}({u})
{n} = list(zip(map({f}, "ab"), {u}))
{n} = list(enumerate(map({f}, {u}[:2])))
{n} = list(reversed([{f}(x) for x in {u}[:2]]))
{n} = all(map({f}, {u}[:2]))
{n} = deque(map({f}, {u}[:2]), maxlen=1)
{n} = dict.fromkeys(map({f}, {u}[:2]))
{n} = max(({f}(x) for x in {u}[:2]), default="")
{n} = isinstance({f}({u}), str)
{n} = f"{{{f}({u})}}"
{n} = print({f}({u}), end="")
log.info("logged %s", {f}({u}))
with ThreadPoolExecutor(1) as pool: pool.submit({f}, {u}).result()
with ThreadPoolExecutor(1) as pool: {n} = list(pool.map({f}, [{u}]))
{n} = threading.Thread(target={f}, args=({u},)); {n}.start(); {n}.join()
with contextlib.ExitStack() as stack: stack.callback({f}, {u})
{n} = (lambda: (yield {f}({u})))(); next({n})
{n} = RunnableLambda({f}).invoke({u})
{n} = (RunnableLambda({f}) | RunnablePassthrough()).invoke({u})
{n} = (RunnablePassthrough() | {f}).invoke({u})
{n} = RunnableParallel(k={f}).invoke({u})
{n} = RunnablePassthrough.assign(k=lambda x: {f}(x["q"])).invoke({{"q": {u}}})
{n} = {u}.replace("a", {f}("b"))
{n} = "a".replace({u}, {f}("b"))
{n} = operator.methodcaller("__call__", {u})({f})
{n} = list(iter(lambda: {f}({u}), {u}))
{n} = getattr({f}, "__call__")({u})
{n} = {{"k": {f}}}["k"]({u})
{n} = ({f} if {u} else len)({u})
{n} = {{"a": {f}, "b": {f}}}.get({u}[:1], {f})({u})
{n} = copy.copy({f})({u})
{n} = mock.Mock(side_effect={f})({u})
{n} = sorted(["b", {u}], key=functools.cmp_to_key(lambda a, b: len({f}(a)) - len(b)))
{n} = string.Template("$k").safe_substitute(defaultdict(lambda: {f}({u})))
{n} = "{{k}}".format_map(defaultdict(lambda: {f}({u})))
{n} = next(({f}(x) for x in {u}), "none")
assert {f}({u}) is not None
{n} = functools.singledispatch(lambda x: {f}(x))({u})
{n} = functools.cached_property({f}).func({u})
{n} = itertools.islice(map({f}, {u}), 1); list({n})
{n} = list(itertools.islice(({f}(x) for x in {u}), 2))
{n} = asyncio.run(asyncio.sleep(0, {f}({u}))) if False else {f}({u})
""".splitlines()

# Special methods of a class of the program's own: the method, with {act} and what it returns, and how it gets to run.
_SPECIAL = [
    (
        "__eq__(self, other)",
        "True",
        "{n} = {o} == {u}|{n} = {u} == {o}|{n} = {o} in [{u}]|{n} = {u} in [{o}]|{n} = [{o}].index({u})|{n} = [{o}].count({u})|{n} = {o} != {u}",
    ),
    ("__contains__(self, item)", "True", "{n} = {u} in {o}|{n} = {u} not in {o}|{n} = operator.contains({o}, {u})"),
    (
        "__getitem__(self, key)",
        "'got'",
        "{n} = {o}[{u}]|{n} = operator.itemgetter({u})({o})|{n} = '%(k)s' % {o}|{n} = {o}[{u}:]",
    ),
    ("__setitem__(self, key, value)", "None", "{o}[{u}] = 1|{o}['k'] = {u}|operator.setitem({o}, {u}, 1)"),
    ("__delitem__(self, key)", "None", "del {o}[{u}]"),
    ("__add__(self, other)", "'sum'", "{n} = {o} + {u}|{n} = sum([{o}], start={o}) if False else {o} + {u}"),
    ("__radd__(self, other)", "'sum'", "{n} = {u} + {o}|{n} = {u}; {n} += {o}"),
    ("__iadd__(self, other)", "self", "{n} = {o}; {n} += {u}"),
    ("__mod__(self, other)", "'mod'", "{n} = {o} % {u}"),
    ("__rmod__(self, other)", "'mod'", "{n} = 3 % {o} if {u} else ''"),
    ("__or__(self, other)", "'or'", "{n} = {o} | {u}"),
    ("__ror__(self, other)", "'or'", "{n} = {u} | {o}"),
    ("__matmul__(self, other)", "'mat'", "{n} = {o} @ {u}"),
    ("__lshift__(self, other)", "self", "{n} = {o} << {u}"),
    ("__call__(self, *args)", "'called'", "{n} = {o}({u})|{n} = list(map({o}, {u}[:2]))|{n} = sorted({u}, key={o})"),
    (
        "__lt__(self, other)",
        "True",
        "{n} = {o} < {u}|{n} = sorted([{o}, {o}])[0] if {u} else 1|{n} = max({o}, {o}) if {u} else 1|{n} = {u} > {o}",
    ),
    (
        "__hash__(self)",
        "7",
        "{n} = {{{o}: {u}}}|{n} = hash({o}) if {u} else 0|{n} = {{{o}, {u}}}|{n} = {{}}; {n}[{o}] = {u}|{n} = {o} in {{{u}: 1}}",
    ),
    (
        "__bool__(self)",
        "True",
        "{n} = {u} if {o} else 'no'|{n} = not {o}|{n} = {o} and {u}|{n} = bool({o})|{n} = list(filter(None, [{o}, {u}]))|{n} = any([{o}, {u}])",
    ),
    ("__len__(self)", "2", "{n} = len({o})|{n} = {u} if {o} else 'no'|{n} = not {o}"),
    (
        "__str__(self)",
        "'text'",
        "{n} = str({o}) + {u}|{n} = f'{{{o}}} {{{u}}}'|{n} = '%s %s' % ({o}, {u})|log.info('%s', {o})|{n} = print({o}, end='')|{n} = '{{}} {{}}'.format({o}, {u})",
    ),
    ("__repr__(self)", "'text'", "{n} = repr({o}) + {u}|{n} = f'{{{o}!r}}'|{n} = str([{o}, {u}])"),
    (
        "__format__(self, spec)",
        "'text'",
        "{n} = f'{{{o}:>9}} {{{u}}}'|{n} = format({o}, {u}[:1])|{n} = '{{}} {{}}'.format({o}, {u})",
    ),
    (
        "__iter__(self)",
        "iter('ab')",
        "{n} = list({o})|{n} = [x + {u} for x in {o}]|{n} = {u}.join({o})|{n} = [{u}]; {n}.extend({o})|for {n} in {o}: pass|{n}, {n}b = {o}|{n} = [*{o}]|{n} = dict(zip({o}, {u}))|{n} = sorted({o})|{n} = Counter({o})|{n} = tuple(zip({u}, {o}))",
    ),
    ("__next__(self)", "'next'", "{n} = next({o})"),
    (
        "__getattr__(self, name)",
        "'attr'",
        "{n} = {o}.missing + {u}|{n} = getattr({o}, 'k' + {u}[:1])|{n} = hasattr({o}, 'missing')|{n} = getattr({o}, 'missing', {u})|{n} = operator.attrgetter('missing')({o})",
    ),
    ("__setattr__(self, name, value)", "None", "{o}.k = {u}|setattr({o}, 'k' + {u}[:1], 1)"),
    ("__delattr__(self, name)", "None", "del {o}.k"),
    ("__getattribute__(self, name)", "'attr'", "{n} = {o}.k + {u}"),
    (
        "__enter__(self)",
        "self\n    def __exit__(self, *args):\n        return False",
        "with {o}: {n} = {u}|with {o} as {n}: pass",
    ),
    (
        "__exit__(self, *args)",
        "True\n    def __enter__(self):\n        return self",
        "with {o}: {n} = int({u})|with {o}: {n} = {u}|with contextlib.ExitStack() as stack: stack.enter_context({o})",
    ),
    ("__int__(self)", "3", "{n} = int({o})"),
    ("__index__(self)", "0", "{n} = {u}[{o}]|{n} = ['a'][{o}]|{n} = range({o})"),
    ("__neg__(self)", "3", "{n} = -{o}"),
    ("__round__(self, n=None)", "3", "{n} = round({o})"),
    ("__copy__(self)", "self", "{n} = copy.copy({o})"),
    ("__deepcopy__(self, memo)", "self", "{n} = copy.deepcopy({o})|{n} = copy.deepcopy([{o}, {u}])"),
    (
        "__del__(self)",
        "None",
        "{n} = {o}; del {n}|{n} = [{o}]; {n}.clear()|{n} = {o}; {n} = {u}|{n} = str({o}.__class__.__name__)",
    ),
    ("__init__(self)", "None", "{n} = {k}()"),
    ("__new__(cls)", "object.__new__(cls)", "{n} = {k}()"),
    ("__reversed__(self)", "iter('ba')", "{n} = list(reversed({o}))"),
    ("__missing__(self, key)", "'miss'", ""),
    ("__fspath__(self)", "'path'", "{n} = __import__('os').fspath({o})"),
    ("__instancecheck__(cls, other)", "True", ""),
]

_CLASSES = [
    "class {k}(dict):\n    def __missing__(self, key):\n        {act}\n        return 'miss'\n---{n} = {k}()[{u}]|{n} = '%(k)s' % {k}()|{n} = '{{k}}'.format_map({k}())|{n} = {u}.translate({k}())",
    "class M{k}(type):\n    def __instancecheck__(cls, other):\n        {act}\n        return True\nclass {k}(metaclass=M{k}):\n    pass\n---{n} = isinstance({u}, {k})",
    "class M{k}(type):\n    def __call__(cls, *args):\n        {act}\n        return 'made'\nclass {k}(metaclass=M{k}):\n    pass\n---{n} = {k}({u})",
    "class B{k}:\n    def __init_subclass__(cls):\n        {act}\n---class {k}(B{k}): pass",
    "class D{k}:\n    def __set_name__(self, owner, name):\n        {act}\n---class {k}: field = D{k}()",
    "class D{k}:\n    def __get__(self, obj, owner=None):\n        {act}\n        return 'got'\nclass {k}:\n    field = D{k}()\n---{n} = {k}().field + {u}|{n} = {k}.field|{n} = getattr({k}(), 'field')",
    "class D{k}:\n    def __get__(self, obj, owner=None):\n        return 'got'\n    def __set__(self, obj, value):\n        {act}\nclass {k}:\n    field = D{k}()\n---{k}().field = {u}|setattr({k}(), 'field', {u})",
    "class {k}:\n    @property\n    def field(self):\n        {act}\n        return 'got'\n---{n} = {k}().field + {u}|{n} = operator.attrgetter('field')({k}())|{n} = hasattr({k}(), 'field')|match {k}():\n    case {k}(field=x): {n} = x",
    "class {k}:\n    @functools.cached_property\n    def field(self):\n        {act}\n        return 'got'\n---{n} = {k}().field + {u}",
    "@dataclasses.dataclass\nclass {k}:\n    text: str = 'd'\n    def __post_init__(self):\n        {act}\n---{n} = dataclasses.replace({k}('k') if False else object.__new__({k}), text={u})|{n} = {k}(text={u})|{n} = {k}({u})",
    "@dataclasses.dataclass\nclass {k}:\n    text: str = 'd'\n    def __post_init__(self):\n        if self.text != 'd':\n            {act}\n{k}one = {k}()\n---{n} = dataclasses.replace({k}one, text={u})",
    "class {k}(str):\n    def upper(self):\n        {act}\n        return 'up'\n---{n} = {k}({u}).upper()",
    "class {k}(list):\n    def append(self, x):\n        {act}\n---{n} = {k}(); {n}.append({u})",
    "class {k}(enum.Enum):\n    ONE = 'a'\n    @classmethod\n    def _missing_(cls, value):\n        {act}\n        return cls.ONE\n---{n} = {k}({u})",
    "def {k}():\n    try:\n        yield 'a'\n        yield 'b'\n    finally:\n        {act}\n---for {n} in {k}(): break|{n} = next({k}())|{n} = {k}(); next({n}); {n}.close()|{n} = list({k}())|{n} = any(x == 'a' for x in {k}())|{n} = list(zip('x', {k}()))",
    "def {k}():\n    got = yield 'a'\n    {act}\n    yield got\n---{n} = {k}(); next({n}); {n}.send({u})|{n} = list({k}())|{n} = next({k}())|for {n} in {k}():\n    if {u}: break",
    "@contextlib.contextmanager\ndef {k}(text):\n    try:\n        yield text\n    finally:\n        {act}\n---with {k}({u}) as {n}: pass|with {k}('a'): {n} = {u} + 'b'",
    "@contextlib.contextmanager\ndef {k}(text):\n    try:\n        yield text\n    except ValueError:\n        log.info('handled')\n        {act}\n---with {k}({u}) as {n}: int({n})|with {k}('a'): {n} = int({u})",
    "class {k}:\n    pass\ndef end_{k}():\n    {act}\n---{n} = {k}(); weakref.finalize({n}, end_{k}); del {n}|{n} = {k}(); {n}r = weakref.ref({n}, lambda r: end_{k}()); {n} = None",
    "def {k}(func):\n    @functools.wraps(func)\n    def inner(*args):\n        {act}\n        return func(*args)\n    return inner\n---{n} = {k}(len)({u})|@{k}\ndef {n}(x): return x\n{n}({u})",
    "class {k}:\n    def __class_getitem__(cls, item):\n        {act}\n        return cls\n---{n} = {k}[{u}]",
    "class {k}:\n    def __iter__(self):\n        {act}\n        yield 'k'\n    def keys(self):\n        {act}\n        return ['k']\n    def __getitem__(self, key):\n        return 'v'\n---{n} = dict({k}())|{n} = {{**{k}()}}|{n} = (lambda **named: named)(**{k}())|{n} = (lambda *args: args)(*{k}())|{n} = {{}}; {n}.update({k}())",
    "class {k}(collections.UserDict):\n    def __setitem__(self, key, value):\n        {act}\n        super().__setitem__(key, value)\n---{n} = {k}(); {n}[{u}] = 1|{n} = {k}(a={u})|{n} = {k}(); {n}.update(a={u})",
    "class {k}(string.Formatter):\n    def get_value(self, key, args, named):\n        {act}\n        return 'v'\n---{n} = {k}().format('{{k}}', k={u})",
    "class {k}(json.JSONEncoder):\n    def default(self, value):\n        {act}\n        return 'v'\n---{n} = json.dumps([{{1}}, {u}], cls={k})",
    "class {k}(ValueError):\n    def __init__(self, text):\n        {act}\n---try: raise {k}({u})\nexcept {k}: log.info('handled')",
]


def by_library(g: Writer, act: Act) -> None:
    """A function of the standard library, or of LangChain, runs a function of the program."""
    helper = g.helper(act)
    template = g.pick(_CALLED)
    g.write(template.format(f=helper, u=g.result(), n=g.name()))


def by_special_method(g: Writer, act: Act) -> None:
    """An operator, or something implicit, runs a method of a class of the program."""
    method, returned, uses = g.random.choice([each for each in _SPECIAL if each[2]])
    k, o, n = g.name("Odd"), g.name("odd"), g.name()
    lines = "\n".join("    " + line for line in act("'odd'").split("\n"))
    body = f"def {method}:\n{g.declared(lines)}{lines}\n    return {returned}"
    if method.startswith("__eq__"):
        body += "\n__hash__ = None" if g.chance(0.3) else "\ndef __hash__(self):\n    return 1"
    if method == "__getattribute__(self, name)" or method.startswith("__setattr__"):
        o = f"{k}()"
    g.define(f"class {k}:\n" + "\n".join("    " + line for line in body.split("\n")))
    if o != f"{k}()":
        form = g.pick(["module", "local", "local", "inline"])
        if form == "inline" or method.startswith(("__init__", "__new__", "__del__")):
            o = f"{k}()"
        else:
            (g.define if form == "module" else g.write)(f"{o} = {k}()")
    u = g.result()
    use = g.pick(uses.split("|") if "x | " not in uses and " | " not in uses else [uses])
    g.write(use.format(o=o, u=u, n=n, k=k))


def by_class(g: Writer, act: Act) -> None:
    """A class or generator whose code runs where nothing in the program calls it by name."""
    made, _, uses = g.pick(_CLASSES).partition("---")
    k, n = g.name("Odd"), g.name()
    statement = act("'odd'")
    definition = made.rstrip("\n").format(k=k, n=n, u="{u}", act="{act}")
    lines = []
    for line in definition.split("\n"):
        if line.strip() == "{act}":
            pad = line[: len(line) - len(line.lstrip())]
            declared = g.declared(statement).strip()
            lines += [pad + declared] if declared else []
            lines += [pad + each for each in statement.split("\n")]
        else:
            lines.append(line)
    g.define_somewhere("\n".join(lines))
    g.write(g.pick(uses.split("|")).format(k=k, u=g.result(), n=n))


_HANDLERS = [
    "try:\n    {n} = int({num})\nexcept ValueError:\n    log.info('handled')\n    {act}",
    "try:\n    {n} = int({num})\nexcept ValueError:\n    log.info('handled')\n    {act}\nelse:\n    {n} = 0",
    "try:\n    {n} = int({num})\n    {act}\nexcept ValueError:\n    log.info('handled')",
    "try:\n    {n} = {risky}\nexcept ValueError as error:\n    log.info('handled')\n    {act}",
    "try:\n    {n} = {risky}\nfinally:\n    {act}",
    "try:\n    try:\n        {n} = int({num})\n    finally:\n        {act}\nexcept ValueError:\n    log.info('handled')",
    "with suppress(ValueError):\n    {n} = int({num})\n    {act}\nlog.info('handled')",
    "with suppress(Exception):\n    {n} = {risky}\n    {act}\nlog.info('handled')",
    "try:\n    {n} = {{'a': 1}}[{u}]\nexcept KeyError:\n    log.info('handled')\n    {act}",
    "try:\n    {n} = {u}.missing\nexcept AttributeError:\n    log.info('handled')\n    {act}",
    "try:\n    assert {grade} == 'yes'\nexcept AssertionError:\n    log.info('handled')\n    {act}",
    "try:\n    if {grade} == 'no':\n        raise LookupError({u})\nexcept LookupError:\n    log.info('handled')\n    {act}",
    "for {n} in 'ab':\n    if {grade} == 'yes':\n        break\nelse:\n    {act}",
    "for {n} in 'ab':\n    try:\n        int({num})\n    except ValueError:\n        log.info('handled')\n        {act}\n        continue",
    "for {n} in 'ab':\n    try:\n        if {grade} == 'yes':\n            continue\n    finally:\n        {act}",
    "try:\n    {n} = json.loads({u})\nexcept json.JSONDecodeError:\n    log.info('handled')\n    {act}",
    "try:\n    [{n}] = {u}.split('?')[1:]\nexcept ValueError:\n    log.info('handled')\n    {act}",
    "try:\n    {n} = next(x for x in {u} if x == '?')\nexcept StopIteration:\n    log.info('handled')\n    {act}",
    "try:\n    raise ExceptionGroup('g', [ValueError({u})])\nexcept* ValueError:\n    log.info('handled')\n    {act}",
    "try:\n    {n} = 1 / {u}.count('?')\nexcept (ZeroDivisionError, TypeError) as error:\n    log.info('handled')\n    {act}\n    {n} = str(error)",
    "try:\n    int({num})\nexcept ValueError:\n    log.info('handled')\n    out.append('none')\n    return {{'out': out}}\n{act}",
    "def {n}(x):\n    return int(x)\ntry:\n    {n}({num})\nexcept ValueError:\n    log.info('handled')\n    {act}",
    "match {u}[:1]:\n    case 'a' | 'b':\n        {act}\n    case x if x > 'm':\n        log.info('other')",
    "match {grade}:\n    case 'yes':\n        {act}\n    case _:\n        pass",
    "if {grade} == 'yes':\n    {act}",
    "while {grade} == 'yes' and not out:\n    {act}\n    break",
    "if ({n} := {u}):\n    {act}",
    "for {n} in {u}[:2]:\n    {act}",
]
_ASYNC_HANDLERS = [
    "try:\n    {n} = await asyncio.wait_for(silent.ainvoke({{'text': question}}), 0.01)\nexcept TimeoutError:\n    log.info('handled')\n    {act}",
    "try:\n    async with asyncio.timeout(0.01):\n        {n} = await silent.ainvoke({{'text': question}})\nexcept TimeoutError:\n    log.info('handled')\n    {act}",
    "{n} = asyncio.create_task(asyncio.sleep(9))\n{n}.cancel()\ntry:\n    await {n}\nexcept asyncio.CancelledError:\n    log.info('handled')\n    {act}",
    "try:\n    async with asyncio.TaskGroup() as group:\n        {n} = group.create_task(risky.ainvoke({{'text': {u}}}))\nexcept* ValueError:\n    log.info('handled')\n    {act}",
    "{n} = await asyncio.gather(risky.ainvoke({{'text': {u}}}), return_exceptions=True)\nif not isinstance({n}[0], str):\n    log.info('handled')\n    {act}",
]


def by_handler(g: Writer, act: Act) -> None:
    """Control flow: handlers, finally, context managers, else of loops, match."""
    template = g.pick(_HANDLERS + _ASYNC_HANDLERS * g.awaits)
    given = g.text()
    u = g.result() if "{u}" in template else ""
    filled = {"num": g.asked(given, "number"), "risky": g.asked(given, "risky"), "grade": g.asked(given, "grade")}
    lines = []
    for line in template.split("\n"):
        if line.strip() == "{act}":
            pad = line[: len(line) - len(line.lstrip())]
            lines += [pad + each for each in act(g.pick(["'h'", "str(len(out))"])).split("\n")]
        else:
            lines.append(line.format(n=g.name("n") if False else "n", u=u, act="", **filled))
    g.write("\n".join(lines))


_ALIASES = """\
{n} = {a} if {grade} == "yes" else {b}
{n} = {{"a": {a}, "b": {b}}}[{label}]
{n} = {{"yes": {a}}}.get({grade}, {b})
{n} = [{a}, {b}][len({u}) % 2]
{n} = ({grade} == "yes" and [{a}] or [{b}])[0]
{n} = max([{a}, {b}], key=lambda x: {u} if x is {a} else "m")
{n} = min([{a}, {b}], key=lambda x: {u} if x is {a} else "m")
{n} = sorted([{a}, {b}], key=lambda x: {u} if x is {a} else "m")[0]
{n} = next(x for k, x in [("a", {a}), ("b", {b})] if k == {label})
{n} = [x for k, x in [("a", {a}), ("b", {b})] if k == {label}][0]
{n} = getattr(types_of(a={a}, b={b}), {label})
{n} = (lambda k, x, y: x if k == "yes" else y)({grade}, {a}, {b})
{n} = dict(a={a}, b={b}).pop({label})
{n} = list(itertools.compress([{a}, {b}], [{grade} == "yes", True]))[0]
{n} = operator.itemgetter({label})({{"a": {a}, "b": {b}}})
{n} = dict(zip("ab", ({a}, {b})))[{label}]
{n} = [{a}, {b}].pop(len({u}) % 2)
{n}, _ = ({a}, {b}) if {grade} == "yes" else ({b}, {a})
{n} = next(filter(lambda x: {u} and x is {a}, [{a}, {b}]))
{n} = functools.reduce(lambda x, y: x if {grade} == "yes" else y, [{a}, {b}])
{n} = copy.copy([{a}, {u}])[0]
{n} = copy.copy(types_of(a={a}, u={u})).a
{n} = RunnablePassthrough().invoke([{a}, {u}])[0]
{n} = RunnablePassthrough.assign(k=lambda x: {u}).invoke({{"a": {a}}})["a"]
{n} = RunnableLambda(lambda x: x[0]).invoke([{a}, {u}])
{n} = RunnableLambda(lambda x: {a} if x["u"] else {b}).invoke({{"u": {u}}})
{n} = list(map(lambda x: {a}, {u}[:1]))[0]
{n} = list(zip([{a}], {u}))[0][0]
{n} = {{{u}: {a}}}.popitem()[1]
{n} = defaultdict(lambda: {a})[{u}]
{n} = {{}}.setdefault({u}, {a})
{n} = list({{{u}: {a}}}.values())[0]
{n} = collections.ChainMap({{}}, {{{label}: {a}}}).get("a", {b})
{n} = deque([{a}, {b}]); {n}.rotate(len({u})); {n} = {n}[0]
{n} = {u} and {a}
{n} = None if {u} == "?" else {a}
{n} = getattr(types_of(a={a}), {u}, {a})
{n} = vars(types_of(a={a}, b={b}))[{label}]
{n} = functools.partial(lambda x, y: x, {a})({u})
{n} = (lambda *args: args[0])({a}, {u})
{n} = (lambda **named: named["k"])(k={a}, u={u})
{n} = [*[{a}], {u}][0]
{n} = (yes := {grade} == "yes") and {a} or {a}
{n} = [{a}, {b}][{grade} == "yes"]
{n} = ({a}, {b})[{label} == "a"]
{n} = weakref.ref({a})() if {u} and hasattr({a}, "__weakref__") else {a}
""".splitlines()
_MATCHES = [
    "match {label}:\n    case 'a':\n        {n} = {a}\n    case _:\n        {n} = {b}",
    "{n} = {a}\nif {grade} == 'yes':\n    {n} = {b}",
    "for {n} in [{a}, {b}]:\n    if {u} > 'm':\n        break",
    "try:\n    {n} = {{'yes': {a}}}[{grade}]\nexcept KeyError:\n    log.info('handled')\n    {n} = {b}",
    "def {n}(k, x={a}, y={b}):\n    return x if k == 'a' else y\n{n} = {n}({label})",
    "def {n}():\n    for x in [{a}, {b}]:\n        if {u} > 'm':\n            yield x\n    yield {a}\n{n} = next({n}())",
    "{n} = {a}\nwhile {u} > 'm' and {n} is {a}:\n    {n} = {b}",
]


def aliased(g: Writer, one: str, other: str) -> str:
    """A name of one of two objects, chosen by a result."""
    n = g.name("chosen")
    given = g.text()
    template = g.pick([*_ALIASES, *_MATCHES, *_MATCHES])
    if "types_of" in template and "def types_of(**named):" not in g.top:
        g.define(
            "class Names: pass\ndef types_of(**named):\n    made = Names()\n    made.__dict__.update(named)\n    return made"
        )
    filled = {"label": g.asked(given, "label"), "grade": g.asked(given, "grade")}
    if "lambda" in template or "def " in template:
        filled = {key: g.result(key) for key in filled if "{" + key in template}
    g.write(template.format(n=n, a=one, b=other, u=g.result() if "{u" in template else "", **filled))
    return n


def within(g: Writer, act: Callable[[str], str], name: str) -> Callable[[str], str]:
    """The change through a variable of the program: what runs it may be defined in the module."""
    kept = g.name("held")
    g.define(f"{kept} = []")
    g.write(f"{kept}[:] = [{name}]")
    return lambda x: act(x).replace(name, f"{kept}[0]")
