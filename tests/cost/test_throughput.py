import itertools
import json

import pytest

from tests.conftest import make_target
from tests.distill.conftest import make_samples
from workbench.corpus.responses import Corpus
from workbench.cost import throughput
from workbench.cost.training import read_row_s
from workbench.errors import WorkbenchError
from workbench.recipe import load_recipe


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    corpus = Corpus(train=make_samples(16, 0), held_out=make_samples(4, 1), facts={})
    monkeypatch.setattr(throughput, "load_corpus", lambda folder: corpus)
    monkeypatch.setattr(throughput, "load_target", lambda options: make_target())
    return load_recipe(
        "quickstart", ["--runs", str(tmp_path), "--distill.batch_size", "2", "--distill.accumulate", "2"]
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_a_step_is_compared_with_plain_training_on_as_many_rows(recipe, monkeypatch, precision):
    import dataclasses

    recipe = dataclasses.replace(recipe, distill=dataclasses.replace(recipe.distill, precision=precision))
    seen = []
    # A clock of its own, whose steps differ a little: a busy machine's seconds say nothing about the arithmetic.
    clock = itertools.accumulate(1 + 0.1 * (tick % 4) for tick in itertools.count())
    monkeypatch.setattr(throughput, "_now_s", lambda device: next(clock))
    train, consult = throughput._PlainTraining.train, throughput._PlainTraining.consult
    monkeypatch.setattr(
        throughput._PlainTraining, "train", lambda self, tokens: (seen.append(tokens.shape), train(self, tokens))[1]
    )
    monkeypatch.setattr(
        throughput._PlainTraining, "consult", lambda self, tokens: (seen.append(tokens.shape), consult(self, tokens))[1]
    )
    path = throughput.measure_throughput(recipe, 3)
    result = json.loads(path.read_text())
    assert len(seen) == 2 * (3 + throughput._WARM_STEPS)
    for plain, target in zip(seen[::2], seen[1::2], strict=True):
        assert plain[0] == target[0] == 2
        assert plain[1] == target[1] + 16 * 9
    assert result["rows_per_step"] in {2 * shape[1] for shape in seen[::2]}
    times, rows = result["step_ms"], result["row_us"]
    assert all(times[name]["median"] > 0 for name in ("distillation", "plain", "target"))
    low, high = result["ratio"]["ci95"]
    assert low <= result["ratio"]["median"] <= high
    assert result["ratio"]["median"] == pytest.approx(
        rows["distillation"]["median"] / rows["plain_and_target"]["median"], rel=0.5
    )
    assert read_row_s(recipe.run_folder) == pytest.approx(1e-6 * rows["distillation"]["median"])


def test_one_step_has_no_interval(recipe):
    with pytest.raises(WorkbenchError, match="needs at least 2"):
        throughput.measure_throughput(recipe, 1)
