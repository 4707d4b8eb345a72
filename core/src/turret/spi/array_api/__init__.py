"""The six required slots from a Python array API namespace: what a new backend starts from."""

from __future__ import annotations

from typing import Any

from ..table import Required
from .dtypes import DTypes
from .elementwise import NamespaceElementwise
from .hooks import Hooks as Hooks
from .indexing import NamespaceIndexing
from .layout import NamespaceLayout
from .matmul import NamespaceMatmul
from .namespace import Guard, standard
from .reduction import NamespaceReduction
from .storage import NamespaceStorage

NO_HOOKS = Hooks()


def required_from(
    namespace: Any,
    *,
    device: Any = None,
    name: str = "",
    accumulation: str = "unstated",
    hooks: Hooks = NO_HOOKS,
) -> Required[Any]:
    """The required slots over `namespace`, a module of the Python array API standard, 2024.12 or newer.

    device: passed to the namespace's creation functions; None: its default device. name: what the device calls itself
    (default: the namespace's name). accumulation: the word `Matmul.accumulation` answers. hooks: the library's own way
    where the standard has none, or a slow one.
    Raises: Unsupported for a namespace that lacks functions of the standard.
    """
    guard = Guard(namespace, hooks.quiet)
    xp = standard(namespace, guard)
    dtypes = DTypes(namespace, device)
    storage = NamespaceStorage(xp, dtypes, device, name or namespace.__name__, hooks)
    matmul = NamespaceMatmul(xp, dtypes, accumulation, guard.optional(hooks.matmul))
    return Required(
        storage=storage,
        matmul=matmul,
        elementwise=NamespaceElementwise(xp, dtypes, guard.optional(hooks.rsqrt), guard.optional(hooks.erf)),
        reduction=NamespaceReduction(xp, dtypes),
        layout=NamespaceLayout(xp, dtypes, storage),
        indexing=NamespaceIndexing(
            xp, dtypes, storage, matmul, guard.optional(hooks.scatter_add_rows), guard.optional(hooks.set_rows)
        ),
    )
