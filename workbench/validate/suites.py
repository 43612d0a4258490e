"""The prompts of a validation, tokenized once for all methods."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.console import progress
from workbench.corpus.prompts import PROBLEMS, Prompt, load_prompts
from workbench.decode import build_decoder
from workbench.decode.decoder import context_length
from workbench.errors import WorkbenchError
from workbench.files import fingerprint
from workbench.recipe import DecodeOptions, PromptSource, Suite
from workbench.targets import Target

PUBLIC_SUITES: dict[str, PromptSource] = {
    "problems": PromptSource(prompts=PROBLEMS, split="test"),
    "gsm8k": PromptSource(prompts="openai/gsm8k", config="main", split="test", field="question"),
    "math500": PromptSource(prompts="HuggingFaceH4/MATH-500", split="test", field="problem"),
    "aime24": PromptSource(prompts="HuggingFaceH4/aime_2024", split="train", field="problem"),
    "aime25": PromptSource(prompts="math-ai/aime25", split="test", field="problem"),
    "humaneval": PromptSource(prompts="openai/openai_humaneval", split="test", field="prompt"),
    "mbpp": PromptSource(prompts="google-research-datasets/mbpp", config="sanitized", split="test", field="prompt"),
    "mt-bench": PromptSource(prompts="HuggingFaceH4/mt_bench_prompts", split="train", field="prompt"),
    "alpaca": PromptSource(prompts="tatsu-lab/alpaca", split="train", field="instruction"),
}
"""Suites by short name, in their public schema on the hub."""

_REPLY_TOKENS = 256
"""Length limit of the replies that second turns answer to."""
_PLAIN = DecodeOptions()


@dataclass(frozen=True)
class SuitePrompts:
    """One suite, ready to decode."""

    suite: Suite
    texts: list[str]
    """The last message of each prompt."""
    prompt_ids: list[list[int]]
    """Rendered with the target's chat template."""
    domains: list[str | None]
    """What each prompt is about, where its source says."""

    @property
    def name(self) -> str:
        """Row name in the report."""
        return self.suite.name

    @property
    def fingerprints(self) -> list[str]:
        """One per prompt, by which two validations find what they have in common."""
        return [fingerprint(ids) for ids in self.prompt_ids]


def named_suites(names: Sequence[str], num_prompts: int) -> list[Suite]:
    """Suites from `NAME`, `NAME=FILE` or `FILE`, as a command line gives them.

    Raises:
        WorkbenchError: a name is neither a public suite nor a file.
    """
    suites = []
    for text in names:
        name, _, file = text.partition("=")
        if not file and name in PUBLIC_SUITES:
            source = PUBLIC_SUITES[name]
        elif file or Path(name).expanduser().is_file():
            source = PromptSource(prompts=file or name)
            name = name if file else Path(name).stem
        else:
            known = ", ".join(PUBLIC_SUITES)
            raise WorkbenchError(f"suite {name!r} is unknown: use {known}, NAME=FILE, or a file of prompts")
        turns = "both" if name == "mt-bench" else "first"
        suites.append(Suite(name=name, source=source, num_prompts=num_prompts, turns=turns))
    return suites


def load_suites(
    suites: Sequence[Suite], target: Target, seed: int, options: DecodeOptions = _PLAIN
) -> list[SuitePrompts]:
    """Loads and tokenizes the prompts of all suites.

    Args:
        suites: Which ones.
        target: Writes the replies that second turns answer to, by plain greedy decoding.
        seed: Of generated problems.
        options: How it decodes.
    """
    return [_load_suite(suite, target, seed, options) for suite in suites]


def _load_suite(suite: Suite, target: Target, seed: int, options: DecodeOptions) -> SuitePrompts:
    prompts = load_prompts(suite.source, suite.num_prompts, seed)
    if not prompts:
        raise WorkbenchError(f"validate.suites: {suite.name} has no prompts in {suite.source.prompts}")
    if suite.turns == "first":
        texts = [prompt.text for prompt in prompts]
        prompt_ids = [target.encode_prompt(text) for text in texts]
        return SuitePrompts(suite, texts, prompt_ids, [prompt.domain for prompt in prompts])
    loaded = SuitePrompts(suite, [], [], [])
    for prompt, text, ids in _turns(suite, prompts, target, options):
        loaded.texts.append(text)
        loaded.prompt_ids.append(ids)
        loaded.domains.append(prompt.domain)
    return loaded


def _turns(
    suite: Suite, prompts: Sequence[Prompt], target: Target, options: DecodeOptions
) -> Iterator[tuple[Prompt, str, list[int]]]:
    """Every message of every conversation with what was said before it; replies are the target's own."""
    with (
        build_decoder("autoregressive", target, None, options) as decoder,
        progress(f"{suite.name}: first replies", len(prompts)) as advance,
    ):
        for prompt in prompts:
            messages: list[dict[str, str]] = []
            for index, text in enumerate(prompt.turns):
                messages.append({"role": "user", "content": text})
                ids = target.encode_prompt(messages)
                yield prompt, text, ids
                if index + 1 < len(prompt.turns):
                    # Half of the room that is left: the other half is for what follows.
                    limit = max(1, min(_REPLY_TOKENS, (context_length(target) - len(ids)) // 2))
                    reply = decoder.generate(ids, limit, temperature=0.0).text
                    messages.append({"role": "assistant", "content": reply})
            advance(1, "")
