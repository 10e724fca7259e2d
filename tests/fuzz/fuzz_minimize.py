"""Makes a failing program smaller: drops statements, and bodies out of what is around them, while it still fails."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

MOST = 250  # programs that are tried


def minimized(source: str, fails: Callable[[str], bool], most: int = MOST) -> str:
    """Returns a smaller program that fails in the same way. fails: tells for a source."""
    best, tried = ast.parse(source), 0
    chunk = 8
    while True:
        smaller = None
        for candidate in _candidates(best, chunk):
            tried += 1
            if tried > most:
                return _text(best)
            text = _text(candidate)
            if fails(text):
                smaller = ast.parse(text)
                break
        if smaller is not None:
            best = smaller
        elif chunk > 1:
            chunk //= 2
        else:
            return _text(best)


def _text(tree: ast.Module) -> str:
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _candidates(tree: ast.Module, chunk: int) -> Iterator[ast.Module]:
    """Yields trees without some statements in a row of one block, last ones first; with one, also simplified."""
    for number, (_, _, size) in reversed(list(enumerate(_blocks(tree)))):
        for start in range(size - chunk if chunk < size else 0, -1, -max(chunk // 2, 1)):
            made = copy.deepcopy(tree)
            owner, name, _ = list(_blocks(made))[number]
            block = getattr(owner, name)
            if any(_kept(each) for each in block[start : start + chunk]):
                continue
            del block[start : start + chunk]
            if not block and name == "body":
                if isinstance(owner, ast.Module) or chunk > 1:
                    continue
                block.append(ast.Pass())
                if size == 1 and ast.dump(made) == ast.dump(tree):
                    continue
            if isinstance(owner, ast.Try) and not owner.handlers and not owner.finalbody:
                continue
            yield made
    if chunk == 1:
        yield from _unwrapped(tree)


def _blocks(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield node, name, len(block)


def _unwrapped(tree: ast.Module) -> Iterator[ast.Module]:
    for number, (_, name, size) in enumerate(list(_blocks(tree))):
        for at in range(size):
            made = copy.deepcopy(tree)
            owner, name, _ = list(_blocks(made))[number]
            block = getattr(owner, name)
            inner = block[at]
            if isinstance(inner, (ast.If, ast.For, ast.While, ast.With, ast.AsyncWith, ast.Try)):
                block[at : at + 1] = inner.body
                yield made


_NEEDED = frozenset({"program", "change"})
_NAMES = frozenset({"w", "app"})


def _kept(node: ast.AST) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name in _NEEDED
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in _NAMES
