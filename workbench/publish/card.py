"""The model card, rendered from the files of the folder: manifest, validation and configuration.

Nothing is typed by hand and nothing may be missing: an unknown field is an error, not an empty place in the text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml

from workbench.corpus.prompts import GENERATED
from workbench.files import read_json
from workbench.pages import render_template
from workbench.validate.methods import CANDIDATE
from workbench.validate.table import render_estimate, render_hit_rate, render_losslessness, value_of

TAGS = ["speculative-decoding", "block-diffusion", "draft-model", "d3d"]
RESULTS_FILE = ".eval_results/speculative-decoding.yaml"
"""The hub's own form of evaluation results; it knows those on datasets of the hub only."""


def render_card(manifest: dict[str, Any], validation: dict[str, Any], folder: Path, name: str) -> str:
    """Renders the card.

    Args:
        manifest: What `build_manifest` gave.
        validation: The content of validation.json.
        folder: The folder being built, with its config.json.
        name: Path by which the folder is going to be known.
    """
    view = {
        "front_matter": _front_matter(manifest, validation, name).to_yaml().strip(),
        **_fields(manifest, validation, read_json(folder / "config.json"), name),
    }
    text = render_template("workbench.publish", "card.md", view)
    ModelCard(text)  # parses the front matter, raises where it is none
    return text


def _front_matter(manifest: dict[str, Any], validation: dict[str, Any], name: str) -> ModelCardData:
    recipe, drafter = manifest["recipe"], manifest["drafter"]
    pruned = ["pruned"] if drafter["dropped_layers"] else []
    fields: dict[str, Any] = {}
    base = manifest["target"]["identity"] if drafter["parent"] == manifest["target"]["identity"] else drafter["parent"]
    if _is_hub_id(base):
        fields |= {"base_model": base, "base_model_relation": "finetune"}
    datasets = [source["prompts"] for source in recipe["corpus"]["sources"] if _is_hub_id(source["prompts"])]
    if datasets:
        fields["datasets"] = datasets
    return ModelCardData(
        license=manifest["licence"],
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=TAGS + pruned,
        model_name=Path(name).name,
        eval_results=_eval_results(validation),
        **fields,
    )


def _eval_results(validation: dict[str, Any]) -> list[EvalResult]:
    """Results on all suites, in the older form of the front matter, which takes any name for a dataset."""
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Speculative decoding",
            dataset_type=source["prompts"] if _is_hub_id(source["prompts"]) else suite,
            dataset_name=suite,
            dataset_split=source["split"],
            metric_type=metric,
            metric_name=title,
            metric_value=value,
        )
        for suite, source, metric, title, value in _measured(validation)
    ]


def render_results(manifest: dict[str, Any], validation: dict[str, Any]) -> str | None:
    """Results on datasets of the hub as YAML for `RESULTS_FILE`; None where there are none."""
    entries = [
        EvalResultEntry(
            dataset_id=source["prompts"],
            task_id=f"speculative_decoding_{metric}",
            value=value,
            date=manifest["date"],
            notes=f"{title} of the asynchronous decoder, drafting for {manifest['target']['identity']}, batch 1, on "
            f"{_hardware(validation['hardware'])}",
        )
        for _, source, metric, title, value in _measured(validation)
        if _is_hub_id(source["prompts"])
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False) if entries else None


def _measured(validation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str, str, float]]:
    """(suite, its source, metric, title of the metric, value) of everything that is put forward."""
    sources = {suite["name"]: suite["source"] for suite in validation["options"]["validate"]["suites"]}
    for suite, cell in validation["methods"][CANDIDATE].items():
        for metric, title in (("acceptance_length", "Acceptance length"), ("speedup", "Speedup")):
            yield suite, sources[suite], metric, title, round(value_of(cell[metric]), 3)


def _fields(manifest: dict[str, Any], validation: dict[str, Any], config: dict[str, Any], name: str) -> dict[str, Any]:
    recipe, drafter, target = manifest["recipe"], manifest["drafter"], manifest["target"]
    decode = validation["options"]["decode"]
    options = validation["options"]["validate"]
    trains_autoregressively = recipe["distill"]["autoregressive"] != "off"
    return {
        "title": f"{Path(name).name}: a drafter for {Path(target['identity']).name}",
        "target": target,
        "drafter": drafter,
        "decode": decode,
        "rows": _rows(validation),
        "suites": _suites(validation),
        "warnings": validation["warnings"],
        "sampling": "greedy" if decode["temperature"] == 0 else f"temperature {decode['temperature']}",
        "hardware": _hardware(validation["hardware"]),
        "target_dtype": validation["target"]["dtype"],
        "repetitions": options["repetitions"],
        "repository": recipe["publish"]["repository"],
        "workbench_snippet": _workbench_snippet(recipe, target, decode, manifest["verification"]["prompts"][0], name),
        "assistant_snippet": _assistant_snippet(recipe, manifest["verification"]["prompts"][0], name)
        if trains_autoregressively
        else "",
        "is_causal": drafter["block_attention"] == "causal",
        "prompt_sources": ", ".join(_source_name(source["prompts"]) for source in recipe["corpus"]["sources"]),
        "thinking": "on" if target["thinking"] else "off",
        "context_tokens": config["max_position_embeddings"],
        "trained_tokens": recipe["corpus"]["max_prompt_tokens"] + recipe["corpus"]["max_new_tokens"],
        "parameters": f"{manifest['drafter']['num_parameters'] / 1e6:.1f} million",
        "lineage": _lineage(manifest),
        "recipe_name": manifest["name"],
        "code": manifest["code"].get("revision", ""),
        "is_code_changed": manifest["code"].get("dirty", False),
        "folder_name": name,
    }


def _rows(validation: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "suite": suite,
            "method": method,
            "acceptance_length": f"{value_of(cell['acceptance_length']):.2f}" if "acceptance_length" in cell else "1",
            "tokens_per_second": f"{value_of(cell['tokens_per_second']):.1f}",
            "speedup": render_estimate(cell["speedup"], suffix="x"),
            "output": render_losslessness(cell).replace("yes", "identical"),
        }
        for suite in validation["methods"]["autoregressive"]
        for method, cells in validation["methods"].items()
        for cell in [cells[suite]]
    ]


def _suites(validation: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "name": suite,
            "num_prompts": cell["num_prompts"],
            "acceptance_length": render_estimate(cell["acceptance_length"]),
            "per_prompt": f"{cell['acceptance_length_per_prompt']:.2f}",
            "first": f"{100 * cell['acceptance_by_position']['survival'][0]:.0f} %",
            "last": f"{100 * cell['acceptance_by_position']['survival'][-1]:.0f} %",
            "hits": render_hit_rate(cell),
        }
        for suite, cell in validation["methods"][CANDIDATE].items()
    ]


def _lineage(manifest: dict[str, Any]) -> list[str]:
    """Sentences on parent, dropped layers, search, healing and training."""
    drafter, search = manifest["drafter"], manifest.get("search", {})
    dropped, kept = (", ".join(map(str, drafter[key])) for key in ("dropped_layers", "kept_layers"))
    layers = f"Layers {dropped} were dropped; kept are {kept} (original indices)." if dropped else "All are kept."
    sentences = [f"Parent: {drafter['parent']}, {drafter['parent_num_layers']} layers. {layers}"]
    chosen = search.get("chosen")
    if chosen:
        trials = sum(study["num_trials"] for study in search["studies"])
        studies = "one study" if len(search["studies"]) == 1 else f"{len(search['studies'])} studies"
        sentences.append(f"Searched in {trials} trials of {studies}: {search['reason']}.")
    if chosen and chosen["trials"]:
        sentences.append(f"Found by {', '.join(f'`{trial}`' for trial in chosen['trials'])}.")
    if chosen and chosen["heal_steps"]:
        sentences.append(f"Healed for {chosen['heal_steps']} steps, {chosen['heal_s'] / 60:.1f} minutes.")
    training = manifest.get("distillation")
    if training:
        sentences.append(
            f"Distilled in {training['seconds'] / 60:.1f} minutes: {training['steps']} steps, "
            f"{training['clean_tokens']} clean tokens and {training['block_rows']} block rows; autoregressive loss on "
            f"clean rows: `{manifest['recipe']['distill']['autoregressive']}`."
        )
    return sentences


def _workbench_snippet(
    recipe: dict[str, Any], target: dict[str, Any], decode: dict[str, Any], prompt: str, name: str
) -> str:
    revision = f', revision="{target["revision"]}"' if target["revision"] else ""
    thinking = ", thinking=True" if target["thinking"] else ""
    dtype = recipe["target"]["dtype"]
    return f"""from pathlib import Path

from workbench.decode import build_decoder
from workbench.recipe import DecodeOptions, TargetOptions
from workbench.targets import load_target

if __name__ == "__main__":  # the drafter runs in a process of its own
    target = load_target(TargetOptions(model={recipe["target"]["model"]!r}, dtype={dtype!r}{revision}{thinking}))
    options = DecodeOptions(draft_length={decode["draft_length"]}, max_hypotheses={decode["max_hypotheses"]})
    with build_decoder("asynchronous", target, Path({name!r}), options) as decoder:
        print(decoder.generate({prompt!r}, max_new_tokens=128).text)"""


def _assistant_snippet(recipe: dict[str, Any], prompt: str, name: str) -> str:
    model = recipe["target"]["model"]
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name!r})
target = AutoModelForCausalLM.from_pretrained({model!r})
assistant = AutoModelForCausalLM.from_pretrained({name!r})
assistant.resize_token_embeddings(target.config.vocab_size)  # without the mask's row, where that is one more
messages = [{{"role": "user", "content": {prompt!r}}}]
options = {{"add_generation_prompt": True, "enable_thinking": {recipe["target"]["thinking"]}}}
inputs = tokenizer.apply_chat_template(messages, **options, return_tensors="pt", return_dict=True)
output = target.generate(**inputs, assistant_model=assistant, do_sample=False, max_new_tokens=128)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


def _hardware(hardware: dict[str, Any]) -> str:
    if hardware["gpus"]:
        return ", ".join(hardware["gpus"])
    return f"{hardware['cores']} cores of {hardware['processor']}"


def _source_name(prompts: str) -> str:
    return GENERATED.get(prompts) or (prompts if _is_hub_id(prompts) else Path(prompts).name)


def _is_hub_id(name: str) -> bool:
    """`org/name`, and no path."""
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~") and not Path(name).exists()
