"""Migrations: the scripts that make a part's tables what the part expects, and the rules for applying them.

1. Each part numbers its migrations from 1, without gaps, for each engine. Parts know nothing of each other's.
2. A migration that was released is never changed. An engine records the checksum of each that it applies, and a
   migration whose checksum has changed since is refused.
3. A part whose tables are newer than the program knows is refused.
4. Records of parts that the program does not have are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from dragoman.errors import StorageUnsupported


@dataclass(frozen=True)
class Migration:
    """A script that makes one version of a part's tables from the version before."""

    part: str
    version: int
    engine: str
    script: str

    @property
    def checksum(self) -> str:
        return sha256(self.script.encode()).hexdigest()


def migrations_for(engine: str, migrations: Iterable[Migration]) -> tuple[Migration, ...]:
    """The migrations of one engine. Raises `ValueError` unless each part numbers its own 1, 2, 3 …, in that order."""
    chosen = tuple(each for each in migrations if each.engine == engine)
    count: Counter[str] = Counter()
    for each in chosen:
        count[each.part] += 1
        if each.version != count[each.part]:
            raise ValueError(f"migration {count[each.part]} of {each.part} for {engine} has the version {each.version}")
    return chosen


def pending(applied: Mapping[tuple[str, int], str], migrations: Sequence[Migration]) -> list[Migration]:
    """The migrations that are not in `applied`, which has checksums by part and version.

    Raises `StorageUnsupported` for tables that a newer version of the program made, or another script.
    """
    newest = {each.part: each.version for each in migrations}
    for part, version in applied:
        if version > newest.get(part, version):
            raise StorageUnsupported(
                f"the tables of {part} are of version {version}, and this Dragoman knows versions up to "
                f"{newest[part]}: a newer Dragoman has used the database"
            )
    for each in migrations:
        if applied.get((each.part, each.version), each.checksum) != each.checksum:
            raise StorageUnsupported(
                f"migration {each.version} of {each.part} was applied to the database with another script than this "
                f"Dragoman's, whose checksum is {each.checksum[:12]}"
            )
    return [each for each in migrations if (each.part, each.version) not in applied]
