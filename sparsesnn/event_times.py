"""Times of events in another unit than microseconds, which would be binned into lists that say nothing."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

#: fewer events say nothing of their unit
MIN_EVENTS = 10


def warn_of_units(t_us: npt.NDArray[np.float64], *, n_steps: int, dt_us: float, what: str, stacklevel: int = 3) -> None:
    """Warns where no event lies in the window, or where events of several times all fall into its first step.

    Args:
        t_us: finite times of all events, microseconds.
        n_steps, dt_us: the window, T steps of this width.
        what: whose events they are, for the message.
    """
    if t_us.size < MIN_EVENTS:
        return
    first, last, end = float(t_us.min()), float(t_us.max()), n_steps * dt_us
    short = n_steps > 1 and 0 <= first < last < dt_us
    if not short and ((t_us >= 0) & (t_us < end)).any():
        return
    where = f"fall into the first of {n_steps:,} steps" if short else f"lie outside the window of {n_steps:,} steps"
    warnings.warn(
        f"{what}: all {t_us.size:,} events, at times from {first:g} to {last:g}, {where} of {dt_us:g} us. Times are in "
        "microseconds: multiply seconds by 1e6 and milliseconds by 1e3; or give another dt_us or n_steps",
        UserWarning,
        stacklevel=stacklevel,
    )
