"""Calls in threads."""

import threading

import pytest

from fgrlhf.base.background import Background, within


def test_calls_run_at_the_same_time():
    together = threading.Barrier(2, timeout=600)
    calls = [Background(together.wait) for _ in range(2)]
    assert sorted(call.result() for call in calls) == [0, 1]


def test_an_error_is_raised_by_the_result():
    call = Background(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            call.result()


def test_a_deadline():
    never = threading.Event()
    assert within(600, lambda: 7) == 7
    with pytest.raises(TimeoutError, match="no complete answer within 0.5 seconds"):
        within(0.5, never.wait, wait=lambda done, seconds: False)
    with pytest.raises(TimeoutError):
        within(0.001, never.wait)
    never.set()
