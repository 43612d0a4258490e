"""The bench: everything that a validation measures, open at the same time, and the judgement of its outputs."""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from workbench.console import console, progress
from workbench.files import sha256_of_file
from workbench.targets import Target
from workbench.validate.losslessness import Verdict, check_rounds, compare_outputs, measure_logit_gap, tie_tolerance
from workbench.validate.machine import describe_versions
from workbench.validate.memory import peak_device_mib, peak_mib
from workbench.validate.methods import BASELINE, Method, open_decoders
from workbench.validate.plan import Plan
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
class Surroundings:
    """What was read from the machine around the measurements; None is unknown."""

    idle_load: float | None = None
    """Cores that others used before the first measurement."""
    process_peak_mib: float | None = None
    """Most memory of this process: target, inline drafters and all methods side by side."""
    worker_peak_mib: dict[str, float] = field(default_factory=dict)
    """Most memory of the drafter's process, by method."""
    slowdowns: dict[str, float] = field(default_factory=dict)
    """By what share packed passes beside it lengthen a verification, by method."""
    device_peak_mib: float | None = None
    """Most memory on a GPU, all methods side by side."""


@dataclass(frozen=True)
class Bench:
    """What is measured, loaded and ready."""

    plan: Plan
    target: Target
    drafters: dict[str, Path]
    suites: list[SuitePrompts]
    methods: list[Method]

    def subject(self) -> dict[str, Any]:
        """Everything that decides what a measurement means; a change makes old measurements worthless."""
        return {
            "target": self.target.fingerprint,
            "drafters": {name: drafter_hashes(folder) for name, folder in self.drafters.items()},
            "validate": asdict(self.plan.validate),
            "methods": [asdict(method) for method in self.methods],
            "seed": self.plan.seed,
            "versions": describe_versions(),
        }

    def temperature(self, suite: str) -> float:
        """Of a suite: its own, or that of the decoder."""
        own = next(entry.suite.temperature for entry in self.suites if entry.name == suite)
        return self.plan.decode.temperature if own is None else own

    def is_exact(self, method: Method, suite: str) -> bool:
        """Whether outputs must be those of plain decoding, token for token; else they are equal in law only."""
        if self.temperature(suite) == 0:
            return True
        # The library draws with random numbers of its own; by rejection, draws are others, too.
        return not method.is_stock and (self.plan.decode.acceptance == "sample_match" or method.drafter is None)

    def jobs(self) -> list[Job]:
        """All measurements in their order."""
        options = self.plan.validate
        return interleaved_jobs(
            suites={suite.name: len(suite.prompt_ids) for suite in self.suites},
            timed_prompts=options.timed_prompts,
            repetitions=options.repetitions,
            methods=[method.name for method in self.methods],
            methods_on_all_prompts=[method.name for method in self.methods if method.on_all_prompts],
            seed=self.plan.seed,
        )

    def measure(self, log: MeasurementLog) -> Surroundings:
        """Makes the measurements that are not in the log."""
        jobs = [job for job in self.jobs() if job not in log.measurements]
        if not jobs:
            return Surroundings()
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
            workers = {name: getattr(decoder, "worker_id", None) for name, decoder in decoders.items()}
            slowdowns = {name: getattr(decoder, "slowdown", None) for name, decoder in decoders.items()}
            peaks = {name: peak_mib(worker) for name, worker in workers.items() if worker is not None}
        return Surroundings(
            idle_load=idle_load,
            process_peak_mib=peak_mib(),
            worker_peak_mib={name: peak for name, peak in peaks.items() if peak is not None},
            slowdowns={name: share for name, share in slowdowns.items() if share is not None},
            device_peak_mib=peak_device_mib(self.target.model.device),
        )

    def judge(self, measurements: dict[Job, Measurement], job: Job) -> Verdict:
        """Compares one output with that of plain decoding and checks its rounds."""
        run = measurements[job]
        reference = measurements[Job(job.suite, job.prompt, BASELINE, job.repetition)]
        prompt_ids = next(suite.prompt_ids[job.prompt] for suite in self.suites if suite.name == job.suite)
        verdict = compare_outputs(
            run.token_ids,
            reference.token_ids,
            self.target.stop_ids,
            self.plan.validate.max_new_tokens,
            partial(measure_logit_gap, self.target, prompt_ids, reference.token_ids, run.token_ids),
            # A sampled token is decided by more than the two logits: no gap makes it a tie.
            tie_tolerance(self.target.model.dtype) if self.temperature(job.suite) == 0 else 0.0,
        )
        if verdict.status == "different":
            return verdict
        return check_rounds(run.rounds, len(run.token_ids)) or verdict

    def _warm_up(self, method: str, decoder: Any) -> None:
        suite = self.suites[0]
        for index in range(self.plan.validate.warmup_prompts):
            prompt_ids = suite.prompt_ids[index % len(suite.prompt_ids)]
            self._measure(Job(suite.name, index, method, 0), decoder, prompt_ids)

    def _measure(self, job: Job, decoder: Any, prompt_ids: list[int]) -> Measurement:
        return measure_generation(
            decoder,
            job,
            prompt_ids,
            self.plan.validate.max_new_tokens,
            self.temperature(job.suite),
            # The same for all methods: sample-match emits the very tokens of plain sampling with the same seed.
            seed=self.plan.seed + 1000 * job.prompt + job.repetition,
            device=self.target.model.device,
        )


def drafter_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that decide what a drafter drafts."""
    names = [*sorted(path.name for path in folder.glob("*.safetensors")), "config.json", "calibration.json"]
    return {name: sha256_of_file(folder / name) for name in names if (folder / name).is_file()}
