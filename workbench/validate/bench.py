"""The bench: everything that a validation measures, open at the same time, and the judgement of its outputs."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workbench.console import console, progress
from workbench.files import sha256_of_file
from workbench.recipe import Recipe
from workbench.targets import Target
from workbench.validate.losslessness import Verdict, check_rounds, compare_outputs, measure_logit_gap, tie_tolerance
from workbench.validate.machine import describe_versions
from workbench.validate.methods import BASELINE, Method, open_decoders
from workbench.validate.state import MeasurementLog
from workbench.validate.suites import SuitePrompts
from workbench.validate.timing import (
    Job,
    Measurement,
    interleaved_jobs,
    measure_generation,
    measure_idle_load,
)


@dataclass(frozen=True)
class Bench:
    """What is measured, loaded and ready."""

    recipe: Recipe
    target: Target
    drafters: dict[str, Path]
    suites: list[SuitePrompts]
    methods: list[Method]

    def subject(self) -> dict[str, Any]:
        """Everything that decides what a measurement means; a change makes old measurements worthless."""
        return {
            "target": self.target.fingerprint,
            "drafters": {name: drafter_hashes(folder) for name, folder in self.drafters.items()},
            "validate": asdict(self.recipe.validate),
            "methods": [asdict(method) for method in self.methods],
            "seed": self.recipe.seed,
            "versions": describe_versions(),
        }

    def jobs(self) -> list[Job]:
        """All measurements in their order."""
        options = self.recipe.validate
        return interleaved_jobs(
            suites={suite.name: len(suite.prompt_ids) for suite in self.suites},
            timed_prompts=options.timed_prompts,
            repetitions=options.repetitions,
            methods=[method.name for method in self.methods],
            methods_on_all_prompts=[method.name for method in self.methods if method.on_all_prompts],
            seed=self.recipe.seed,
        )

    def measure(self, log: MeasurementLog) -> float | None:
        """Makes the measurements that are not in the log; returns the cores that others used before."""
        jobs = [job for job in self.jobs() if job not in log.measurements]
        if not jobs:
            return None
        if log.num_resumed:
            console.print(f"continuing after {log.num_resumed} measurements of an interrupted validation")
        idle_load = measure_idle_load()
        prompts = {suite.name: suite.prompt_ids for suite in self.suites}
        with (
            open_decoders(self.methods, self.target, self.drafters) as decoders,
            progress("validate", len(jobs)) as advance,
        ):
            for name, decoder in decoders.items():
                self._warm_up(name, decoder)
            for job in jobs:
                log.append(self._measure(job, decoders[job.method], prompts[job.suite][job.prompt]))
                advance(1, "")
        return idle_load

    def judge(self, measurements: dict[Job, Measurement], job: Job) -> Verdict:
        """Compares one output with that of plain decoding and checks its rounds."""
        run = measurements[job]
        reference = measurements[Job(job.suite, job.prompt, BASELINE, job.repetition)]
        prompt_ids = next(suite.prompt_ids[job.prompt] for suite in self.suites if suite.name == job.suite)
        verdict = compare_outputs(
            run.token_ids,
            reference.token_ids,
            self.target.stop_ids,
            self.recipe.validate.max_new_tokens,
            partial(measure_logit_gap, self.target, prompt_ids, reference.token_ids, run.token_ids),
            # A sampled token is decided by more than the two logits: no gap makes it a tie.
            tie_tolerance(self.target.model.dtype) if self.recipe.decode.temperature == 0 else 0.0,
        )
        if verdict.status == "different":
            return verdict
        return check_rounds(run.rounds, len(run.token_ids)) or verdict

    def _warm_up(self, method: str, decoder: Any) -> None:
        suite = self.suites[0]
        for index in range(self.recipe.validate.warmup_prompts):
            prompt_ids = suite.prompt_ids[index % len(suite.prompt_ids)]
            self._measure(Job(suite.name, index, method, 0), decoder, prompt_ids)

    def _measure(self, job: Job, decoder: Any, prompt_ids: list[int]) -> Measurement:
        return measure_generation(
            decoder,
            job,
            prompt_ids,
            self.recipe.validate.max_new_tokens,
            self.recipe.decode.temperature,
            # The same for all methods: sample-match emits the very tokens of plain sampling with the same seed.
            seed=self.recipe.seed + 1000 * job.prompt + job.repetition,
            device=self.target.model.device,
        )


def drafter_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that decide what a drafter drafts."""
    names = [*sorted(path.name for path in folder.glob("*.safetensors")), "config.json", "calibration.json"]
    return {name: sha256_of_file(folder / name) for name in names if (folder / name).is_file()}
