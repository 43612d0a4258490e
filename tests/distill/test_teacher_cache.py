import dataclasses
import re
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import make_model, make_spec, make_target
from tests.distill.conftest import make_samples
from workbench.corpus.responses import Corpus
from workbench.distill.data import DistillationData
from workbench.distill.evaluation import draw_evaluation_blocks
from workbench.distill.fit import fit_drafter
from workbench.distill.module import Distillation
from workbench.distill.teacher import OnlineTeacher
from workbench.distill.teacher_cache import TeacherCache, cut_shards, plan_cache
from workbench.drafter.model import Drafter
from workbench.errors import WorkbenchError
from workbench.recipe import DistillOptions

TARGET = make_target()
TEACHER = OnlineTeacher(TARGET.model, in_bfloat16=False)
VOCABULARY = 40
CORPUS = Corpus(train=make_samples(30, 0), held_out=make_samples(10, 1), facts={"fingerprint": "0123"})
ALL_IN_ONE = 2**20


def make_cache(folder, top_k=VOCABULARY, corpus=CORPUS, target="target", shard_bytes=ALL_IN_ONE) -> TeacherCache:
    return TeacherCache(folder, corpus, plan_cache(corpus, target, VOCABULARY, top_k, False), shard_bytes)


def make_options(**changes) -> DistillOptions:
    options = {"steps": 6, "batch_size": 8, "blocks_per_sequence": 4, "validate_every": 3, "precision": "32-true"}
    return DistillOptions(**{**options, **changes})


def make_drafter() -> Drafter:
    return Drafter(make_model(vocab_rows=VOCABULARY, seed=5).requires_grad_(True), make_spec(TARGET, block_size=5))


def stored_names(folder) -> list[str]:
    return sorted(path.name for path in folder.glob("shard-*"))


@pytest.mark.parametrize("is_held_out", [False, True])
@pytest.mark.parametrize("denoising", ["forward_kl", "reverse_kl", "total_variation"])
def test_a_whole_vocabulary_in_the_cache_gives_the_loss_of_the_online_teacher(tmp_path, denoising, is_held_out):
    options = make_options(denoising=denoising)
    cache = make_cache(tmp_path, shard_bytes=10_000)
    cache.write(TEACHER, 4)
    online, cached = (Distillation(make_drafter(), TARGET, options, 4, source) for source in (None, cache))
    held_out = draw_evaluation_blocks(CORPUS.held_out, 24, 0)
    batch = held_out.batches[0] if is_held_out else DistillationData(CORPUS.train, held_out, options, 0).batch(2)
    terms = [module.train(not is_held_out).terms(batch) for module in (online, cached)]
    torch.testing.assert_close(terms[1].denoising, terms[0].denoising, rtol=2e-3, atol=1e-4)
    torch.testing.assert_close(terms[1].autoregressive, terms[0].autoregressive, rtol=2e-3, atol=1e-4)


def test_training_from_a_cache_learns_what_training_online_learns(tmp_path):
    drafters, reports = zip(
        *(
            (drafter := make_drafter(), fit_drafter(drafter, TARGET, CORPUS, options, tmp_path / name / "distill", 0))
            for name, options in {
                "online": make_options(),
                "cache": make_options(teacher="cache", teacher_top_k=1000),
            }.items()
        ),
        strict=True,
    )
    assert reports[1].final["denoising"] == pytest.approx(reports[0].final["denoising"], rel=2e-3)
    for one, other in zip(*(drafter.model.parameters() for drafter in drafters), strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=1e-2)
    assert stored_names(tmp_path / "cache" / "teacher")


def test_rows_are_the_top_of_the_target_distribution(tmp_path):
    cache = make_cache(tmp_path, top_k=5)
    cache.write(TEACHER, 4)
    for number, sample in ((17, CORPUS.train[17]), (30 + 3, CORPUS.held_out[3])):
        tokens = sample["prompt_ids"] + sample["response_ids"]
        logits = TARGET.model(input_ids=torch.tensor([tokens])).logits[0, len(sample["prompt_ids"]) - 1 : -1]
        expected, ids = logits.log_softmax(-1).topk(5)
        rows = cache.read(number)
        assert torch.equal(rows.ids_RK.long(), ids)
        torch.testing.assert_close(rows.logprobs_RK.float(), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(rows.rest_logprob_R.exp(), 1 - expected.exp().sum(-1), rtol=1e-3, atol=1e-5)


def test_rows_found_by_position_add_up_to_one(tmp_path):
    cache = make_cache(tmp_path, top_k=5)
    cache.write(TEACHER, 4)
    batch = draw_evaluation_blocks(CORPUS.held_out, 12, 0).batches[0]
    sequence_R = torch.arange(len(batch.tokens_BT))
    rows = cache.consult(batch, is_held_out=True)(sequence_R, batch.lengths_B - 2)
    total = torch.logaddexp(rows.logprobs_RK.logsumexp(-1), rows.rest_logprob_R)
    torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-6, rtol=0)
    last = [cache.read(30 + sample).ids_RK[-1] for sample in batch.samples_B.tolist()]
    assert torch.equal(rows.ids_RK, torch.stack(last).long())


def test_the_size_is_said_before_anything_is_written(tmp_path, capsys, monkeypatch):
    cache = make_cache(tmp_path, top_k=5)
    monkeypatch.setattr(TeacherCache, "_compute", lambda *_: pytest.fail("nothing may be computed yet"))
    with pytest.raises(pytest.fail.Exception):
        cache.write(TEACHER, 4)
    rows = sum(len(response) for part in (CORPUS.train, CORPUS.held_out) for response in part["response_ids"])
    assert cache.plan.num_bytes == rows * (5 * 4 + 4)
    assert re.search(rf"{rows} positions x top 5 of 40 tokens = 0\.00 GiB", capsys.readouterr().out)


def test_the_estimate_is_the_size(tmp_path):
    cache = make_cache(tmp_path, top_k=7)
    cache.write(TEACHER, 4)
    size = sum(path.stat().st_size for path in tmp_path.glob("shard-*"))
    assert cache.plan.num_bytes < size < cache.plan.num_bytes + 1000  # a header


def test_a_disk_that_cannot_hold_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(WorkbenchError, match=r"lower distill\.teacher_top_k \(5\)") as caught:
        make_cache(tmp_path, top_k=5).write(TEACHER, 4)
    assert "\n" not in str(caught.value)
    assert not stored_names(tmp_path)


def test_an_interrupted_cache_continues_with_the_missing_shards(tmp_path, monkeypatch):
    whole = make_cache(tmp_path / "whole", top_k=5, shard_bytes=2000)
    whole.write(TEACHER, 4)
    names = stored_names(tmp_path / "whole")
    assert len(names) > 4
    cache = make_cache(tmp_path / "killed", top_k=5, shard_bytes=2000)
    compute, computed = TeacherCache._compute, []

    def killed_at_the_fourth(self, shard, *arguments):
        computed.append(shard.start)
        if len(computed) == 4:
            raise KeyboardInterrupt
        return compute(self, shard, *arguments)

    monkeypatch.setattr(TeacherCache, "_compute", killed_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        cache.write(TEACHER, 4)
    assert stored_names(tmp_path / "killed") == names[:3]
    make_cache(tmp_path / "killed", top_k=5, shard_bytes=2000).write(TEACHER, 4)
    assert len(computed) == len(names) + 1
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    make_cache(tmp_path / "killed", top_k=5, shard_bytes=2000).write(TEACHER, 4)
    assert len(computed) == len(names) + 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target": "another"}, "target"),
        ({"corpus": dataclasses.replace(CORPUS, facts={"fingerprint": "4567"})}, "corpus"),
        ({"top_k": 6}, "top_k"),
    ],
)
def test_a_cache_of_something_else_is_never_read(tmp_path, capsys, changes, named):
    make_cache(tmp_path, top_k=5, shard_bytes=2000).write(TEACHER, 4)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in stored_names(tmp_path)}
    arguments: dict[str, Any] = {"top_k": 5, "shard_bytes": 2000, **changes}
    other = make_cache(tmp_path, **arguments)
    other.write(TEACHER, 4)
    assert f"{named} changed since it was written, starting over" in capsys.readouterr().out
    assert not any(before.get(name) == (tmp_path / name).stat().st_mtime_ns for name in stored_names(tmp_path))
    assert len(other.read(0).ids_RK[0]) == changes.get("top_k", 5)


def test_a_broken_shard_is_named(tmp_path):
    cache = make_cache(tmp_path, top_k=5)
    cache.write(TEACHER, 4)
    cache.path(0).write_bytes(b"broken")
    with pytest.raises(WorkbenchError, match=r"shard-000000.safetensors cannot be read"):
        cache.read(0)


def test_samples_are_cut_into_shards_in_order():
    shards = cut_shards([4, 3, 9, 1, 1], 7)
    assert [(shard.start, shard.first_rows, shard.num_rows) for shard in shards] == [
        (0, [0, 4], 7),
        (2, [0], 9),
        (3, [0, 1], 2),
    ]


def test_large_vocabularies_take_wider_ids():
    small, large = (plan_cache(CORPUS, "", size, 8, False) for size in (2**16, 2**16 + 1))
    assert large.row_bytes - small.row_bytes == 16
