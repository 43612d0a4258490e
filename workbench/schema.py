"""Builds frozen dataclasses from plain values, and says what is wrong in the words of the file they come from."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import yaml

T = TypeVar("T")
_Missing = dataclasses.MISSING


class Text(str):
    """A value from a command line: text where text is expected, else read as YAML."""


def build(kind: type[T], values: Any) -> tuple[T | None, list[str]]:
    """Builds a dataclass from nested dicts and lists.

    Args:
        kind: A dataclass whose fields are dataclasses, lists, literals, unions, scalars and restricted numbers of
            `jsonargparse.typing`.
        values: As read from YAML or JSON.

    Returns:
        The instance, or None and every problem: key, value, what is allowed.
    """
    problems: list[str] = []
    instance = _build(kind, values, "", problems)
    return (None, problems) if problems else (instance, [])


def override(values: dict[str, Any], arguments: Sequence[str]) -> list[str]:
    """Applies `--section.key value` and `--section.key=value` to nested values in place; returns the problems."""
    waiting, problems = list(arguments), []
    while waiting:
        option, separator, text = waiting.pop(0).partition("=")
        if not option.startswith("--") or len(option) < 3:
            problems.append(f"{option} is no override: write --section.key value")
            continue
        if not separator:
            if not waiting or waiting[0].startswith("--"):
                problems.append(f"{option} has no value: write {option} value")
                continue
            text = waiting.pop(0)
        _set(values, option[2:].split("."), Text(text), problems)
    return problems


def _set(values: Any, path: list[str], text: Text, problems: list[str]) -> None:
    place = values
    for depth, name in enumerate(path):
        if isinstance(place, list):
            if not name.isdigit() or int(name) >= len(place):
                problems.append(f"--{'.'.join(path)}: {'.'.join(path[:depth])} has no entry {name}")
                return
            name = int(name)  # type: ignore[assignment]
        elif not isinstance(place, dict):
            problems.append(f"--{'.'.join(path)}: {'.'.join(path[:depth])} is {place!r} and has no keys")
            return
        if depth == len(path) - 1:
            place[name] = text  # type: ignore[index]
            return
        if isinstance(place, dict) and place.get(name) is None:
            place[name] = {}
        place = place[name]  # type: ignore[index]


def _build(kind: Any, value: Any, key: str, problems: list[str]) -> Any:
    if isinstance(value, Text):
        value = _parsed(value, kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, key, problems)
    if typing.get_origin(kind) is list:
        if isinstance(value, list):
            (item_kind,) = typing.get_args(kind)
            return [_build(item_kind, item, f"{key}.{place}", problems) for place, item in enumerate(value)]
    elif typing.get_origin(kind) in (typing.Union, types.UnionType):
        for option in typing.get_args(kind):
            attempt: list[str] = []
            result = _build(option, value, key, attempt)
            if not attempt:
                return result
    elif typing.get_origin(kind) is Literal:
        if value is False and "off" in typing.get_args(kind):
            return "off"  # as YAML 1.1 reads it without quotes
        if any(value == option and type(value) is type(option) for option in typing.get_args(kind)):
            return value
    else:
        matches, result = _scalar(kind, value)
        if matches:
            return result
    problems.append(f"{key} is {_shown(value)}: expected {describe(kind)}")
    return None


def _build_dataclass(kind: Any, values: Any, key: str, problems: list[str]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    prefix = f"{key}." if key else ""
    if not isinstance(values, dict):
        problems.append(f"{key or 'the recipe'} is {_shown(values)}: expected keys {', '.join(fields)}")
        return None
    for name in values:
        if name not in fields:
            close = difflib.get_close_matches(str(name), list(fields), n=1)
            hint = f"did you mean {prefix}{close[0]}? " if close else ""
            problems.append(f"{prefix}{name} is no key: {hint}allowed are {', '.join(fields)}")
    arguments = {}
    for name, field in fields.items():
        if name in values:
            arguments[name] = _build(hints[name], values[name], f"{prefix}{name}", problems)
        elif field.default is _Missing and field.default_factory is _Missing:
            problems.append(f"{prefix}{name} is missing: expected {describe(hints[name])}")
    return None if problems else kind(**arguments)


def _scalar(kind: Any, value: Any) -> tuple[bool, Any]:
    """Whether a scalar has the kind, and the scalar as that kind."""
    if kind is type(None):
        return value is None, None
    if kind is str:
        return isinstance(value, str), str(value) if isinstance(value, str) else None
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool), value
    base = kind if kind in (int, float) else kind._type
    if base is float and isinstance(value, str):
        # YAML 1.1 reads 1e-4, without a point, as text.
        try:
            value = float(value)
        except ValueError:
            return False, None
    if not isinstance(value, int if base is int else (int, float)):
        return False, None
    try:
        # Plain numbers: restricted types would show in JSON, in messages and in comparisons.
        return True, base(kind(value))
    except ValueError:
        return False, None


def describe(kind: Any) -> str:
    """What a kind of value allows, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return f"keys {', '.join(field.name for field in dataclasses.fields(kind))}"
    if origin is list:
        return f"a list, each entry {describe(arguments[0])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(option) for option in arguments)
    if origin is Literal:
        options = [str(option) for option in arguments]
        return f"one of {', '.join(options)}" if len(options) > 1 else options[0]
    plain = {str: "text", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}
    if kind in plain:
        return plain[kind]
    limits = re.sub(r"v([<>]=?)", r"\1 ", kind._expression)  # "v>=0 and v<=1"
    return f"{plain[kind._type]} {limits}"


def _parsed(text: Text, kind: Any) -> Any:
    """A value from the command line: text as it stands where text is expected, else read as YAML."""
    if kind is str or (typing.get_args(kind) == (str, type(None)) and text != "null"):
        return str(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return str(text)


def _shown(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Text) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
