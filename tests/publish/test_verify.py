import json
import os
import random
import shutil
import socket
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import make_target
from workbench import cli
from workbench.errors import WorkbenchError
from workbench.publish import verify
from workbench.publish.manifest import check_files, write_manifest
from workbench.recipe import TargetOptions


def test_a_published_folder_verifies_without_network(published, monkeypatch):
    def no_network(*_):
        raise AssertionError("verify used the network")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    proof = verify(published[3])
    assert proof.num_prompts == 4
    assert proof.acceptance_length > 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_changed_byte_of_any_file_is_noticed(published, tmp_path_factory, data):
    folder = published[3]
    name = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    content = bytearray((folder / name).read_bytes())
    index = data.draw(st.integers(0, len(content) - 1))
    content[index] ^= data.draw(st.integers(1, 255))
    changed = shutil.copytree(folder, tmp_path_factory.mktemp("changed") / "tiny")
    (changed / name).write_bytes(content)
    with pytest.raises(WorkbenchError) as failure:
        check_files(changed)
    assert "\n" not in str(failure.value)
    assert "tiny" in str(failure.value)
    shutil.rmtree(changed)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "README.md", "validation.json", "workbench.json"]
)
@pytest.mark.parametrize("position", [0.0, 0.4, 0.999999])
def test_the_command_fails_with_one_line_after_any_changed_byte(copied, name, position, capsys):
    content = bytearray((copied / name).read_bytes())
    content[int(position * len(content))] ^= 1
    (copied / name).write_bytes(content)
    assert cli.main(["verify", str(copied)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert name in error


@pytest.mark.timeout(900)
def test_the_command_in_a_process_of_its_own(copied):
    def run():
        command = [sys.executable, "-m", "workbench", "verify", str(copied)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, env=environment)

    passed = run()
    assert passed.returncode == 0, passed.stderr
    assert "4 prompts decode losslessly (0 ties), acceptance length" in passed.stdout
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    failed = run()
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"error: {weights} was changed after publishing: its hash does not match; fetch")
    assert len(failed.stderr.splitlines()) == 1


def test_a_changed_line_ending_of_the_manifest_is_noticed(copied):
    path = copied / "workbench.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r", 1))
    with pytest.raises(WorkbenchError, match="was changed after publishing"):
        check_files(copied)


def test_every_byte_of_the_manifest_counts(copied):
    path = copied / "workbench.json"
    content = path.read_bytes()
    rng = random.Random(0)
    for index in rng.sample(range(len(content)), 300):
        changed = bytearray(content)
        changed[index] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(WorkbenchError):
            check_files(copied)


def test_missing_and_foreign_files(copied):
    (copied / "extra.txt").write_text("x")
    with pytest.raises(WorkbenchError, match=r"not published: extra\.txt"):
        check_files(copied)
    (copied / "extra.txt").unlink()
    (copied / "config.json").unlink()
    with pytest.raises(WorkbenchError, match=r"incomplete: config\.json"):
        check_files(copied)


def test_what_the_hub_adds_to_a_download_is_no_change(copied):
    (copied / ".gitattributes").write_text("x")
    (copied / ".cache").mkdir()
    (copied / ".cache" / "x").write_text("x")
    check_files(copied)


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/passwd", "a/../../outside.txt", "./config.json"])
def test_a_manifest_cannot_point_outside_its_folder(copied, name):
    manifest = json.loads((copied / "workbench.json").read_text())
    manifest["files"][name] = {"sha256": "0" * 64, "bytes": 1}
    (copied / "workbench.json").write_text(json.dumps(manifest))
    with pytest.raises(WorkbenchError, match="no plain name"):
        check_files(copied)


def test_a_link_is_refused(copied, tmp_path):
    (tmp_path / "elsewhere").write_text("x")
    (copied / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkbenchError, match="is a link"):
        check_files(copied)


def reseal(folder):
    """Writes a manifest that matches the folder's present files, as a dishonest publisher would."""
    manifest = json.loads((folder / "workbench.json").read_text())
    write_manifest({key: value for key, value in manifest.items() if key not in ("files", "manifest_sha256")}, folder)


def test_files_that_could_run_code_are_refused(copied):
    (copied / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    reseal(copied)
    with pytest.raises(WorkbenchError, match=r"pytorch_model\.bin"):
        verify(copied)


def test_an_acceptance_length_that_is_not_reached(copied):
    manifest = json.loads((copied / "workbench.json").read_text())
    manifest["verification"]["acceptance_length"] += 0.5
    (copied / "workbench.json").write_text(json.dumps(manifest))
    reseal(copied)
    with pytest.raises(WorkbenchError, match="were stated"):
        verify(copied)


def test_a_target_that_is_elsewhere_is_given_by_hand(copied, published, tmp_path):
    manifest = json.loads((copied / "workbench.json").read_text())
    target = manifest["recipe"]["target"]["model"]
    manifest["recipe"]["target"]["model"] = str(tmp_path / "gone")
    (copied / "workbench.json").write_text(json.dumps(manifest))
    reseal(copied)
    with pytest.raises(WorkbenchError, match="TARGET="):
        verify(copied)
    assert verify(copied, TargetOptions(model=target)).num_prompts == 4


def test_another_target_is_refused(copied, tmp_path):
    other = make_target(vocab_size=30)
    other.model.save_pretrained(tmp_path / "target")
    other.tokenizer.save_pretrained(tmp_path / "target")
    with pytest.raises(WorkbenchError, match=r"\(for tiny\) does not fit the target target: its vocabulary"):
        verify(copied, TargetOptions(model=str(tmp_path / "target")))


def test_a_plain_folder_is_no_published_drafter(tmp_path):
    with pytest.raises(WorkbenchError, match="no published drafter"):
        verify(tmp_path)
