from __future__ import annotations

import threading
import time

import pytest

from sagemaker_emulator.engine.host.port_lock import SharedSlot, training_slot


@pytest.fixture
def address(tmp_path):
    return f"\0slot-{tmp_path}"


def soon(seconds=0.2):
    return time.monotonic() + seconds


def test_one_holder_at_a_time(address):
    waits = []
    with (
        training_slot(threading.Event(), soon(), lambda: None, address) as first,
        training_slot(threading.Event(), soon(), lambda: waits.append(1), address) as second,
    ):
        assert (first, second, waits) == (True, False, [1])
    with training_slot(threading.Event(), soon(), lambda: None, address) as third:
        assert third


def test_a_stop_ends_the_wait(address):
    stop = threading.Event()
    with (
        training_slot(threading.Event(), soon(), lambda: None, address),
        training_slot(stop, soon(60), stop.set, address) as is_held,
    ):
        assert not is_held


def test_shared_slot_is_free_after_the_last_of_its_jobs(address):
    slot, other = SharedSlot(address), SharedSlot(address)
    assert slot.take()
    assert slot.take()
    assert not other.take()
    slot.release()
    assert not other.take()
    slot.release()
    assert other.take()
    assert not slot.take()
    other.release()


def test_jobs_of_a_shared_slot_keep_a_single_one_out(address):
    shared = SharedSlot(address)
    assert shared.take()
    with training_slot(threading.Event(), soon(), lambda: None, address) as is_held:
        assert not is_held
    assert shared.take()  # releasing without holding has no effect
