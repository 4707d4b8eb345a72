"""The filters, tests and methods that a chat template may use; each pays for its work before it does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import pass_context

from turret.data.template_budget import Budget

BUDGET = "%budget"  # no identifier, so that no template can name it

_SHORT = 64
_KINDS_ONLY = "length count first last default d safe"
_ITEMS_ONLY = "list items map select reject selectattr rejectattr reverse"
_WHOLE = "trim upper lower title capitalize int float abs string join replace indent sort unique dictsort"
_FREE_TESTS = (
    "defined undefined none string number integer float boolean true false mapping sequence iterable odd even "
    "divisibleby"
)
_WHOLE_TESTS = "eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= in"
STRING_METHODS = frozenset(
    "strip lstrip rstrip split rsplit splitlines startswith endswith upper lower title capitalize replace join find "
    "index count removeprefix removesuffix isdigit isspace isalpha isalnum isupper islower".split()
)


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that `context` belongs to."""
    budget = context.parent[BUDGET]
    assert isinstance(budget, Budget)
    return budget


def allowed_filters() -> dict[str, Callable[..., Any]]:
    """By name: Jinja's filters that templates use, with `tojson` as transformers has it."""
    found: dict[str, Callable[..., Any]] = {"tojson": _tojson}
    for names, pay in ((_KINDS_ONLY, _pay_once), (_ITEMS_ONLY, _pay_items), (_WHOLE, _pay_whole)):
        found |= {name: _paid(name, FILTERS[name], pay) for name in names.split()}
    # No text is ever marked as markup, since a sum with markup would escape the other side.
    return found | {"safe": _paid("safe", str, _pay_whole), "string": _paid("string", str, _pay_whole)}


def allowed_tests() -> dict[str, Callable[..., Any]]:
    """By name: Jinja's tests that templates use."""
    free: dict[str, Any] = {name: TESTS[name] for name in _FREE_TESTS.split()}
    return free | {name: _paid(name, TESTS[name], _pay_whole) for name in _WHOLE_TESTS.split()}


def pay_method(budget: Budget, text: str, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Pay for the method `name` of a text.

    Raises: SecurityError for more than `Budget` has, and for long texts to search from behind or to strip.
    """
    budget.spend_text(len(text))
    if name == "replace":
        _pay_replace(budget, text, *arguments, **named)
    elif name == "join" and arguments and hasattr(arguments[0], "__len__"):
        budget.spend_text(len(text) * len(arguments[0]))
    elif name in ("split", "rsplit", "splitlines"):
        mark = arguments[0] if arguments else named.get("sep")
        # Every piece is an object of its own.
        budget.spend(text.count(mark) if isinstance(mark, str) and mark else len(text) // 2)
    if name in ("strip", "lstrip", "rstrip", "rsplit") and any(
        isinstance(a, str) and len(a) > _SHORT for a in arguments
    ):
        raise SecurityError(f"the template calls {name} with a text of over {_SHORT} characters")


def _paid(name: str, function: Any, pay: Callable[..., Any]) -> Any:
    kind = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def paid(context: Context, value: Any, /, *arguments: Any, **named: Any) -> Any:
        budget = budget_of(context)
        budget.spend(4)
        value = pay(budget, value)
        for each in (*arguments, *named.values()):
            budget.weigh(each)
        if (growth := _GROWTH.get(name)) is not None:
            growth(budget, value, *arguments, **named)
        leading = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }.get(kind.name if kind is not None else "", ())
        result = function(*leading, value, *arguments, **named)
        # A generator would do its work later, where nobody counts it.
        return list(result) if isinstance(result, Iterator) else result

    return paid


def _pay_once(budget: Budget, value: Any) -> Any:
    return value


def _pay_items(budget: Budget, value: Any) -> Any:
    if value is None:  # nothing to some of Jinja's filters, an error to others
        return value
    items = budget.items(value)
    return value if isinstance(value, str | dict) else items


def _pay_whole(budget: Budget, value: Any) -> Any:
    budget.weigh(value)
    return value


def _pay_replace(budget: Budget, text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        budget.spend_text(len(text) + text.count(old) * len(new))


def _pay_join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    if isinstance(d, str) and hasattr(value, "__len__"):
        budget.spend_text(len(d) * len(value))


def _pay_indent(budget: Budget, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    wide = len(width) if isinstance(width, str) else width
    if not isinstance(wide, int) or wide > _SHORT:
        raise SecurityError(f"the template indents by over {_SHORT} characters")
    if isinstance(text, str):
        budget.spend_text(len(text) + len(text.splitlines()) * wide)


def _pay_int(budget: Budget, value: Any, default: Any = 0) -> None:
    """A base is not taken: digits in base 16 make numbers of any size."""


def _pay_strip(budget: Budget, value: Any, chars: Any = None) -> None:
    if isinstance(chars, str) and len(chars) > _SHORT:
        raise SecurityError(f"the template trims over {_SHORT} kinds of characters")


_GROWTH: dict[str, Callable[..., None]] = {
    "replace": _pay_replace,
    "join": _pay_join,
    "indent": _pay_indent,
    "int": _pay_int,
    "trim": _pay_strip,
}


@pass_context
def _tojson(
    context: Context,
    value: Any,
    /,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, the keys in their own order, as transformers renders it."""
    budget = budget_of(context)
    budget.weigh(value)
    wide = indent if indent is not None else 0
    if not isinstance(wide, int) or wide > _SHORT or sum(map(len, separators or ())) > _SHORT:
        raise SecurityError(f"the template writes JSON with indents or separators of over {_SHORT} characters")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget.spend_text(len(text))
    return text
