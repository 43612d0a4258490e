"""What a validation needs to know: the parts of a recipe that say how a target is decoded and measured."""

from dataclasses import dataclass
from typing import Protocol

from workbench.recipe import DecodeOptions, TargetOptions, ValidateOptions


class Plan(Protocol):
    """A recipe, or as much of it as a validation of a folder has."""

    @property
    def name(self) -> str:
        """Shown in the report."""
        ...

    @property
    def seed(self) -> int:
        """Of every random choice."""
        ...

    @property
    def target(self) -> TargetOptions:
        """The model whose output must be preserved."""
        ...

    @property
    def decode(self) -> DecodeOptions:
        """How is decoded."""
        ...

    @property
    def validate(self) -> ValidateOptions:
        """What is measured."""
        ...


@dataclass(frozen=True, kw_only=True)
class FolderPlan:
    """The plan for a drafter folder without its recipe."""

    name: str
    target: TargetOptions
    validate: ValidateOptions
    decode: DecodeOptions
    seed: int = 0
