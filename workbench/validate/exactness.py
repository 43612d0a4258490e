"""Exactness on many prompts: does every decoder emit what plain greedy decoding emits, token for token?"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from workbench.console import console, progress
from workbench.decode import build_decoder
from workbench.errors import WorkbenchError
from workbench.files import write_json
from workbench.recipe import Recipe, Suite
from workbench.targets import load_target
from workbench.validate.losslessness import compare_outputs, measure_logit_gap, tie_tolerance
from workbench.validate.suites import load_suites

FILE_NAME = "exactness.json"


def check_exactness(recipe: Recipe, drafter_folder: Path, num_prompts: int, max_new_tokens: int) -> Path:
    """Decodes prompts of the recipe's first suite with all methods; writes `exactness.json` into the run folder.

    Raises:
        WorkbenchError: an output differs and is no numerical tie.
    """
    target = load_target(recipe.target)
    first = recipe.validate.suites[0]
    suite = load_suites([Suite(name=first.name, source=first.source, num_prompts=num_prompts)], target, recipe.seed)[0]
    counts: dict[str, Counter[str]] = {"synchronous": Counter(), "asynchronous": Counter()}
    messages: list[str] = []
    num_tokens = 0
    with (
        build_decoder("autoregressive", target, None, recipe.decode) as plain,
        build_decoder("synchronous", target, drafter_folder, recipe.decode) as synchronous,
        build_decoder("asynchronous", target, drafter_folder, recipe.decode) as asynchronous,
        progress("exactness", len(suite.prompt_ids)) as advance,
    ):
        for index, prompt_ids in enumerate(suite.prompt_ids):
            reference = plain.generate(prompt_ids, max_new_tokens, temperature=0.0).token_ids
            num_tokens += len(reference)
            for name, decoder in (("synchronous", synchronous), ("asynchronous", asynchronous)):
                output = decoder.generate(prompt_ids, max_new_tokens, temperature=0.0).token_ids
                verdict = compare_outputs(
                    output,
                    reference,
                    target.stop_ids,
                    max_new_tokens,
                    partial(measure_logit_gap, target, prompt_ids, reference, output),
                    tie_tolerance(target.model.dtype),
                )
                counts[name][verdict.status] += 1
                if verdict.status != "identical":
                    messages.append(f"{name}, prompt {index}: {verdict.message}")
            advance(1, "")
    result: dict[str, Any] = {
        "drafter": str(drafter_folder),
        "dtype": recipe.target.dtype,
        "num_prompts": len(suite.prompt_ids),
        "num_tokens": num_tokens,
        "outputs": {name: dict(counter) for name, counter in counts.items()},
        "messages": messages,
    }
    path = recipe.run_folder / FILE_NAME
    write_json(path, result)
    for name, counter in counts.items():
        console.print(f"{name}: " + ", ".join(f"{count} {status}" for status, count in counter.items()))
    if any(counter["different"] for counter in counts.values()):
        raise WorkbenchError(f"outputs differ from plain decoding: {messages[0]}; all are in {path}")
    return path
