"""Module ids as function names: OpenAI has neither dots nor slashes in them, and no more than 64 characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.openai import LONGEST_NAME as LONGEST_NAME
from dragoman.openai import shortened

_ID = re.compile(r"[A-Za-z0-9_./]+")


class ModuleIDNormalizer:
    """Dots and slashes become hyphens, which apcore keeps out of module ids for that purpose."""

    def normalize(self, module_id: str) -> str:
        """`image.resize` becomes `image-resize`; raises `ValueError` for what is not the id of a module."""
        if "-" in module_id:
            raise ValueError(f"the module id {module_id!r} has a hyphen, and those stand for its dots")
        if not _ID.fullmatch(module_id):
            raise ValueError(f"the module id {module_id!r} cannot be a function's name")
        return module_id.replace(".", "-").replace("/", "-")

    def denormalize(self, name: str) -> str:
        """`image-resize` becomes `image.resize`."""
        return name.replace("-", ".")

    def names(self, module_ids: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The ids by their function names, and what is wrong with those ids that can have none.

        A name that is too long ends in a fingerprint of its id instead. The first of two ids with one name has it.
        """
        named: dict[str, str] = {}
        problems: dict[str, str] = {}
        for module_id in module_ids:
            try:
                name = shortened(self.normalize(module_id), module_id)
            except ValueError as error:
                problems[module_id] = str(error)
                continue
            if named.setdefault(name, module_id) != module_id:
                problems[module_id] = f"its function name {name!r} is that of {named[name]!r} already"
        return named, problems
