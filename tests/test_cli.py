"""The command line: one line for mistakes, exit codes, help without waiting; and the Makefile beside it."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from workbench import cli
from workbench.errors import WorkbenchError


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "workbench", *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_command_and_does_not_wait_for_torch():
    code = "import sys, workbench.cli as cli; cli.main(['run', 'nosuch']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    start_s = time.process_time()
    result = run("--help")
    assert time.process_time() - start_s < 1
    assert result.returncode == 0
    for name, command in cli.COMMANDS.items():
        assert re.search(rf"^ +{name}\b", result.stdout, re.MULTILINE)
        assert len(command.help) < 80


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert cli.COMMANDS[name].help in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nosuch"], "error: no recipe recipes/nosuch.yaml; known recipes: "),
        (["corpus", "quickstart", "--distill.stepz", "5"], "distill.stepz is no key: did you mean distill.steps?"),
        (["corpus", "quickstart", "--target.model", "./nosuch"], "error: target.model ./nosuch does not exist"),
        (["generate", "--drafter", "nosuch", "--prompt", "x"], "error: nosuch is no drafter"),
        (["list", "nosuch"], "error: nosuch is no folder"),
    ],
)
def test_mistakes_are_one_line_on_stderr(arguments, message, capsys, tmp_path):
    if arguments[0] == "corpus":
        arguments = [*arguments, "--runs", str(tmp_path)]
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_list_of_no_drafters_is_no_mistake(capsys, tmp_path):
    assert cli.main(["list", str(tmp_path)]) == 0
    assert "holds no published drafter yet" in " ".join(capsys.readouterr().out.split())


def test_debug_shows_the_traceback(capsys):
    assert cli.main(["--debug", "run", "nosuch"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_exit_codes_of_a_process():
    result = run("run", "nosuch")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert run("nosuch").returncode == 2


def test_an_interruption_is_one_line(monkeypatch, capsys):
    def interrupt(recipe: str, overrides: Sequence[str] = ()) -> None:
        """Does nothing.

        Args:
            recipe: Any.
            overrides: Any.
        """
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "run", cli.Command(interrupt, "x"))
    assert cli.main(["run", "quickstart"]) == 130
    assert capsys.readouterr().err == "interrupted: the same command continues where it was\n"


def test_bugs_keep_their_traceback(monkeypatch):
    def fail(recipe: str, overrides: Sequence[str] = ()) -> None:
        """Does nothing.

        Args:
            recipe: Any.
            overrides: Any.
        """
        raise ZeroDivisionError

    monkeypatch.setitem(cli.COMMANDS, "run", cli.Command(fail, "x"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", "quickstart"])


def test_options_follow_from_the_parameters(monkeypatch):
    seen = {}

    def work(recipe: str, overrides: Sequence[str] = (), *, drafter: Path | None = None, num_prompts: int = 3) -> None:
        """Does nothing.

        Args:
            recipe: Any.
            overrides: Any.
            drafter: Any.
            num_prompts: Any.
        """
        seen.update(recipe=recipe, overrides=overrides, drafter=drafter, num_prompts=num_prompts)

    monkeypatch.setitem(cli.COMMANDS, "work", cli.Command(work, "works"))
    assert cli.main(["work", "tiny", "--num-prompts", "7", "--drafter", "a/b", "--distill.steps", "5"]) == 0
    assert seen == {
        "recipe": "tiny",
        "overrides": ["--distill.steps", "5"],
        "drafter": Path("a/b"),
        "num_prompts": 7,
    }


def test_unknown_options_are_refused_where_there_are_no_overrides(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["list", "--nosuch=5"])
    assert end.value.code == 2
    assert "unknown arguments: --nosuch=5" in capsys.readouterr().err


def test_the_makefile_has_every_command_with_one_line_of_help():
    shown = subprocess.run(["make", "--no-print-directory", "help"], capture_output=True, text=True, check=True).stdout
    listed = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert set(cli.COMMANDS) <= set(listed)
    assert {"help", "setup", "quickstart", "test", "test-all", "lint", "clean"} <= set(listed)
    phony = re.search(r"^\.PHONY: (.*?)\n\n", Path("Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert phony is not None
    assert set(phony[1].replace("\\\n", " ").split()) == set(listed)


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        (["RECIPE=mine"], "publish mine"),
        (["REPO=org/name"], 'publish quickstart --repo "$REPO"'),
        (["REPO=org/name", "PUSH=0"], 'publish quickstart --repo "$REPO"'),
        (["REPO=org/name", "PUSH=1"], 'publish quickstart --repo "$REPO" --push'),
        (["REPO=org/name", "PUSH=1", "DIRECT=1"], 'publish quickstart --repo "$REPO" --push --direct'),
    ],
)
def test_only_push_1_uploads(variables, arguments):
    command = ["make", "--dry-run", "--no-print-directory", "publish", *variables]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    assert " ".join(printed.split()).endswith(f"-m workbench {arguments}")


@pytest.mark.parametrize("path", [Path("README.md"), *sorted(Path("docs").glob("*.md"))], ids=str)
def test_guides_name_existing_targets(path):
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", Path("Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)(?:HF_TOKEN=\S+ )?make ([a-z0-9-]+)", path.read_text(), re.MULTILINE)
    assert named
    assert set(named) <= targets


def test_the_winner_of_a_search_must_be_there(tmp_path):
    recipe = cli.load_recipe("quickstart", ["--runs", str(tmp_path)])
    with pytest.raises(WorkbenchError, match="run `prune` first"):
        cli.winner_folder(recipe)
