"""What a handler has seen, and what ``optimize`` would make of it: as text, HTML and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from statistics import fmean, median
from typing import Any

import fineflow
import fineflow.api
from fineflow.adapters.core.plan import Plan, running
from fineflow.adapters.registry import framework_of
from fineflow.ir import Effect, Op
from fineflow.ir.text import WIDTH, duration, printable, wrap
from fineflow.observe.overview import starts_early
from fineflow.obstacles import advice
from fineflow.options import Options
from fineflow.runtime.bill import Usage
from fineflow.watching.fitted import fitted, observed
from fineflow.watching.runs import App, Run

_WORTH = 0.02  # share of a call that is worth the line
_CODE, _IN_CODE = re.compile("`([^`]+)`"), r"<code>\1</code>"
_ASKING = frozenset({Op.DECODE, Op.PARTIAL_DECODE, Op.SEARCH, Op.EMBED, Op.RERANK, Op.TOOL})


@dataclass(frozen=True)
class AppReport:
    """One app. Seconds are of one call, the median of those that count.

    name: of its outermost object. where: the line that called it, or "". taken: ``optimize`` takes it. calls: seen
    so far. counted: those that the seconds are of. now_s: as it is. optimized_s: predicted. what: sentences on what
    would overlap, what is in the way, and the price. path: the steps of the predicted critical path, with their
    seconds. inside: parts or steps of it run ahead by themselves, and nothing predicts what that gains.
    """

    name: str
    calls: int
    failed: int
    counted: int
    now_s: float
    optimized_s: float
    what: tuple[str, ...] = ()
    path: tuple[tuple[str, float], ...] = ()
    where: str = ""
    taken: bool = True
    inside: bool = False

    @property
    def gains(self) -> bool:
        return self.now_s - self.optimized_s > _WORTH * self.now_s

    @property
    def headline(self) -> str:
        name = f"{self.name} at {self.where}" if self.where else self.name
        if not self.counted:
            return f"{name}: no call of it that counts has ended without an error."
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        if not self.gains and self.inside:
            return f"{name}: {duration(self.now_s)} ({calls}); what its parts gain by themselves is not predicted."
        if not self.gains:
            return f"{name}: {duration(self.now_s)} ({calls}); nothing to gain as it is."
        times = self.now_s / self.optimized_s if self.optimized_s else float("inf")
        return (
            f"{name}: {duration(self.now_s)} now ({calls}), {duration(self.optimized_s)} optimized, as predicted: "
            f"{times:.1f} times as fast."
        )


@dataclass(frozen=True)
class Report:
    """What a handler has seen so far, the app with the largest predicted saving first.

    models: tokens of all requests, by model, where answers tell them; of LangChain's models. in_vain: requests that
    optimized objects of the process have sent in vain meanwhile, by model.
    """

    apps: tuple[AppReport, ...]
    models: Mapping[str, Usage] = field(default_factory=dict)
    in_vain: Mapping[str, Usage] = field(default_factory=dict)

    @classmethod
    def of(
        cls, apps: Iterable[App], models: Mapping[str, Usage] | None = None, in_vain: Mapping[str, Usage] | None = None
    ) -> Report:
        found = [_of_app(app) for app in apps]
        found = [each for each in found if each.taken] or found  # embedding models, for one, are called by themselves
        return cls(tuple(sorted(found, key=lambda each: each.optimized_s - each.now_s)), models or {}, in_vain or {})

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = WIDTH) -> str:
        """Renders the report as text. width: in columns; words that are longer stay whole."""
        if not self.apps:
            return "No call has ended yet: attach the handler to calls, config={'callbacks': [handler]}."
        parts = [(each.headline, *each.what) for each in self.apps]
        parts += [self._lines()] if self.models or self.in_vain else []
        said = ("\n".join(line for text in part for line in wrap("", [text], "    ", width)) for part in parts)
        return printable("\n\n".join(said))

    def _lines(self) -> tuple[str, ...]:
        vain = (f"in vain: {usage.line(model)}" for model, usage in self.in_vain.items())
        return (*(usage.line(model) for model, usage in self.models.items()), *vain)

    def to_json(self) -> str:
        """Returns the report as JSON: a list of apps, see ``AppReport`` for the keys."""
        return json.dumps([asdict(each) | {"gains": each.gains} for each in self.apps], indent=1)

    def to_html(self) -> str:
        """Renders the report as one self-contained page."""
        longest = max((each.now_s for each in self.apps), default=0.0) or 1.0
        body = "".join(_section(each, longest) for each in self.apps) or f"<p>{escape(str(self))}</p>"
        body += "".join(f"<p>{escape(line)}</p>" for line in self._lines())
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>What fineflow would save</title><style>{_STYLE}</style></head><body>"
            f"<h1>What fineflow would save</h1>{body}</body></html>"
        )

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.to_html())}" style="width:100%;height:420px;border:0" '
            'title="fineflow report"></iframe>'
        )


def plan_of(obj: Any, entry: str) -> Plan | None:
    """Returns the plan that ``optimize`` would make for calls of a method; None if it takes no such object."""
    framework = framework_of(obj)
    if framework is None:
        return None
    made: Any = fineflow.optimize(obj)
    plans: list[Plan | None] = [made._self_current(way) for way in framework.ways(obj, "")]
    return next((plan for plan in plans if plan is not None and entry in plan.entries), plans[0])


def _of_app(app: App) -> AppReport:
    calls = app.steady
    if not calls:
        return AppReport(app.name, app.calls, app.failed, 0, 0.0, 0.0)
    now = median(each.seconds for each in calls)
    known = AppReport(app.name, app.calls, app.failed, len(calls), now, now, where=calls[-1].where)
    obj = calls[-1].obj
    if obj is None:
        return replace(known, what=("Its outermost object is gone, so it cannot be planned: keep it between calls.",))
    plan = plan_of(obj, calls[-1].entry)
    if plan is None:
        return replace(known, what=(f"fineflow.optimize does not take a {type(obj).__name__}.",), taken=False)
    calls = [each for each in calls if each.entry == calls[-1].entry]
    fit = fitted(plan, calls)
    looked = [sum(run.saved for run in call.everything()) for call in calls if call.looked]
    inner = fmean(looked) if looked else 0.0
    saved = fit.saved if fit.written.names else inner  # a plan without steps only looks into the user's methods
    follows = plan.follows_for(calls[-1].entry, eager=False)
    saved = min(saved, now) if follows else 0.0
    path = tuple((name, fit.run.each.get(name, 0.0)) for name in fit.run.names)
    found = replace(known, optimized_s=now - saved, path=path, inside=follows and calls[-1].entry not in plan.pays)
    return replace(found, what=tuple(_sentences(found, plan, obj, calls)))


def _sentences(found: AppReport, plan: Plan, obj: Any, calls: Sequence[Run]) -> Iterator[str]:
    if found.gains:
        yield from fineflow.explain(obj).gains
        yield "The line that turns it on: fineflow.optimize(...) around this object."
        yield from _price(plan, calls)
    elif found.inside:
        yield "fineflow.optimize(...) around this object, three calls, and fineflow.explain(...) of it tell."
    framework = framework_of(obj)
    assert framework is not None
    held = advice(
        plan,
        lambda: fineflow.api.plan(framework, obj, Options(), plan.way),
        lambda other: observed(other, other.e_graph, calls, ahead=True),
    )
    yield from (f"In the way: {sentence}" for sentence in held)


def _price(plan: Plan, calls: Sequence[Run]) -> Iterator[str]:
    """Yields what a failure would cost: requests that have been sent although stock would not have sent them."""
    early = set(starts_early(plan.e_graph, plan.p_graph))
    ahead = [p for p in running(plan.e_graph) if p.name in early and p.op in _ASKING]
    ahead = [p for p in ahead if p.effects.kind is not Effect.WRITE]
    inside = max((run.early for call in calls for run in call.everything()), default=0)
    number = len(ahead) + inside
    if number:
        requests = "1 request" if number == 1 else f"up to {number} requests"
        yield f"The price: if a step fails, {requests} may have been sent that stock would not have sent."


_STYLE = (
    "*{box-sizing:border-box}:root{color-scheme:light dark;--ink:#1e293b;--dim:#64748b;--paper:#fff;--bar:#e2e8f0;"
    "--now:#94a3b8;--fast:#4338ca}@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--dim:#94a3b8;--paper:#0f172a;"
    "--bar:#1e293b;--now:#64748b;--fast:#818cf8}}body{font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,"
    "sans-serif;margin:0 auto;max-width:860px;padding:22px 20px;color:var(--ink);background:var(--paper)}"
    "h1{font-size:21px;margin:0 0 6px}h2{font-size:16px;margin:24px 0 8px;overflow-wrap:anywhere}"
    ".bars{display:grid;grid-template-columns:auto 1fr;gap:4px 10px;font-size:13px;color:var(--dim)}"
    ".bar{background:var(--bar);border-radius:4px;height:18px;align-self:center}.bar i{display:block;height:100%;"
    "border-radius:4px;min-width:2px}.now{background:var(--now)}.fast{background:var(--fast)}"
    "code{font-size:13px}ul{padding-left:20px}li{overflow-wrap:anywhere;margin:3px 0}"
)


def _section(app: AppReport, longest: float) -> str:
    bars = "".join(
        f'<span>{label} {duration(seconds)}</span><div class="bar"><i class="{kind}" '
        f'style="width:{100 * seconds / longest:.1f}%"></i></div>'
        for label, seconds, kind in (("now", app.now_s, "now"), ("optimized", app.optimized_s, "fast"))
    )
    items = "".join(f"<li>{_CODE.sub(_IN_CODE, escape(text))}</li>" for text in app.what)
    return f'<section><h2>{escape(app.headline)}</h2><div class="bars">{bars}</div><ul>{items}</ul></section>'
