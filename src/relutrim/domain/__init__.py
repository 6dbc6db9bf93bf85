"""Where inputs live."""

from relutrim.domain.domain import Ball, Box, Constraint, Domain, Everywhere, NormalizedBox, Problem

__all__ = ["Ball", "Box", "Constraint", "Domain", "Everywhere", "NormalizedBox", "Problem"]
