"""A recipe for the tiny pair."""

from workbench.recipe import (
    CorpusOptions,
    DecodeOptions,
    DistillOptions,
    DrafterOptions,
    PromptSource,
    PruneOptions,
    Recipe,
    TargetOptions,
    ValidateOptions,
)


def make_recipe(target: str = "nowhere", seed: int = 0, **prune) -> Recipe:
    defaults = {"drop_layers": [3], "trials": 24, "finalists": 1, "heal_steps": 4, "decode_prompts": 6}
    return Recipe(
        name="tiny",
        seed=seed,
        target=TargetOptions(model=target),
        corpus=CorpusOptions(sources=[PromptSource(prompts="problems")], num_responses=1, max_new_tokens=12),
        drafter=DrafterOptions(block_size=5),
        distill=DistillOptions(steps=1, batch_size=8, blocks_per_sequence=4),
        prune=PruneOptions(**{**defaults, **prune}),
        decode=DecodeOptions(draft_length=4, max_hypotheses=2, executor="inline"),
        validate=ValidateOptions(suites=[]),
    )
