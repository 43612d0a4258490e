"""The decoder's own bench: engines, executors and draft lengths side by side, with intervals.

Every row decodes the same prompts, all rows in turn for each prompt; speedups are paired by prompt with the
autoregressive row of the same engine.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from workbench.console import console, progress
from workbench.decode import Decoder, build_decoder
from workbench.decode.assembly import Method
from workbench.decode.decoder import Round
from workbench.decode.trace import summarize_overlap
from workbench.errors import WorkbenchError
from workbench.files import write_json
from workbench.recipe import DecodeOptions, Recipe
from workbench.targets import Target, load_target
from workbench.validate.machine import describe_hardware, describe_versions
from workbench.validate.statistics import median_of, median_ratio_of, pooled_ratio_of
from workbench.validate.suites import load_suites
from workbench.validate.timing import Job, Measurement, measure_generation, measure_preparation

FILE_NAME = "bench-decode.json"
MOST_WARM_UPS = 4
"""Generations of a row before the clock starts, at most."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One configuration of the table."""

    engine: str
    method: Method
    executor: str
    draft_length: int

    @property
    def name(self) -> str:
        """Unique in a table."""
        if self.method == "autoregressive":
            return f"{self.engine}, autoregressive"
        where = f" ({self.executor})" if self.method == "asynchronous" else ""
        return f"{self.engine}, {self.method}{where}, gamma {self.draft_length}"


def bench_rows(engines: Sequence[str], executors: Sequence[str], draft_lengths: Sequence[int]) -> list[Row]:
    """All configurations: per engine a baseline, and per draft length the synchronous and asynchronous decoders."""
    rows = []
    for engine in engines:
        rows.append(Row(engine, "autoregressive", "inline", 0))
        for gamma in draft_lengths:
            rows.append(Row(engine, "synchronous", "inline", gamma))
            rows += [Row(engine, "asynchronous", executor, gamma) for executor in executors]
    return rows


def bench_decode(
    recipe: Recipe,
    drafter_folder: Path,
    draft_lengths: Sequence[int] = (4, 8),
    engines: Sequence[str] | None = None,
    num_prompts: int = 16,
    repetitions: int = 3,
) -> Path:
    """Measures all rows, prints the table, writes `bench-decode.json` into the run folder and returns its path."""
    target = load_target(recipe.target)
    on_gpu = target.model.device.type == "cuda"
    engines = engines or (["eager", "cuda_graphs"] if on_gpu else ["eager", "compiled"])
    rows = bench_rows(engines, ["inline", "stream" if on_gpu else "worker"], draft_lengths)
    suite = load_suites(recipe.validate.suites[:1], target, recipe.seed)[0]
    prompts = suite.prompt_ids[:num_prompts]
    warm_up_s: dict[str, float] = {}
    measured: dict[str, list[list[Measurement]]] = {}
    with ExitStack() as stack:
        decoders = {}
        for row in rows:

            def prepare(row: Row = row) -> Decoder:
                decoder = stack.enter_context(_build(row, target, drafter_folder, recipe.decode))
                # Generations compile or capture what the row needs; meanwhile rounds go on without drafts.
                for _ in range(MOST_WARM_UPS):
                    generation = decoder.generate(prompts[0], recipe.validate.max_new_tokens)
                    if not generation.statistics.num_failures:
                        break
                return decoder

            decoders[row.name], warm_up_s[row.name] = measure_preparation(prepare)
            measured[row.name] = [[] for _ in prompts]
            console.print(f"{row.name}: ready after {warm_up_s[row.name]:.1f} s")
        with progress("bench-decode", repetitions * len(prompts) * len(rows)) as advance:
            for repetition in range(repetitions):
                for index, prompt in enumerate(prompts):
                    for name, decoder in decoders.items():
                        job = Job(suite.name, index, name, repetition)
                        measured[name][index].append(
                            measure_generation(decoder, job, prompt, recipe.validate.max_new_tokens, 0.0, 0)
                        )
                        advance(1, "")
    reference = {i: runs[0].token_ids for i, runs in enumerate(measured[rows[0].name])}
    cells = [_cell(row, measured, warm_up_s[row.name], reference) for row in rows]
    path = recipe.run_folder / FILE_NAME
    write_json(
        path,
        {
            "schema_version": 1,
            "drafter": str(drafter_folder),
            "num_prompts": len(prompts),
            "repetitions": repetitions,
            "rows": cells,
            "machine": describe_hardware(),
            "versions": describe_versions(),
        },
    )
    console.print(_render(cells))
    different = [cell["name"] for cell in cells if not cell["identical"]]
    if different and target.model.dtype == torch.float32:
        raise WorkbenchError(f"outputs differ from those of {rows[0].name}: {', '.join(different)}; see {path}")
    return path


def _build(row: Row, target: Target, drafter_folder: Path, options: DecodeOptions) -> Decoder:
    chosen = dataclasses.replace(
        options,
        engine=row.engine,  # type: ignore[arg-type]
        executor=row.executor,  # type: ignore[arg-type]
        draft_length=row.draft_length or options.draft_length,
    )
    return build_decoder(row.method, target, drafter_folder, chosen)


def _cell(
    row: Row, measured: dict[str, list[list[Measurement]]], warm_up_s: float, reference: dict[int, list[int]]
) -> dict[str, Any]:
    runs = measured[row.name]
    speeds = [_median_speed(of_prompt) for of_prompt in runs]
    baseline = [_median_speed(of_prompt) for of_prompt in measured[f"{row.engine}, autoregressive"]]
    rounds = [[Round(**entry) for entry in run.rounds] for of_prompt in runs for run in of_prompt]
    emitted = [float(sum(r.num_emitted for r in of_run)) for of_run in rounds]
    summary = summarize_overlap(rounds)
    return {
        "name": row.name,
        **dataclasses.asdict(row),
        "tokens_per_second": median_of(speeds).as_dict(),
        "speedup": median_ratio_of(speeds, baseline).as_dict(),
        "acceptance_length": pooled_ratio_of(emitted, [float(len(of_run)) for of_run in rounds]).as_dict(),
        "hit_rate": summary.hit_rate,
        "round_ms": summary.round_ms,
        "verify_ms": summary.verify_ms,
        "packed_ms": summary.packed_ms,
        "warm_up_s": warm_up_s,
        "failed_round_share": sum(run.num_failures for of_prompt in runs for run in of_prompt)
        / max(1, sum(len(of_run) for of_run in rounds)),
        "identical": all(run.token_ids == reference[i] for i, of_prompt in enumerate(runs) for run in of_prompt),
    }


def _median_speed(runs: Sequence[Measurement]) -> float:
    speeds = sorted(run.end_to_end_tokens_per_second for run in runs)
    return speeds[len(speeds) // 2]


def _render(cells: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Decoding, end to end, medians over prompts with 95 % intervals")
    for column in (
        "decoder",
        "tokens/s",
        "speedup",
        "acceptance length",
        "hits",
        "no draft",
        "round ms",
        "warm-up s",
        "identical",
    ):
        table.add_column(column, justify="left" if column == "decoder" else "right")
    for cell in cells:
        table.add_row(
            cell["name"],
            _interval(cell["tokens_per_second"], 0),
            _interval(cell["speedup"], 2),
            f"{cell['acceptance_length']['mean']:.2f}",
            f"{cell['hit_rate']:.2f}",
            f"{cell['failed_round_share']:.2f}",
            f"{cell['round_ms']:.1f}",
            f"{cell['warm_up_s']:.0f}",
            "yes" if cell["identical"] else "no",
        )
    return table


def _interval(estimate: dict[str, Any], digits: int) -> str:
    low, high = estimate["ci95"]
    return f"{estimate['median']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
