import shutil

from rich.console import Console

from workbench.publish.registry import list_drafters, render_drafters


def test_published_drafters_are_listed_with_their_state(published, tmp_path):
    shutil.copytree(published[3], tmp_path / "good")
    bad = shutil.copytree(published[3], tmp_path / "org" / "bad")
    (bad / "config.json").write_text("{}")
    (tmp_path / "not-a-drafter").mkdir()
    entries = {entry.folder.name: entry for entry in list_drafters(tmp_path)}
    assert set(entries) == {"good", "bad"}
    assert entries["good"].problem is None
    assert entries["good"].layers == "3 of 4"
    assert entries["good"].acceptance_length > 1
    assert "hash does not match" in (entries["bad"].problem or "")


def test_a_broken_manifest_does_not_hide_the_others(published, tmp_path):
    shutil.copytree(published[3], tmp_path / "good")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "workbench.json").write_text("{")
    entries = {entry.folder.name: entry for entry in list_drafters(tmp_path)}
    assert entries["good"].problem is None
    assert entries["broken"].problem


def test_the_table_says_what_is_wrong(published, tmp_path):
    shutil.copytree(published[3], tmp_path / "good")
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render_drafters(list_drafters(tmp_path)))
    shown = capture.get()
    for column in ("drafter", "target", "layers", "tau", "speedup", "date", "verifies"):
        assert column in shown
    assert "3 of 4" in shown
    assert "yes" in shown


def test_what_is_still_being_written_is_not_listed(published, tmp_path):
    shutil.copytree(published[3], tmp_path / ".tiny.abcd.part")
    assert list_drafters(tmp_path) == []


def test_nothing_there(tmp_path):
    assert list_drafters(tmp_path) == []
