import pytest

from tests.validate.tiny import write_pair
from workbench.decode import build_decoder
from workbench.decode.decoder import DecodeStatistics, Generation
from workbench.errors import WorkbenchError
from workbench.recipe import DecodeOptions, TargetOptions
from workbench.streaming import render_gain, stream_text
from workbench.targets import load_target


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"))


def test_the_streamed_text_is_the_targets_own(pair, capsys, monkeypatch):
    target_folder, drafter_folder = pair
    monkeypatch.setattr("workbench.streaming.DecodeOptions", lambda **given: DecodeOptions(**given, executor="inline"))
    stream_text(drafter_folder, "w1 w2", str(target_folder), 24)
    shown = capsys.readouterr().out
    target = load_target(TargetOptions(model=str(target_folder)))
    with build_decoder("autoregressive", target, None, DecodeOptions()) as decoder:
        expected = decoder.generate("w1 w2", 24)
    text = target.tokenizer.decode(expected.token_ids, skip_special_tokens=True)
    assert shown.startswith(text)
    assert f"\n{len(expected.token_ids)} tokens, " in shown
    assert "acceptance length" in shown
    assert "plain decoding" in shown


def test_a_folder_without_a_manifest_needs_the_target(pair):
    with pytest.raises(WorkbenchError, match="names its target: name it with --target"):
        stream_text(pair[1], "w1", None, 8)


def test_a_single_token_measures_nothing():
    one = Generation([1], "", "stop", DecodeStatistics())
    assert render_gain(one, one) == "1 tokens: too few to measure"
