"""Pydantic models and enums that are data: reading, comparing, printing and copying one runs no code of the user's.

A validator runs when an instance is made, so it makes no difference. A property, a serializer or an ``__eq__`` does.
"""

from __future__ import annotations

from enum import EnumMeta
from functools import lru_cache
from types import FunctionType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from fineflow.adapters.core.installers import if_imported

_MADE = frozenset({"__init__", "__new__", "__init_subclass__", "__pydantic_init_subclass__"})
"""Special methods that run only when a class or an instance is made."""
_PYTHONS = ("enum", "builtins")
_IN_C = (GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType)


def is_data_model(kind: Any) -> bool:
    """Returns True for a class of pydantic models."""
    return type(kind) is if_imported("pydantic._internal._model_construction", "ModelMetaclass")


def plain_model(kind: Any) -> bool:
    """Returns True for a class of pydantic models whose making calls no user code (see ``pydantic_fields``)."""
    if not is_data_model(kind):
        return False
    from fineflow.adapters.analysis import pydantic_fields  # imports pydantic

    return pydantic_fields.plain_model(kind)


def reads_as_data(kind: Any, trusted: frozenset[str]) -> bool:
    """Returns True for a class of pydantic models that are data.

    trusted: names of methods that mean what they mean on builtin data; no method of the model may have one of them.
    """
    return _reads_as_data(kind, trusted)


@lru_cache(maxsize=512)
def _reads_as_data(kind: Any, trusted: frozenset[str]) -> bool:
    if not is_data_model(kind):
        return False
    base: Any = if_imported("pydantic.main", "BaseModel")
    if base not in kind.__mro__:
        return False
    decorators = kind.__pydantic_decorators__
    if decorators.computed_fields or decorators.field_serializers or decorators.model_serializers:
        return False
    metadata = [part for field in kind.__pydantic_fields__.values() for part in field.metadata]
    if any(type(part).__module__ == "pydantic.functional_serializers" for part in metadata):
        return False
    kinds = kind.__mro__[: kind.__mro__.index(base)]
    return all(_harmless(name, value, trusted) for each in kinds for name, value in vars(each).items())


def plain_enum(kind: Any) -> bool:
    """Returns True for a class of enum members without methods and properties of the user's."""
    return type(kind) is EnumMeta and _plain_enum(kind)


@lru_cache(maxsize=512)
def _plain_enum(kind: Any) -> bool:
    own = [base for base in kind.__mro__ if base.__module__ not in _PYTHONS]
    values = [value for base in own for name, value in vars(base).items() if name not in kind.__members__]
    written = [value for value in values if hasattr(type(value), "__get__") and type(value) not in _IN_C]
    return all(getattr(value, "__module__", "") in _PYTHONS for value in written)


def _harmless(name: str, value: Any, trusted: frozenset[str]) -> bool:
    if name.startswith("__") and name.endswith("__"):
        ours = isinstance(value, FunctionType) and not value.__module__.startswith("pydantic.")
        return name in _MADE or not (ours or isinstance(value, property))
    return not hasattr(type(value), "__get__") or (
        isinstance(value, FunctionType | classmethod | staticmethod) and name not in trusted
    )
