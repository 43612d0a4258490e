"""Distillation as Lightning sees it: the loss of a batch, the learning rate, validation, what a checkpoint holds.

Dimensions: B sequence, T clean position, A block of a sequence, L slot of a block, N block, R row, D width.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import lightning
import torch
from torch import Tensor

from workbench.distill.evaluation import match_slots
from workbench.distill.learning_rate import choose_learning_rate
from workbench.distill.losses import RowLosses, TargetRows, position_weights, row_losses, weighted_mean
from workbench.distill.metrics import EstimatedAcceptance
from workbench.distill.precision import Bfloat16Copy, computes_in_bfloat16
from workbench.distill.processes import count_processes, is_sharded, sum_over_processes, value_of_first
from workbench.distill.schedule import Clock, autoregressive_weight, schedule
from workbench.distill.sharding import placed_like, shard, whole
from workbench.distill.teacher import OnlineTeacher, looks_at_target
from workbench.distill.teacher_cache import TeacherCache
from workbench.drafter.blocks import UNSUPERVISED, BlockBatch, hidden_rows, lay_out
from workbench.drafter.model import Drafter
from workbench.errors import WorkbenchError
from workbench.recipe import DistillOptions
from workbench.targets import Target


class Terms(NamedTuple):
    """Loss terms of a batch; scalars unless noted."""

    denoising: Tensor
    autoregressive: Tensor
    hidden_BALD: Tensor
    """No gradient."""
    labels_BAL: Tensor
    model: Any
    """What computed them: its head belongs to the hidden states."""


ROWS_STEP = 64
"""Rows for an output layer come in multiples of it, for the reason of `workbench.drafter.blocks.WIDTH_STEP`."""

FindTarget = Callable[[Tensor, Tensor], TargetRows | None]
"""From sequences and positions to the target's distributions there."""


class Distillation(lightning.LightningModule):
    """Trains a drafter's weights in place; the frozen target stays out of the module tree and of checkpoints.

    Args:
        drafter: Trained.
        target: Learned from.
        options: The training.
        draft_length: Slots that the estimated acceptance counts.
        cache: Where the target's distributions come from, if not from the target in the same step; what it lacks is
            written before the training starts.
    """

    prepare_data_per_node = False

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        options: DistillOptions,
        draft_length: int,
        cache: TeacherCache | None = None,
    ):
        super().__init__()
        self.model = drafter.model
        self.computes_in_bfloat16 = computes_in_bfloat16(options)
        self.online_teacher = OnlineTeacher(target.model, self.computes_in_bfloat16 and not is_sharded(options))
        self.shards = None
        self.cache = cache
        self.spec = drafter.spec
        self.draft_length = draft_length
        self.options = options
        self.num_processes = count_processes(options)
        self.peak_learning_rate = choose_learning_rate(options.learning_rate, drafter.model.num_parameters())
        self.vocab_size = min(drafter.model.get_output_embeddings().weight.shape[0], self.online_teacher.vocab_size)
        self.acceptance = torch.nn.ModuleDict(
            {"anchored": EstimatedAcceptance(draft_length), "masked": EstimatedAcceptance(draft_length)}
        )
        self.clock = Clock()
        self.averages: list[Tensor] | None = None
        """Exponential moving averages of the weights, while they train and if they are asked for."""
        self.num_clean_tokens = 0
        self.num_block_rows = 0
        self.curve: list[dict[str, float]] = []
        """One point per validation."""

    # Teacher

    def prepare_data(self) -> None:
        """Writes what the cache lacks; one process does."""
        if self.cache is not None:
            self.online_teacher.place(self.trainer.strategy.root_device)
            self.cache.write(self.online_teacher, self.options.batch_size)

    def setup(self, stage: str) -> None:
        """Puts the target where it computes; on the host, if it does not."""
        if self.cache is not None:
            self.online_teacher.place(torch.device("cpu"))
        elif not is_sharded(self.options):
            self.online_teacher.place(self.trainer.strategy.root_device)

    def configure_model(self) -> None:
        """Shards drafter and target, where the strategy is to."""
        if is_sharded(self.options) and self.shards is None:
            models = [self.model] if self.cache is not None else [self.model, self.online_teacher.model]
            assert self.device_mesh is not None
            # As a plain attribute it would be a submodule, and the target's weights part of every checkpoint.
            shards = shard(models, self.device_mesh["data_parallel"], self.computes_in_bfloat16)
            object.__setattr__(self, "shards", shards)

    # Training

    def training_step(self, batch: BlockBatch, batch_index: int) -> Tensor:
        """Loss of one batch."""
        terms = self.terms(batch)
        weight = autoregressive_weight(self.options, self.progress())
        loss = terms.denoising + weight * terms.autoregressive
        if not torch.isfinite(loss):
            raise WorkbenchError(self._describe_failure(batch))
        num_block_rows = (terms.labels_BAL != UNSUPERVISED).sum()
        counts = sum_over_processes(torch.stack([batch.lengths_B.sum(), num_block_rows]), self.num_processes).tolist()
        self.num_clean_tokens += counts[0]
        self.num_block_rows += counts[1]
        self.log_dict(
            {
                "train/loss": loss.detach(),
                "train/denoising": terms.denoising.detach(),
                "train/autoregressive": terms.autoregressive.detach(),
                "train/learning_rate": self.trainer.optimizers[0].param_groups[0]["lr"],
            },
            sync_dist=True,
        )
        return loss

    def terms(self, batch: BlockBatch) -> Terms:
        """Both loss terms of a batch, from one pass of the drafter and one clean pass of the target."""
        return self._terms(batch) if self.shards is None else self.shards(lambda: self._terms(batch))

    def _terms(self, batch: BlockBatch) -> Terms:
        options = self.options
        block_pass = lay_out(batch, self.spec)
        casts_itself = self.computes_in_bfloat16 and self.shards is None
        model = Bfloat16Copy(self.model) if casts_itself else self.model
        clean_BTD, hidden_BALD = hidden_rows(model, block_pass, options.attention)
        find_target = self._consult(batch)
        labels_BAL = block_pass.labels_BAL
        denoising = self.denoising(model, hidden_BALD, labels_BAL, find_target, batch.starts_BA)
        if options.autoregressive == "off":
            return Terms(denoising, torch.zeros_like(denoising), hidden_BALD.detach(), labels_BAL, model)
        is_response_BT = next_token_is_response(batch)
        clean_rows = self._row_losses(
            model,
            clean_BTD[:, :-1][is_response_BT],
            batch.tokens_BT[:, 1:][is_response_BT],
            find_target,
            is_response_BT.nonzero(as_tuple=True),
            options.autoregressive,
            cross_entropy_weight=0.0,
        )
        autoregressive = self._mean(clean_rows.loss_R, torch.ones_like(clean_rows.loss_R))
        return Terms(denoising, autoregressive, hidden_BALD.detach(), labels_BAL, model)

    def _mean(self, loss_R: Tensor, weight_R: Tensor) -> Tensor:
        """Weighted mean; of several processes, what each adds to the mean over all rows, times their number.

        Gradients are averaged over processes: so they are those of one process with all rows.
        """
        total_weight = sum_over_processes(weight_R.sum(), self.num_processes) / self.num_processes
        return weighted_mean(loss_R, weight_R, total_weight)

    def denoising(
        self, model: Any, hidden_BALD: Tensor, labels_BAL: Tensor, find_target: FindTarget, starts_BA: Tensor
    ) -> Tensor:
        """Loss of block rows of which slot `i` predicts the token at `i + 1` behind its block's start."""
        options, is_labelled_BAL = self.options, labels_BAL != UNSUPERVISED
        # The block row for position s + i and the target's clean row there predict the same token.
        sequence_BA1 = torch.arange(len(labels_BAL), device=self.device)[:, None, None]
        position_BAL = starts_BA[..., None] + torch.arange(labels_BAL.shape[-1], device=self.device)
        sequence_BAL = sequence_BA1.expand_as(position_BAL)
        rows = self._row_losses(
            model,
            hidden_BALD[is_labelled_BAL],
            labels_BAL[is_labelled_BAL],
            find_target,
            (sequence_BAL[is_labelled_BAL], position_BAL[is_labelled_BAL]),
            options.denoising,
            options.cross_entropy_weight,
        )
        logprob_BAL = torch.zeros(labels_BAL.shape, device=self.device)
        logprob_BAL[is_labelled_BAL] = rows.label_logprob_R
        weight_NL = position_weights(options.position_weights, logprob_BAL.flatten(0, 1), options.position_decay)
        return self._mean(rows.loss_R, weight_NL.view_as(logprob_BAL)[is_labelled_BAL])

    def _row_losses(
        self,
        model: Any,
        hidden_RD: Tensor,
        labels_R: Tensor,
        find_target: FindTarget,
        places: tuple[Tensor, ...],
        kind: Any,
        cross_entropy_weight: float,
    ) -> RowLosses:
        num_rows = len(labels_R)
        losses = row_losses(
            _filled_up(hidden_RD),
            _filled_up(labels_R),
            model.get_output_embeddings(),
            find_target(*map(_filled_up, places)),
            kind,
            cross_entropy_weight,
            self.vocab_size,
        )
        return RowLosses(losses.loss_R[:num_rows], losses.label_logprob_R[:num_rows])

    def _consult(self, batch: BlockBatch) -> FindTarget:
        """Gives the target's distributions by sequence and position; None where no loss looks at them."""
        if not looks_at_target(self.options):
            return lambda sequence_R, position_R: None
        if self.cache is not None:
            return self.cache.consult(batch, is_held_out=not self.training)
        return self.online_teacher.consult(batch)

    @torch.no_grad()
    def _describe_failure(self, batch: BlockBatch) -> str:
        """Names the sequences of a batch whose own loss is not finite."""
        if self.num_processes > 1:  # the others would have to take part in a pass over each
            return f"the loss is no number at step {self.global_step}, in samples {batch.samples_B.tolist()}"
        bad = []
        for index, sample in enumerate(batch.samples_B.tolist()):
            one = BlockBatch(*(getattr(batch, field.name)[index : index + 1] for field in dataclasses.fields(batch)))
            terms = self.terms(one)
            if not torch.isfinite(terms.denoising + terms.autoregressive):
                bad.append(sample)
        where = f"training sample {', '.join(map(str, bad[:5]))}" if bad else f"samples {batch.samples_B.tolist()}"
        if len(bad) == len(batch.samples_B):
            where += " and the rest of its batch: the weights themselves are broken, lower distill.learning_rate"
        return f"the loss is no number at step {self.global_step}, in {where}"

    # Optimizer and schedule

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW; norms, biases, embeddings and whatever is frozen do not decay."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        stays = {id(self.model.get_input_embeddings().weight)}
        if self.options.freeze_embeddings:
            stays.add(id(self.model.get_output_embeddings().weight))
        decays = [p for p in parameters if p.ndim >= 2 and id(p) not in stays]
        others = [p for p in parameters if p.ndim < 2 or id(p) in stays]
        return torch.optim.AdamW(
            [{"params": decays, "weight_decay": self.options.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self.peak_learning_rate,
            betas=(0.9, 0.95),
            # Lightning does not clip gradients for a fused optimizer under mixed precision.
            fused=self.options.precision != "bf16-mixed",
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Leaves frozen embeddings and heads without gradient but in the mask's row."""
        if self.options.freeze_embeddings:
            for layer in (self.model.get_input_embeddings(), self.model.get_output_embeddings()):
                gradient = layer.weight.grad
                is_mask_row_V1 = torch.zeros(len(gradient), 1, dtype=gradient.dtype)
                is_mask_row_V1[self.spec.mask_token_id] = 1
                gradient.mul_(placed_like(is_mask_row_V1, gradient))

    def progress(self) -> float:
        """Share of the training that is done: by steps or by time, whichever is further."""
        by_steps = self.global_step / self.options.steps
        if self.options.max_minutes is None:
            return by_steps
        # Processes must agree on the learning rate and on the end.
        elapsed_s = value_of_first(self.clock.elapsed_s(), self.num_processes, self.device)
        return max(by_steps, elapsed_s / (60 * self.options.max_minutes))

    def on_before_batch_transfer(self, batch: BlockBatch, dataloader_idx: int) -> BlockBatch:
        """Takes this process's share of a training batch; every process judges all held-out blocks."""
        return batch.part(self.global_rank, self.num_processes) if self.trainer.training else batch

    def on_train_start(self) -> None:
        """Starts the clock."""
        self.clock.start()
        if self.options.ema_decay:
            weights = [parameter.detach() for parameter in self.model.parameters()]
            before = self.averages or [weight.clone() for weight in weights]
            # A checkpoint may have been read before the weights were put on their device.
            self.averages = [average.to(weight.device) for average, weight in zip(before, weights, strict=True)]

    def on_train_batch_start(self, batch: BlockBatch, batch_index: int) -> None:
        """Sets the learning rate."""
        factor = schedule(self.progress(), self.options.warmup_fraction)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = factor * self.peak_learning_rate

    def on_train_batch_end(self, outputs: Any, batch: BlockBatch, batch_index: int) -> None:
        """Averages the weights; ends the training when its time is over (steps are counted by the trainer)."""
        if self.averages is not None and (batch_index + 1) % self.options.accumulate == 0:
            # The first steps would otherwise weigh on the average for 1 / (1 - decay) steps.
            decay = min(self.options.ema_decay, self.global_step / (10 + self.global_step))
            for average, parameter in zip(self.averages, self.model.parameters(), strict=True):
                average.lerp_(parameter.detach(), 1 - decay)
        if self.progress() >= 1:
            self.trainer.should_stop = True

    @torch.no_grad()
    def _swap_averages(self) -> None:
        """Exchanges the weights and their averages."""
        for average, parameter in zip(self.averages or [], self.model.parameters(), strict=False):
            weight = parameter.clone()
            parameter.copy_(average)
            average.copy_(weight)

    def finish(self) -> None:
        """Leaves the averages, if there are any, as the weights."""
        self._swap_averages()
        self.averages = None

    # Validation

    def on_validation_epoch_start(self) -> None:
        """Empties the sums; averaged weights are the ones to judge."""
        self._swap_averages()
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._num_batches = 0

    def validation_step(self, batch: BlockBatch, batch_index: int) -> None:
        """Adds a batch of held-out blocks to the figures."""
        terms = self.terms(batch)
        self._sums += torch.stack([terms.denoising, terms.autoregressive]).double().cpu()
        self._num_batches += 1
        matches_BAL = match_slots(terms.model, self.spec, terms.labels_BAL, terms.hidden_BALD)
        is_labelled_BAL = terms.labels_BAL != UNSUPERVISED
        is_there_BA = batch.starts_BA >= 0
        for name, is_kind_BA in (("anchored", ~batch.masks_anchor_BA), ("masked", batch.masks_anchor_BA)):
            chosen_BA = is_kind_BA & is_there_BA
            metric = self.acceptance[name]
            assert isinstance(metric, EstimatedAcceptance)
            metric.update(matches_BAL[chosen_BA], is_labelled_BAL[chosen_BA])

    def on_validation_epoch_end(self) -> None:
        """Logs the figures and adds a point to the learning curve."""
        if self.shards is not None:
            self.shards.reshard()  # without a backward pass nothing else does
        self._swap_averages()
        denoising, autoregressive = (self._sums / max(1, self._num_batches)).tolist()
        figures = {"denoising": denoising, "autoregressive": autoregressive}
        for name, metric in self.acceptance.items():
            assert isinstance(metric, EstimatedAcceptance)
            figures[f"acceptance_{name}"] = metric.compute().item()
            for slot, agreement in enumerate(metric.slot_agreement().tolist(), start=1):
                figures[f"agreement_{name}_{slot}"] = agreement
            metric.reset()
        self.log_dict({f"held_out/{name}": value for name, value in figures.items()})
        self.curve.append(
            {
                "step": self.global_step,
                "seconds": round(self.clock.elapsed_s(), 3),
                "clean_tokens": self.num_clean_tokens,
                "block_rows": self.num_block_rows,
                **figures,
            }
        )
        if self._has_stalled():
            self.trainer.should_stop = True

    def _has_stalled(self) -> bool:
        """The last `patience` validations brought no better acceptance than the one before them."""
        patience = self.options.patience
        lengths = [point["acceptance_anchored"] for point in self.curve]
        return patience is not None and len(lengths) > patience and max(lengths[-patience:]) <= max(lengths[:-patience])

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what a resumed training must know beside the weights."""
        checkpoint["distillation"] = {
            "spec": dataclasses.asdict(self.spec),
            "elapsed_s": self.clock.elapsed_s(),
            "clean_tokens": self.num_clean_tokens,
            "block_rows": self.num_block_rows,
            "curve": self.curve,
            "averages": self.averages and [whole(average).cpu() for average in self.averages],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes it back; a checkpoint of another drafter is an error."""
        saved = checkpoint["distillation"]
        changed = sorted(key for key, value in dataclasses.asdict(self.spec).items() if saved["spec"].get(key) != value)
        if changed:
            key = changed[0]
            raise WorkbenchError(
                f"the checkpoint was written for another drafter: its {key} is {saved['spec'].get(key)}, "
                f"the recipe's is {getattr(self.spec, key)}; clear the run's folder or restore the recipe"
            )
        self.clock = Clock(saved["elapsed_s"])
        self.num_clean_tokens = saved["clean_tokens"]
        self.num_block_rows = saved["block_rows"]
        self.curve = list(saved["curve"])
        if saved["averages"]:
            pairs = zip(saved["averages"], self.model.parameters(), strict=True)
            self.averages = [placed_like(average, parameter) for average, parameter in pairs]


def _filled_up(values_R: Tensor) -> Tensor:
    """Repeats the last value up to a multiple of ROWS_STEP."""
    missing = -len(values_R) % ROWS_STEP
    return torch.cat([values_R, values_R[-1:].expand(missing, *values_R.shape[1:])])


def next_token_is_response(batch: BlockBatch) -> Tensor:
    """Boolean (B, T - 1): the clean row predicts a token of the response."""
    position_T = torch.arange(1, batch.tokens_BT.shape[1], device=batch.tokens_BT.device)
    return (position_T >= batch.prompt_lengths_B[:, None]) & (position_T < batch.lengths_B[:, None])
