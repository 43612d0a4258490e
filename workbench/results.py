"""The results page: measurements that were recorded from runs, as `docs/results.md` with figures and README's table.

`record` copies a run's JSON files to `docs/measurements/<recipe>/`; `write_results` renders everything from there. So
no number in the documentation is typed by hand.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.files import read_json, write_json, write_text
from workbench.outlook import render_outlook
from workbench.recipe import Recipe
from workbench.result_tables import SECTIONS, render_durations, render_rounds, render_suites, render_table
from workbench.stages import stage_seconds
from workbench.validate.figures import draw_learning_curve, draw_speedups
from workbench.validate.table import render_estimate, render_hit_rate, render_layers, render_losslessness, value_of

MEASUREMENTS = Path("docs/measurements")
PAGE = Path("docs/results.md")
README = Path("README.md")
SECTION = ("<!-- results: written by `make results` -->", "<!-- end of results -->")

DURATIONS = "stages.json"
"""Seconds of each stage of the recorded run."""

_FILES = {
    "validation.json": "validation.json",
    "search.json": "search.json",
    "corpus.json": "corpus/corpus.json",
    "distill.json": "distill/distill.json",
    "throughput.json": "throughput.json",
    "ablation.json": "ablation.json",
    "dflash.json": "dflash/dflash.json",
    "comparison.json": "compare-searches/comparison.json",
    "exactness.json": "exactness.json",
    "bench-decode.json": "bench-decode.json",
    "overlap.json": "overlap.json",
    "delay-injection.json": "delay-injection.json",
    "delay-injection.svg": "delay-injection.svg",
    "plan.json": "plan.json",
}
"""Name in `docs/measurements/<recipe>/`, place in the run folder."""


def record(recipe: Recipe, measurements: Path = MEASUREMENTS) -> Path:
    """Copies what a run has measured or planned; what it has not stays as it was recorded before.

    Raises:
        WorkbenchError: the run was neither validated nor planned.
    """
    if not any((recipe.run_folder / name).is_file() for name in ("validation.json", "plan.json")):
        raise WorkbenchError(f"{recipe.run_folder} holds no validation.json and no plan.json: run the recipe first")
    folder = measurements / recipe.name
    for name, place in _FILES.items():
        source = recipe.run_folder / place
        if not source.is_file():
            continue
        if name.endswith(".json"):
            write_json(folder / name, _without_places(read_json(source)))
        else:
            write_text(folder / name, source.read_text(encoding="utf-8"))
    if seconds := stage_seconds(recipe.run_folder):
        write_json(folder / DURATIONS, seconds)
    return folder


def _without_places(value: Any) -> Any:
    """The same without absolute paths: of them only the last part means something elsewhere."""
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    if not isinstance(value, str):
        return value
    # `/a/b` becomes `b`, and `sqlite:////a/b` becomes `sqlite:///b`.
    return re.sub(r"^(\w+:///)?/.*?([^/]*)$", r"\1\2", value)


def write_results(measurements: Path = MEASUREMENTS, page: Path = PAGE, readme: Path = README) -> None:
    """Writes the page, one figure a recipe beside its measurements, and README's section.

    Raises:
        WorkbenchError: nothing was recorded, or README lacks the section's marks.
    """
    folders = sorted(path.parent for path in measurements.glob("*/validation.json"))
    if not folders:
        raise WorkbenchError(f"{measurements} holds no validation.json: record a run with `make record RECIPE=<name>`")
    for folder in folders:
        validation = read_json(folder / "validation.json")
        write_text(folder / "speedups.svg", draw_speedups(_suites(validation), validation["methods"]))
        if (report := _learning_curve(folder)) is not None:
            write_text(folder / "learning-curve.svg", draw_learning_curve(report["curve"], report["forecasts"]))
    planned = sorted({*folders, *(path.parent for path in measurements.glob("*/plan.json"))})
    write_text(page, render_page(folders, render_outlook(planned)))
    write_text(readme, replace_section(readme, render_summary(folders)))


def _learning_curve(folder: Path) -> dict[str, Any] | None:
    """The report of a training with enough validations to draw."""
    path = folder / "distill.json"
    report = read_json(path) if path.is_file() else {"curve": []}
    return report if len(report["curve"]) > 2 else None


def render_page(folders: Sequence[Path], outlook: Sequence[str]) -> str:
    """The whole page, `outlook` at its end."""
    parts = [
        "# Results",
        "Written by `make results` from the JSON files in `docs/measurements/`, which `make record RECIPE=<name>` took "
        "from runs. Speedups are decode speed over plain decoding of the same target by the same engine on the same "
        "prompts, with 95 % intervals; [validation.md](validation.md) says how they are measured.",
    ]
    return "\n\n".join([*parts, *(_render_recipe(folder) for folder in folders), *outlook]) + "\n"


def render_summary(folders: Sequence[Path]) -> str:
    """README's tables: the four ways of decoding on each recipe's first suite, then all suites where there are more."""
    rows, by_suite = [], []
    for folder in folders:
        validation = read_json(folder / "validation.json")
        suite = _suites(validation)[0]
        rows += [
            [folder.name, suite, method, *_speed_columns(validation, method, suite)]
            for method in validation["methods"]
            if method in ("autoregressive", "dflash", "synchronous", "asynchronous")
        ]
        if len(_suites(validation)) > 1:
            title = f"`{folder.name}` by suite: speedup over plain decoding (acceptance length)."
            by_suite += [title, render_suites(validation)]
    table = render_table(["recipe", "suite", "method", *_SPEED_HEADER], rows)
    return "\n\n".join([table, *by_suite, *(_describe_run(folder) for folder in folders)])


def _describe_run(folder: Path) -> str:
    """Where a recipe ran, and how long it took."""
    hardware, path = read_json(folder / "validation.json")["hardware"], folder / DURATIONS
    machine = ", ".join([f"{hardware['cores']} cores of {hardware['processor']}", *hardware["gpus"]])
    duration = f" and took {render_durations(read_json(path))}" if path.is_file() else ""
    return f"`{folder.name}` ran on {machine}{duration}."


_SPEED_HEADER = ("layers", "acceptance length", "tokens/s", "speedup", "hits", "lossless")


def _speed_columns(validation: dict[str, Any], method: str, suite: str) -> list[str]:
    cell = validation["methods"][method][suite]
    return [
        render_layers(validation, method),
        f"{value_of(cell['acceptance_length']):.2f}" if "acceptance_length" in cell else "-",
        f"{value_of(cell['tokens_per_second']):.0f}",
        render_estimate(cell["speedup"], suffix="x"),
        render_hit_rate(cell),
        render_losslessness(cell),
    ]


def _suites(validation: dict[str, Any]) -> list[str]:
    return list(next(iter(validation["methods"].values())))


def _render_recipe(folder: Path) -> str:
    validation = read_json(folder / "validation.json")
    versions = validation["versions"]
    parts = [
        f"## {folder.name}",
        f"Target {validation['target']['identity']} in {validation['target']['dtype']}; torch "
        f"{versions['torch']}, transformers {versions['transformers']}; {validation['date'][:10]}."
        + "".join(f" **{warning}**" for warning in validation["warnings"]),
        _describe_run(folder),
        f"![speedups]({MEASUREMENTS.name}/{folder.name}/speedups.svg)",
    ]
    for suite in _suites(validation):
        rows = [[method, *_speed_columns(validation, method, suite)] for method in validation["methods"]]
        parts += [
            f"### {folder.name}: {suite}",
            render_table(["method", *_SPEED_HEADER], rows),
            render_rounds(validation, suite),
        ]
    for name, render in SECTIONS.items():
        if (folder / name).is_file():
            parts.append(render(read_json(folder / name)))
    if _learning_curve(folder) is not None:
        parts.append(f"![learning curve]({MEASUREMENTS.name}/{folder.name}/learning-curve.svg)")
    if (folder / "delay-injection.svg").is_file():
        parts += [
            "Delay injection: the drafter's passes slowed by an artificial delay. A round stays as long as its longer "
            "side, then grows one for one.",
            f"![delay injection]({MEASUREMENTS.name}/{folder.name}/delay-injection.svg)",
        ]
    return "\n\n".join(part for part in parts if part)


def replace_section(readme: Path, content: str) -> str:
    """README's text with new content between the marks."""
    begin, end = SECTION
    text = readme.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise WorkbenchError(f"{readme} lacks the lines {begin!r} and {end!r} between which results go")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"
