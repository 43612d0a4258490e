from workbench import console
from workbench.console import progress, render_duration


def test_durations():
    assert render_duration(46.6) == "47 s"
    assert render_duration(192) == "3.2 min"


def test_a_log_gets_lines_with_the_time_left(monkeypatch, capsys):
    now_s = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now_s)
    with progress("work", 10) as advance:
        advance(4, "")  # done before an interruption
        for _ in range(6):
            now_s += 20
            advance(1, "fine")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "work: 4/10"
    assert lines[1] == "work: 5/10, 1.7 min left fine"
    assert lines[-1] == "work: 10/10 fine"
