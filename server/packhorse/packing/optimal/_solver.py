"""HiGHS, which prints nothing.

Owns how a solver is made; leaves the linear program to `_master`, and whole numbers to `_rounding`.
"""

import highspy


class Solver(highspy.Highs):
    """A HiGHS solver that never writes to stdout.

    From 1.16 on, HiGHS prints its name and licence as soon as callbacks are enabled, which its constructor does before
    anybody could set an option. A command's stdout holds results only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.setOptionValue("output_flag", False)  # releases before 1.16 may not call `enableCallbacks`

    def enableCallbacks(self) -> None:  # noqa: N802, as HiGHS spells it
        """Turns output off first."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]
