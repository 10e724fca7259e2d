"""Fields of requests' bodies and headers that tell a router of model servers which call they are for, as it documents.

Read in the documentation and the source of vllm-router 0.1.17 (``docs/program_scheduling``, ``docs/load_balancing``,
``request_identity.rs``, ``policies/hash_key.rs``), vLLM 0.32.0 (``entrypoints/openai/chat_completion/protocol.py``,
``entrypoints/generate/base``), llm-d 0.8 ("EPP HTTP Headers Reference", session-id-producer of llm-d-router), the
Gateway API Inference Extension (the same reference under its earlier names), NVIDIA Dynamo 1.6.2 ("Agent Hints",
"Session IDs") and 1.5.0 ("NVIDIA Request Extensions"), SGLang (``entrypoints/openai/protocol.py``), sglang-router
0.3.2 (policies ``manual`` and ``consistent_hashing``), and Ray Serve (``RAY_SERVE_SESSION_ID_HEADER_KEY``,
ray-project/ray#63362). docs/openai-servers.md has the table. What none of them documents is not sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, NamedTuple

from fineflow.ir.objectives import LATENCY
from fineflow.protocols import RequestIdentity

_LONGEST = 128  # characters of an id: vLLM's router takes 256 bytes of each, vLLM 128 characters of a salt
_RETENTION = 2.0  # times the usual gap: a cache that is given up just before it is needed was kept for nothing
_RETENTION_AT_MOST = 10.0  # seconds; vLLM's router keeps caches no longer by itself (``max_acting_ttl_seconds``)


class RouterFields(NamedTuple):
    """Additional fields of a request's body, and headers."""

    body: dict[str, Any]
    headers: dict[str, str]


MakeFields = Callable[[RequestIdentity, str], RouterFields]
"""Makes the fields for a kind of router from the identity of a request and its salt ("" for none)."""


def router_fields(router: str, known: RequestIdentity, salt: str = "") -> RouterFields:
    """Returns the fields of a request for a kind of router (one of ``ROUTERS``). Unknown values are left out.

    salt: of the prefix cache, for those of ``SALTED``.
    """
    body, headers = ROUTERS[router](known, _hidden(salt) if salt else "")
    return RouterFields(body, {name: _plain(value) for name, value in headers.items() if value})


def merged(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of a body with more of them. What the user has given counts before it, at each level."""
    both = {**more, **given}
    for name in given.keys() & more.keys():
        if isinstance(given[name], Mapping) and isinstance(more[name], Mapping):
            both[name] = merged(given[name], more[name])
    return both


def _vllm(known: RequestIdentity, salt: str) -> RouterFields:
    body: dict[str, Any] = {}
    if known.program:
        # As text: vLLM's own API takes no objects in ``vllm_xargs``, and its router passes them on.
        body["vllm_xargs"] = {"agentic_context": json.dumps(_program(known))}
    if salt:
        body["cache_salt"] = salt
    return RouterFields(body, {"X-Session-ID": known.program})


def _program(known: RequestIdentity) -> dict[str, Any]:
    """Returns the metadata of a program of vLLM's router."""
    context: dict[str, Any] = {"program_id": _plain(known.program), "expected_resume": not known.last}
    if known.parent:
        context |= {"parent_program_id": _plain(known.parent), "blocks_parent": True, "agent_role": "subagent"}
    if known.urgency:
        context["priority"] = known.urgency
    if known.deadline is not None:
        context["deadline_seconds"] = round(known.deadline, 3)
    if known.output:
        context["expected_output_length"] = known.output
    if known.gap is not None and (kept := _RETENTION * known.gap) <= _RETENTION_AT_MOST:
        context["kv_retention_ttl_seconds"] = ceil(1000 * kept) / 1000
    return context


def _gateway(prefix: str, session: str = "") -> MakeFields:
    """Returns what makes the fields for an endpoint picker. session: its header for sessions, if it has one."""

    def told(known: RequestIdentity, salt: str) -> RouterFields:
        headers = {
            f"{prefix}-inference-fairness-id": known.tenant,
            f"{prefix}-inference-objective": known.objective if known.objective != LATENCY else "",
        }
        return RouterFields({}, headers | ({session: known.program} if session else {}))

    return told


def _dynamo(known: RequestIdentity, salt: str) -> RouterFields:
    hints = {"priority": known.urgency, "osl": known.output}
    nvext: dict[str, Any] = {"agent_hints": {name: value for name, value in hints.items() if value}}
    if salt:
        nvext["cache_salt"] = salt
    nvext = {name: value for name, value in nvext.items() if value}
    headers = {"X-Dynamo-Session-ID": known.program, "X-Dynamo-Parent-Session-ID": known.parent}
    return RouterFields({"nvext": nvext} if nvext else {}, headers)


def _sglang(known: RequestIdentity, salt: str) -> RouterFields:
    body: dict[str, Any] = {"priority": known.urgency} if known.urgency else {}
    if salt:
        body["cache_salt"] = salt
    return RouterFields(body, {"X-SMG-Routing-Key": known.program})


def _ray(known: RequestIdentity, salt: str) -> RouterFields:
    return RouterFields({}, {"X-Session-ID": known.program})


ROUTERS: Mapping[str, MakeFields] = {
    "vllm": _vllm,
    "llm-d": _gateway("x-llm-d", session="X-Session-ID"),
    "gateway-api": _gateway("x-gateway"),
    "dynamo": _dynamo,
    "sglang": _sglang,
    "ray": _ray,
}
"""Makes the fields, by kind of router."""

SALTED = frozenset({"vllm", "dynamo", "sglang"})
"""Those that have a field for a salt of the prefix cache."""

OWN_PRIORITY = frozenset({"dynamo", "sglang"})
"""Those whose field for priorities is not vLLM's."""


def _plain(value: str) -> str:
    """Returns an id as headers can carry it: itself if it is short printable ASCII, else its SHA-256."""
    good = value.isascii() and value.isprintable() and len(value) <= _LONGEST and value == value.strip()
    return value if good else _hidden(value)


def _hidden(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
