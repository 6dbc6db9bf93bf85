"""The public names: few, described, and with an example each that the tests run."""

from __future__ import annotations

import doctest
import inspect

import pytest

import relutrim

NAMES = [name for name in relutrim.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_of_its_own(name):
    """``pytest --doctest-modules`` runs it; ``make test`` has that switched on."""
    text = inspect.getdoc(getattr(relutrim, name))
    assert text
    assert doctest.DocTestParser().get_examples(text)


def test_the_overview_names_all_of_them():
    for name in NAMES:
        assert name in (relutrim.__doc__ or "")


def test_the_overview_fits_on_one_screen():
    assert len((relutrim.__doc__ or "").splitlines()) <= 30
