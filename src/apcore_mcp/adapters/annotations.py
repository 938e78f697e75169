"""What apcore says about a module's behaviour, as MCP's hints and as words for a description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.tools.tool import Hints

if TYPE_CHECKING:
    from apcore import ModuleAnnotations
    from mcp_types import ToolAnnotations

_DEFAULTS = {
    "readonly": False,
    "destructive": False,
    "idempotent": False,
    "requires_approval": False,
    "open_world": True,
}


class AnnotationMapper:
    """Maps annotations; None stands for apcore's defaults."""

    def to_hints(self, annotations: ModuleAnnotations | None) -> Hints:
        """The hints as the runtime has them, for which nothing of the SDK is loaded."""
        said = {name: getattr(annotations, name, default) for name, default in _DEFAULTS.items()}
        return Hints(said["readonly"], said["destructive"], said["idempotent"], said["open_world"])

    def to_mcp_annotations(self, annotations: ModuleAnnotations | None) -> ToolAnnotations:
        """The hints as the SDK has them."""
        from mcp_types import ToolAnnotations

        hints = self.to_hints(annotations)
        return ToolAnnotations(
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        )

    def has_requires_approval(self, annotations: ModuleAnnotations | None) -> bool:
        """Whether a person has to agree before the module runs."""
        return annotations is not None and annotations.requires_approval

    def to_description_suffix(self, annotations: ModuleAnnotations | None) -> str:
        """What is not as by default, as in `[Annotations: readonly=true, idempotent=true]`; nothing, if all is."""
        said = ((name, getattr(annotations, name, default), default) for name, default in _DEFAULTS.items())
        unusual = [f"{name}={str(value).lower()}" for name, value, default in said if value != default]
        return f"\n\n[Annotations: {', '.join(unusual)}]" if unusual else ""
