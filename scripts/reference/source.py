"""Reads signatures, docstrings and fields out of Python source, as Markdown."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any


def docstring(thing: object) -> str:
    """The docstring of a module, class or function, without its indentation; "" where there is none.

    A class answers with its own docstring only, never with an inherited or generated one.
    """
    text = vars(thing).get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", None)
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def summary(thing: object) -> str:
    """The first paragraph of the docstring, as one line."""
    return " ".join(docstring(thing).split("\n\n")[0].split())


def signature(function: Callable[..., Any]) -> str:
    """`name(arguments) -> result` as written in the source, without `self`."""
    node = _parsed(function)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return _signature(node)


def class_signature(cls: type) -> str:
    """How to make one: the arguments of the class's own `__init__`, or its fields; "" where it has neither."""
    for node in _class(cls).body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return _signature(node).replace("__init__", cls.__name__, 1).removesuffix(" -> None")
    listed = [line for line, _ in fields(cls)]
    return f"{cls.__name__}({', '.join(listed)})" if listed else ""


def fields(cls: type) -> list[tuple[str, bool]]:
    """(`name: type = default`, has a default) of every annotated public field, in order."""
    found = []
    for node in _class(cls).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            found.append((ast.unparse(node), node.value is not None))
    return found


def methods(cls: type) -> Iterator[tuple[str, str, str]]:
    """(name, signature, docstring) of every public method the class itself defines, in source order."""
    for node in _class(cls).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, _signature(node), ast.get_docstring(node) or ""


def block(code: str) -> str:
    """`code` as a fenced block that is shown and not run; long signatures get one argument a line."""
    return f"```text\n{_wrapped(code)}\n```"


def _wrapped(code: str) -> str:
    if len(code) <= 110:
        return code
    opened, closed = code.index("("), code.rindex(")")
    parts = _split(code[opened + 1 : closed])
    return code[: opened + 1] + "".join(f"\n    {part}," for part in parts) + "\n" + code[closed:]


def _split(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(arguments):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(arguments[start:at].strip())
            start = at + 1
    return [*parts, arguments[start:].strip()]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    if is_property:
        return node.name + result.replace(" ->", ":", 1)
    arguments = ast.unparse(node.args)
    if arguments == "self":
        arguments = ""
    return f"{node.name}({arguments.removeprefix('self, ').removeprefix('/, ')}){result}"


def _class(cls: type) -> ast.ClassDef:
    node = _parsed(cls)
    assert isinstance(node, ast.ClassDef)
    return node


def _parsed(thing: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
