import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState

from workbench.errors import WorkbenchError
from workbench.prune.encoding import DropSpace
from workbench.prune.storage import (
    Claim,
    default_storage,
    is_abandoned,
    open_storage,
    requeue_abandoned,
    serve_dashboard,
    without_password,
)
from workbench.prune.study import (
    PROMOTED_SHARE,
    StudyPlan,
    best_sets,
    describe_trials,
    enqueue_sets,
    finished_sets,
    open_study,
    work_on,
)
from workbench.validate.statistics import Estimate

SPACE = DropSpace(tuple(range(1, 9)), 2)


class Additive:
    """Layers cost what their index says; a call is noted, in a file too where there is one."""

    def __init__(self, log: Path | None = None, delay_s: float = 0.0):
        self.calls: list[tuple] = []
        self.log = log
        self.delay_s = delay_s

    def retained(self, dropped, rung):
        self.calls.append((dropped, rung))
        if self.log is not None:
            with self.log.open("a") as handle:
                handle.write(f"{os.getpid()} {dropped} {rung}\n")
        time.sleep(self.delay_s)
        value = 1 - sum(dropped) / 100
        return Estimate("mean", value, value - 0.01, value + 0.01)


class Interrupted(Additive):
    """Dies (as by SIGKILL) at its n-th call."""

    def __init__(self, at_call: int, log: Path):
        super().__init__(log)
        self.at_call = at_call

    def retained(self, dropped, rung):
        if len(self.calls) + 1 == self.at_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().retained(dropped, rung)


def make_plan(folder: Path, **changes) -> StudyPlan:
    values = {
        "name": "tiny-drop-2",
        "storage": default_storage(folder, 1),
        "space": SPACE,
        "trials": 20,
        "seed": 0,
        "deadline_s": None,
        "claims": folder / "claims",
    }
    return StudyPlan(**{**values, **changes})


def work(plan: StudyPlan, scorer: Additive, worker: int = 0) -> None:
    with Claim(plan.claims) as claim:
        work_on(plan, scorer, claim, worker)


def start(plan: StudyPlan, scorer: Additive, worker: int = 0) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=(plan, scorer, worker))
    process.start()
    return process


def test_no_set_is_evaluated_twice_and_the_best_is_found(tmp_path):
    plan, scorer = make_plan(tmp_path, trials=SPACE.num_sets), Additive()
    work(plan, scorer)
    study = open_study(plan)
    cheap = [dropped for dropped, rung in scorer.calls if rung == 0]
    assert len(cheap) == len(set(cheap)) == SPACE.num_sets == len(finished_sets(study))
    assert best_sets(study)[0].dropped == (1, 2)


def test_few_sets_reach_the_precise_rung(tmp_path):
    plan, scorer = make_plan(tmp_path), Additive()
    # From the worst to the best set, only every fourth one is promoted.
    enqueue_sets(open_study(plan), plan, [(1, 2), (1, 3), *[(a, b) for a in range(3, 7) for b in (7, 8)]])
    work(plan, scorer)
    precise = [dropped for dropped, rung in scorer.calls if rung == 1]
    assert (1, 2) in precise
    assert (6, 8) not in precise
    assert len(precise) <= plan.trials / PROMOTED_SHARE + 2
    outcomes = {tuple(trial["dropped"]): trial["outcome"] for trial in describe_trials(open_study(plan))}
    assert outcomes[(1, 2)] == "complete"
    assert outcomes[(6, 8)] == "pruned"


def test_queued_sets_come_first_and_are_not_queued_again(tmp_path):
    plan, scorer = make_plan(tmp_path, trials=4), Additive()
    for _ in range(2):
        enqueue_sets(open_study(plan), plan, [(3, 5), (2, 8), (3, 5)])
    work(plan, scorer)
    assert [dropped for dropped, rung in scorer.calls if rung == 0][:2] == [(3, 5), (2, 8)]
    enqueue_sets(open_study(plan), plan, [(3, 5), (2, 8)])
    assert not open_study(plan).get_trials(states=(TrialState.WAITING,))


def test_a_finished_study_is_not_worked_on(tmp_path):
    plan = make_plan(tmp_path, trials=6)
    work(plan, Additive())
    again = Additive()
    work(plan, again)
    assert again.calls == []


def test_the_time_cap_ends_a_study_that_has_an_answer(tmp_path):
    plan, scorer = make_plan(tmp_path, deadline_s=time.time() - 1), Additive()
    work(plan, scorer)
    assert len(best_sets(open_study(plan))) == 1
    assert len(finished_sets(open_study(plan))) < plan.trials


def test_the_same_seed_gives_the_same_study(tmp_path):
    histories = []
    for name in ("a", "b"):
        plan = make_plan(tmp_path / name)
        work(plan, Additive())
        histories.append(describe_trials(open_study(plan)))
    assert histories[0] == histories[1]


@pytest.mark.parametrize("at_call", [1, 4, 9])
def test_a_killed_search_loses_and_repeats_nothing(tmp_path, at_call):
    plan, log = make_plan(tmp_path, trials=12), tmp_path / "calls"
    enqueue_sets(open_study(plan), plan, [(1, 2), (7, 8)])
    process = start(plan, Interrupted(at_call, log))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    study = open_study(plan)
    (abandoned,) = study.get_trials(states=(TrialState.RUNNING,))
    before = set(finished_sets(study))
    assert requeue_abandoned(study, plan.claims) == 1
    rest = Additive()
    work(plan, rest)
    finished = finished_sets(open_study(plan))
    assert len(finished) == 12
    assert SPACE.decode(abandoned.params) in finished
    assert {dropped for dropped, rung in rest.calls if rung == 0} == set(finished) - before
    assert (1, 2) in finished
    assert (7, 8) in finished


def test_a_living_workers_trial_is_left_alone(tmp_path):
    plan = make_plan(tmp_path, storage=f"journal:///{tmp_path / 'study'}")
    study = open_study(plan)
    with Claim(plan.claims) as claim:
        trial = study.ask()
        trial.set_user_attr("owner", claim.name)
        assert not is_abandoned(plan.claims, claim.name)
        assert requeue_abandoned(study, plan.claims) == 0
    assert is_abandoned(plan.claims, claim.name)
    assert not is_abandoned(plan.claims, "claimed-elsewhere")
    assert requeue_abandoned(study, plan.claims) == 1


def test_two_workers_share_a_study_and_survive_a_third(tmp_path):
    log = tmp_path / "calls"
    plan = make_plan(tmp_path, storage=f"journal:///{tmp_path / 'study'}", trials=24)
    open_study(plan)
    killed = start(plan, Interrupted(3, log), 2)
    processes = [start(plan, Additive(log, 0.05), worker) for worker in range(2)]
    for process in [*processes, killed]:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert killed.exitcode == -signal.SIGKILL
    study = open_study(plan)
    assert len(finished_sets(study)) >= 24
    assert best_sets(study)[0].dropped == (1, 2)
    assert len({line.split()[0] for line in log.read_text().splitlines()}) == 3
    assert requeue_abandoned(study, plan.claims) == 1
    assert not study.get_trials(states=(TrialState.RUNNING,))


def test_storages_that_cannot_be_opened_are_one_line(tmp_path):
    for url, words in (
        ("sqlite:////proc/nowhere/studies.db", "cannot be opened"),
        ("postgresql://user:secret@127.0.0.1:1/studies", "driver that is not installed|cannot be opened"),
        ("no-such-backend://x", "cannot be opened|driver"),
        ("journal:////proc/nowhere/study", "cannot be opened"),
    ):
        with pytest.raises(WorkbenchError, match=words) as error:
            open_storage(url)
        assert "\n" not in str(error.value)
        assert "secret" not in str(error.value)
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"


def test_known_sets_are_answered_from_the_study(tmp_path):
    plan, scorer = make_plan(tmp_path, trials=5), Additive()
    study = open_study(plan)
    point = plan.space.encode((1, 2))
    study.enqueue_trial(point)
    study.enqueue_trial({"slot_0": point["slot_0"] + 1, "slot_1": 0})  # the same two layers, the other way round
    work(plan, scorer)
    trials = describe_trials(open_study(plan))
    assert trials[0]["dropped"] == trials[1]["dropped"] == [1, 2]
    assert trials[1]["repeats"] == 0
    assert scorer.calls.count(((1, 2), 0)) == 1
    assert optuna.load_study(study_name=plan.name, storage=plan.storage).trials[1].value == pytest.approx(0.97)


def test_the_dashboard_shows_the_studies_of_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(WorkbenchError, match="holds no studies: run `prune` first"):
        serve_dashboard(None, tmp_path, 8080)
    open_study(make_plan(tmp_path))
    with pytest.raises(WorkbenchError, match="optuna-dashboard is not installed"):
        serve_dashboard(None, tmp_path, 8080)
    shown: list = []
    stub = SimpleNamespace(run_server=lambda storage, host, port: shown.append((storage, host, port)))
    monkeypatch.setitem(sys.modules, "optuna_dashboard", stub)
    serve_dashboard(None, tmp_path, 8080)
    ((storage, host, port),) = shown
    assert [study.study_name for study in storage.get_all_studies()] == ["tiny-drop-2"]
    assert (host, port) == ("localhost", 8080)


def test_fewer_workers_go_on_with_the_journal_of_several(tmp_path):
    assert default_storage(tmp_path, 1).startswith("sqlite:///")
    journal = default_storage(tmp_path, 2)
    open_storage(journal).create_new_study([optuna.study.StudyDirection.MAXIMIZE])
    assert default_storage(tmp_path, 1) == journal
