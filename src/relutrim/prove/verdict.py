"""The four verdicts and the four kinds of evidence."""

from __future__ import annotations

from enum import IntEnum


class Verdict(IntEnum):
    """What is known about a neuron on the domain. The order is that of the reports.

    >>> [verdict.word for verdict in Verdict]
    ['unknown', 'active', 'inactive', 'unstable']
    """

    UNKNOWN = 0
    """Nothing. The only thing that a time-out, an error or a NaN can produce."""
    ACTIVE = 1
    """Its pre-activation is >= 0 everywhere on the domain."""
    INACTIVE = 2
    """Its pre-activation is <= 0 everywhere on the domain. A neuron that is always 0 is reported here."""
    UNSTABLE = 3
    """There is an input that makes it positive and another that makes it negative."""

    @property
    def word(self) -> str:
        """Lower case, as in JSON."""
        return self.name.lower()


class Evidence(IntEnum):
    """What a verdict rests on, weakest first.

    >>> Evidence.DATA < Evidence.SOLVER < Evidence.WITNESS < Evidence.PROOF
    True
    """

    NONE = 0
    DATA = 1
    """Only observed: no row of the given data contradicts it. The paper's inexact mode."""
    SOLVER = 2
    """A solver's word, true up to its tolerances."""
    WITNESS = 3
    """Inputs whose states are certain in spite of rounding."""
    PROOF = 4
    """A bound that holds in spite of rounding."""

    @property
    def word(self) -> str:
        """Lower case, as in JSON."""
        return self.name.lower()
