"""HiGHS as it is used here: silent, on one thread, whatever else the process uses it for.

HiGHS has workers for each thread that it is called from, as many as its first call there asked for (half of
the machine's cores, if nobody says), and from then on refuses to run with any other number.
"""

from __future__ import annotations

import highspy


def quiet_solver() -> highspy.Highs:
    """A solver that says nothing and has one thread."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    return solver


def run(solver: highspy.Highs) -> highspy.HighsStatus:
    """Let it solve, with other workers if it refuses to go on with those that somebody else has left."""
    status: highspy.HighsStatus = solver.run()
    if status == highspy.HighsStatus.kError:  # the model's status may be that of an earlier solve
        highspy.Highs.resetGlobalScheduler(True)
        status = solver.run()
    return status
