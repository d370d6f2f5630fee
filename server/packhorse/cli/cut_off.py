"""What a plan that the clock cut off means, in the words of every command that shows one."""

CUT_OFF = (
    "the time limit ended planning early. The next run may plan otherwise and then has another digest, which refuses "
    "this one's cursors. For the same plan every time take --algorithm best-fit, or a larger --time-limit-seconds."
)
