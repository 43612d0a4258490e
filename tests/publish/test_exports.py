"""Exports: what engines look for is there, what they would misunderstand is refused, and they draft what we draft."""

import dataclasses
import errno
import json
import re
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import make_model, make_target
from tests.publish.parallel_reader import ParallelReader, decode
from workbench.corpus.prompts import load_prompts
from workbench.decode import build_decoder
from workbench.drafter.layers import drop_layers
from workbench.drafter.model import load_drafter, save_drafter
from workbench.errors import WorkbenchError
from workbench.publish.exports import EXPORT_FILE, export_drafter
from workbench.recipe import DecodeOptions, TargetOptions, load_recipe
from workbench.stages import STAGES, run_stages
from workbench.targets import load_target

PROMPTS = ["w1 w2 w3", "w7", "w30 w4 w4 w4 w9", "w12 w13 w14 w15 w16 w17 w18", "w5 w25 w5 w25"]


def our_rounds(target, folder, prompts, max_new_tokens, options):
    """For every prompt, (draft, number accepted) of each of our synchronous decoder's verifications."""
    outputs = []
    with build_decoder("synchronous", target, folder, options) as decoder:
        for prompt_ids in prompts:
            rounds = []
            decoder.observer = lambda draft, emitted, rounds=rounds: rounds.append(
                (list(draft.token_ids), len(emitted) - 1)
            )
            decoder.generate(prompt_ids, max_new_tokens, temperature=0.0)
            outputs.append(rounds)
    return outputs


def assert_same_drafts(target, folder, exported, options=None, texts=PROMPTS, max_new_tokens=24):
    """The independent reader of the export and our decoder draft and accept the same; returns the number accepted."""
    options = options or DecodeOptions(executor="inline")
    reader = ParallelReader(exported)
    prompts = [target.encode_prompt(text) for text in texts]
    theirs = [
        decode(reader, target, prompt_ids, max_new_tokens, options.draft_length, target.stop_ids)
        for prompt_ids in prompts
    ]
    assert theirs == our_rounds(target, folder, prompts, max_new_tokens, options)
    assert not reader.unread, "tensors that the engine would not know"
    return sum(num_accepted for rounds in theirs for _, num_accepted in rounds)


@pytest.fixture(scope="module")
def exported(causal, tmp_path_factory):
    return export_drafter(causal[1], "vllm", tmp_path_factory.mktemp("exports") / "served")


def assert_documented(exported, drafter_folder, target_config):
    """The keys that vLLM 0.33 documents for a causal LM that drafts in parallel, and none that mean otherwise."""
    config, drafter = (json.loads((folder / "config.json").read_text()) for folder in (exported, drafter_folder))
    spec = drafter["drafter"]
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    assert config["pard_token"] == spec["mask_token_id"] < config["vocab_size"]
    assert config["vocab_size"] == target_config.vocab_size
    assert config["num_hidden_layers"] == len(config["layer_types"]) == len(spec["kept_layers"])
    assert set(config["layer_types"]) == {"full_attention"}
    assert config["max_position_embeddings"] == target_config.max_position_embeddings
    assert config["rope_parameters"] == target_config.rope_parameters
    assert config["tie_word_embeddings"] == target_config.tie_word_embeddings
    assert config.get("is_causal", True)
    otherwise = {"auto_map", "mask_token_id", "dflash_config", "ptd_token_id", "dspark_noise_token_id", "n_predict"}
    assert not otherwise & set(config)
    # Nothing else changed: it is the drafter's own configuration without our section.
    assert {key: value for key, value in config.items() if key != "pard_token"} == {
        key: value for key, value in drafter.items() if key != "drafter"
    }


def test_the_configuration_key_by_key(causal, exported):
    target, folder = causal
    assert_documented(exported.folder, folder, target.config)


def test_the_serve_command_key_by_key(exported, published):
    command = shlex.split(exported.commands["vllm"])
    assert command[:2] == ["vllm", "serve"]
    assert command[3:5] == ["--dtype", "float32"]
    assert command[5] == "--speculative-config"
    assert json.loads(command[6]) == {
        "method": "draft_model",
        "model": str(exported.folder.resolve()),
        "num_speculative_tokens": published[0].decode.draft_length,
        "parallel_drafting": True,
    }
    assert len(command) == 7
    assert AutoTokenizer.from_pretrained(command[2]).get_vocab(), "the target is where the command says"
    assert json.loads((exported.folder / EXPORT_FILE).read_text())["commands"] == exported.commands


def test_files_and_tensor_names(causal, exported):
    names = {path.name for path in exported.folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", EXPORT_FILE} <= names
    assert not names & {"workbench.json", "validation.json", "README.md", "calibration.json"}
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (causal[1], exported.folder))
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "embed" not in name)
    rows = [ours, theirs]
    assert torch.equal(*(tensors["model.embed_tokens.weight"][:37] for tensors in rows)), "tokens and mask"
    layers = {int(name.split(".")[2]) for name in theirs if name.startswith("model.layers.")}
    assert layers == {0, 1, 2}
    model = AutoModelForCausalLM.from_pretrained(exported.folder)
    assert not hasattr(model.config, "drafter")


def test_an_independent_reader_drafts_and_accepts_the_same(causal, exported):
    target, folder = causal
    assert assert_same_drafts(target, folder, exported.folder) > 0


@pytest.mark.parametrize("draft_length", [1, 4, 9])
def test_other_draft_lengths(causal, exported, draft_length):
    options = DecodeOptions(executor="inline", draft_length=draft_length)
    target, folder = causal
    assert_same_drafts(target, folder, exported.folder, options, PROMPTS[:2])


def test_the_reader_notices_a_wrong_mask_token_and_a_lost_shift(causal, exported, tmp_path):
    broken = shutil.copytree(exported.folder, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "pard_token": 5}))
    target, folder = causal
    with pytest.raises(AssertionError):
        assert_same_drafts(target, folder, broken)


def test_a_pruned_drafter(causal, publish_pair, tmp_path):
    target, folder = causal
    pruned = drop_layers(load_drafter(folder), [1])
    save_drafter(pruned, tmp_path / "pruned")
    changes = {"block_attention": "causal", "kept_layers": [0, 2]}
    published = publish_pair(tmp_path / "pair", target, pruned.model, **changes)
    exported = export_drafter(published, "vllm")
    assert exported.folder == tmp_path / "pair" / "tiny-vllm"
    assert_same_drafts(target, published, exported.folder)


def test_a_llama(publish_pair, tmp_path):
    target = make_target("llama")
    published = publish_pair(tmp_path, target, make_model("llama", seed=3), block_attention="causal")
    assert_same_drafts(target, published, export_drafter(published, "vllm").folder)


@pytest.mark.parametrize("tied", [True, False])
def test_rows_without_a_token_are_never_drafted(publish_pair, tmp_path, tied):
    target, model = make_target(), make_model(seed=3, tied=tied)
    with torch.no_grad():
        dict(model.named_parameters())["model.embed_tokens.weight" if tied else "lm_head.weight"][37:] *= 50
    published = publish_pair(tmp_path, target, model, block_attention="causal")
    assert_same_drafts(target, published, export_drafter(published, "vllm").folder)


@pytest.mark.parametrize("rows", [37, 48])
def test_a_sibling_with_another_padding_gets_the_targets_rows(publish_pair, tmp_path, rows):
    target = make_target()
    published = publish_pair(tmp_path, target, make_model(vocab_rows=rows, seed=3), block_attention="causal")
    exported = export_drafter(published, "vllm")
    assert json.loads((exported.folder / "config.json").read_text())["vocab_size"] == 40
    tensors = load_file(exported.folder / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].shape[0] == 40
    assert_same_drafts(target, published, exported.folder)


@pytest.fixture(scope="module")
def unpadded(publish_pair, tmp_path_factory):
    """A target without an unused row, so that the drafter has one row more."""
    target = make_target(vocab_size=36, vocab_rows=36)
    folder = tmp_path_factory.mktemp("unpadded")
    model = make_model(vocab_rows=37, seed=3)
    return target, publish_pair(folder, target, model, block_attention="causal")


def test_no_room_for_the_mask_is_refused_for_vllm(unpadded, tmp_path):
    with pytest.raises(WorkbenchError, match=r"mask token in row 36.*36 rows.*FORMAT=assistant"):
        export_drafter(unpadded[1], "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pair", ["causal", "unpadded"])
def test_an_assistant_in_transformers_is_lossless(pair, request, tmp_path):
    target, folder = request.getfixturevalue(pair)
    exported = export_drafter(folder, "assistant", tmp_path / "assistant")
    config = json.loads((exported.folder / "config.json").read_text())
    assert config["vocab_size"] == target.config.vocab_size
    assert not {"drafter", "pard_token"} & set(config)
    assert_assists_losslessly(target, AutoModelForCausalLM.from_pretrained(exported.folder))


def assert_assists_losslessly(target, assistant):
    for prompt in PROMPTS:
        ids = torch.tensor([target.encode_prompt(prompt)])
        plain = target.model.generate(ids, do_sample=False, max_new_tokens=24)
        assisted = target.model.generate(ids, do_sample=False, max_new_tokens=24, assistant_model=assistant)
        assert torch.equal(plain, assisted)


def test_the_published_folder_itself_assists_losslessly(causal, published):
    for folder in (causal[1], published[3]):
        assert_assists_losslessly(make_target(), AutoModelForCausalLM.from_pretrained(folder))


def test_the_card_of_a_drafter_with_a_row_more_assists_as_it_says(unpadded, capsys, monkeypatch):
    target, folder = unpadded
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snippet = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    exec(snippet, {})
    shown = capsys.readouterr().out.strip()
    prompt_ids = target.encode_prompt(json.loads((folder / "workbench.json").read_text())["verification"]["prompts"][0])
    plain = target.model.generate(torch.tensor([prompt_ids]), do_sample=False, max_new_tokens=128)
    assert shown == target.tokenizer.decode(plain[0, len(prompt_ids) :], skip_special_tokens=True)


def test_the_commands_of_an_assistant(causal, tmp_path):
    exported = export_drafter(causal[1], "assistant", tmp_path / "a b")
    place = str(tmp_path / "a b")
    assert set(exported.commands) == {"vllm", "sglang", "transformers"}
    speculative = json.loads(shlex.split(exported.commands["vllm"])[-1])
    assert speculative == {"method": "draft_model", "model": place, "num_speculative_tokens": 8}
    sglang = shlex.split(exported.commands["sglang"])
    assert sglang[sglang.index("--speculative-draft-model-path") + 1] == place
    assert sglang[sglang.index("--speculative-algorithm") + 1] == "STANDALONE"
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "9"


def test_a_shorter_context_limits_the_server(publish_pair, tmp_path):
    target = make_target()
    published = publish_pair(tmp_path, target, make_model(context=128), block_attention="causal")
    command = shlex.split(export_drafter(published, "vllm").commands["vllm"])
    assert command[command.index("--max-model-len") + 1] == "128"


def test_bidirectional_blocks_are_refused_with_the_key_that_changes_it(published, tmp_path):
    with pytest.raises(WorkbenchError, match=r"bidirectional.*drafter\.block_attention: causal.*FORMAT=assistant") as e:
        export_drafter(published[3], "vllm", tmp_path / "out")
    assert "\n" not in str(e.value)
    assert list(tmp_path.iterdir()) == []
    assert export_drafter(published[3], "assistant", tmp_path / "out").folder.is_dir()


def test_without_an_autoregressive_loss_there_is_no_assistant(published, publish_pair, tmp_path):
    recipe = published[0]
    silent = dataclasses.replace(recipe, distill=dataclasses.replace(recipe.distill, autoregressive="off"))
    folder = publish_pair(tmp_path, make_target(), None, silent)
    with pytest.raises(WorkbenchError, match=r"distill\.autoregressive: forward_kl"):
        export_drafter(folder, "assistant")


@pytest.mark.parametrize("place", ["my-dflash", "DSpark/out", "x/eagle3", "Eagle-2/x"])
def test_paths_by_which_vllm_changes_the_method(causal, tmp_path, place):
    with pytest.raises(WorkbenchError, match=r"contains '(dflash|dspark|eagle3|eagle-)'.*--output"):
        export_drafter(causal[1], "vllm", tmp_path / place)
    export_drafter(causal[1], "assistant", tmp_path / place)


def test_folders_of_somebody_else_are_left_alone(causal, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(WorkbenchError, match="is no export"):
        export_drafter(causal[1], "vllm", tmp_path / "out")
    with pytest.raises(WorkbenchError, match="is no export"):
        export_drafter(causal[1], "vllm", causal[1])
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_an_earlier_export_is_replaced(causal, tmp_path):
    export_drafter(causal[1], "assistant", tmp_path / "out")
    (tmp_path / "out" / "leftover").write_text("x")
    export_drafter(causal[1], "vllm", tmp_path / "out")
    assert not (tmp_path / "out" / "leftover").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_leaves_nothing_behind(causal, tmp_path, monkeypatch):
    def no_space(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("workbench.publish.exports.write_json", no_space)
    with pytest.raises(WorkbenchError, match="No space left on device"):
        export_drafter(causal[1], "vllm", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_another_target_is_refused(causal, tmp_path):
    other = make_target(vocab_size=30)
    other.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    other.model.save_pretrained(tmp_path / "target")
    other.tokenizer.save_pretrained(tmp_path / "target")
    with pytest.raises(WorkbenchError, match="another tokenizer or chat template"):
        export_drafter(causal[1], "vllm", tmp_path / "out", TargetOptions(model=str(tmp_path / "target")))


def test_unknown_formats_and_changed_folders(causal, tmp_path):
    with pytest.raises(WorkbenchError, match="'gguf': use vllm or assistant"):
        export_drafter(causal[1], "gguf")
    changed = shutil.copytree(causal[1], tmp_path / "tiny")
    (changed / "README.md").write_text("x")
    with pytest.raises(WorkbenchError, match="hash does not match"):
        export_drafter(changed, "vllm")


def test_the_recipe_that_is_meant_for_vllm():
    recipe = load_recipe("quickstart-causal")
    assert recipe.drafter.block_attention == "causal"
    assert recipe.distill.autoregressive != "off"
    assert recipe.distill.precision == "32-true"
    assert recipe.prune.drop_layers == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_drafter_of_quickstart_causal_on_50_prompts(tmp_path):
    """Trained for a minute, published, exported: the reader accepts as many tokens as our decoder."""
    shorter = {
        "corpus.num_responses": "600",
        "distill.max_minutes": "1",
        "validate.suites.0.num_prompts": "20",
        "validate.timed_prompts": "2",
        "validate.repetitions": "1",
        "runs": str(tmp_path / "runs"),
        "publish.folder": str(tmp_path / "published"),
    }
    options = [word for key, value in shorter.items() for word in (f"--{key}", value)]
    recipe = load_recipe("quickstart-causal", options)
    run_stages(recipe, list(STAGES))
    exported = export_drafter(tmp_path / "published", "vllm").folder
    target = load_target(recipe.target)
    assert_documented(exported, tmp_path / "published", target.config)
    source = recipe.validate.suites[0].source
    texts = [prompt.text for prompt in load_prompts(source, 50, recipe.seed)]
    num_accepted = assert_same_drafts(target, tmp_path / "published", exported, texts=texts, max_new_tokens=160)
    assert num_accepted > 50 * 20, "a trained drafter is right more often than now and then"
