"""Profiles: named sets of promises that a backend may claim and a report certifies; and the choice of cases."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turret.spi import OPTIONAL_SLOTS, REQUIRED_SLOTS, ConfigError

from .case import Case, Kind
from .suite import all_cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """capabilities: slots, and `purity`, `door`, `models`, `lifecycle`. without: kinds of cases that do not belong.

    checks: where it is not empty, the only checks (`models/decode`) of the cross-cutting groups that belong.
    """

    name: str
    about: str
    capabilities: frozenset[str]
    without: frozenset[Kind] = frozenset()
    checks: frozenset[str] = frozenset()

    def has(self, case: Case) -> bool:
        if case.capability not in self.capabilities or case.kind in self.without:
            return False
        in_group = [check for check in self.checks if check.startswith(f"{case.capability}/")]
        return not in_group or "/".join(case.id.split("/")[:2]) in in_group


GROUPS = ("purity", "door", "models", "lifecycle")
PRIMITIVES = frozenset((*REQUIRED_SLOTS, "purity", "lifecycle"))
INFERENCE = PRIMITIVES | {
    "activation",
    "softmax",
    "normalization",
    "linear",
    "rope",
    "causal_attention",
    "door",
    "models",
}
TRAINING = INFERENCE | {"loss", "adam", "random", "compile"}

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="primitives",
            about="the six required slots, purity and lifecycle: everything else can be composed from them",
            capabilities=PRIMITIVES,
        ),
        Profile(
            name="inference",
            about="primitives, and the forward pass and decoding of both model families",
            capabilities=INFERENCE,
            without=frozenset({"vjp"}),
            checks=frozenset({"models/forward", "models/decode"}),
        ),
        Profile(
            name="training",
            about="inference, and gradients, loss, optimizer and twenty steps of training",
            capabilities=TRAINING,
            checks=frozenset(
                {
                    "models/forward",
                    "models/decode",
                    "models/gradients",
                    "models/training",
                    "models/captured",
                    "models/checkpoint",
                }
            ),
        ),
        Profile(
            name="quant-nf4",
            about="primitives and linear layers over packed NF4 weights",
            capabilities=PRIMITIVES | {"linear", "quantized_linear"},
        ),
        Profile(
            name="serving",
            about="inference, and attention over pages",
            capabilities=INFERENCE | {"paged_attention"},
            without=frozenset({"vjp"}),
            checks=frozenset({"models/forward", "models/decode", "models/paged"}),
        ),
        Profile(name="full", about="everything", capabilities=frozenset((*REQUIRED_SLOTS, *OPTIONAL_SLOTS, *GROUPS))),
    )
}


def select(*, profile: str = "full", capabilities: Sequence[str] = (), pattern: str = "") -> list[Case]:
    """The cases of a profile, narrowed to capabilities and to ids that match.

    pattern: a part of the id, or a whole with `*` and `?`. Raises: ConfigError for an unknown word or an empty choice.
    """
    if profile not in PROFILES:
        raise ConfigError(f"no profile {profile!r}; {guess(profile, PROFILES)}")
    chosen = [case for case in all_cases() if PROFILES[profile].has(case)]
    known = {case.capability for case in all_cases()}
    for word in capabilities:
        if word not in known:
            raise ConfigError(f"no capability {word!r}; {guess(word, sorted(known))}")
    if capabilities:
        chosen = [case for case in chosen if case.capability in capabilities]
    if pattern:
        chosen = [case for case in chosen if matches(case.id, pattern)]
    if not chosen:
        asked = [
            f"profile {profile}",
            *(f"capability {each}" for each in capabilities),
            *([f"pattern {pattern!r}"] if pattern else []),
        ]
        raise ConfigError(f"no case matches {', '.join(asked)}; `--list` shows all ids")
    return chosen


def matches(case: str, pattern: str) -> bool:
    """A pattern with a wildcard is the whole id, one without is a part of it; after `not ` it must not match."""
    if pattern.startswith("not "):
        return not matches(case, pattern.removeprefix("not "))
    return fnmatch.fnmatchcase(case, pattern) if set(pattern) & set("*?[") else pattern in case


def guess(word: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown word, else all that there is."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
