"""An independent reader of vLLM's parallel-drafting folders: its documented rules, written down once more, slowly.

Nothing of the workbench is used, nor the model classes of `transformers`: the configuration and the tensors are read by
the names that the engine looks for, and every round recomputes everything from the first token.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


class ParallelReader:
    """Drafts `K` tokens in one causal pass over `[accepted ..., bonus, mask x (K - 1)]`."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        self.unread = set(self.tensors)
        self.mask_token_id = self._mask_token_id()

    def _mask_token_id(self) -> int:
        nested = self.config.get("dflash_config") or {}
        if "mask_token_id" in nested:
            return nested["mask_token_id"]
        for key in ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"):
            if key in self.config:
                return self.config[key]
        raise ValueError("no mask token in config.json")

    def draft(self, committed: list[int], num_tokens: int) -> list[int]:
        """Greedy draft behind committed tokens, the last of which is the bonus."""
        logits = self.forward(committed + [self.mask_token_id] * (num_tokens - 1))
        return logits[-num_tokens:].argmax(-1).tolist()

    @torch.no_grad()
    def forward(self, token_ids: list[int]) -> torch.Tensor:
        config, num_rows = self.config, len(token_ids)
        embedding = self._read("model.embed_tokens.weight")
        hidden = embedding[token_ids]
        for layer in range(config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            assert config.get("layer_types", ["full_attention"] * (layer + 1))[layer] == "full_attention"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            hidden = hidden + self._attend(normed, f"{name}.self_attn", num_rows)
            normed = self._norm(hidden, f"{name}.post_attention_layernorm")
            gate = torch.nn.functional.silu(normed @ self._read(f"{name}.mlp.gate_proj.weight").T)
            up = normed @ self._read(f"{name}.mlp.up_proj.weight").T
            hidden = hidden + (gate * up) @ self._read(f"{name}.mlp.down_proj.weight").T
        hidden = self._norm(hidden, "model.norm")
        head = embedding if config["tie_word_embeddings"] else self._read("lm_head.weight")
        assert embedding.shape[0] == head.shape[0] == config["vocab_size"]
        return hidden @ head.T

    def _attend(self, hidden: torch.Tensor, name: str, num_rows: int) -> torch.Tensor:
        config = self.config
        heads, groups, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        query = (hidden @ self._read(f"{name}.q_proj.weight").T).view(num_rows, heads, width)
        key = (hidden @ self._read(f"{name}.k_proj.weight").T).view(num_rows, groups, width)
        value = (hidden @ self._read(f"{name}.v_proj.weight").T).view(num_rows, groups, width)
        if config["model_type"] == "qwen3":
            query, key = self._norm(query, f"{name}.q_norm"), self._norm(key, f"{name}.k_norm")
        query, key = self._rotate(query), self._rotate(key)
        key, value = (rows.repeat_interleave(heads // groups, 1) for rows in (key, value))
        scores = torch.einsum("qhe,khe->hqk", query, key) / width**0.5
        future = torch.ones(num_rows, num_rows, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khe->qhe", weights, value).reshape(num_rows, heads * width)
        return mixed @ self._read(f"{name}.o_proj.weight").T

    def _rotate(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.config["rope_parameters"]["rope_type"] == "default"
        width = rows.shape[-1]
        frequency = self.config["rope_parameters"]["rope_theta"] ** -(torch.arange(0, width, 2) / width)
        angle = torch.outer(torch.arange(len(rows)), frequency)[:, None]
        first, second = rows.chunk(2, -1)
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        scale = (rows.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return rows * scale * self._read(f"{name}.weight")

    def _read(self, name: str) -> torch.Tensor:
        self.unread.discard(name)
        return self.tensors[name].float()


def decode(reader: ParallelReader, target, prompt_ids: list[int], max_new_tokens: int, num_draft: int, stop_ids):
    """Greedy speculative decoding with the reader's drafts; yields (draft, number accepted) of every verification."""
    committed = [*prompt_ids, _likeliest(target, prompt_ids)[-1]]
    rounds = []
    while len(committed) - len(prompt_ids) < max_new_tokens and committed[-1] not in stop_ids:
        num_remaining = max_new_tokens - (len(committed) - len(prompt_ids))
        draft = reader.draft(committed, num_draft)[: num_remaining - 1]
        verified = _likeliest(target, committed + draft)[len(committed) - 1 :]
        num_accepted = next((i for i, token in enumerate(draft) if token != verified[i]), len(draft))
        emitted = verified[: num_accepted + 1]
        rounds.append((draft, num_accepted))
        stop = next((i for i, token in enumerate(emitted) if token in stop_ids), len(emitted) - 1)
        committed += emitted[: stop + 1]
    return rounds


@torch.no_grad()
def _likeliest(target, token_ids: list[int]) -> list[int]:
    return target.model(torch.tensor([token_ids], device=target.model.device)).logits[0].argmax(-1).tolist()
