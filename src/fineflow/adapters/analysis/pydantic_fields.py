"""Pydantic models whose fields are plain data: a field's value is known from its JSON alone."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from pydantic import BaseModel

_SIMPLE = (str, int, float, bool)
_BOUNDS = frozenset({Ge, Gt, Le, Lt, MinLen, MaxLen, MultipleOf})  # refuse a value, but never change it
# Settings of a model that do not change what a valid value becomes.
_HARMLESS = frozenset(
    {"title", "extra", "frozen", "json_schema_extra", "strict", "use_attribute_docstrings", "arbitrary_types_allowed"}
    | {"protected_namespaces"}
)
_CHECKS = ("validators", "field_validators", "root_validators", "model_validators")
_OWN = (
    *("__new__", "__init__", "__getattribute__", "__getattr__", "__setattr__", "__init_subclass__"),
    *("model_validate", "model_construct", "__get_pydantic_core_schema__"),
)


def plain_model(model: Any) -> bool:
    """Returns True if making an instance calls no user code, and its fields are the given values.

    According to pydantic's own data on the class: no validators, aliases, default factories, custom types, or settings
    that change values.
    """
    return isinstance(model, type) and issubclass(model, BaseModel) and _plain_model(model)


@lru_cache(maxsize=256)
def _plain_model(model: type[BaseModel]) -> bool:
    if type(model) is not type(BaseModel):
        return False
    if any(getattr(model.__pydantic_decorators__, name) for name in _CHECKS):
        return False
    if model.__pydantic_custom_init__ or model.__pydantic_post_init__ or model.__pydantic_root_model__:
        return False
    if model.__private_attributes__ or not set(model.model_config) <= _HARMLESS:
        return False
    if any(name in vars(kind) for kind in model.__mro__[: model.__mro__.index(BaseModel)] for name in _OWN):
        return False
    return all(_plain_field(field) for field in model.model_fields.values())


def _plain_field(field: Any) -> bool:
    named = field.alias or field.validation_alias or field.alias_priority
    checks_only = all(type(each) in _BOUNDS for each in field.metadata)
    return not named and field.default_factory is None and checks_only and _plain_type(field.annotation)


def _plain_type(kind: Any) -> bool:
    if kind in _SIMPLE or kind is type(None):
        return True
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return all(type(part) in _SIMPLE for part in parts)
    if origin in (list, dict, Union, types.UnionType):
        return all(map(_plain_type, parts))
    return plain_model(kind)


def stays(value: Any, kind: Any) -> bool:
    """Returns True if a field of this type holds a JSON value unchanged: it is neither converted nor refused."""
    if kind in _SIMPLE or kind is type(None):
        return type(value) is kind
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list:
        return type(value) is list and all(stays(part, parts[0]) for part in value)
    if origin in (Union, types.UnionType):
        return any(stays(value, part) for part in parts)
    return origin is Literal and any(type(value) is type(part) and value == part for part in parts)


def ready(model: Any, key: str, value: Any) -> bool:
    """Returns True if the field of a plain model will hold exactly this value, whatever the rest of the JSON says."""
    field = model.model_fields.get(key)
    return field is not None and not field.metadata and stays(value, field.annotation)
