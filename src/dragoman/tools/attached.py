"""What a decorator makes of a function is attached to the function, which stays what it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from dragoman.errors import InvalidTool
from dragoman.sections import nearest

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "_dragoman_attached"


class _Attached(Struct, frozen=True, eq=False):
    function: Any
    """The function that the decorator was given. A wrapper that copies the attributes of a function is not it."""
    made: tuple[Any, ...]


def attach(function: F, made: Any) -> F:
    """Attach `made` to the function and return the function.

    A function that cannot have attributes (a bound method, a builtin), or has something of this kind already, is left
    as it is, and a function that calls it is returned.
    """
    earlier = made_of(function)
    if not any(type(each) is type(made) for each in earlier):
        try:
            setattr(function, _ATTRIBUTE, _Attached(function, (*earlier, made)))
        except (AttributeError, TypeError):
            pass
        else:
            return function
    wrapper: Any = _calling(function)
    setattr(wrapper, _ATTRIBUTE, _Attached(wrapper, (made,)))
    found: F = wrapper
    return found


def made_of(value: Any) -> tuple[Any, ...]:
    """What decorators have attached to a function; nothing for any other value.

    Raises `InvalidTool` for a function that another decorator has wrapped around a decorated one: calls of the tool
    would not go through the outer function.
    """
    # Not `getattr`, which may run code of the object: any value of a module is looked at here.
    found = inspect.getattr_static(value, _ATTRIBUTE, None)
    if not isinstance(found, _Attached):
        return ()
    if inspect.isclass(value) and found.function is not value:
        return ()  # A class inherits the attribute, and not what it says.
    if found.function is not value:
        name = str(getattr(value, "__name__", value))
        raise InvalidTool(name, [("", "another decorator is above @tool, @resource or @prompt; move it below")])
    return found.made


def _calling(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return wrapper


def check_options(decorator: Callable[..., Any], unknown: Mapping[str, Any], made_by: Callable[..., Any]) -> None:
    """Raise `TypeError` for options that a decorator does not have, with the nearest that `made_by` takes."""
    known = [each.name for each in inspect.signature(made_by).parameters.values() if each.kind is each.KEYWORD_ONLY]
    for name in unknown:
        if name not in known:
            raise TypeError(f"@{decorator.__name__} has no option {name!r}{nearest(name, known)}")
