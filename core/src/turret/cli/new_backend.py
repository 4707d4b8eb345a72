"""`turret new-backend`: an installable distribution that passes the conformance suite, for an author to go on from."""

from __future__ import annotations

import keyword
import re
import shlex
import string
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

import click

from turret import __version__
from turret.registry.names import AUTO, KNOWN
from turret.spi import REQUIRED_DTYPES, SPI_VERSION, ConfigError

from .options import NamedPath

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST = 30  # so that no line written gets too long
NUMPY, ARRAY_API = "numpy", "array-api"
STARTS = (NUMPY, ARRAY_API)
NUMPY_DTYPES = (*REQUIRED_DTYPES, "float16", "float64", "int64")
SUFFIX = ".template"
COMPAT = "array_api_compat"
TORCH_IMPORTS = "import os\nfrom typing import Any\n"
TORCH_AT_FORK = """
# The worker threads of OpenMP do not survive a fork: a child that waits for them hangs. One thread never waits.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
"""


class Template(string.Template):
    """Text with `%{word}` in it: the dollar and the brace alone belong to workflows, TOML and Python."""

    delimiter = "%"


@click.command()
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=click.Choice(STARTS),
    default=NUMPY,
    show_default=True,
    help="What the required slots are made of: NumPy, or another namespace of the Python array API standard.",
)
@click.option(
    "--namespace",
    metavar="MODULE",
    help="With --from array-api: the module, such as jax.numpy, array_api_strict or array_api_compat.torch.",
)
@click.option(
    "--out", type=NamedPath(), metavar="DIR", help="Folder to write; must be new or empty [turret-NAME, right here]"
)
def command(name: str, start: str, namespace: str | None, out: Path | None) -> None:
    """Write a new backend as an installable distribution.

    NAME is the word that users will type: lower-case letters and digits, words joined by - or _. The distribution is
    turret-NAME. Its six required slots work as they are and everything else is composed from them, so that it passes
    the conformance suite from the start; you then replace slot after slot by native code.
    """
    facts = _facts(_checked_name(name), _checked_namespace(start, namespace))
    folder = Path(facts["distribution"]) if out is None else out
    _write(folder, start, facts)
    click.echo(f"wrote {folder}; next:\n")
    for step in (
        f"cd {shlex.quote(str(folder))}",
        "pip install -e .",
        f"turret conformance {facts['word']} --profile training",
    ):
        click.echo(f"  {step}")


def _checked_name(name: str) -> str:
    """The word for the registry, with underscores. Raises: ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"backend name {name!r} is none; wanted lower-case letters and digits, a letter first, words joined by "
            '- or _, such as "vulkan" or "my-gpu"'
        )
    if len(name) > LONGEST:
        raise ConfigError(f"backend name {name!r} has {len(name)} characters; wanted at most {LONGEST}")
    if name in (AUTO, *KNOWN):
        owner = "chooses among the installed backends" if name == AUTO else "is one of turret's own backends"
        raise ConfigError(f"backend name {name!r} is taken: it {owner}; choose another word")
    if keyword.iskeyword(name):
        raise ConfigError(f"backend name {name!r} is a keyword of Python; choose another word")
    return name.replace("-", "_")


def _checked_namespace(start: str, namespace: str | None) -> str:
    """Raises: ConfigError."""
    if start == NUMPY:
        if namespace is not None:
            raise ConfigError(f"--namespace {namespace!r} needs --from {ARRAY_API}; --from {NUMPY} has its own")
        return NUMPY
    if not namespace:
        raise ConfigError(f"--from {ARRAY_API} needs --namespace MODULE, such as jax.numpy or array_api_strict")
    if not namespace.isascii() or not all(
        part.isidentifier() and not keyword.iskeyword(part) for part in namespace.split(".")
    ):
        raise ConfigError(
            f"--namespace {namespace!r} is no module; wanted a dotted name, such as array_api_compat.torch"
        )
    return namespace


def _facts(word: str, namespace: str) -> dict[str, str]:
    """What the templates ask for."""
    outer, _, inner = namespace.partition(".")
    wrapped = inner.partition(".")[0] if outer == COMPAT else ""  # array_api_compat.torch needs torch itself as well
    modules = [outer, *([wrapped] if wrapped else [])]
    needs = [name.replace("_", "-") for name in modules]
    requirements = ["numpy>=2.1"] if outer == NUMPY else needs
    major, minor = SPI_VERSION
    return {
        "word": word,
        "distribution": f"turret-{word.replace('_', '-')}",
        "package": f"turret_{word}",
        "stem": "".join(part.capitalize() for part in word.split("_")),
        "namespace": namespace,
        "library": wrapped or outer,
        "requirements": ", ".join(f'"{need}"' for need in requirements),
        "modules": ", ".join(f'"{name}.*"' for name in modules),
        "install": " ".join(needs),
        "imports": TORCH_IMPORTS if wrapped == "torch" else "from typing import Any\n",
        "own_import": "import torch\n" if wrapped == "torch" else "",
        "at_fork": TORCH_AT_FORK if wrapped == "torch" else "",
        "dtypes": ", ".join(f'"{dtype}"' for dtype in (NUMPY_DTYPES if namespace == NUMPY else REQUIRED_DTYPES)),
        "version": __version__,
        "spi": f">={major}.{minor},<{major + 1}",
    }


def _write(folder: Path, start: str, facts: dict[str, str]) -> None:
    """All of the distribution or nothing: it is made beside or in `folder` and then moved. Raises: ConfigError."""
    _check_place(folder)
    try:
        near = folder if folder.exists() else folder.parent  # on the disk of the result
        with tempfile.TemporaryDirectory(dir=near, prefix=f".{facts['distribution']}-") as scratch:
            made = Path(scratch) / "made"
            for path, text in _rendered(start, facts):
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, encoding="utf-8", newline="\n")
            if not folder.exists():
                made.rename(folder)
                return
            for entry in sorted(made.iterdir()):  # not the folder itself: a shell may stand in it
                entry.rename(folder / entry.name)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; choose another place with --out DIR") from error


def _check_place(folder: Path) -> None:
    try:
        if folder.is_symlink() or folder.exists():
            if not folder.is_dir():
                raise ConfigError(f"{folder} is there and is no folder; choose another place with --out DIR")
            if any(folder.iterdir()):
                raise ConfigError(f"{folder} is not empty; remove it, or choose another place with --out DIR")
        elif not folder.parent.is_dir():
            raise ConfigError(f"{folder} cannot be made: there is no folder {folder.parent}; make that one first")
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror}; choose another place with --out DIR") from error


def _rendered(start: str, facts: dict[str, str]) -> Iterator[tuple[PurePosixPath, str]]:
    """(path in the distribution, text) of every file; of a file with one variant per start, the one for `start`."""
    for path, source in _templates(files("turret") / "conformance" / "scaffold", PurePosixPath()):
        name = path.name.removesuffix(SUFFIX)
        variants = [other for other in STARTS if f".{other}." in name]
        if variants and variants != [start]:
            continue
        place = str(path.with_name(name.replace(f".{start}.", "."))).replace("turret_name", facts["package"])
        yield PurePosixPath(place), Template(source.read_text(encoding="utf-8")).substitute(facts)


def _templates(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _templates(entry, path / entry.name)
        elif entry.name.endswith(SUFFIX):
            yield path / entry.name, entry
