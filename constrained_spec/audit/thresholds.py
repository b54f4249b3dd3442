"""The numbers that the gates hold evidence to."""

from __future__ import annotations

FAMILY_ALPHA = 1e-3  # false-alarm rate of all regression cases of one audit together
POWER = 0.95  # chance with which a bias of the stated size is seen
DETECTED = 1e-6  # p-value at which a planted fault counts as seen; looked at after every chunk of samples
EXACT = 1e-9  # error of an enumeration in floating point
SEEN = 1e-3  # what a wrong rule must at least differ by
FASTER = 1.05  # median speed-up that a cell of the envelope needs
NEVER_SLOWER = 1.0  # and that no repetition may fall below
