"""Jinja for chat templates of unknown origin: an allowed part of the language, with every operation paid for."""

from __future__ import annotations

import datetime
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from turret.data.template_budget import Budget as Budget
from turret.data.template_filters import (
    BUDGET as BUDGET,
)
from turret.data.template_filters import (
    STRING_METHODS,
    allowed_filters,
    allowed_tests,
    budget_of,
    pay_method,
)
from turret.spi.errors import DataError

# What expressions of a template can raise, and what Python says about generated code that is too nested.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_BITS = 256  # of a factor or a summand
_NODES = 8  # nodes of the template that one unit pays for
_DATE = re.compile(r"(?:[^%]|%-?[aAbBdHIjmMpSUwWxXyYzZcf%]){0,64}", re.DOTALL)
_LOOP = frozenset("index index0 first last length previtem nextitem revindex revindex0 depth depth0".split())
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: STRING_METHODS,
    dict: frozenset(("items", "keys", "values", "get")),
    list: frozenset(("index", "count")),
    tuple: frozenset(("index", "count")),
    LoopContext: _LOOP,
}
_ALLOWED = (
    nodes.Expr,
    nodes.Output,
    nodes.For,
    nodes.If,
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.With,
    nodes.Assign,
    nodes.AssignBlock,
    nodes.Break,
    nodes.Continue,
    nodes.Template,
    nodes.Operand,
    nodes.Pair,
    nodes.Keyword,
)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment that transformers renders chat templates in, less what could cost or reach too much."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be computed where no budget is
            finalize=_printed,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            cache_size=0,
        )
        self.filters.clear()
        self.filters.update(allowed_filters())
        self.filters.update(_HIDDEN)
        self.tests.clear()
        self.tests.update(allowed_tests())
        self.globals = {
            "namespace": Namespace,
            "range": _range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def compiled(self, source: str) -> Callable[..., str]:
        """The function that renders a template with given variables.

        Raises: TemplateError for what is no template or uses what is not allowed.
        """
        tree = self.parse(source)
        for node in tree.find_all(nodes.Node):
            if not isinstance(node, _ALLOWED):
                raise SecurityError(f"line {node.lineno}: {type(node).__name__} has no place in a chat template")
            if isinstance(node, nodes.For) and node.recursive:
                raise SecurityError(f"line {node.lineno}: a recursive loop has no place in a chat template")
        paid = _Payments().visit(tree)
        paid.set_environment(self)
        return self.from_string(paid).render

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return attr in _ATTRIBUTES.get(type(obj), ())

    def wrap_str_format(self, value: Any) -> None:
        """No text is formatted here: a width in a format has no limit."""

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            raise SecurityError(f"the template looks up a {type(argument).__name__}")
        return super().getitem(obj, argument)

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("%"):  # `map` takes the name of a filter from the template
            raise SecurityError(f"no filter is named {name!r:.40}")
        return super().call_filter(name, *args, **kwargs)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(__context)
        budget.enter(__obj)
        if isinstance(__obj, types.BuiltinMethodType):
            # Inside loops and blocks, Jinja hands its own variables along.
            named = {key: each for key, each in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
            for each in (*args, *named.values()):
                budget.weigh(each)
            owner = __obj.__self__
            if isinstance(owner, str):
                pay_method(budget, owner, __obj.__name__, args, named)
            elif isinstance(owner, list | tuple):
                budget.weigh(owner)
        elif not isinstance(__obj, Macro | Undefined) and not any(__obj is each for each in __self.globals.values()):
            raise SecurityError(f"the template calls a {type(__obj).__name__}")
        result = super().call(__context, __obj, *args, **kwargs)
        budget.leave(__obj)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = budget_of(context)
        budget.spend(1)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _BITS:
                raise SecurityError("the template computes a number that is too large")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("the template formats a text with %; it can add texts with ~")
        elif operator == "*":
            for some, times in ((left, right), (right, left)):
                if isinstance(some, str | list | tuple) and isinstance(times, int):
                    budget.spend(len(some) * max(times, 0))
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            budget.spend_text(len(left) + len(right))
        elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            budget.spend(len(left) + len(right))
        return super().call_binop(context, operator, left, right)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn what a bad template makes Jinja and Python raise into a DataError that begins with `what`."""
    try:
        yield
    except _FAILURES as error:
        line = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
        shown = " ".join(f"{error!s:.300}".split())
        raise DataError(f"{what}: {type(error).__name__}: {shown}{line}; give another template") from error


class _Payments(NodeTransformer):
    """Puts a payment at every place where Jinja itself would work without asking the environment."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)  # other data would be printed without `finalize`

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "%weigh")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "%weigh")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node.nodes[0], "%concat", *node.nodes[1:])

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _filtered(node.key, "%key")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, "%slice")
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._charge_body(node)
        node.iter = _filtered(node.iter, "%items")
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._charge_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._charge_body(node)

    def _charge_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        size = 1 + sum(1 for _ in node.find_all(nodes.Node)) // _NODES
        self.generic_visit(node)
        spend = _filtered(nodes.Const(size, lineno=node.lineno), "%spend")
        node.body.insert(0, nodes.Output([spend], lineno=node.lineno))
        return node


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; for rendering it is only its body."""

    tags = {"generation"}  # noqa: RUF012 -- the name and the kind are Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(node: Any, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


@pass_context
def _printed(context: Context, value: Any) -> str:
    return budget_of(context).text(value)


@pass_context
def _weighed(context: Context, value: Any) -> Any:
    budget_of(context).weigh(value)
    return value


@pass_context
def _key(context: Context, value: Any) -> Any:
    if not isinstance(value, str | int):
        raise SecurityError(f"the template uses a {type(value).__name__} as a key")
    return value


@pass_context
def _items(context: Context, value: Any) -> Any:
    return budget_of(context).items(value)


@pass_context
def _sliced(context: Context, value: Any) -> Any:
    budget = budget_of(context)
    if isinstance(value, str):
        budget.spend_text(len(value))
    elif isinstance(value, list | tuple | range):
        budget.spend(1 + len(value))
    return value


@pass_context
def _joined(context: Context, *values: Any) -> str:
    budget = budget_of(context)
    texts = [budget.text(each) for each in values]
    return "".join(texts)


@pass_context
def _spent(context: Context, units: int) -> str:
    budget_of(context).spend(units)
    return ""


@pass_context
def _range(context: Context, *bounds: int) -> range:
    found = range(*bounds)
    budget_of(context).spend(1 + min(len(found), 1 << 40))
    return found


def _raise_exception(message: Any) -> str:
    raise TemplateError(f"the template says: {message!s:.200}")


def _strftime_now(form: str) -> str:
    if not _DATE.fullmatch(form):
        raise SecurityError("the template writes a date in a form with widths or of over 64 parts")
    return datetime.datetime.now().strftime(form)


# The rewritten template asks for its payments by names that no template can write.
_HIDDEN: dict[str, Any] = {
    "%weigh": _weighed,
    "%key": _key,
    "%items": _items,
    "%slice": _sliced,
    "%concat": _joined,
    "%spend": _spent,
}
