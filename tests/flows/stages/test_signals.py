"""Ctrl-C and SIGTERM: the first signal ends the run in order, a second Ctrl-C at once, and SIGTERM
never interrupts the ending."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.warm_process import WarmProcess, warm_process

TWICE = """
import os, signal
from nodesweep.flows.stages.signals import EndSignals
signal.signal(signal.SIGINT, EndSignals())
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("ending in order", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
print("never")
"""
FLOW = """
import os, signal, sys
from nodesweep.flows.stages.signals import EndSignals, first_sigterm_only

class Terminated(BaseException): pass

def of_prefect(signum, frame):
    raise Terminated

first, second = (getattr(signal, name) for name in sys.argv[1:3])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, EndSignals() if len(sys.argv) == 3 else signal.default_int_handler)
command = signal.getsignal(signal.SIGINT)
signal.signal(signal.SIGTERM, of_prefect)
try:
    with first_sigterm_only():
        try:
            os.kill(os.getpid(), first)
        except (KeyboardInterrupt, Terminated) as error:
            print(type(error).__name__)
            os.kill(os.getpid(), second)
            print("all jobs are stopped")
            raise
except (KeyboardInterrupt, Terminated):
    os.kill(os.getpid(), signal.SIGTERM)
    print("the run is over")
"""


@pytest.fixture(scope="module")
def own_process() -> Iterator[WarmProcess]:
    """A process that forks programs, so that their signals do not hit the tests."""
    with warm_process("nodesweep.flows.stages.signals", "prefect.utilities.engine") as process:
        yield process


def test_a_second_ctrl_c_ends_at_once_and_says_what_may_run_on(own_process: WarmProcess) -> None:
    done = own_process.run(TWICE)
    assert done.returncode == 130
    assert done.stdout == "ending in order\n"
    assert "Ctrl-C" in done.stderr and "nodesweep stop SWEEP_ID" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "raised"),
    [
        (("SIGINT", "SIGTERM"), "KeyboardInterrupt"),
        (("SIGTERM", "SIGTERM"), "Terminated"),
        (("SIGTERM", "SIGTERM", "of a worker"), "Terminated"),
    ],
)
def test_a_sigterm_that_follows_does_not_raise_in_the_clean_up(
    own_process: WarmProcess, arguments: tuple[str, ...], raised: str
) -> None:
    """CI systems send such signals; `Terminated` is raised by Prefect's handler in a flow."""
    done = own_process.run(FLOW, *arguments)
    assert done.stdout.splitlines() == [
        raised,
        "all jobs are stopped",
        "the run is over",
    ], done.stderr


def test_ctrl_c_after_a_sigterm_says_that_the_run_is_ending_already(
    own_process: WarmProcess,
) -> None:
    done = own_process.run(FLOW, "SIGTERM", "SIGINT")
    assert done.stdout.splitlines() == [
        "Terminated",
        "all jobs are stopped",
        "the run is over",
    ], done.stderr
    assert "Ctrl-C" in done.stderr


CANCELLED = """
import signal
from prefect.utilities import engine
from nodesweep.flows.stages.signals import first_sigterm_only

own = engine._prefect_sigterm_handler
with engine.capture_sigterm():
    assert engine.can_ack_control_intent()
    with first_sigterm_only():
        assert signal.getsignal(signal.SIGTERM) is not own
        print(engine.can_ack_control_intent())
        with engine.capture_sigterm():  # a task's
            print(engine.can_ack_control_intent())
        print(engine.can_ack_control_intent())
    assert signal.getsignal(signal.SIGTERM) is own is engine._prefect_sigterm_handler
    print(engine.can_ack_control_intent())
"""


def test_prefect_hears_a_cancellation_while_a_flow_runs(own_process: WarmProcess) -> None:
    """Otherwise Prefect's runner would treat the end of a cancelled run as a crash."""
    done = own_process.run(CANCELLED)
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 4), done.stderr


SWALLOWED = """
import os, signal, sys
from nodesweep.flows.stages.signals import EndSignals, first_sigterm_only
from nodesweep.polling import Cancelled, Clock

class Library:
    def __del__(self):  # what is raised in here is printed and forgotten
        os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, EndSignals() if sys.argv[1] == "command" else signal.SIG_DFL)
with first_sigterm_only():
    library = Library()
    del library
    print("goes on", flush=True)
    try:
        Clock().sleep(0)
    except Cancelled:
        print("ends at its next wait")
"""


@pytest.mark.parametrize("outside", ["command", "worker"])
def test_a_signal_whose_exception_is_swallowed_ends_the_run_at_its_next_wait(
    own_process: WarmProcess, outside: str
) -> None:
    done = own_process.run(SWALLOWED, outside)
    assert "Exception ignored in" in done.stderr
    assert done.stdout == "goes on\nends at its next wait\n"
