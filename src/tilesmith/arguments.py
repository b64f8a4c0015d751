"""Checks of the arguments of public functions: an error names the function, the argument, and what it must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

Rule = tuple[Callable[[Any], bool], str]  # whether a value is right, and what it must be
CLASS = TypeVar("CLASS", bound=type)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number: of Python or numpy, but neither a bool nor a tensor."""
    if isinstance(value, (bool, str, bytes)) or (hasattr(value, "shape") and value.shape != ()):
        return False
    try:
        return not hasattr(value, "requires_grad") and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number that 64 bits hold."""
    return hasattr(value, "__index__") and is_number(value) and -(2**63) <= value < 2**63


def require(function: str, name: str, value: object, rule: Rule) -> None:
    """Raise a ValueError or TypeError unless the rule allows the value."""
    allows, wanted = rule
    if allows(value):
        return
    if isinstance(value, (int, float, str)) and len(repr(value)) < 100:
        raise ValueError(f"{function}: {name} is {value!r}, but must be {wanted}")
    raise TypeError(f"{function}: {name} is a {type(value).__name__}, but must be {wanted}")


def require_all(function: str, rules: Mapping[str, Rule], **values: object) -> None:
    """Check several arguments, each by the rule of its name."""
    for name, value in values.items():
        require(function, name, value, rules[name])


def checked(rules: Mapping[str, Rule], handed_on: Sequence[str] = ()) -> Callable[[CLASS], CLASS]:
    """Return a class decorator: the constructor refuses wrong arguments in one sentence.

    `handed_on` are arguments that the constructor passes to others by `**`. None is right where it is the default, or
    where the annotation allows it.
    """

    def decorate(decorated: CLASS) -> CLASS:
        construct = decorated.__init__  # type: ignore[misc]  # of the class itself
        takes = signature(construct)
        parameters = takes.parameters.values()
        required = {one.name for one in parameters if one.default is not None and "None" not in str(one.annotation)}
        known = {*takes.parameters, *handed_on}

        @wraps(construct)
        def checked_construct(self: Any, *arguments: Any, **named: Any) -> None:
            unknown = [name for name in named if name not in known]
            if unknown:
                raise TypeError(f"{decorated.__name__}: {unknown[0]} is no argument of the constructor")
            try:
                given = takes.bind(self, *arguments, **named).arguments
            except TypeError as error:
                raise TypeError(f"{decorated.__name__}: {error}") from None
            for name, value in {**given, **named}.items():
                if name in rules and (value is not None or name in required):
                    require(decorated.__name__, name, value, rules[name])
            construct(self, *arguments, **named)

        decorated.__init__ = checked_construct  # type: ignore[misc]  # the same signature, by `wraps`
        return decorated

    return decorate


def number(at_least: float, at_most: float = math.inf) -> Rule:
    """Return the rule of a finite number from `at_least` to `at_most`."""
    what = f"at least {at_least:g}" if at_most == math.inf else f"from {at_least:g} to {at_most:g}"
    return (lambda value: is_number(value) and at_least <= value <= at_most), f"a number, {what}"


def whole(at_least: int, at_most: int = 2**63 - 1) -> Rule:
    """Return the rule of a whole number from `at_least` to `at_most`."""
    what = f"of at least {at_least}" if at_most == 2**63 - 1 else f"from {at_least} to {at_most}"
    return (lambda value: is_whole(value) and at_least <= value <= at_most), f"a whole number {what}"


def one_of(*words: str) -> Rule:
    """Return the rule of one of some strings."""
    return (lambda value: isinstance(value, str) and value in words), f"one of {', '.join(map(repr, words))}"


def or_none(rule: Rule) -> Rule:
    """Return a rule that allows None too."""
    allows, wanted = rule
    return (lambda value: value is None or allows(value)), f"{wanted}, or None"


FLAG: Rule = (lambda value: isinstance(value, bool), "True or False")
TEXT: Rule = (lambda value: isinstance(value, str), "a string")
TEXTS: Rule = (
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value),
    "a list of strings",
)
