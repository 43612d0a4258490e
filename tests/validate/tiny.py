"""A whole tiny validation: target and drafter folders, prompts in a file, a recipe."""

import dataclasses
import json
from pathlib import Path

from tests.conftest import make_drafter_folder, make_model, make_target
from workbench.recipe import (
    CorpusOptions,
    DecodeOptions,
    DistillOptions,
    DrafterOptions,
    PromptSource,
    PruneOptions,
    PublishOptions,
    Recipe,
    Suite,
    TargetOptions,
    ValidateOptions,
)


def write_pair(folder: Path, **spec_changes) -> tuple[Path, Path]:
    """Folders of a target and of a drafter that is a copy of it."""
    target = make_target()
    target.model.save_pretrained(folder / "target")
    target.tokenizer.save_pretrained(folder / "target")
    model = make_model(vocab_rows=target.config.vocab_size)
    return folder / "target", make_drafter_folder(folder / "drafter", target, model, **spec_changes)


def make_recipe(folder: Path, target: Path, num_prompts: int = 4, **decode: object) -> Recipe:
    """A recipe for that target with prompts from a file."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"question": f"w{i} w{i + 1} w7"}) + "\n" for i in range(num_prompts)))
    source = PromptSource(prompts=str(prompts), field="question")
    return Recipe(
        name="tiny",
        target=TargetOptions(model=str(target)),
        corpus=CorpusOptions(sources=[source], num_responses=1),
        drafter=DrafterOptions(),
        distill=DistillOptions(steps=1),
        prune=PruneOptions(),
        decode=dataclasses.replace(DecodeOptions(max_hypotheses=2, executor="inline"), **decode),
        validate=ValidateOptions(
            suites=[Suite(name="words", source=source, num_prompts=num_prompts)],
            max_new_tokens=12,
            repetitions=2,
            timed_prompts=2,
            warmup_prompts=1,
        ),
        publish=PublishOptions(licence="apache-2.0"),
    )
