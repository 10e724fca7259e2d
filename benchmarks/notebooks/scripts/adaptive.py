# %% [markdown]
# # A configuration for each question
#
# `fineflow.adaptive` (RAGServe, Ray et al., 2024) profiles each question, prunes the space of configurations by the
# profile, and chooses the highest one that fits into the engine's memory now. Here the demo's small model (4.6 million
# parameters) answers questions about its synthetic corpus.

# %%
import json
from pathlib import Path

from benchmarks.adaptive_quality.app import SUMMARY, load
from benchmarks.adaptive_quality.datasets import bundled
from benchmarks.adaptive_quality.scores import token_f1
from benchmarks.adaptive_quality.systems import MOST_CHUNKS
from benchmarks.notebooks.notebook import Svg
from tools.pictures.quality import quality_chart
from tools.pictures.svg import LIGHT

import fineflow
from fineflow.adaptation import Configuration, Profiler

data = bundled(each=3)
for question in data.questions[:4]:
    print(f"{question.kind:13} {question.text}  →  {question.answers[0]}")

# %% [markdown]
# ## One question at a time
#
# The profiler is the same small model, asked field by field, with a prompt that it was trained on.

# %%
bench = load(data)
profiler = Profiler(bench.profiler, data.about, prompt="{question}")
rag = fineflow.adaptive(
    bench.chain, profiler=profiler, summary_prompt=SUMMARY, most_chunks=MOST_CHUNKS, scheduling=False, feedback=False
)
for question in data.questions[:4]:
    answer = rag.invoke(question.text)
    decision = rag.last
    print(question.text)
    print(f"  profile  {decision.profile} (confidence {decision.confidence:.2f})")
    print(f"  space    {decision.space}")
    print(f"  choice   {decision.configuration}")
    print(f"  answer   {answer}  (F1 {token_f1(answer, question.answers):.2f})")

# %% [markdown]
# The same list question in fixed configurations: too few chunks miss values, too many distract this model.

# %%
question = data.questions[5]
print(question.text, "→", question.answers[0])
for number in (1, 2, 3, 4, 6, 8, 12):
    answer = rag.configured(Configuration(number, "stuff")).invoke(question.text)
    print(f"  {number:2} chunks  F1 {token_f1(answer, question.answers):.2f}  {answer}")
bench.close()

# %% [markdown]
# ## F1 over delay
#
# What `python -m benchmarks.adaptive_quality --emulated` has measured, and written to
# `benchmarks/notebooks/adaptive_quality.json`: answers of the real model, delays of an emulated Llama-2-7B with chunks
# of 500 tokens, in virtual time.

# %%
figures = json.loads(Path("benchmarks/notebooks/adaptive_quality.json").read_text())
print(figures["hardware"])
Svg(quality_chart(figures, LIGHT))

# %%
for name, verdict in figures["verdicts"].items():
    print(f"{name}: {verdict['ratio']:.2f} times as fast as {verdict['against']}")
    print(f"  fixed configurations of equal or better F1: {', '.join(verdict['equal_or_better']) or 'none'}")
    print(f"  F1 against {verdict['similar']}, the best of similar delay: {verdict['f1_ahead']}")

# %% [markdown]
# ## What each kind of question needs

# %%
for name, one in figures["systems"].items():
    kinds = "  ".join(f"{kind} {f1:.2f}" for kind, f1 in one["f1_by_kind"].items())
    print(f"{name:45} {kinds}")

# %% [markdown]
# ## The profiler's share of the delay

# %%
for name, one in figures["systems"].items():
    if one["profiler"]:
        shares = one["profiler"]
        print(f"{name}: {shares['share']:.1%} of the delay; {shares['critical_share']:.1%} beyond the search")
        for configuration, number in sorted(one["chosen"].items(), key=lambda each: -each[1]):
            print(f"  {number:3} {configuration}")
