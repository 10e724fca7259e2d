"""What adapters, passes and kernels tell each other about a primitive: the keys of ``Primitive.meta``.

No key changes what a primitive computes for its user; a pass that makes a primitive out of another one hands them on.
"""

from __future__ import annotations

from collections.abc import Mapping

META: Mapping[str, str] = {
    # where it comes from
    "where": "place of the user's function, as file.py:12",
    "called": "name of the user's function, for people",
    "handed": "what stock hands to a component, of which the graph is told; no function of anybody's",
    "received": "names of the values that an opaque step was given and could change",
    # how it runs
    "kernel": "runs it in place of the framework's kernel for its operation",
    "late": "its component is made by stock during the call",
    # how stock meets it
    "claimed": "stock claims the result of a function, tool or embedding call that was run ahead",
    "invoked": "stock calls invoke here even in calls that stream",
    "batched": "stock runs the items of the MAP side by side, also in sync calls",
    "counted": "the name of a user's function in figures",
    "several": "makes several requests, which stock's sync methods make one by one",
    "foreign": "runs outside fineflow's engines, so that nothing else measures how long it takes",
    "assumed": "assume_pure was set when it was lowered",
    # functions
    "verdict": "of the analysis of a pure function, to be asked again before it is called",
    "keys": "keys of its argument that a declared function reads; None for any",
    "reads": "keys of the whole value in its argument 'value' that a pure function or a template reads",
    "routes": "the runnables that a routing function may return",
    # models and prompts
    "options": "keyword arguments bound to the model; of a prompt, those that say how it is written",
    "block": "tokens of a block of the engine's prefix cache; absent where it keeps no prefix",
    "cache": "equal for models that share a prefix cache",
    "remote": "that cache is a server's, to which prompts are sent ahead; answers do not wait for that",
    "urgent": "its requests tell their server how deep it lies",
    "whole_prompts": "why a server that could keep prefixes is sent none",
    "segments": "text and variables of a template in order, as (kind, text or name)",
    "pieces": "False for a model that writes its text in one piece",
    "only_streamed": "why a decode can be consumed in pieces only in calls in which stock streams it; empty if always",
    # partial prefills
    "templates": "those of which the beginning is prefilled",
    "elements": "text and values that it consists of",
    "end": "the late variable before which it ends; empty for the whole prompt",
    "until": "the primitive that has its value when the prefill would come too late",
    "whole": "the whole prompt is known, and marks in it need not show",
    "leads": "a decode for the first token of which early requests wait",
    # parsers and items
    "through": "a parser that passes on text in pieces",
    "splitters": "what takes items or fields out of a text while it comes, by what an item is called",
    "model": "the pydantic model whose fields are released",
    "cumulative": "a parser that, in calls that stream, gives one larger value after the other, and has no items",
    "added": "in calls that stream, stock adds up what it streams, so nothing runs ahead behind it",
    # retrieval
    "by_sync": "stock asks the store by its sync method",
    "max_batch": "texts that the engine takes at once; 0 for no limit",
    "by_id": "a union that drops documents which share an id",
    "same_if": "equal for two searches of one store that find the same for the same query",
    "same": "the search that is made once for several equal ones",
    # sizes
    "staged": "its stages do most of its work",
    "overlap": "weight by which steps of a fused MAP overlap",
}
