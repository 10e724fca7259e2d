"""The constructs of toyflow: what each means for the graph, and the copy that stock runs."""

from __future__ import annotations

import copy
from typing import Any

import toyflow

from fineflow.adapters.core.builder import TEXT, Builder, Leaf, Record, Symbol
from fineflow.adapters.core.recognition import Row
from fineflow.adapters.core.shadows import Site
from fineflow.ir import Effect, Effects, Op

_RUN = ("run", "arun", "call", "acall")


def _lower_template(template: toyflow.Template, value: Symbol, b: Builder) -> Leaf:
    return b.add(Op.RENDER, {"value": b.whole(value).ref}, component=template, kind=TEXT)


def _lower_model(model: toyflow.Model, value: Symbol, b: Builder) -> Leaf:
    effects = Effects(Effect.EXTERNAL, "", "calls out")
    return b.add(Op.DECODE, {"prompt": b.whole(value).ref}, component=model, engine="model", effects=effects, kind=TEXT)


def _shadow_model(model: toyflow.Model, site: Site) -> Any:
    made = copy.copy(model)

    async def acall(value: Any) -> Any:
        return (await site.aclaim(value, lambda: model.acall(value)))[1]

    made.__dict__["call"] = lambda value: site.claim(value, lambda: model.call(value))[1]
    made.__dict__["acall"] = acall
    return made


def _lower_chain(chain: toyflow.Chain, value: Symbol, b: Builder) -> Symbol:
    for i, step in enumerate(chain.steps):
        with b.inside(str(i)), b.step():
            value = b.lower(step, value)
    return value


def _shadow_chain(chain: toyflow.Chain, site: Site) -> Any:
    return toyflow.Chain(*(site.of(step, str(i)) for i, step in enumerate(chain.steps)))


def _lower_record(record: toyflow.Record, value: Symbol, b: Builder) -> Record:
    fields: dict[str, Symbol] = {}
    for key, step in record.steps.items():
        with b.inside(key), b.step():
            fields[key] = b.lower(step, value)
    return Record(fields)


def _shadow_record(record: toyflow.Record, site: Site) -> Any:
    return toyflow.Record(**{key: site.of(step, key) for key, step in record.steps.items()})


ROWS = (
    Row(toyflow.Template, _RUN, _lower_template, label="template", reads=("text",)),
    Row(toyflow.Model, _RUN, _lower_model, _shadow_model, "model", reads=("answer", "aanswer")),
    Row(toyflow.Chain, _RUN, _lower_chain, _shadow_chain, reads=("steps",)),
    Row(toyflow.Record, _RUN, _lower_record, _shadow_record, reads=("steps",)),
)
