import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from workbench.corpus.prompts import load_prompts, shuffled_prompts
from workbench.errors import WorkbenchError
from workbench.recipe import PromptSource


def write_rows(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PromptSource(prompts=str(path))


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize(
    ("row", "text", "turns", "reference"),
    [
        ({"question": "2 + 2?", "answer": "4"}, "2 + 2?", ("2 + 2?",), "4"),
        ({"id": 7, "problem": "x?", "solution": "y"}, "x?", ("x?",), "y"),
        ({"prompt": "def f():", "entry_point": "f"}, "def f():", ("def f():",), None),
        ({"text": "Hi"}, "Hi", ("Hi",), None),
        ({"instruction": "Add", "input": "1, 2", "output": "3"}, "Add\n\n1, 2", ("Add\n\n1, 2",), None),
        ({"instruction": "Sing", "input": ""}, "Sing", ("Sing",), None),
        ({"turns": ["first", "second"]}, "first", ("first", "second"), None),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "a",
            ("a",),
            None,
        ),
    ],
)
def test_known_schemas(tmp_path, suffix, row, text, turns, reference):
    (prompt,) = load_prompts(write_rows(tmp_path / f"rows.{suffix}", [row]), 5, seed=0)
    assert (prompt.text, prompt.turns, prompt.reference) == (text, turns, reference)


def test_files_keep_their_order_and_shuffling_is_seeded(tmp_path):
    source = write_rows(tmp_path / "rows.jsonl", [{"question": f"q{i}"} for i in range(30)])
    assert [prompt.text for prompt in load_prompts(source, 3, seed=9)] == ["q0", "q1", "q2"]
    first, again, other = ([p.text for p in shuffled_prompts(source, 0, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(f"q{i}" for i in range(30))


def test_the_field_can_be_named(tmp_path):
    source = write_rows(tmp_path / "rows.jsonl", [{"question": "a", "body": "b"}])
    assert load_prompts(PromptSource(prompts=source.prompts, field="body"), 1, 0)[0].text == "b"
    with pytest.raises(WorkbenchError, match="row 1: has no field 'bodi'; its fields are question, body"):
        load_prompts(PromptSource(prompts=source.prompts, field="bodi"), 1, 0)


@pytest.mark.parametrize("name", ["problems", "instructions"])
def test_generator_splits_are_disjoint_and_seeded(name):
    train = load_prompts(PromptSource(prompts=name), 500, seed=0)
    test = load_prompts(PromptSource(prompts=name, split="test"), 100, seed=0)
    assert train == load_prompts(PromptSource(prompts=name), 500, seed=0)
    assert train != load_prompts(PromptSource(prompts=name), 500, seed=1)
    assert len({p.text for p in train}) == 500
    assert not {p.text for p in train} & {p.text for p in test}
    assert all(bool(prompt.reference) == (name == "problems") for prompt in train)
    with pytest.raises(WorkbenchError, match="'dev'"):
        load_prompts(PromptSource(prompts=name, split="dev"), 1, 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", None, "no.jsonl do not exist"),
        ("bad.jsonl", '{"question": "a"}\n{"question"\n', "bad.jsonl, line 2: no valid JSON"),
        ("list.jsonl", "[1]\n", "line 1: expected an object with named fields, found list"),
        ("empty.jsonl", "", "hold no rows"),
        ("unknown.jsonl", '{"foo": "a", "bar": "b"}\n', r"none of its fields \(foo, bar\) is known"),
        ("blank.jsonl", '{"question": " "}\n', "row 1: field 'question' is empty"),
        ("number.jsonl", '{"question": 3}\n', "row 1: field 'question' holds int"),
        ("object.json", '{"a": 1}', "hold no list"),
        ("bad.parquet", "no parquet", "cannot be read"),
        ("folder/too/deep", None, "neither 'problems' or 'instructions', nor a file"),
    ],
)
def test_bad_sources_are_one_line(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(WorkbenchError, match=message) as error:
        load_prompts(PromptSource(prompts=name), 5, 0)
    assert "\n" not in str(error.value)


def test_hub_data_set_and_a_hub_that_cannot_be_reached(monkeypatch):
    calls = []

    def load(name, config, split):
        calls.append((name, config, split))
        return datasets.Dataset.from_list([{"question": "a", "answer": "b"}, {"question": "c", "answer": "d"}])

    monkeypatch.setattr("datasets.load_dataset", load)
    source = PromptSource(prompts="openai/gsm8k", config="main", split="test")
    assert [prompt.text for prompt in load_prompts(source, 1, 0)] == ["a"]
    assert calls == [("openai/gsm8k", "main", "test")]

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the hub\nwith details")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(WorkbenchError, match="hub cannot be reached for prompts openai/gsm8k") as error:
        load_prompts(source, 1, 0)
    assert "\n" not in str(error.value)
