"""A tiny trained drafter with layers planted that do nothing, and a corpus folder for it."""

import copy
import dataclasses
import random
from pathlib import Path

import datasets
import pytest
import torch
from torch import nn

from tests.conftest import make_model, make_spec, make_target
from workbench.corpus.responses import Corpus
from workbench.distill.fit import fit_drafter
from workbench.drafter.model import Drafter, save_drafter
from workbench.files import write_json
from workbench.prune.scoring import BlockScorer
from workbench.recipe import DistillOptions

REAL_LAYERS = 4
PLANTED = (2, 5, 6)
"""Original indices of the layers that do nothing, among 4 that do."""
DRAFT_LENGTH = 4


def make_samples(count: int, seed: int) -> datasets.Dataset:
    """Responses that count up from the prompt's token in steps of three, and stop."""
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        first, length = rng.randrange(4, 36), rng.randrange(8, 24)
        rows.append(
            {
                "prompt": str(index),
                "source": "counting",
                "prompt_ids": [first] * rng.randrange(2, 6),
                "response_ids": [4 + (first + 3 * step) % 32 for step in range(length)] + [1],
            }
        )
    return datasets.Dataset.from_list(rows)


def plant_identities(drafter: Drafter, planted: tuple[int, ...]) -> Drafter:
    """Inserts layers whose parts add nothing at the indices `planted` of the result."""
    model = copy.deepcopy(drafter.model)
    layers = list(model.model.layers)
    for index in planted:
        layer = copy.deepcopy(layers[0])
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
        layers.insert(index, layer)
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index
    model.model.layers = nn.ModuleList(layers)
    model.config.num_hidden_layers = len(layers)
    model.config.layer_types = ["full_attention"] * len(layers)
    kept = list(range(len(layers)))
    return Drafter(model, dataclasses.replace(drafter.spec, kept_layers=kept, parent_num_layers=len(layers)))


@pytest.fixture(scope="session")
def target():
    return make_target(layers=2)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return Corpus(train=make_samples(160, 0), held_out=make_samples(96, 1), facts={})


@pytest.fixture(scope="session")
def corpus_folder(corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    corpus.train.to_parquet(folder / "train-00000.parquet")
    corpus.held_out.to_parquet(folder / "held_out-00000.parquet")
    write_json(folder / "corpus.json", {})
    return folder


@pytest.fixture(scope="session")
def trained(target, corpus, tmp_path_factory) -> Drafter:
    """Four layers, each of which the acceptance length depends on."""
    model = make_model(vocab_rows=40, layers=REAL_LAYERS, scale=1.5)
    spec = make_spec(target, block_size=5, kept_layers=list(range(REAL_LAYERS)), parent_num_layers=REAL_LAYERS)
    drafter = Drafter(model, spec)
    options = DistillOptions(
        steps=150,
        batch_size=16,
        blocks_per_sequence=4,
        learning_rate=4e-3,
        validate_every=150,
        denoising="cross_entropy",
        cross_entropy_weight=1.0,
        autoregressive="off",
    )
    fit_drafter(drafter, target, corpus, options, tmp_path_factory.mktemp("trained"), seed=0, draft_length=DRAFT_LENGTH)
    return drafter


@pytest.fixture(scope="session")
def planted_folder(trained, target, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "drafter"
    save_drafter(plant_identities(trained, PLANTED), folder, target.tokenizer)
    return folder


@pytest.fixture(scope="session")
def scores_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scores")


@pytest.fixture
def scorer(planted_folder, corpus, scores_folder) -> BlockScorer:
    return BlockScorer(planted_folder, corpus.held_out, 0, DRAFT_LENGTH, scores_folder)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)
