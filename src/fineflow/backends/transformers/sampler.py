"""Sampling settings per request: transformers has one setting per manager."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import torch
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState

from fineflow.backends.transformers.request import Request, request_of
from fineflow.backends.transformers.steering import alternatives


class Sampler:
    """Sampling settings per request, in place of the list of logits processors; the argmax then takes its choice.

    Scores of greedy requests stay unchanged, so they are greedy to the last bit. For the others the token is drawn by
    the Gumbel trick from noise that depends only on (seed, position, token id): equal seeds give equal output, whatever
    else is in the batch. Order of the settings as in ``generate``: temperature, top-k, top-p, min-p.

    ``eager``: the forward pass is neither captured in a graph nor compiled, so batches without sampling may skip the
    work, and requests may be steered (``Steering``) and have logprobs.
    """

    tensors_required = 5  # rows of int32 per request: temperature, top_p, min_p (bits of float32), top_k, noise seed
    do_processing = True

    def __init__(self) -> None:
        self.eager = True
        self._needed = False
        self._followed: list[tuple[int, RequestState, Request]] = []  # requests of the batch with steering or logprobs

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Does nothing: requests are checked before they are submitted."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()  # temperature 0: greedy

    def prepare_tensor_args(
        self, requests_in_batch: list[FutureRequestState], arg_storage: torch.Tensor
    ) -> torch.Tensor:
        states = [future.state for future in requests_in_batch if future.has_new_token]
        rows = [self._row(state) for state in states]
        self._needed = any(row[0] > 0 for row in rows)
        asked = ((i, state, request_of(state)) for i, state in enumerate(states))
        self._followed = [(i, state, request) for i, state, request in asked if request and _followed(request)]
        if rows:
            temperature, top_p, min_p, top_k, seed = zip(*rows, strict=True)
            floats = torch.tensor([temperature, top_p, min_p], dtype=torch.float32).view(torch.int32)
            ints = torch.tensor([top_k, seed], dtype=torch.int32)
            arg_storage[:, : len(rows)] = torch.cat([floats, ints]).to(arg_storage.device)
        return arg_storage

    @staticmethod
    def _row(state: RequestState) -> tuple[float, float, float, int, int]:
        request = request_of(state)
        if request is None or request.sampling.temperature <= 0:
            return 0.0, 1.0, 0.0, 0, 0
        # The position of the next token; also correct for requests that were interrupted and restarted.
        key = struct.pack("<Qq", request.seed % 2**64, state.position_offset)
        noise = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little", signed=True)
        asked = request.sampling
        return asked.temperature, asked.top_p, asked.min_p, asked.top_k, noise

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """scores: [tokens, vocabulary] float32; args: [5, at least tokens] int32. Returns scores of the same shape."""
        steered = self._steered(scores) if self.eager and self._followed else scores
        drawn = self._drawn(steered, args) if self._needed or not self.eager else steered
        if self.eager:
            for i, state, request in self._followed:
                if request.sampling.logprobs is not None:
                    del request.logprobs[len(_output(state, request)) :]  # a restarted request decodes tokens again
                    chosen = int(drawn[i].argmax())
                    request.logprobs.append(alternatives(scores[i], chosen, request.sampling.logprobs))
        return drawn

    def _steered(self, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores with those of steered requests replaced."""
        rows = [
            (i, request.steering.scores(scores[i], _output(state, request)))
            for i, state, request in self._followed
            if request.steering is not None
        ]
        if not rows:
            return scores
        scores = scores.clone()
        for i, row in rows:
            scores[i] = row
        return scores

    def _drawn(self, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """Returns scores whose maximum is the drawn token."""
        count = scores.size(0)
        temperature, top_p, min_p = (args[row, :count].view(torch.float32).unsqueeze(-1) for row in range(3))
        top_k, seed = args[3, :count].unsqueeze(-1), args[4, :count].unsqueeze(-1)
        sampled = temperature > 0
        ordered, ids = torch.sort(scores / torch.where(sampled, temperature, 1.0), dim=-1, descending=True)
        rank = torch.arange(scores.size(-1), device=scores.device)
        ordered = ordered.masked_fill((top_k > 0) & (rank >= top_k), -torch.inf)
        share = ordered.softmax(dim=-1)
        outside = share.cumsum(dim=-1) - share >= top_p  # the mass before a token is enough without it
        unlikely = share < min_p * share[:, :1]
        ordered = ordered.masked_fill((outside | unlikely) & (rank > 0), -torch.inf)
        chosen = ids.gather(-1, (ordered + _gumbel(seed, ids)).argmax(dim=-1, keepdim=True))
        picked = torch.full_like(scores, -torch.inf).scatter(-1, chosen, 0.0)
        return torch.where(sampled, picked, scores)


def _followed(request: Request) -> bool:
    return request.steering is not None or request.sampling.logprobs is not None


def _output(state: RequestState, request: Request) -> list[int]:
    """Returns the tokens decoded so far, also of a request that was interrupted and restarted."""
    decoded: list[int] = [*state.initial_tokens, *state.generated_tokens][len(request.tokens) :]
    return decoded


def _gumbel(seed: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Returns Gumbel noise per (seed, token id), float32 [n, vocabulary]. seed: [n, 1] int32, ids: int64."""
    word = 0xFFFFFFFF
    mixed = (seed.to(torch.int64) & word) ^ ((ids * 0x9E3779B1) & word)
    for factor in (0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F):  # the finalizer of MurmurHash3, one round more
        mixed = ((mixed ^ (mixed >> 16)) * factor) & word
    mixed = mixed ^ (mixed >> 15)
    uniform = ((mixed >> 9).to(torch.float32) + 0.5) * 2.0**-23  # 23 bits and a half: never 0, never 1
    return -torch.log(-torch.log(uniform))
