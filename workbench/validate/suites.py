"""The prompts of a validation, tokenized once for all methods."""

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.corpus.prompts import load_prompts
from workbench.errors import WorkbenchError
from workbench.recipe import Suite
from workbench.targets import Target


@dataclass(frozen=True)
class SuitePrompts:
    """One suite, ready to decode."""

    suite: Suite
    texts: list[str]
    prompt_ids: list[list[int]]
    """Rendered with the target's chat template."""

    @property
    def name(self) -> str:
        """Row name in the report."""
        return self.suite.name


def load_suites(suites: Sequence[Suite], target: Target, seed: int) -> list[SuitePrompts]:
    """Loads and tokenizes the prompts of all suites."""
    return [_load_suite(suite, target, seed) for suite in suites]


def _load_suite(suite: Suite, target: Target, seed: int) -> SuitePrompts:
    prompts = load_prompts(suite.source, suite.num_prompts, seed)
    if not prompts:
        raise WorkbenchError(f"validate.suites: {suite.name} has no prompts in {suite.source.prompts}")
    texts = [prompt.text for prompt in prompts]
    return SuitePrompts(suite, texts, [target.encode_prompt(text) for text in texts])
