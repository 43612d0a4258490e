"""A worker that dies, hangs or falls behind changes neither the output nor the decoder's life."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import make_drafter_folder
from tests.decode.test_decoder import FREE, PROMPTS, options, plain_greedy
from workbench.decode import build_decoder, worker
from workbench.errors import WorkbenchError


@pytest.fixture
def folder(tmp_path, tiny_target):
    return make_drafter_folder(tmp_path, tiny_target)


def worker_of(decoder) -> worker.WorkerDrafts:
    assert isinstance(decoder.source, worker.WorkerDrafts)
    return decoder.source


def worker_id(decoder) -> int:
    return decoder.source.process_id


def worker_options(**changes):
    return dataclasses.replace(options(executor="worker"), **changes)


def test_worker_emits_the_target_s_tokens_and_outlives_prompts(tiny_target, folder):
    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        process_id = worker_id(decoder)
        for prompt in PROMPTS:
            generation = decoder.generate(prompt, 30)
            assert generation.token_ids == plain_greedy(tiny_target, prompt, 30)
            assert generation.statistics.num_failures == 0
        assert worker_id(decoder) == process_id
    assert worker_id(decoder) is None


def test_a_killed_worker_is_counted_and_changes_nothing(tiny_target, folder):
    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        stream = decoder.stream(PROMPTS[2], 30)
        output = next(stream) + next(stream)
        os.kill(worker_id(decoder), signal.SIGKILL)
        while True:
            try:
                output += next(stream)
            except StopIteration as end:
                generation = end.value
                break
        assert output == generation.token_ids == plain_greedy(tiny_target, PROMPTS[2], 30)
        assert generation.statistics.num_failures > 0
        assert {r.outcome for r in generation.statistics.rounds[2:]} == {"failed"}
        # The next generation goes on without drafts, too.
        assert decoder.generate(PROMPTS[0], 20).token_ids == plain_greedy(tiny_target, PROMPTS[0], 20)


def test_what_packed_passes_cost_the_verification_is_measured_and_changes_no_token(tiny_target, folder):
    with build_decoder("asynchronous", tiny_target, folder, worker_options()) as decoder:
        assert decoder.slowdown is not None
        assert decoder.slowdown >= 0
        assert decoder.generate(PROMPTS[0], 20).token_ids == plain_greedy(tiny_target, PROMPTS[0], 20)
    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        assert decoder.slowdown is None


def test_a_worker_whose_packed_passes_slow_the_target_too_much_drafts_nothing_ahead(tiny_target, folder):
    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        before = decoder.generate(PROMPTS[0], 20)
        assert any(r.num_hypotheses for r in before.statistics.rounds[1:])
        worker_of(decoder).measure_slowdown(lambda: 1.0, lambda: 1e6)
        assert decoder.slowdown == 1e6 - 1
        after = decoder.generate(PROMPTS[0], 20)
        # The first block is drafted ahead while the target reads the prompt.
        assert not any(r.num_hypotheses for r in after.statistics.rounds[1:])
        assert after.token_ids == before.token_ids == plain_greedy(tiny_target, PROMPTS[0], 20)


def test_a_verification_has_all_cores_where_nothing_is_drafted_beside_it(tiny_target, folder):
    class Share(contextlib.nullcontext):
        num_entered = 0

        def __enter__(self):
            self.num_entered += 1

    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        share = decoder._share_alone = Share()
        worker_of(decoder).measure_slowdown(lambda: 1.0, lambda: 1e6)
        generation = decoder.generate(PROMPTS[0], 20)
        assert share.num_entered == len(generation.statistics.rounds)
        worker_of(decoder).measure_slowdown(lambda: 1.0, lambda: 1.0)
        share.num_entered = 0
        rounds = decoder.generate(PROMPTS[0], 20).statistics.rounds
        # Whether anything was drafted beside the last verification is in no round.
        assert share.num_entered <= sum(not r.num_hypotheses for r in rounds[1:]) + 1 < len(rounds)


def test_a_worker_that_falls_behind_catches_up(tiny_target, folder, monkeypatch):
    monkeypatch.setattr(worker, "LATE_S", 0.2)
    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        stream = decoder.stream(PROMPTS[2], 30)
        output = next(stream)
        os.kill(worker_id(decoder), signal.SIGSTOP)
        output += next(stream) + next(stream)
        os.kill(worker_id(decoder), signal.SIGCONT)
        monkeypatch.setattr(worker, "LATE_S", 30.0)
        output += [token for tokens in stream for token in tokens]
        assert output == plain_greedy(tiny_target, PROMPTS[2], 30)
        generation = decoder.generate(PROMPTS[2], 30)
        assert generation.statistics.num_failures == 0


def test_a_worker_that_hangs_is_ended(tiny_target, folder, monkeypatch):
    monkeypatch.setattr(worker, "LATE_S", 0.05)
    monkeypatch.setattr(worker, "HUNG_S", 0.3)
    with build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE) as decoder:
        os.kill(worker_id(decoder), signal.SIGSTOP)
        generation = decoder.generate(PROMPTS[2], 30)
        assert generation.token_ids == plain_greedy(tiny_target, PROMPTS[2], 30)
        assert worker_id(decoder) is None


def test_a_drafter_that_cannot_be_loaded_is_one_clear_line(tiny_target, folder):
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(WorkbenchError, match="cannot be loaded"):
        build_decoder("asynchronous", tiny_target, folder, worker_options(), costs=FREE)


def test_a_killed_decoder_leaves_no_worker_behind(tmp_path):
    script = (
        "import sys, time, pathlib\n"
        "from tests.conftest import make_target, make_drafter_folder\n"
        "from tests.decode.test_decoder import FREE, options\n"
        "from workbench.decode import build_decoder\n"
        "if __name__ == '__main__':\n"
        "    target = make_target()\n"
        f"    folder = make_drafter_folder(pathlib.Path({str(tmp_path)!r}), target)\n"
        "    decoder = build_decoder('asynchronous', target, folder, options(executor='worker'), costs=FREE)\n"
        "    print(decoder.source.process_id, flush=True)\n"
        "    time.sleep(60)\n"
    )
    (tmp_path / "hold.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "hold.py")], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        worker_id = int(process.stdout.readline())
        process.kill()
    for _ in range(100):
        if not _is_running(worker_id):
            return
        time.sleep(0.1)
    pytest.fail(f"worker {worker_id} outlived its decoder")


def _is_running(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat") as stat:
            return stat.read().split()[2] != "Z"
    except FileNotFoundError:
        return False
