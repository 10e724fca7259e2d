"""Tables of ``docs/benchmarks.md``, each from files of results that ``python -m benchmarks suite`` has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.apps import EXAMPLES, NAMES
from benchmarks.harness import suites
from benchmarks.harness.experiment import ALONE
from fineflow.passes import PASSES

NONE = "-"
Results = Sequence[Mapping[str, Any]]
SIDES = {"example": ("stock-sync", "fineflow-sync"), "app": ("stock", "fineflow")}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of Markdown; the first row is its heading."""
    head, *rest = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def by_key(results: Results) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Returns the results by application, load and scheme."""
    return {(each["app"], each["load"], each["scheme"]): each for each in results}


def alone(results: Results) -> str:
    """One call at a time: seconds of each scheme, gain and share of the limit."""
    schemes, found = ("stock-sync", "stock", "tuned", "fineflow"), by_key(results)
    rows = [("application", *schemes, "limit", "stock ÷ fineflow", "most", "limit ÷ fineflow")]
    for name in NAMES:
        if (ours := found.get((name, ALONE, "fineflow"))) is None:
            continue
        seconds = [found.get((name, ALONE, scheme)) for scheme in schemes]
        shown = [f"{each['mean']:.2f}" if each else NONE for each in seconds]
        rows.append((f"`{name}`", *shown, *_shares(found[name, ALONE, "stock"], ours)))
    return markdown(rows)


def examples(results: Results) -> str:
    """The examples by their sync methods, most gain first."""
    found = by_key(results)
    pairs = [
        (name, found[name, ALONE, "stock-sync"], found[name, ALONE, "fineflow-sync"])
        for name in EXAMPLES
        if (name, ALONE, "fineflow-sync") in found
    ]
    pairs.sort(key=lambda each: -each[1]["mean"] / each[2]["mean"])
    rows = [("application", "stock-sync", "fineflow-sync", "limit", "stock ÷ fineflow", "most", "limit ÷ fineflow")]
    for name, stock, ours in pairs:
        rows.append((f"`{name}`", f"{stock['mean']:.2f}", f"{ours['mean']:.2f}", *_shares(stock, ours)))
    return markdown(rows)


def _shares(stock: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the limit, what was gained, what can be gained at most, and the share of the limit."""
    gained, most = stock["mean"] / ours["mean"], stock["mean"] / stock["bound"]
    return f"{stock['bound']:.2f}", f"{gained:.2f}", f"{most:.2f}", f"{100 * ours['achieved']:.1f} %"


def loads(results: Results) -> str:
    """Mean seconds at shares of the load, beside the bound."""
    schemes, found = ("stock", "tuned", "fineflow"), by_key(results)
    gains = ("stock ÷ fineflow", "tuned ÷ fineflow", "bound ÷ fineflow")
    rows: list[tuple[str, ...]] = [("application", "load", "requests/s", *schemes, "bound", *gains)]
    for (name, load, scheme), ours in found.items():
        if load == ALONE or scheme != "fineflow" or (name, load, "tuned") not in found:
            continue
        means = [found[name, load, each]["mean"] for each in schemes]
        ratios = [f"{each / ours['mean']:.3f}" for each in means[:2]]
        place = (f"`{name}`", load.replace("%", " %"), f"{ours['rate']:.2f}")
        shares = (f"{ours['bound']:.2f}", *ratios, f"{100 * ours['achieved']:.0f} %")
        rows.append((*place, *(f"{each:.2f}" for each in means), *shares))
    return markdown(rows)


def aims(results: Results) -> str:
    """How many applications are as near to the limit, and as far from stock, as aimed at; and what there is to gain."""
    found = by_key(results)
    ours = {(app, load): each for (app, load, scheme), each in found.items() if scheme == "fineflow"}

    def over(scheme: str, of: str) -> list[float]:
        """Returns the seconds of a scheme divided by a figure of fineflow, wherever both ran."""
        return [found[*at, scheme]["mean"] / each[of] for at, each in ours.items() if (*at, scheme) in found]

    alone = [each["achieved"] for (_, load), each in ours.items() if load == ALONE]
    loaded = [each["achieved"] for (_, load), each in ours.items() if load != ALONE]
    return markdown(
        [
            ("", "aim", "reached by", "least", "mean", "most"),
            _aim("limit ÷ fineflow, one call", 0.95, alone),
            _aim("bound ÷ fineflow, under load", 0.85, loaded),
            _aim("stock ÷ fineflow: no loss", 0.98, over("stock", "mean")),
            _aim("stock ÷ fineflow: a gain", 2.0, over("stock", "mean")),
            _aim("stock ÷ bound: what there is to gain", 2.0, over("stock", "bound")),
            _aim("tuned ÷ fineflow: no loss", 0.98, over("tuned", "mean")),
            _aim("tuned ÷ fineflow: a gain", 1.3, over("tuned", "mean")),
            _aim("tuned ÷ bound: what there is to gain", 1.3, over("tuned", "bound")),
        ]
    )


def _aim(name: str, least: float, values: Sequence[float]) -> tuple[str, ...]:
    if not values:
        return name, f"{least:.2f}", NONE, NONE, NONE, NONE
    reached = f"{sum(value >= least for value in values)} of {len(values)}"
    return name, f"≥ {least:.2f}", reached, *(f"{of(values):.3f}" for of in (min, mean, max))


def rest(results: Results) -> str:
    """What more than the limit fineflow's critical paths are spent on, by engine, where that is over 1 % of a call."""
    rows = [("application", "fineflow - limit", "of it")]
    for each in results:
        sides = SIDES["example" if each["app"] in EXAMPLES else "app"]
        more = each["mean"] - each.get("bound", each["mean"])
        if each["load"] == ALONE and each["scheme"] == sides[1] and more > 0.01 * each["mean"] and "rest" in each:
            parts = ", ".join(f"{name or 'other'} {seconds:+.2f}" for name, seconds in each["rest"].items())
            rows.append((f"`{each['app']}`", f"{more:.2f}", parts))
    return markdown(rows)


def passes(results: Results) -> str:
    """For each pass the application that takes longest without it, relative to all passes."""
    found = by_key(results)
    rows = [("pass", "most in", "time without it ÷ with all", "applications that take > 0.5 % longer")]
    for name in (each.__name__ for each in PASSES):
        ratios = {
            app: took["mean"] / found[app, load, scheme.removesuffix(f"-without-{name}")]["mean"]
            for (app, load, scheme), took in found.items()
            if scheme.endswith(f"-without-{name}")
        }
        if ratios:
            most, longer = max(ratios, key=ratios.__getitem__), sum(each > 1.005 for each in ratios.values())
            shown = f"`{most}`" if longer else NONE
            rows.append((f"`{name}`", shown, f"{ratios[most]:.2f}", f"{longer} of {len(ratios)}"))
    return markdown(rows)


def policies(results: Results) -> str:
    """Mean latency under each policy, relative to the default."""
    found = by_key(results)
    places = [(a, load) for a, load, scheme in found if scheme in suites.UNDER]
    places = list(dict.fromkeys(places))
    rows: list[tuple[str, ...]] = [("policy", *(f"`{a}`, {load.replace('%', ' %')}" for a, load in places))]
    for scheme in suites.UNDER:
        values = [f"{found[a, load, scheme]['mean'] / found[a, load, 'fineflow']['mean']:.2f}" for a, load in places]
        rows.append((f"`{scheme.removeprefix('fineflow-')}`", *values))
    return markdown(rows)


def real(told: Mapping[str, Any]) -> str:
    """Applications on real engines: seconds and ratios, and contention of cores."""
    rows = [
        (f"`{row[0]}`" if place else row[0], *row[1:]) for place, row in enumerate(suites.real_rows(told["results"]))
    ]
    contention = suites.contention_rows(told["contention"])
    return f"{about(told)}\n\n{markdown(rows)}\n\n{markdown(contention)}"


def about(told: Mapping[str, Any]) -> str:
    """What a file was measured with."""
    told_already = ("langchain-core",)  # with the hardware
    versions = ", ".join(f"{name} {each}" for name, each in told["versions"].items() if name not in told_already)
    return f"{told['hardware']}; {versions}. `{told['command']}`, {told['seconds_taken'] / 60:.0f} min."


EMULATED: Mapping[str, Callable[[Results], str]] = {
    "alone": alone,
    "aims": aims,
    "rest": rest,
    "examples": examples,
    "loads": loads,
    "passes": passes,
    "policies": policies,
}
