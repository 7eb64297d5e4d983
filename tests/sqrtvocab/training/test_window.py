"""What is measured between two reports, on a clock that the test turns."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from sqrtvocab.training import StopRequests, Window


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def batches(self, *seconds: float):
        """An iterator whose items take so long."""
        for took in seconds:
            self.now += took
            yield took


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


SUMS = {"loss": 30.0, "group_loss": 10.0, "member_loss": 20.0}


def test_a_report(clock, runtime):
    window = Window("images", 4, 10, StopRequests(), runtime)
    batches = clock.batches(1.0, 2.0)
    assert [window.next(batches), window.next(batches)] == [1.0, 2.0]
    clock.now += 3
    window.add(6)
    window.add(4)
    report = window.report(6, SUMS)
    assert report.seconds == 6
    assert report.wait_fraction == 0.5
    assert (report.loss, report.group_loss, report.member_loss) == (3, 1, 2)
    assert report.time_left == timedelta(seconds=12)  # two steps took six seconds, four are left
    assert report.memory == pytest.approx(runtime.peak_memory() / 2**30, rel=0.1)
    assert report.scalars(0.1) == {
        "loss/train": 3,
        "loss/group": 1,
        "loss/member": 2,
        "learning_rate": 0.1,
        "speed/images_per_s": 10 / 6,
        "memory/peak": report.memory,
    }
    *phrases, peak = report.phrases("accuracy 5 %")
    assert phrases == [
        "step 6/10", "loss 3.000", "accuracy 5 %", "ETA 0:00:12", "2 images/s", "group 1.000 + member 2.000",
    ]  # fmt: skip
    assert peak.startswith("peak ")
    without_groups = replace(report, group_loss=0.0, member_loss=3.0)
    assert "loss/group" not in without_groups.scalars(0.1)
    assert not any("group" in phrase for phrase in without_groups.phrases(""))


def test_evaluations_count_for_the_time_left_but_not_for_the_speed(clock, runtime):
    window = Window("images", 0, 3, StopRequests(), runtime)
    clock.now += 2
    window.add(10)
    window.report(1, SUMS)
    clock.now += 8  # an evaluation
    window.restart()
    clock.now += 2
    window.add(10)
    report = window.report(2, SUMS)
    assert (report.seconds, report.speed, report.wait_fraction) == (2, 5, 0)
    assert report.time_left == timedelta(seconds=6)


def test_the_time_limit_is_the_end(clock, runtime):
    window = Window("images", 0, 1000, StopRequests(max_minutes=1), runtime)
    clock.now += 10
    window.add(1)
    assert window.report(1, SUMS).time_left == timedelta(seconds=50)


def test_every_step_is_reported_on_a_cpu(runtime):
    window = Window("images", 0, 10, StopRequests(), runtime)
    assert all(window.is_due(step) for step in range(1, 5))


def test_what_takes_days_is_said_once(clock, runtime):
    window = Window("images", 0, 50_000, StopRequests(), runtime)
    notices = []
    for step in range(1, 6):
        clock.now += 10
        window.add(1)
        notices.append(window.report(step, SUMS).notice)
    assert [bool(notice) for notice in notices] == [False, False, True, False, False]
    assert "5.8 days" in notices[2]
    short = Window("images", 0, 100, StopRequests(), runtime)
    clock.now += 30
    short.add(1)
    assert not short.report(3, SUMS).notice
