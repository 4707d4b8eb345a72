"""What a run was trained on: name, size and hash of every file, kept with the run and compared when it resumes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from turret.data.corpora import Corpus
from turret.spi.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of a corpus. The path says where it was; only the hash decides whether it is the same."""

    name: str
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of a corpus, in order. Two manifests with equal hashes in equal order are the same training text."""

    sources: tuple[Source, ...]

    @classmethod
    def of(cls, corpus: Corpus) -> Manifest:
        """Reads the whole corpus to hash it, unless `validate_utf8` has done so."""
        return cls(
            sources=tuple(
                Source(name=segment.name, path=segment.path, bytes=segment.size, sha256=digest)
                for segment, digest in zip(corpus.segments, corpus.digests(), strict=True)
            )
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Manifest:
        """The inverse of `to_dict`. Raises: DataError saying which entry is malformed."""
        entries = raw.get("sources")
        if set(raw) != {"sources"} or not isinstance(entries, list) or not entries:
            raise DataError(f"got a corpus manifest with {sorted(raw)}, want only 'sources', a list with entries")
        return cls(sources=tuple(_source(index, entry) for index, entry in enumerate(entries)))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"sources": [asdict(source) for source in self.sources]}

    def differences(self, now: Manifest) -> tuple[str, ...]:
        """One sentence for each way in which `now` is other text than this; empty when it is the same."""
        if [source.sha256 for source in self.sources] == [source.sha256 for source in now.sources]:
            return ()
        before, after = _by_name(self.sources), _by_name(now.sources)
        found = [_difference(old, after.get(key)) for key, old in before.items()]
        found += [f"{new.name} ({new.path}) is new" for key, new in after.items() if key not in before]
        return tuple(filter(None, found)) or ("the files are the same but in another order",)

    def require_same(self, now: Manifest) -> None:
        """Raises: DataError naming every file that differs from what the run was trained on."""
        if differences := self.differences(now):
            raise DataError(
                f"the corpus is not the one this run was trained on: {'; '.join(differences)}. "
                "Restore the files, or start a new run"
            )


def _by_name(sources: tuple[Source, ...]) -> dict[tuple[str, int], Source]:
    """Sources by name and occurrence: files of different folders may share a name."""
    seen: Counter[str] = Counter()
    named = {}
    for source in sources:
        named[source.name, seen[source.name]] = source
        seen[source.name] += 1
    return named


def _difference(old: Source, new: Source | None) -> str:
    if new is None:
        return f"{old.name} ({old.path}, {old.bytes} bytes) is missing"
    if old.bytes != new.bytes:
        return f"{old.name} ({new.path}) has {new.bytes} bytes, had {old.bytes}"
    if old.sha256 != new.sha256:
        return f"{old.name} ({new.path}) has SHA-256 {new.sha256}, had {old.sha256}"
    return ""


def _source(index: int, entry: object) -> Source:
    names = [field.name for field in fields(Source)]
    if not isinstance(entry, dict) or set(entry) != set(names):
        raise DataError(f"corpus manifest entry {index} is {entry!r}, want exactly the keys {', '.join(names)}")
    name, path, size, digest = (entry[key] for key in names)
    if not isinstance(name, str) or not isinstance(path, str):
        raise DataError(f"corpus manifest entry {index} has name {name!r} and path {path!r}, want text")
    if type(size) is not int or size < 1:
        raise DataError(f"corpus manifest entry {index} ({name}) has bytes {size!r}, want a positive integer")
    if not isinstance(digest, str) or re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise DataError(f"corpus manifest entry {index} ({name}) has sha256 {digest!r}, want 64 hex digits")
    return Source(name=name, path=path, bytes=size, sha256=digest)
