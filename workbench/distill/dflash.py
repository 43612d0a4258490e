"""Distillation of a DFlash drafter: the same data, blocks, losses and schedule, for the same time.

Dimensions: B sequence, T clean position, A block of a sequence, L slot of a block, R = A * L block rows, D width,
F width of the hidden states that are read.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from workbench.console import console
from workbench.corpus.responses import load_corpus
from workbench.distill.fit import fit_drafter, write_curve
from workbench.distill.losses import FullRows
from workbench.distill.module import Distillation, FindTarget, Terms
from workbench.drafter.blocks import ABSENT, BlockBatch, lay_out
from workbench.drafter.dflash import build_dflash, hidden_features, save_dflash
from workbench.files import whole_folder, write_json
from workbench.recipe import Recipe
from workbench.targets import load_target

MOST_STEPS = 10**9
"""Time alone ends the training."""


def distill_dflash(recipe: Recipe, corpus_folder: Path, folder: Path, seconds: float) -> None:
    """Trains a DFlash drafter for the recipe's target; continues from its last checkpoint after an interruption.

    Args:
        recipe: Its `distill` section holds but for the end and for what only a standalone drafter has: masked anchors
            and the autoregressive loss.
        corpus_folder: That of the recipe's drafter.
        folder: Gets `drafter/`, `learning_curve.csv` and, last, `dflash.json`.
        seconds: Training time.
    """
    corpus = load_corpus(corpus_folder)
    target = load_target(recipe.target)
    torch.manual_seed(recipe.seed)  # of the first weights
    drafter = build_dflash(target, recipe.dflash.num_layers, recipe.drafter.block_size, recipe.dflash.num_read_layers)
    options = dataclasses.replace(
        recipe.distill,
        steps=MOST_STEPS,
        max_minutes=seconds / 60,
        patience=None,
        masked_anchor_fraction=0.0,
        autoregressive="off",
        teacher="online",
        freeze_embeddings=False,
        checkpoint_activations=False,
        compile=False,
        devices=1,
        nodes=1,
        strategy="auto",
    )
    console.print(
        f"distilling a DFlash drafter of {drafter.num_layers} layers, which reads layers "
        f"{', '.join(map(str, drafter.spec.target_layer_ids))} of {target.identity}, for {seconds / 60:.1f} minutes"
    )
    # The block's own size decides how much it drafts: all masks.
    report = fit_drafter(drafter, target, corpus, options, folder, recipe.seed, family=DFlashDistillation)  # type: ignore[arg-type]
    drafter.spec = dataclasses.replace(drafter.spec, training_seconds=report.seconds)
    with whole_folder(folder / "drafter") as temporary:
        save_dflash(drafter, temporary)
    write_curve(folder / "learning_curve.csv", report.curve)
    write_json(folder / "dflash.json", dataclasses.asdict(report))
    console.print(
        f"distilled in {report.seconds:.0f} s: estimated acceptance length {report.final['acceptance_anchored']:.2f}"
    )


class DFlashDistillation(Distillation):
    """Trains a DFlash drafter: blocks over the target's hidden states, no clean rows, no masked anchors."""

    spec: Any

    def terms(self, batch: BlockBatch) -> Terms:
        """The denoising loss of a batch, from one pass of the drafter over one clean pass of the target."""
        anchored = dataclasses.replace(batch, masks_anchor_BA=torch.zeros_like(batch.masks_anchor_BA))
        block_pass = lay_out(anchored, self.spec)
        find_target, features_BTF = self._read_target(batch)
        block_ids_BR = block_pass.input_ids_BR[:, block_pass.num_clean :]
        clean_position_BT, position_BR = block_pass.position_ids_BR.split(
            [block_pass.num_clean, block_ids_BR.shape[1]], dim=1
        )
        inputs = (
            self.model.get_input_embeddings()(block_ids_BR).to(features_BTF.dtype),
            position_BR,
            features_BTF,
            clean_position_BT,
            block_pass.visibility.blocks_BALS,
        )
        labels_BAL = block_pass.labels_BAL[..., :-1]
        hidden_BALD = self._run(inputs).unflatten(1, block_pass.labels_BAL.shape[1:])[:, :, 1:]
        # A slot predicts its own token: slot i + 1 of a block has the label that slot i has in a shifted block.
        lender = self.online_teacher.computing
        denoising = self.denoising(lender, hidden_BALD, labels_BAL, find_target, batch.starts_BA)
        return Terms(denoising, torch.zeros_like(denoising), hidden_BALD, labels_BAL, lender)

    def validation_step(self, batch: BlockBatch, batch_index: int) -> None:
        """Judges the blocks whose anchor is known."""
        starts_BA = torch.where(batch.masks_anchor_BA, ABSENT, batch.starts_BA)
        super().validation_step(dataclasses.replace(batch, starts_BA=starts_BA), batch_index)

    def on_validation_epoch_end(self) -> None:
        """Leaves the figures of masked anchors out of the curve."""
        super().on_validation_epoch_end()
        self.curve[-1] = {name: value for name, value in self.curve[-1].items() if "masked" not in name}

    def _run(self, inputs: tuple[Any, ...]) -> Tensor:
        if not self.computes_in_bfloat16:
            return self.model(*inputs)
        weights = {name: weight.to(torch.bfloat16) for name, weight in self.model.named_parameters()}
        return functional_call(self.model, weights, inputs)

    @torch.no_grad()
    def _read_target(self, batch: BlockBatch) -> tuple[FindTarget, Tensor]:
        """The target's distributions on the clean sequences, and the hidden states that the drafter reads there."""
        target = self.online_teacher.computing
        output = target.base_model(input_ids=batch.tokens_BT, use_cache=False, output_hidden_states=True)
        hidden_BTD, head = output.last_hidden_state, target.get_output_embeddings()
        features_BTF = hidden_features(output.hidden_states, self.spec.target_layer_ids)
        return lambda sequence_R, position_R: FullRows(hidden_BTD[sequence_R, position_R], head), features_BTF
