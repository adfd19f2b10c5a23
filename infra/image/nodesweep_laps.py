"""Times between marks, added up by part of the training, for nodesweep_budget.

On GPUs a mark is an event in the current stream, read once the GPU has passed it: nothing waits for
the GPU before the program ends. A lap is the time that the stream took between two events, idle
time included. Data wait is therefore the time that the GPU waited for a batch, and communication is
the time that the stream waited for collectives. GpuLaps has run with a stand-in for torch.cuda
only, never on a GPU.
"""

import time
from collections import defaultdict, deque

MOST_WAITING = 1000


class CpuLaps:
    """Laps of this process, by time.perf_counter()."""

    def __init__(self, now):
        self._seconds = defaultdict(float)
        self._last = now

    def mark(self, now=None):
        """Return a mark for the time `now`, by default the current time."""
        return time.perf_counter() if now is None else now

    def restart(self, mark):
        """Begin the next lap at this mark; the time before it belongs to no part."""
        self._last = mark

    def lap(self, part, mark):
        """Add the time since the last mark to a part."""
        self._seconds[part] += mark - self._last
        self._last = mark

    def lap_until(self, part, time_of_request):
        """Add the time from the last mark to a past request to a part, unless the mark is later."""
        if time_of_request > self._last:
            self.lap(part, time_of_request)

    def carve(self, part, begin, end):
        """Add the time between two marks to a part, and exclude it from the lap around them."""
        self._seconds[part] += end - begin
        self._last += end - begin

    def end_step(self, take):
        """Call take(seconds by part so far) once they are known."""
        take(self._seconds)

    def finish(self):
        """Wait until the laps of all steps are known."""


class GpuLaps:
    """Laps of a GPU's current stream; the methods are those of CpuLaps.

    If a CUDA graph is captured, which no event may disturb, or an error occurs, `stop` is called
    with the reason, and recording ends.
    """

    def __init__(self, cuda, stop):
        self._cuda, self._stop, self._is_over = cuda, stop, False
        self._seconds = defaultdict(float)
        self._carved = 0.0
        self._waiting = deque()  # (event, what to do once the GPU has passed it)
        self._waiting_steps = 0
        self._last = self.mark()

    def mark(self, now=None):
        if self._is_over:
            return None
        try:
            if not self._cuda.is_current_stream_capturing():
                event = self._cuda.Event(enable_timing=True)
                event.record()
                return event
            self._end("a part of its steps was captured as a CUDA graph")
        except Exception as error:
            self._fail(error)
        return None

    def restart(self, mark):
        def begin():
            self._last, self._carved = mark, 0.0

        self._wait_for(mark, begin)

    def lap(self, part, mark):
        def add():
            self._seconds[part] += _seconds(self._last, mark) - self._carved
            self._last, self._carved = mark, 0.0

        self._wait_for(mark, add)

    def lap_until(self, part, time_of_request):
        """Do nothing: no event can be recorded in the past."""

    def carve(self, part, begin, end):
        def add():
            seconds = _seconds(begin, end)
            self._seconds[part] += seconds
            self._carved += seconds

        self._wait_for(end, add)

    def end_step(self, take):
        def end():
            self._waiting_steps -= 1
            take(self._seconds)

        if self._waiting:
            self._waiting_steps += 1
            self._wait_for(self._waiting[-1][0], end)
        self._read(lambda event: event.query())

    def finish(self):
        # the GPU may never pass a mark after the last step, e.g. the mark of an aborted collective
        self._read(lambda event: self._waiting_steps > 0 and event.synchronize() is None)

    def _wait_for(self, event, action):
        if not self._is_over:
            self._waiting.append((event, action))
            if len(self._waiting) > MOST_WAITING:  # an evaluation without steps, for example
                self._read(lambda event: event.query())

    def _read(self, has_passed):
        try:
            while self._waiting and has_passed(self._waiting[0][0]):
                self._waiting.popleft()[1]()
        except Exception as error:
            self._fail(error)

    def _fail(self, error):
        self._end(f"nodesweep_laps.py failed with {type(error).__name__}")

    def _end(self, reason):
        self._is_over = True
        self._waiting.clear()
        self._stop(reason)


def _seconds(begin, end):
    return begin.elapsed_time(end) / 1000  # from milliseconds
