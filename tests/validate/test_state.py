import dataclasses

from workbench.validate.state import MeasurementLog
from workbench.validate.timing import Job, Measurement

RUN = Measurement(Job("s", 0, "m", 0), [1, 2], "stop", [0.1, 0.2], 0.25, [], 0, None)


def run_of(prompt):
    return dataclasses.replace(RUN, job=Job("s", prompt, "m", 0))


def write_log(folder, prompts, subject):
    with MeasurementLog(folder, subject) as log:
        for prompt in prompts:
            log.append(run_of(prompt))
        return log.path


def test_a_killed_validation_continues_behind_its_last_whole_line(tmp_path):
    path = write_log(tmp_path, [0, 1], {"target": "a"})
    path.write_bytes(path.read_bytes()[:-20])
    with MeasurementLog(tmp_path, {"target": "a"}) as log:
        assert log.measurements == {RUN.job: RUN}
        assert log.num_resumed == 1
        log.append(run_of(1))
    with MeasurementLog(tmp_path, {"target": "a"}) as log:
        assert list(log.measurements.values()) == [run_of(0), run_of(1)]


def test_a_kill_within_the_first_line_starts_anew(tmp_path):
    path = write_log(tmp_path, [0], {"target": "a"})
    path.write_bytes(path.read_bytes()[:5])
    with MeasurementLog(tmp_path, {"target": "a"}) as log:
        assert not log.measurements


def test_other_inputs_start_anew(tmp_path):
    write_log(tmp_path, [0], {"target": "a"})
    with MeasurementLog(tmp_path, {"target": "b"}) as log:
        assert not log.measurements
    with MeasurementLog(tmp_path, {"target": "a"}) as log:
        assert not log.measurements


def test_rejected_measurements_are_kept_but_not_continued(tmp_path):
    with MeasurementLog(tmp_path, {}) as log:
        log.append(RUN)
        evidence = log.set_aside()
    assert evidence.read_text().count("\n") == 2
    with MeasurementLog(tmp_path, {}) as log:
        assert not log.measurements
