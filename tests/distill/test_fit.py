import contextlib
import csv
import dataclasses

import datasets
import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from tests.conftest import make_model, make_spec, make_target
from workbench.distill.data import DistillationData
from workbench.distill.fit import fit_drafter, write_curve
from workbench.drafter.model import Drafter
from workbench.errors import WorkbenchError
from workbench.recipe import DistillOptions

TARGET = make_target()


def make_options(**changes) -> DistillOptions:
    options = {
        "steps": 8,
        "batch_size": 8,
        "blocks_per_sequence": 4,
        "validate_every": 3,
        "learning_rate": 3e-3,
        "precision": "32-true",
    }
    return DistillOptions(**{**options, **changes})


def make_drafter() -> Drafter:
    return Drafter(make_model(vocab_rows=40, seed=5), make_spec(TARGET, block_size=5))


def fit(corpus, folder, drafter=None, **changes):
    drafter = drafter or make_drafter()
    return drafter, fit_drafter(drafter, TARGET, corpus, make_options(**changes), folder, seed=0)


def weights(drafter: Drafter) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in drafter.model.state_dict().items()}


def without_times(curve):
    return [{key: value for key, value in point.items() if key != "seconds"} for point in curve]


class Killed(Exception):
    pass


@contextlib.contextmanager
def killed_at_batch(number: int, monkeypatch, drawn: list[int]):
    """The training breaks off when it asks for a batch, as if its process had been killed there."""
    batch = DistillationData.batch

    def draw(self, asked):
        drawn.append(asked)
        if asked == number:
            raise Killed
        return batch(self, asked)

    with monkeypatch.context() as patch:
        patch.setattr(DistillationData, "batch", draw)
        yield


@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulate": 2, "ema_decay": 0.9}, {"precision": "bf16-true"}],
    ids=["plain", "accumulating with ema", "in bfloat16"],
)
def test_killed_and_resumed_equals_uninterrupted(corpus, tmp_path, monkeypatch, changes):
    whole, whole_report = fit(corpus, tmp_path / "whole", **changes)
    accumulate = changes.get("accumulate", 1)
    drawn: list[int] = []
    with killed_at_batch(5 * accumulate, monkeypatch, drawn), pytest.raises(Killed):
        fit(corpus, tmp_path / "killed", **changes)
    drawn.clear()
    with killed_at_batch(-1, monkeypatch, drawn):
        resumed, report = fit(corpus, tmp_path / "killed", **changes)
    assert drawn[0] == 3 * accumulate  # after the checkpoint, not from the beginning
    assert report.steps == whole_report.steps == 8
    assert without_times(report.curve) == without_times(whole_report.curve)
    assert (report.clean_tokens, report.block_rows) == (whole_report.clean_tokens, whole_report.block_rows)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


def test_training_raises_the_estimated_acceptance(corpus, tmp_path):
    _, report = fit(
        corpus, tmp_path, steps=250, validate_every=250, denoising="cross_entropy", autoregressive="cross_entropy"
    )
    assert report.final["acceptance_anchored"] > 2.5
    assert report.final["acceptance_masked"] > 2.0


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_learns_alike(corpus, tmp_path, precision):
    _, exact = fit(corpus, tmp_path / "exact", steps=30)
    drafter, report = fit(corpus, tmp_path / "half", steps=30, precision=precision)
    assert report.final["denoising"] == pytest.approx(exact.final["denoising"], rel=0.05)
    assert all(weight.dtype == torch.float32 for weight in drafter.model.parameters())


def assert_same_training(corpus, tmp_path, precision="32-true", **changes):
    options = {"steps": 3, "validate_every": 3, "precision": precision}
    whole, whole_report = fit(corpus, tmp_path / "plain", **options)
    other, report = fit(corpus, tmp_path / "other", **options, **changes)
    assert report.final["denoising"] == pytest.approx(whole_report.final["denoising"], rel=1e-4)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(other)[name], tensor, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
def test_recomputed_activations_change_nothing(corpus, tmp_path, monkeypatch, precision):
    passes = []
    forward = Qwen3MLP.forward
    monkeypatch.setattr(Qwen3MLP, "forward", lambda self, *args: passes.append(self.training) or forward(self, *args))
    assert_same_training(corpus, tmp_path, precision, checkpoint_activations=True)
    assert sum(passes) == (1 + 2) * 3 * 3  # steps of 3 layers, without and with a second pass


@pytest.mark.slow
def test_compiled_layers_change_nothing(corpus, tmp_path, monkeypatch):
    # The tracing is what may go wrong; without code generation it takes seconds.
    compile_layer = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_layer(self, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert_same_training(corpus, tmp_path, compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_frozen_embeddings_and_heads_stay_those_of_the_target(corpus, tmp_path):
    drafter = make_drafter()
    model = drafter.model
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    before = weights(drafter)
    fit(corpus, tmp_path, drafter, freeze_embeddings=True)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        changed = (weights(drafter)[name] != before[name]).any(-1)
        assert changed.nonzero().flatten().tolist() == [36], name
    assert not torch.equal(weights(drafter)["model.norm.weight"], before["model.norm.weight"])


def test_report_and_curve(corpus, tmp_path):
    drafter, report = fit(corpus, tmp_path)
    assert [point["step"] for point in report.curve] == [3, 6, 8]
    assert report.curve[-1].items() >= report.final.items()
    assert report.forecasts == []  # too few points for a law
    assert report.seconds > 0
    assert report.tokens_per_second == pytest.approx((report.clean_tokens + report.block_rows) / report.seconds)
    for name in ("denoising", "autoregressive", "acceptance_anchored", "agreement_anchored_1", "agreement_masked_4"):
        assert report.final[name] >= 0
    assert not any(parameter.requires_grad for parameter in drafter.model.parameters())
    assert not drafter.model.training
    write_curve(tmp_path / "curve.csv", report.curve)
    with (tmp_path / "curve.csv").open() as handle:
        assert [row["step"] for row in csv.DictReader(handle)] == ["3", "6", "8"]
    assert list(tmp_path.glob("log/version_0/metrics.csv"))


def test_a_curve_of_enough_points_is_continued(corpus, tmp_path):
    _, report = fit(corpus, tmp_path, steps=6, validate_every=1)
    assert {(fit["figure"], fit["axis"]) for fit in report.forecasts} == {
        (figure, axis)
        for figure in ("acceptance_anchored", "acceptance_masked")
        for axis in ("seconds", "clean_tokens")
    }
    assert all(fit["limit"] <= 5 for fit in report.forecasts)  # four draft tokens and the bonus


def test_the_rate_follows_from_the_size(corpus, tmp_path):
    fit(corpus, tmp_path, steps=10, learning_rate="auto")
    with next(tmp_path.glob("log/version_0/metrics.csv")).open() as handle:
        rates = [float(row["train/learning_rate"]) for row in csv.DictReader(handle) if row["train/learning_rate"]]
    assert 0 < rates[0] <= 2e-3


def test_training_ends_when_its_time_is_over(corpus, tmp_path):
    _, report = fit(corpus, tmp_path, steps=100_000, max_minutes=0.02)
    assert 1 < report.steps < 100_000


def test_training_ends_without_progress(corpus, tmp_path):
    _, report = fit(corpus, tmp_path, steps=100, validate_every=2, patience=3, learning_rate=1e-12)
    assert report.steps == 8


def test_checkpoints_hold_the_drafter_only(corpus, tmp_path):
    fit(corpus, tmp_path)
    checkpoint = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=False)
    names = {name.removeprefix("model.") for name in checkpoint["state_dict"] if name.startswith("model.")}
    assert names == set(make_drafter().model.state_dict())


def test_a_loss_that_is_no_number_names_the_sample(corpus, tmp_path, monkeypatch):
    from workbench.distill.module import Distillation

    terms = Distillation.terms

    def broken(self, batch):
        result = terms(self, batch)
        if 17 in batch.samples_B.tolist():
            result = result._replace(denoising=result.denoising * float("nan"))
        return result

    monkeypatch.setattr(Distillation, "terms", broken)
    with pytest.raises(WorkbenchError, match=r"no number at step \d+, in training sample 17$"):
        fit(corpus, tmp_path, steps=20)


def test_a_bad_sample_costs_nothing_that_was_trained_before(corpus, tmp_path, monkeypatch):
    from workbench.distill.module import Distillation

    step = Distillation.training_step

    def broken(self, batch, batch_index):
        if self.global_step == 5:
            raise WorkbenchError("the loss is no number")
        return step(self, batch, batch_index)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "training_step", broken)
        with pytest.raises(WorkbenchError):
            fit(corpus, tmp_path / "stopped")
    whole, _ = fit(corpus, tmp_path / "whole")
    drawn: list[int] = []
    with killed_at_batch(-1, monkeypatch, drawn):
        resumed, _ = fit(corpus, tmp_path / "stopped")
    assert drawn[0] == 3
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


def replace_sample(samples, index, **columns):
    rows = samples.to_list()
    rows[index] |= columns
    return datasets.Dataset.from_list(rows)


@pytest.mark.parametrize(
    ("part", "columns", "message"),
    [
        ("train", {"response_ids": []}, "training sample 7 has a response of 0 tokens: nothing to supervise"),
        ("train", {"response_ids": [1]}, "training sample 7 has a response of 1 tokens: nothing to supervise"),
        ("held_out", {"prompt_ids": []}, "held-out sample 7 has no prompt token"),
        ("train", {"response_ids": [4, 151_000, 1]}, "training sample 7 has token 151000, .* another tokenizer"),
    ],
)
def test_bad_samples_are_named_before_anything_is_trained(corpus, tmp_path, part, columns, message):
    bad = dataclasses.replace(corpus, **{part: replace_sample(getattr(corpus, part), 7, **columns)})
    with pytest.raises(WorkbenchError, match=message):
        fit(bad, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_corpus_of_another_template_is_refused(corpus, tmp_path):
    other = dataclasses.replace(corpus, facts={"template_hash": "0" * 16})
    with pytest.raises(WorkbenchError, match=r"another chat template \(0{16}\)"):
        fit(other, tmp_path)


def test_broken_weights_are_named_as_such(corpus, tmp_path):
    drafter = make_drafter()
    with torch.no_grad():
        drafter.model.base_model.norm.weight.fill_(float("inf"))
    with pytest.raises(WorkbenchError, match=r"learning_rate"):
        fit(corpus, tmp_path, drafter)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: not enough memory: you")]
)
def test_out_of_memory_names_the_two_knobs(corpus, tmp_path, monkeypatch, error):
    from workbench.distill.module import Distillation

    def exhausted(self, batch):
        raise error

    monkeypatch.setattr(Distillation, "terms", exhausted)
    with pytest.raises(WorkbenchError, match=r"batch_size \(now 8\) or distill.blocks_per_sequence \(now 4\)"):
        fit(corpus, tmp_path)
