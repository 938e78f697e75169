"""Pending migrations, and tables that are refused."""

from __future__ import annotations

import pytest

from dragoman.errors import StorageUnsupported
from dragoman.memories.migrations import MIGRATIONS
from dragoman.storage.migrations import Migration, migrations_for, pending

A1, A2, B1 = (
    Migration(part, version, "sqlite", f"{part}{version}") for part, version in (("a", 1), ("a", 2), ("b", 1))
)


def applied(*migrations: Migration) -> dict[tuple[str, int], str]:
    return {(each.part, each.version): each.checksum for each in migrations}


def test_a_released_migration_never_changes() -> None:
    """Databases have recorded these checksums: write a new migration instead."""
    assert [(each.part, each.version, each.engine, each.checksum[:16]) for each in MIGRATIONS] == [
        ("memories", 1, "sqlite", "3e9a62e30ce5bf43"),
        ("memories", 2, "sqlite", "6622274a7ea8b1d2"),
    ]


def test_pending_are_those_that_were_not_applied_in_their_order() -> None:
    assert pending({}, (A1, A2, B1)) == [A1, A2, B1]
    assert pending(applied(A1), (A1, A2, B1)) == [A2, B1]
    assert pending(applied(A1, A2, B1), (A1, A2, B1)) == []


def test_each_part_has_versions_of_its_own() -> None:
    assert pending(applied(A1, A2), (B1,)) == [B1]
    with pytest.raises(StorageUnsupported, match="the tables of a are of version 2"):
        pending(applied(A1, A2), (A1, B1))


def test_a_changed_script_is_refused() -> None:
    with pytest.raises(StorageUnsupported, match="migration 1 of a was applied to the database with another script"):
        pending(applied(A1), (Migration("a", 1, "sqlite", "a1 "), A2))


def test_an_engine_has_its_own_migrations() -> None:
    other = Migration("a", 1, "other", "a1")
    assert migrations_for("sqlite", (A1, other, A2)) == (A1, A2)
    assert migrations_for("other", (A1, other, A2)) == (other,)


@pytest.mark.parametrize("migrations", [(A2,), (A2, A1), (A1, A1), (A1, Migration("a", 3, "sqlite", ""))])
def test_a_part_numbers_its_migrations_from_one_in_order(migrations: tuple[Migration, ...]) -> None:
    with pytest.raises(ValueError, match="of a for sqlite has the version"):
        migrations_for("sqlite", (B1, *migrations))
