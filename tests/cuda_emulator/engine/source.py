"""Turns preprocessed CUDA C++ into C++ of the host: what macros cannot do, and the list of kernels at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import CompileError

_TOKEN = re.compile(
    r"""(?P<directive>^[ \t]*\#[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
    |(?P<mark>\S)""",
    re.MULTILINE | re.VERBOSE,
)
_OPENING = {"(": ")", "[": "]", "{": "}"}
_ALIGNMENT = re.compile(r"(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    start: int
    end: int


def translate(preprocessed: str) -> str:
    """The complete host source of a preprocessed CUDA source.

    Everything is put in an unnamed namespace, so that a function which no kernel calls costs nothing.

    Raises:
        CompileError: no kernel, or a `__shared__` declaration of a form not known here.
    """
    tokens = _tokens(preprocessed)
    kernels = list(_kernels(tokens))
    if not kernels:
        raise CompileError('the source defines no extern "C" __global__ function')
    pieces, position = [], 0
    for number, index in enumerate(i for i, token in enumerate(tokens) if token.text == "__shared__"):
        first, last = _statement(tokens, index)
        pieces.append(preprocessed[position : tokens[first].start])
        replaced = preprocessed[tokens[first].start : tokens[last].end]
        pieces.append(_shared(tokens[first : last + 1], number, at_file_scope=_depth(tokens, first) == 0))
        pieces.append("\n" * replaced.count("\n"))
        position = tokens[last].end
    pieces.append(preprocessed[position:])
    table = ", ".join(f"ON_HOST_KERNEL({kernel})" for kernel in kernels)
    return (
        f'#include "cuda_on_host.h"\nnamespace {{\n{"".join(pieces)}\n}}\n#line 1 "table of kernels"\n'
        f"ON_HOST_PROGRAM({table})\n"
    )


def _tokens(text: str) -> list[Token]:
    return [Token(match.group(), match.start(), match.end()) for match in _TOKEN.finditer(text)]


def _is_directive(token: Token) -> bool:
    return token.text.lstrip().startswith("#")


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """The index of the bracket that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].text in _OPENING:
            depth += 1
        elif tokens[index].text in _OPENING.values():
            depth -= 1
            if depth == 0:
                return index
    raise CompileError(f"'{tokens[opening].text}' is never closed")


def _beginning(tokens: Sequence[Token], index: int) -> int:
    """The first token of the statement or declaration that `index` is in."""
    while index > 0 and tokens[index - 1].text not in (";", "{", "}") and not _is_directive(tokens[index - 1]):
        index -= 1
    return index


def _statement(tokens: Sequence[Token], index: int) -> tuple[int, int]:
    last = index
    while tokens[last].text != ";":
        last = _closing(tokens, last) + 1 if tokens[last].text in _OPENING else last + 1
        if last >= len(tokens):
            raise CompileError("a __shared__ declaration has no end")
    return _beginning(tokens, index), last


def _scopes(tokens: Sequence[Token], index: int) -> Iterator[bool]:
    """Of each brace that is open at `index`: whether it is one of `extern "C"`. Those of namespaces are left out."""
    open_braces: list[bool | None] = []
    for position in range(index):
        if tokens[position].text == "{":
            header = [token.text for token in tokens[_beginning(tokens, position) : position]]
            is_namespace = "namespace" in header[:2]
            open_braces.append(None if is_namespace else header == ["extern", '"C"'])
        elif tokens[position].text == "}" and open_braces:
            open_braces.pop()
    return (brace for brace in open_braces if brace is not None)


def _depth(tokens: Sequence[Token], index: int) -> int:
    return sum(not is_linkage for is_linkage in _scopes(tokens, index))


def _kernels(tokens: Sequence[Token]) -> Iterator[str]:
    """The names of the extern "C" kernels that are defined."""
    for index, token in enumerate(tokens):
        if token.text != "__global__":
            continue
        header = [token.text for token in tokens[_beginning(tokens, index) : index]]
        if "template" in header or not ('"C"' in header or any(_scopes(tokens, index))):
            continue
        opening = index
        while tokens[opening].text != "(" or tokens[opening - 1].text in ("__launch_bounds__", "__attribute__"):
            opening = _closing(tokens, opening) + 1 if tokens[opening].text == "(" else opening + 1
        body = _closing(tokens, opening) + 1
        if tokens[body].text == "{":
            yield tokens[opening - 1].text


def _shared(statement: Sequence[Token], number: int, *, at_file_scope: bool) -> str:
    """A declaration of shared memory: one that the runtime can fill and check, or a pointer to the dynamic one."""
    words = [token.text for token in statement[:-1] if token.text not in ("__shared__", "static", "extern")]
    is_extern = any(token.text == "extern" for token in statement)
    declarators = _split(words)
    name_at = _name(declarators[0])
    specifiers = " ".join(declarators[0][:name_at])
    if is_extern:
        if len(declarators) != 1 or declarators[0][name_at + 1 :] != ["[", "]"]:
            raise CompileError(f"not known as dynamic shared memory: {' '.join(words)}")
        element = _ALIGNMENT.sub("", specifiers)
        if at_file_scope:
            return f"const on_host::DynamicShared<{element}> {words[name_at]}{{}};"
        return f"{element}* const {words[name_at]} = on_host::DynamicShared<{element}>{{}};"
    if at_file_scope:
        raise CompileError(f"shared memory is declared in functions only, not: {' '.join(words)}")
    declarators[0] = declarators[0][name_at:]
    return " ".join(
        f"ON_HOST_SHARED(on_host_{number}_{position}, {name}, {''.join(dimensions)}, {specifiers})"
        for position, (name, *dimensions) in enumerate(declarators)
    )


def _split(words: Sequence[str]) -> list[list[str]]:
    """The declarators of a declaration, the first with the specifiers before it."""
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += (word in "([{<") - (word in ")]}>")
        if word == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _name(declarator: Sequence[str]) -> int:
    """Where the declared name is: before the dimensions, which are all that follows it."""
    end = declarator.index("[") if "[" in declarator else len(declarator)
    if end < 2 or not re.fullmatch(r"[A-Za-z_]\w*", declarator[end - 1]):
        raise CompileError(f"not known as shared memory: {' '.join(declarator)}")
    return end - 1
