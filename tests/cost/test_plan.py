import dataclasses
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from tests.conftest import make_model
from workbench.cost import plan
from workbench.cost.devices import DEVICES, Device, MeasuredPass, choose_device
from workbench.cost.measured import measure_passes
from workbench.cost.passes import Pass, interpolate_s, pass_bytes, pass_flops, pass_s
from workbench.cost.plan import answer, ask, write_plan
from workbench.cost.plan_table import render_answers
from workbench.cost.shapes import SHAPES, ModelShape, known_shape, shape_from_config
from workbench.cost.speedup import (
    Decoding,
    acceptance_of,
    deepest_hidden,
    estimate_speedup,
    expected_drafts,
    expected_length,
    round_costs,
)
from workbench.cost.training import Training, memory_parts, plan_corpus, plan_training, read_row_s, sequence_flops
from workbench.errors import WorkbenchError
from workbench.recipe import load_recipe

H200 = DEVICES["h200"]
TARGET = SHAPES["qwen3-8b"]
TRAINING = Training(
    num_responses=1000,
    prompt_tokens=100,
    response_tokens=300,
    steps=100,
    batch_size=4,
    accumulate=2,
    blocks_per_sequence=16,
    block_size=16,
    num_devices=1,
    autoregressive=True,
    checkpoints_activations=False,
    averages_weights=False,
    computes_in_bfloat16=True,
    shards=True,
    target_value_bytes=2,
)
DECODING = Decoding(draft_length=15, block_size=16, max_hypotheses=4, acceptance_length=6.0, context_tokens=512)


def on_meta(shape: ModelShape):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            Qwen3Config(
                hidden_size=shape.width,
                intermediate_size=shape.inner_width,
                num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads,
                num_key_value_heads=shape.num_key_value_heads,
                head_dim=shape.head_width,
                vocab_size=shape.vocab_rows,
                tie_word_embeddings=shape.is_tied,
            )
        )


@pytest.mark.parametrize(
    ("name", "layers", "billions"),
    [
        ("qwen3-0.6b", 28, 0.596),
        ("qwen3-1.7b", 28, 1.721),
        ("qwen3-8b", 36, 8.191),
        ("qwen3-8b", 31, 7.226),
        ("qwen3-32b", 64, 32.762),
    ],
)
def test_parameters_are_those_of_the_model_on_the_meta_device(name, layers, billions):
    shape = SHAPES[name].with_layers(layers)
    model = on_meta(shape)
    assert all(weight.is_meta for weight in model.parameters())
    assert shape.parameters == pytest.approx(sum(weight.numel() for weight in model.parameters()), rel=2e-4)
    assert shape.parameters == pytest.approx(billions * 1e9, rel=1e-3)


def test_the_shape_of_another_family():
    config = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                         num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)  # fmt: skip
    shape = shape_from_config("x", config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == pytest.approx(model.num_parameters(), rel=1e-3)
    assert shape.head_width == 64


def test_cache_values_of_a_token():
    config = make_model(layers=3).config
    assert shape_from_config("tiny", config).cache_values_per_token == 2 * 3 * 2 * 8


def test_names():
    assert known_shape("Qwen/Qwen3-8B") is known_shape("qwen3-8b") is TARGET
    assert known_shape("org/unknown") is None
    with pytest.raises(WorkbenchError, match="has 36 layers"):
        TARGET.with_layers(37)


def test_few_rows_cost_their_bytes_and_many_their_arithmetic():
    few, many = Pass(1, 0, 1), Pass(4096, 0, 1)
    weights = 2 * (TARGET.parameters - TARGET.head_parameters)
    assert pass_bytes(TARGET, few, 2) == pytest.approx(weights, rel=1e-4)
    assert pass_s(TARGET, few, H200, 2) == pytest.approx(weights / (4.8e12 * 0.85), rel=1e-3)
    assert pass_s(TARGET, many, H200, 2) == pytest.approx(pass_flops(TARGET, many) / (989e12 * 0.7))
    assert pass_s(TARGET, Pass(16, 512, 16), H200, 2) < 1.1 * pass_s(TARGET, Pass(1, 512, 1), H200, 2)


def test_tiny_layers_take_their_least_time():
    tiny = SHAPES["qwen3-0.6b"].with_layers(2)
    assert pass_s(tiny, Pass(1, 0, 0), H200, 2) >= 2 * H200.layer_s


def test_acceptance_and_length_are_inverse():
    for draft_length in (4, 15):
        for length in (1.5, 3.0, 4.5):
            assert expected_length(acceptance_of(length, draft_length), draft_length) == pytest.approx(length)


@pytest.mark.parametrize("length", [1.3, 6.0, 15.5])
def test_drafts_have_the_assumed_length(length):
    drafts = expected_drafts(length, 15)
    for outcomes in drafts:
        assert sum(outcome.probability for outcome in outcomes) == pytest.approx(1)
    means = [sum(outcome.probability * (outcome.num_accepted + 1) for outcome in outcomes) for outcomes in drafts]
    assert sum(means) / len(means) == pytest.approx(length, rel=0.25)


def test_hits_are_about_those_of_the_quickstart():
    """Measured there: 0.89 of rounds with 3.3 of at most 4 hypotheses, at 8 draft tokens and 5.45 tokens a round."""
    decoding = Decoding(draft_length=8, block_size=9, max_hypotheses=4, acceptance_length=5.45, context_tokens=128)
    assert estimate_speedup(TARGET, TARGET, decoding, H200).hit_probability == pytest.approx(0.90, abs=0.03)


def test_the_speed_model_by_hand():
    """Synchronous: tau plain passes in a verification and a draft; the ratio of both is delta."""
    drafter = TARGET.with_layers(31)
    costs = round_costs(TARGET, drafter, DECODING, H200)
    speedup = estimate_speedup(TARGET, drafter, DECODING, H200)
    plain_s = pass_s(TARGET, Pass(1, 512, 1), H200, 2)
    assert speedup.synchronous == pytest.approx(6.0 * plain_s / (costs.verify_s + costs.draft_s))
    assert speedup.draft_share == pytest.approx(costs.draft_s / costs.verify_s)
    # Hidden: the round is a verification, and at misses a draft pass.
    assert speedup.is_hidden
    assert speedup.needed_hit_probability == 0
    hits = speedup.hit_probability
    assert 0.5 < hits < 1
    round_s = costs.verify_s + (1 - hits) * costs.draft_s
    assert 0.9 * 6.0 * plain_s / round_s <= speedup.asynchronous <= 6.0 * plain_s / round_s
    assert speedup.asynchronous > 1.2 * speedup.synchronous
    # Two bandwidth-bound passes on one device take turns anyhow.
    assert speedup.asynchronous_shared <= speedup.synchronous * 1.01


def test_asynchrony_gains_less_the_smaller_the_drafter():
    gains = []
    for layers in (36, 18, 4):
        speedup = estimate_speedup(TARGET, TARGET.with_layers(layers), DECODING, H200)
        gains.append(speedup.asynchronous / speedup.synchronous)
    assert gains == sorted(gains, reverse=True)


def test_needed_hits_where_the_packed_pass_is_longer():
    slow = Device(name="slow", bytes_per_second=4e12, flops_per_second=20e12, memory_bytes=1e12)
    speedup = estimate_speedup(TARGET, TARGET, DECODING, slow)
    costs = round_costs(TARGET, TARGET, DECODING, slow)
    if speedup.num_hypotheses:
        expected = (speedup.packed_s - costs.verify_s) / costs.draft_s
        assert speedup.needed_hit_probability == pytest.approx(expected)
        assert expected > 0
    assert 0 < deepest_hidden(TARGET, TARGET, DECODING, slow) < 36
    assert deepest_hidden(TARGET, TARGET, DECODING, H200) in range(30, 37)


def test_arithmetic_of_training_is_six_flops_per_weight_and_row_and_two_of_the_target():
    drafter, long = SHAPES["qwen3-1.7b"], TRAINING
    matrices = 6 * drafter.num_layers * drafter.layer_parameters * (400 + 256)
    heads = (6 * drafter.head_parameters + 2 * TARGET.head_parameters) * (256 + 300)
    target = 2 * TARGET.num_layers * TARGET.layer_parameters * 400
    assert sequence_flops(TARGET, drafter, long) == pytest.approx(matrices + heads + target, rel=0.02)


def test_training_on_more_devices_is_the_same_in_less_time():
    one, eight = (plan_training(TARGET, TARGET, TRAINING, H200, number) for number in (1, 8))
    assert one.sequences == eight.sequences == 100 * 4 * 2
    assert eight.hours == pytest.approx(one.hours / 8)
    assert eight.device_hours == pytest.approx(one.device_hours)
    assert one.epochs == pytest.approx(0.8)
    assert one.hours == pytest.approx(one.flops / (989e12 * 0.4) / 3600)


def test_time_caps_the_steps():
    cost = plan_training(TARGET, TARGET, dataclasses.replace(TRAINING, max_minutes=1.0), H200, 1)
    assert cost.steps < 100
    assert cost.hours == pytest.approx(1 / 60, rel=0.1)


def test_memory_by_part():
    parts = memory_parts(TARGET, TARGET, TRAINING, H200, 1)
    number = TARGET.parameters
    assert parts["weights"] == 6 * number  # float32, and bfloat16 to compute with
    assert parts["gradients"] == 4 * number
    assert parts["optimizer"] == 8 * number
    assert parts["target"] == 2 * number
    assert "averages" not in parts
    assert not plan_training(TARGET, TARGET, TRAINING, H200, 1).fits
    sharded = memory_parts(TARGET, TARGET, TRAINING, H200, 8)
    assert sharded["optimizer"] == parts["optimizer"] / 8
    assert sharded["activations"] == parts["activations"]
    assert plan_training(TARGET, TARGET, TRAINING, H200, 8).fits


def test_a_corpus_takes_its_tokens():
    cost = plan_corpus(TARGET, TRAINING, H200)
    assert cost.tokens == 400_000
    # 16 batches of 64, each 300 passes that read all weights and the cache.
    assert cost.device_hours > 16 * 300 * 2 * 7.5e9 / (4.8e12 * 0.85) / 3600


@pytest.mark.parametrize("text", ["4.8TB/s,989TFLOPS,141GB", "4800GB/s, 989000gflops, 141gb"])
def test_a_device_by_numbers(text):
    device = choose_device(text)
    assert device.bytes_per_second == pytest.approx(4.8e12)
    assert device.flops_per_second == pytest.approx(989e12)
    assert device.memory_bytes == pytest.approx(141e9)


def test_an_unknown_device():
    with pytest.raises(WorkbenchError, match="use one of a100, h100, h200, measured"):
        choose_device("h300")


def test_a_plan_is_written_and_answers_in_words(tmp_path, capsys):
    recipe = load_recipe("qwen3-8b-d3d-8b", ["--runs", str(tmp_path)])
    path = write_plan(
        recipe, tmp_path / "plan.json", target=None, drafter=None, layers=31, device="h200", acceptance_length=None
    )
    result = json.loads(path.read_text())
    assert result["drafter"]["num_layers"] == 31
    assert result["drafter"]["parameters"] == SHAPES["qwen3-8b"].with_layers(31).parameters
    assert [cost["num_devices"] for cost in result["training"]] == [1, 8]
    assert any("does not fit" in warning or "needs" in warning for warning in result["warnings"])
    words = " ".join(render_answers(result))
    assert "hides under the verification" in words
    assert "breaks even at a hit rate of" in words
    assert "layers are as fast as 31 once they keep" in words
    assert "hours" in capsys.readouterr().out


def test_a_smaller_drafter_for_a_larger_target(tmp_path):
    recipe = load_recipe("qwen3-8b-d3d-8b", ["--runs", str(tmp_path)])
    result = answer(ask(recipe, "qwen3-32b", "qwen3-8b", None, H200, 6.0))
    assert (result["target"]["name"], result["drafter"]["name"]) == ("Qwen3-32B", "Qwen3-8B")
    assert {row["acceptance_length"] for row in result["speedups"]} == {6.0}
    assert result["speedups"][0]["draft_share"] < 0.5


@pytest.mark.parametrize(
    ("name", "target", "drafter"),
    [
        ("qwen3-8b-d3d-8b", "Qwen3-8B", "Qwen3-8B"),
        ("qwen3-8b-d3d-1.7b", "Qwen3-8B", "Qwen3-1.7B"),
        ("qwen3-8b-d3d-31l", "Qwen3-8B", "Qwen3-8B"),
        ("qwen3-32b-d3d-8b", "Qwen3-32B", "Qwen3-8B"),
        ("qwen3-32b-d3d-1.7b", "Qwen3-32B", "Qwen3-1.7B"),
        ("qwen3-32b-d3d-31l", "Qwen3-32B", "Qwen3-8B"),
    ],
)
def test_shipped_recipes_are_planned_without_weights(name, target, drafter):
    result = answer(ask(load_recipe(name), None, None, None, H200, None))
    assert (result["target"]["name"], result["drafter"]["name"]) == (target, drafter)
    assert [cost["num_devices"] for cost in result["training"]] == [1, 8]
    assert all(cost["hours"] > 0 for cost in result["training"])


def test_the_recipes_own_corpus_and_throughput_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "measure_passes", lambda *arguments: [])
    recipe = load_recipe("quickstart", ["--runs", str(tmp_path)])
    corpus = recipe.run_folder / "corpus" / "corpus.json"
    corpus.parent.mkdir(parents=True)
    corpus.write_text(json.dumps({"prompt_tokens": {"mean": 42.0}, "response_tokens": {"mean": 74.0}}))
    (recipe.run_folder / "throughput.json").write_text(json.dumps({"row_us": {"distillation": {"median": 400.0}}}))
    device = Device(name="measured", bytes_per_second=1e10, flops_per_second=1e12, memory_bytes=2.5e10)
    assert read_row_s(recipe.run_folder) == pytest.approx(4e-4)
    question = ask(recipe, None, None, None, device, None)
    assert question.training.row_s == pytest.approx(4e-4)
    assert question.training.clean_tokens == 116
    assert question.drafter.num_layers == 10
    cost = plan_training(question.target, question.drafter, question.training, device, 1)
    assert recipe.distill.max_minutes is not None
    assert cost.steps == pytest.approx(recipe.distill.max_minutes * 60 / (4 * (116 + 16 * 9) * 4e-4), abs=1)


@pytest.mark.parametrize(
    ("target", "layers", "message"),
    [
        ("nosuch", None, "--target is 'nosuch': built-in shapes are qwen3-0.6b"),
        ("qwen3-8b", 40, "--layers is 40, but Qwen3-8B has 36 layers"),
    ],
)
def test_mistakes(target, layers, message):
    recipe = load_recipe("qwen3-8b-d3d-8b")
    with pytest.raises(WorkbenchError, match=message):
        ask(recipe, target, None, layers, H200, None)


def test_an_impossible_acceptance_length():
    recipe = load_recipe("qwen3-8b-d3d-8b")
    with pytest.raises(WorkbenchError, match="emits more than 1 and less than 16"):
        ask(recipe, None, None, None, H200, 17.0)


def test_measured_passes_are_interpolated():
    passes = [
        MeasuredPass(model="m", value_bytes=4, num_layers=layers, rows=rows, seconds=0.1 + layers * (1 + rows / 8))
        for layers in (2, 8)
        for rows in (1, 8, 16)
    ]
    for layers, rows in ((2, 1), (8, 16), (5, 12), (1, 8), (8, 40)):
        assert interpolate_s(passes, layers, rows) == pytest.approx(0.1 + layers * (1 + rows / 8))


def test_passes_of_a_small_shape_are_measured_and_used(capsys):
    shape = shape_from_config("tiny", make_model(layers=4).config)
    passes = measure_passes(shape, 4, memory_bytes=1e9)
    assert {entry.num_layers for entry in passes} == {1, 4}
    assert all(entry.seconds > 0 for entry in passes)
    device = dataclasses.replace(H200, passes=tuple(passes))
    one_row = next(entry for entry in passes if (entry.num_layers, entry.rows) == (4, 1))
    assert pass_s(shape, Pass(1, 64, 1), device, 4) == pytest.approx(one_row.seconds)
    assert pass_s(shape, Pass(1, 64, 1), device, 2) == pass_s(shape, Pass(1, 64, 1), H200, 2)
    assert measure_passes(shape, 4, memory_bytes=1e4) == []
