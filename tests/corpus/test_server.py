"""Responses from a server in this process that answers as the local target would."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.conftest import make_model, make_tokenizer
from tests.corpus.test_responses import write_recipe
from workbench.corpus.generation import generate_responses
from workbench.corpus.responses import load_corpus, write_corpus
from workbench.corpus.server import finish
from workbench.errors import WorkbenchError
from workbench.recipe import load_recipe

EOS = 1


class FakeServer:
    """Speaks as much of the protocol as is needed; failures are planted by request number."""

    def __init__(self, respond, models=("served",), sends_ids=False):
        self.requests, self.keys, self.num_running, self.most_running = [], [], 0, 0
        self.failures: dict[int, int] = {}
        lock, fake = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def _send(self, code, value):
                data = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self._send(200, {"data": [{"id": name} for name in models]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(fake.requests)
                    fake.requests.append(body)
                    fake.keys.append(self.headers.get("Authorization"))
                    fake.num_running += 1
                    fake.most_running = max(fake.most_running, fake.num_running)
                time.sleep(0.01)
                with lock:
                    fake.num_running -= 1
                if number in fake.failures:
                    self._send(fake.failures[number], {"error": "planted"})
                    return
                text, ids, reason = respond(body)
                choice = {"text": text, "finish_reason": reason, **({"token_ids": ids} if sends_ids else {})}
                self._send(200, {"choices": [choice]})

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_model().save_pretrained(folder)
    make_tokenizer(36).save_pretrained(folder)
    return folder


@pytest.fixture
def as_target():
    model, tokenizer, lock = make_model(), make_tokenizer(36), threading.Lock()

    def respond(body):
        with lock:
            (ids,) = generate_responses(model, [body["prompt"]], body["max_tokens"], {EOS}, 0)
        text = tokenizer.decode([i for i in ids if i < 36], skip_special_tokens=True)
        return text, ids, "stop" if ids[-1] == EOS else "length"

    return respond


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("workbench.corpus.server.RETRY_PAUSES_S", (0.0, 0.0))


def test_the_corpus_is_what_the_local_target_would_have_written(tmp_path, target_folder, as_target):
    path = str(write_recipe(tmp_path, target_folder))
    write_corpus(load_recipe(path), tmp_path / "local")
    with FakeServer(as_target, sends_ids=True) as fake:
        fake.failures = {0: 503, 5: 429}
        recipe = load_recipe(path, ["--corpus.server", fake.url, "--corpus.batch_size", "4"])
        write_corpus(recipe, tmp_path / "served")
    local, served = load_corpus(tmp_path / "local"), load_corpus(tmp_path / "served")
    assert served.train.to_list() == local.train.to_list()
    assert served.held_out.to_list() == local.held_out.to_list()
    assert served.facts["server"] == fake.url
    assert served.facts["template_hash"] == local.facts["template_hash"]
    assert 1 < fake.most_running <= 4
    assert fake.requests[0]["model"] == "served"


def test_written_shards_are_kept_when_the_server_dies(tmp_path, target_folder, as_target):
    path = str(write_recipe(tmp_path, target_folder, num_responses=24))
    with FakeServer(as_target, sends_ids=True) as fake:
        fake.failures = dict.fromkeys(range(20, 1000), 503)
        recipe = load_recipe(path, ["--corpus.server", fake.url])
        with pytest.raises(WorkbenchError, match=r"does not answer \(HTTP 503: .*the same command continues"):
            write_corpus(recipe, tmp_path / "corpus")
        written = {file.name: file.read_bytes() for file in (tmp_path / "corpus").glob("*.parquet")}
        assert written
        fake.failures.clear()
        num_before = len(fake.requests)
        write_corpus(recipe, tmp_path / "corpus")
        num_rows = load_corpus(tmp_path / "corpus").facts
    assert all((tmp_path / "corpus" / name).read_bytes() == data for name, data in written.items())
    assert len(fake.requests) - num_before < num_rows["num_train"] + num_rows["num_held_out"]


def test_refusals_are_not_repeated(tmp_path, target_folder, as_target):
    path = str(write_recipe(tmp_path, target_folder))
    with FakeServer(as_target) as fake:
        fake.failures = dict.fromkeys(range(1000), 400)
        recipe = load_recipe(path, ["--corpus.server", f"{fake.url}/v1/", "--corpus.batch_size", "1"])
        with pytest.raises(WorkbenchError, match="refuses the request: HTTP 400") as error:
            write_corpus(recipe, tmp_path / "corpus")
    assert "\n" not in str(error.value)
    prompts = [tuple(request["prompt"]) for request in fake.requests]
    assert len(prompts) == len(set(prompts)) < 8, "tried again, or went on although the server refuses"


def test_text_without_ids_is_tokenized_and_ended(tmp_path, target_folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    path = str(write_recipe(tmp_path, target_folder))
    with FakeServer(lambda body: ("w1 w2", None, "stop")) as fake:
        write_corpus(load_recipe(path, ["--corpus.server", fake.url]), tmp_path / "corpus")
    expected = [*make_tokenizer(36).encode("w1 w2"), EOS]
    corpus = load_corpus(tmp_path / "corpus")
    assert all(row["response_ids"] == expected for row in corpus.train.to_list())
    assert set(fake.keys) == {"Bearer secret"}
    assert "secret" not in (tmp_path / "corpus" / "corpus.json").read_text()


def test_a_server_of_other_models_and_no_server(tmp_path, target_folder, as_target):
    path = str(write_recipe(tmp_path, target_folder))
    with FakeServer(as_target, models=("a", "b")) as fake:
        recipe = load_recipe(path, ["--corpus.server", fake.url])
        with pytest.raises(WorkbenchError, match=r"serves a, b, not target.model"):
            write_corpus(recipe, tmp_path / "corpus")
    with pytest.raises(WorkbenchError, match="does not answer"):
        write_corpus(recipe, tmp_path / "corpus")


@pytest.mark.parametrize(
    ("token_ids", "has_stopped", "expected"),
    [
        ([5, 6], True, [5, 6, EOS]),
        ([5, 6, EOS], True, [5, 6, EOS]),
        ([5, EOS, 6], False, [5, EOS]),
        ([5, 6, 7, 8, 9], False, [5, 6, 7, 8]),
        ([5, 6, 7, 8], True, [5, 6, 7, 8]),
    ],
)
def test_responses_end_as_local_ones_do(token_ids, has_stopped, expected):
    assert finish(token_ids, has_stopped, 4, frozenset({EOS}), EOS) == expected
