"""Uploads against a stand-in for the hub: what arrives, what is refused, what a lost connection leaves behind."""

import hashlib
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.publish.hub_server import TOKEN, start_server
from workbench import cli
from workbench.errors import WorkbenchError
from workbench.publish.hub import check_destination, push, render_files

REPO = "org/tiny-drafter"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server, stop = start_server()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in knows plain transfers only
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    no_wait = types.SimpleNamespace(**{**vars(time), "sleep": lambda _: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", no_wait)
    yield server
    stop()


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def failure_of(folder, **options):
    with pytest.raises(WorkbenchError) as failure:
        push(folder, REPO, **options)
    message = str(failure.value)
    assert "\n" not in message
    assert TOKEN not in message
    assert "signature" not in message
    return message


def test_a_pull_request_with_exactly_the_published_files(hub, published, capsys):
    url = push(published[3], REPO)
    assert url == f"{hub.url}/{REPO}/discussions/1"
    (commit,) = hub.commits
    assert commit.is_pull_request
    assert commit.files == content_of(published[3])
    assert hub.repositories == {REPO: True}, "created, and private"
    assert "private" in capsys.readouterr().out


def test_the_same_folder_opens_no_second_pull_request(hub, published):
    first = push(published[3], REPO)
    assert push(published[3], REPO) == first
    assert len(hub.commits) == 1
    assert hub.requests["object"] == 1


def test_straight_to_the_main_branch_when_asked_to(hub, published):
    hub.repositories[REPO] = False
    assert push(published[3], REPO, as_pull_request=False) == f"{hub.url}/{REPO}/commit/{'1' * 40}"
    assert not hub.commits[0].is_pull_request
    assert hub.requests["create"] == 0


@pytest.mark.parametrize("kind", ["create", "discussions", "preupload", "batch", "object", "commit"])
@pytest.mark.parametrize(("status", "advice"), [(403, "may not write"), (401, "token is not valid")])
def test_a_refused_upload(hub, published, kind, status, advice):
    hub.faults[kind] = status
    message = failure_of(published[3])
    assert message.startswith(f"nothing was published to {REPO}: the hub answered {status} (")
    assert advice in message
    assert hub.commits == []


def test_a_wrong_token(hub, published, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = failure_of(published[3])
    assert "401" in message
    assert "hf_wrong" not in message


def test_a_missing_token_asks_the_hub_nothing(hub, published, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN or log in with `hf auth login`" in failure_of(published[3])
    assert not hub.requests


def test_the_hubs_own_login_is_enough(hub, published, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "login").write_text(TOKEN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "login"))
    push(published[3], REPO)
    assert len(hub.commits) == 1


@pytest.mark.parametrize("kind", ["info", "create", "discussions", "yaml", "preupload", "batch", "object", "commit"])
def test_a_lost_connection_publishes_nothing_and_is_taken_up_again(hub, published, kind):
    hub.faults[kind] = "drop"
    message = failure_of(published[3])
    assert message.startswith(f"the upload to {REPO} did not end (")
    assert hub.url in message
    assert hub.commits == []
    sent_before = len(hub.objects)
    del hub.faults[kind]
    hub.requests.clear()
    push(published[3], REPO)
    assert hub.commits[0].files == content_of(published[3])
    assert hub.requests["object"] == 1 - sent_before, "what has arrived is not sent again"


def test_a_lost_answer_to_the_commit_leads_to_no_second_pull_request(hub, published):
    hub.faults["commit"] = "lose"
    failure_of(published[3])
    hub.faults.clear()
    push(published[3], REPO)
    assert len(hub.commits) == 1


def test_a_server_that_is_out_of_order(hub, published):
    hub.faults["object"] = 500
    assert "500" in failure_of(published[3])
    assert hub.commits == []


def test_no_network(published, monkeypatch, hub):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "did not end (ConnectError)" in failure_of(published[3])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in failure_of(published[3])


def test_a_changed_folder_does_not_leave_the_machine(hub, copied):
    (copied / "README.md").write_text("x")
    assert "hash does not match" in failure_of(copied)
    assert not hub.requests


def test_what_lies_beside_the_published_files_stays_there(hub, copied):
    (copied / ".cache").mkdir()
    (copied / ".cache" / "private.txt").write_text("x")
    push(copied, REPO)
    assert set(hub.commits[0].files) == {path.name for path in copied.iterdir()} - {".cache"}


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "org/", "org/na me", "../x", "org/x..y", ""])
def test_places_that_are_none(name):
    with pytest.raises(WorkbenchError, match="use org/name"):
        check_destination(name)


def test_files_are_listed_with_sizes_and_hashes(published):
    listed = render_files(published[3]).splitlines()
    content = content_of(published[3])
    assert len(listed) == len(content) + 1
    for line in listed[:-1]:
        size, digest, name = line.split()
        assert int(size.replace(",", "")) == len(content[name])
        assert digest == hashlib.sha256(content[name]).hexdigest()
    assert listed[-1].split()[0] == f"{sum(map(len, content.values())):,}"


@pytest.fixture
def command(published, monkeypatch):
    """`publish` of a recipe whose stages are finished."""
    monkeypatch.setattr("workbench.stages.run_stages", lambda recipe, names: None)
    monkeypatch.setattr("workbench.stages.published_folder", lambda recipe: published[3])
    return lambda *options: cli.main(["publish", "quickstart", *options])


def test_without_push_nothing_is_asked_of_the_hub(hub, published, command, capsys):
    assert command("--repo", REPO) == 0
    shown = capsys.readouterr().out
    assert "4 prompts decode losslessly" in shown
    assert hashlib.sha256((published[3] / "model.safetensors").read_bytes()).hexdigest() in shown
    assert f"nothing was uploaded to {REPO}: repeat with PUSH=1" in shown
    assert not hub.requests


def test_with_push_it_is_uploaded(hub, command, capsys):
    assert command("--repo", REPO, "--push") == 0
    captured = capsys.readouterr()
    assert f"published: {hub.url}/{REPO}/discussions/1" in captured.out
    assert TOKEN not in captured.out + captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--push"], "name it with --repo org/name"), (["--repo", "tiny", "--push"], "REPO is 'tiny': use org/name")],
)
def test_mistakes_are_said_before_anything_runs(options, message, command, capsys, hub):
    assert command(*options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_process_of_its_own_with_the_documented_variables(hub, published, tmp_path):
    script = (
        "import sys; from pathlib import Path; from workbench.publish.hub import push\n"
        "print(push(Path(sys.argv[1]), sys.argv[2]))"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", script, str(published[3]), REPO],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert hub.commits[0].files == content_of(published[3])
    assert TOKEN not in result.stdout + result.stderr
    written = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in written)
