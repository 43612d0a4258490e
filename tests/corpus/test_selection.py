import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.corpus.selection import select_prompts, split_by_weight
from workbench.errors import WorkbenchError
from workbench.recipe import CorpusOptions, PromptSource, Suite


def write_source(path, texts, **options):
    path.write_text("".join(json.dumps({"question": text}) + "\n" for text in texts))
    return PromptSource(prompts=str(path), **options)


def encode(text):
    return list(range(len(text.split())))


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_add_up_and_are_proportional(total, weights):
    shares = split_by_weight(total, weights)
    assert sum(shares) == total
    assert all(abs(share - total * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True))


def test_sources_are_mixed_by_weight_and_split(tmp_path):
    options = CorpusOptions(
        sources=[
            write_source(tmp_path / "a.jsonl", [f"a {i}" for i in range(50)], weight=3.0),
            write_source(tmp_path / "b.jsonl", [f"b {i}" for i in range(50)], weight=1.0),
        ],
        num_responses=16,
        num_held_out=4,
    )
    selection = select_prompts(options, [], encode, seed=1)
    assert (len(selection.train), len(selection.held_out)) == (16, 4)
    assert [count.num_used for count in selection.counts] == [15, 5]
    texts = [item.prompt.text for item in selection.train + selection.held_out]
    assert len(set(texts)) == 20
    again = select_prompts(options, [], encode, seed=1)
    assert texts == [item.prompt.text for item in again.train + again.held_out]
    assert {text[0] for text in texts[:12]} == {"a", "b"}, "sources follow one another instead of being mixed"


def test_repeats_evaluation_prompts_and_long_prompts_are_left_out_and_counted(tmp_path):
    source = write_source(
        tmp_path / "a.jsonl", ["one", "One ", "two", "eval  me", "far too long a prompt", "three", "four"]
    )
    suite = Suite(name="s", source=write_source(tmp_path / "b.jsonl", ["other", "Eval me"]), num_prompts=1)
    options = CorpusOptions(sources=[source], num_responses=3, num_held_out=1, max_prompt_tokens=3)
    selection = select_prompts(options, [suite], encode, seed=0)
    texts = {item.prompt.text.strip().lower() for item in selection.train + selection.held_out}
    assert texts == {"one", "two", "three", "four"}
    with pytest.raises(WorkbenchError) as error:
        select_prompts(
            CorpusOptions(sources=[source], num_responses=9, num_held_out=1, max_prompt_tokens=3), [suite], encode, 0
        )
    message = str(error.value)
    assert "ask for 10 prompts, the sources hold 4 usable ones" in message
    assert "1 longer than corpus.max_prompt_tokens 3, 1 repeated, 1 also in validate.suites" in message
    assert "\n" not in message


def test_same_problems_in_corpus_and_evaluation_are_replaced():
    problems = PromptSource(prompts="problems")
    suite = Suite(name="s", source=problems, num_prompts=20)
    options = CorpusOptions(sources=[problems], num_responses=30, num_held_out=5)
    selection = select_prompts(options, [suite], encode, seed=0)
    assert selection.counts[0].num_in_evaluation == 1000
    assert selection.counts[0].num_used == 35
