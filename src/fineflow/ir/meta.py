"""Keys of ``Primitive.meta``, by which adapters, passes and kernels exchange facts about a primitive.

No key changes what a primitive computes for its user. A pass that derives a primitive from another one copies them.
"""

from __future__ import annotations

from collections.abc import Mapping

CORES = "cores"
"""Value of ``device``: the processor of this machine, whose cores all that has it share."""

INSIDE = "calls"
"""Source of notes on the component calls inside of a step."""

LATE_TOOLS = "tools"
"""Source of notes on what keeps calls of a tool from starting while the model writes."""

META: Mapping[str, str] = {
    # origin
    "where": "location of the user's function, as file.py:12",
    "called": "name of the user's function, for display",
    "handed": "a value that stock hands to a component and feeds to the graph; not a user function",
    "own": "a component of the user's own class, which takes time; not a user function",
    "received": "names of the values that an opaque step was given and could change",
    "unless_constant": "opaque steps that it waits for only if what it reads of the input is mutable",
    # execution
    "kernel": "runs it in place of the framework's kernel for its operation",
    "late": "stock creates its component during the call",
    "inside": "names of the components that the user function calls; their calls run ahead",
    # stock's side
    "claimed": "stock claims the result of a function, tool or embedding call that ran ahead",
    "invoked": "stock calls invoke here even in calls that stream",
    "batched": "stock runs the items of the MAP, or what an AGGREGATE combines, concurrently, also in sync calls",
    "counted": "name of a user's function in statistics",
    "several": "makes several requests, which stock's sync methods make one by one",
    "device": "'cores' if its engine or store works on this machine's processor, beside whatever else has it",
    "foreign": "runs outside fineflow's engines, so nothing else measures its duration",
    "by_method": "a search by the retriever's own method rather than by its store",
    "assumed": "assume_pure was set at lowering",
    # functions
    "verdict": "purity verdict on a user function, re-checked before each call",
    "itemwise": "lists from which a pure function makes its own item by item (``analysis.itemwise``)",
    "growing": "lists with which the value of a pure function grows at its end (``analysis.growing``)",
    "keys": "keys of its argument that a declared function reads; None for any",
    "reads": "keys of the whole value in its argument 'value' that a pure function or a template reads",
    "routes": "the runnables that a routing function may return",
    # models and prompts
    "options": "keyword arguments bound to the model; of a prompt, its formatting options",
    "block": "tokens per block of the engine's prefix cache; absent if it has none",
    "spare": "its beginnings are prefilled only while its engine does not write what they wait for",
    "remote": "the cache is on a server, to which prompts are sent ahead; answers do not wait for that",
    "urgent": "its requests carry its depth to the server as a priority",
    "whole_prompts": "why no prefixes are sent ahead to a server that could keep them",
    "segments": "text and variables of a template in order, as (kind, text or name)",
    "pieces": "False for a model that returns its text in one piece",
    "only_streamed": "why a decode can be consumed in pieces only in calls in which stock streams it; empty if always",
    "streamed_answer": "a provider's model, of whose answers the sum of a stream is taken, as the user has said",
    # partial prefills
    "template": "the template whose beginning is prefilled",
    "far": "the segments of the template that it consists of",
    "end": "the late variable before which it ends; empty for the whole prompt",
    "until": "the primitive whose completion makes the prefill too late",
    "arm": "label of the arm of a CONDITION that needs it, of which another one may be taken",
    "condition": "that CONDITION",
    "whole": "the whole prompt is known, so the marker of the late variable need not appear in it",
    "grows": "the functions, in order, that make the value that it is prefilled with of a map's members so far",
    # parsers and items
    "through": "a parser or generator that passes on text in pieces",
    "packaged": "a package's function, which its message need not be plain data for",
    "reads_only": "stock runs it, but it changes nothing",
    "splitters": "factories of incremental splitters of items or fields, by kind of item",
    "model": "the pydantic model whose fields are released",
    "cumulative": "a parser that, in calls that stream, yields ever larger values, and has no items",
    "added": "stock sums the chunks of this step in calls that stream, so nothing runs ahead behind it",
    # retrieval
    "by_sync": "stock queries the store by its sync method",
    "asked": "a step by stock, and what is known of its input, by which the texts that it searches for are found",
    "losses": "runs in which that told nothing; more and more go without it",
    "max_batch": "maximum number of texts per engine batch; 0 for no limit",
    "by_id": "a union that drops documents which share an id",
    # sizes
    "staged": "its stages do most of its work",
    "overlap": "weight by which steps of a fused MAP overlap",
}
