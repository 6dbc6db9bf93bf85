"""What a VNN-LIB file says about inputs arrives exactly, or rounded outward; everything else is refused."""

from __future__ import annotations

import gzip
import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relutrim.errors import DomainError, InputError
from relutrim.io.vnnlib import InputSet, read_vnnlib

UNIT_BOX = "(assert (>= X_0 0)) (assert (<= X_0 1)) (assert (>= X_1 0)) (assert (<= X_1 1))\n"
TWO = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"


def read(tmp_path: Path, text: str, inputs: int = 2) -> InputSet:
    path = tmp_path / "domain.vnnlib"
    path.write_text(text, encoding="utf-8")
    return read_vnnlib(path, inputs)


@pytest.mark.parametrize(
    ("bound", "lo", "hi"),
    [
        ("(>= X_0 -3) (<= X_0 3)", -3, 3),
        ("(<= -3 X_0) (>= 3 X_0)", -3, 3),
        ("(<= (- 3) X_0 3)", -3, 3),
        ("(>= X_0 (- 3)) (<= X_0 (+ 1 1 1))", -3, 3),
        ("(>= (* 2 X_0) -6.0) (<= (* X_0 -2) 6e0) (<= X_0 .3e1)", -3, 3),
        ("(>= (/ X_0 2) -1.5) (<= X_0 (/ 9 3))", -3, 3),
        ("(<= (- X_0) 3) (<= X_0 +3)", -3, 3),
        ("(<= (+ X_0 1) (- 5 1)) (>= (- X_0 1 1) -5)", -3, 3),
        ("(<= (* 2 X_0) (+ X_0 3)) (>= X_0 -3.)", -3, 3),
        ("(= X_0 0.5)", 0.5, 0.5),
        ("(and (>= X_0 -3) (and (<= X_0 3)))", -3, 3),
        ("(or (and (>= X_0 -3) (<= X_0 3)))", -3, 3),
        ("(> X_0 -3) (< X_0 3)", -3, 3),
        ("(>= X_0 -3) (<= X_0 3) (<= X_0 4) (>= X_0 -4)", -3, 3),
        ("(>= X_0 -3) (<= X_0 3) (<= (- X_0 X_0) 0) (<= 0 1)", -3, 3),
        ("(>= X_0 -3) (<= X_0 (* 1.5 2 1))", -3, 3),
        ("(>= X_0 -3) (<= X_0 3) (<= (* 0 X_1) 1)", -3, 3),
    ],
)
def test_bounds_in_every_spelling(tmp_path: Path, bound: str, lo: float, hi: float) -> None:
    asserts = "".join(f"(assert {part})" for part in top_level(bound))
    found = read(tmp_path, TWO + asserts + "(assert (>= X_1 0)) (assert (<= X_1 1))")
    assert (found.lo[0], found.hi[0]) == (lo, hi)
    assert found.matrix.shape == (0, 2)
    assert found.ignored_output_assertions == 0


def top_level(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character == "(":
            start = i if depth == 0 else start
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                parts.append(text[start : i + 1])
    return parts


@pytest.mark.parametrize(
    ("constraint", "row", "lower", "upper"),
    [
        ("(<= (+ X_0 X_1) 1.5)", [1, 1], -math.inf, 1.5),
        ("(<= X_0 X_1)", [1, -1], -math.inf, 0),
        ("(>= (- X_1 X_0) 0)", [1, -1], -math.inf, 0),
        ("(= (+ X_0 (* 2 X_1)) 1)", [1, 2], 1, 1),
        ("(<= 0.5 (+ X_0 X_1) 1.5)", [1, 1], 0.5, 1.5),
        ("(<= (+ (* 0.1 X_0) (* 0.2 X_1)) 0.2)", [1, 2], -math.inf, 2),  # decimals become exact integers
        ("(<= (/ (+ X_0 X_1) 3) 0.25)", [1, 1], -math.inf, 0.75),
        ("(and (>= (+ X_0 X_1) 0.25) (<= (+ X_1 X_0) 1) (<= (+ X_1 X_0) 2))", [1, 1], 0.25, 1),
    ],
)
def test_constraints_over_several_inputs(
    tmp_path: Path, constraint: str, row: list[float], lower: float, upper: float
) -> None:
    found = read(tmp_path, TWO + UNIT_BOX + f"(assert {constraint})")
    assert found.matrix.tolist() == [row]
    assert (found.lower.tolist(), found.upper.tolist()) == ([lower], [upper])
    assert found.lo.tolist() == [0, 0]
    assert found.hi.tolist() == [1, 1]


def test_decimal_ends_are_rounded_outward(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        TWO + "(assert (= X_0 0.1)) (assert (>= X_1 -1e-400)) (assert (<= X_1 1e-400))",
    )
    assert Fraction(found.lo[0]) < Fraction(1, 10) < Fraction(found.hi[0])
    assert math.nextafter(found.lo[0], 1) == found.hi[0]
    assert (found.lo[1], found.hi[1]) == (-math.ulp(0), math.ulp(0))


def test_a_row_whose_coefficients_are_not_floats_is_widened_by_their_rounding_error(tmp_path: Path) -> None:
    thin = "(<= (+ (* 0.12345678901234567891 X_0) (* 0.98765432109876543211 X_1)) 0.5)"
    found = read(tmp_path, TWO + UNIT_BOX + f"(assert {thin})")
    g0, g1 = Fraction("0.12345678901234567891"), Fraction("0.98765432109876543211")
    # Every corner of the exact polytope satisfies the stored row, exactly evaluated.
    corners = [(0, 0), (0, Fraction(1, 2) / g1), (1, 0), (1, (Fraction(1, 2) - g0) / g1)]
    r0, r1, upper = (Fraction(float(v)) for v in (*found.matrix[0], found.upper[0]))
    assert all(r0 * x0 + r1 * x1 <= upper for x0, x1 in corners)
    assert found.upper[0] / found.matrix[0, 1] == pytest.approx(float(Fraction(1, 2) / g1), rel=1e-14)


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        ("", 0),
        ("(assert (<= Y_0 0))", 1),
        ("(assert (<= Y_0 0)) (assert (>= (* 2 Y_0) -1))", 2),
        ("(assert (or (and (<= Y_0 3)) (and (>= Y_0 144))))", 1),
        ("(assert (or (<= Y_0 3) (and (< Y_0 5) (or (> Y_0 4) (= Y_0 1)))))", 1),
        ("(assert (not (<= Y_0 3)))", 1),
        ("(assert (and (<= X_0 1) (<= Y_0 3)))", 1),
        ("(assert (or (and (<= X_0 1) (<= Y_0 0)) (and (>= 2 (* 2 X_0)) (>= Y_0 1))))", 1),
    ],
)
def test_statements_about_outputs_alone_are_ignored_and_counted(
    tmp_path: Path, properties: str, count: int
) -> None:
    found = read(tmp_path, TWO + UNIT_BOX + properties)
    assert found.ignored_output_assertions == count
    assert (found.lo.tolist(), found.hi.tolist()) == ([0, 0], [1, 1])


def test_alternatives_that_share_their_box_are_that_box(tmp_path: Path) -> None:
    box = "(>= X_0 0.25) (<= X_0 0.5)"
    text = (
        "(declare-const X_0 Real)(declare-const Y_0 Real)"
        f"(assert (or (and {box} (<= Y_0 0)) (and (>= Y_0 1) {box})))"
    )
    found = read(tmp_path, text, inputs=1)
    assert (found.lo[0], found.hi[0], found.ignored_output_assertions) == (0.25, 0.5, 1)


def test_comments_layout_and_harmless_commands(tmp_path: Path) -> None:
    text = (
        '\ufeff; (assert (\n(set-logic QF_LRA)(set-info :source |a ( b|)(set-info :note "x ; "" )")\r\n'
        "(declare-fun X_0 () Real)(declare-const\tX_1 Real);comment (\n"
        "(assert(<=(+ X_0;inside\n1)2))(assert (>= X_0 0))(assert (= X_1 0))(check-sat)(exit)"
    )
    found = read(tmp_path, text)
    assert (found.lo.tolist(), found.hi.tolist()) == ([0, 0], [1, 0])


def test_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "domain.vnnlib.gz"
    path.write_bytes(gzip.compress((TWO + UNIT_BOX).encode()))
    assert read_vnnlib(path, 2).hi.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        # malformed
        (TWO + UNIT_BOX + "(assert (<= X_0 1)", 5, "never closed"),
        (TWO + UNIT_BOX + ")", 5, "without an opening"),
        (TWO + UNIT_BOX + "X_0", 5, "outside of any parentheses"),
        (TWO + UNIT_BOX + '(set-info "abc', 5, "quote"),
        (TWO + UNIT_BOX + "()", 5, "command"),
        (TWO + UNIT_BOX + "((assert))", 5, "one formula"),
        (TWO + UNIT_BOX + "(())", 5, "must begin with"),
        (TWO + UNIT_BOX + "(<= X_0 1)", 5, "command"),
        (TWO + UNIT_BOX + "(assert)", 5, "one formula"),
        (TWO + UNIT_BOX + "(assert X_0)", 5, "comparison"),
        (TWO + UNIT_BOX + "(assert (+ X_0 1))", 5, "comparison"),
        (TWO + UNIT_BOX + "(assert (<= X_0 (<= X_0 1)))", 5, "number"),
        (TWO + UNIT_BOX + "(assert (<= X_0))", 5, "two sides"),
        (TWO + UNIT_BOX + "(assert (<= X_0 (+)))", 5, "too few"),
        (TWO + UNIT_BOX + "(assert (and))", 5, "without anything"),
        (TWO + UNIT_BOX + "(assert (<= X_0 ()))", 5, "number"),
        (TWO + UNIT_BOX + "(assert (assert (<= X_0 1)))", 5, "comparison"),
        (TWO + UNIT_BOX + "(frobnicate)", 5, "'frobnicate'"),
        (TWO + UNIT_BOX + "(push 1)", 5, "'push'"),
        (TWO + UNIT_BOX + "(assert (let ((a X_0)) (<= a 1)))", 5, "'a'"),
        # numbers
        (TWO + UNIT_BOX + "(assert (<= X_0 nan))", 5, "neither a number"),
        (TWO + UNIT_BOX + "(assert (<= X_0 1.2.3))", 5, "neither a number"),
        (TWO + UNIT_BOX + "(assert (<= X_0 inf))", 5, "neither a number"),
        (TWO + UNIT_BOX + "(assert (<= X_0 1e999999999))", 5, "too large"),
        (TWO + UNIT_BOX + "(assert (<= X_0 " + "9" * 5000 + "))", 5, "too long"),
        (TWO + UNIT_BOX + "(assert (<= X_0 (*" + " 1e5000" * 50 + ")))", 5, "bits"),
        (TWO + UNIT_BOX + "(assert (<= X_0 (/ 1 0)))", 5, "division by zero"),
        # variables
        (TWO + UNIT_BOX + "(assert (<= X_2 1))", 5, "X_2 is used but not declared"),
        (TWO + UNIT_BOX + "(assert (<= Y_7 1))", 5, "Y_7 is used but not declared"),
        (TWO + UNIT_BOX + "(assert (<= Z_0 1))", 5, "'Z_0'"),
        (TWO + UNIT_BOX + "(assert (<= X_00 1))", 5, "'X_00'"),
        (TWO + UNIT_BOX + "(declare-const X_0 Real)", 5, "second time, after line 1"),
        (TWO + UNIT_BOX + "(declare-const X_2 Int)", 5, "'Int'"),
        (TWO + UNIT_BOX + "(declare-fun X_2 (Real) Real)", 5, "'Real'"),
        (TWO + UNIT_BOX + "(declare-const X_2)", 5, "must read"),
        (TWO + UNIT_BOX + "(declare-const X_3 Real)", 5, "X_2 is not"),
        (TWO + UNIT_BOX + "(declare-const X_2 Real)", 5, "declares 3 inputs"),
        ("(declare-const X_0 Real)", 1, "declares 1 inputs"),
        ("", None, "declares 0 inputs"),
        # not one polytope
        (TWO + UNIT_BOX + "(assert (<= (* X_0 X_1) 1))", 5, "not linear"),
        (TWO + UNIT_BOX + "(assert (<= (/ 1 X_1) 1))", 5, "not linear"),
        (TWO + UNIT_BOX + "(assert (<= X_0 Y_0))", 5, "inputs with outputs"),
        (TWO + UNIT_BOX + "(assert (or (<= X_0 0.25)\n(>= X_0 0.75)))", 5, "line 5 and line 6"),
        (TWO + UNIT_BOX + "(assert (or (<= X_0 0.25) (>= Y_0 0.75)))", 5, "union"),
        (TWO + UNIT_BOX + "(assert (not (<= X_0 0.25)))", 5, "about inputs"),
        (TWO + UNIT_BOX + "(assert (=> (<= X_0 0.25) (<= Y_0 0)))", 5, "about inputs"),
        (TWO + UNIT_BOX + "(assert (< (+ X_0 X_1) 1))", 5, "strict"),
        (TWO + UNIT_BOX + "(assert (> X_0 0))\n(assert (<= (+ X_0 X_1) 1))", 5, "strict"),
        # empty and unbounded
        (TWO + UNIT_BOX + "(assert (<= X_0 -1))", 5, "domain is empty"),
        (TWO + UNIT_BOX + "(assert (< X_0 0))", 5, "domain is empty"),
        (TWO + UNIT_BOX + "(assert (< X_0 X_0))", 5, "domain is empty"),
        (TWO + UNIT_BOX + "(assert (<= 1 0))", 5, "domain is empty"),
        (TWO + UNIT_BOX + "(assert (>= (+ X_0 X_1) 2.0000000000000000000001))", 5, "domain is empty"),
        (TWO + UNIT_BOX + "(assert (>= (+ X_0 X_1) 1))\n(assert (<= (+ X_0 X_1) 0.5))", 6, "domain is empty"),
        (TWO + "(assert (= X_0 0)) (assert (<= X_1 0))", 2, "X_1 has no lower bound"),
        (TWO + "(assert (<= X_0 0)) (assert (= X_1 0))", 1, "X_0 has no lower bound"),
        (TWO + "(assert (<= 0 X_0 1e400)) (assert (= X_1 0))", 1, "beyond the largest float64"),
        # VNN-LIB 2
        ("(vnnlib-version <2.0>)\n(declare-network f (declare-input X Real [2]))", 1, "VNN-LIB 2"),
        ("\n(declare-network f (declare-input X Real [2]))", 2, "VNN-LIB 2"),
    ],
)
def test_refusals_name_file_line_and_reason(tmp_path: Path, text: str, line: int | None, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "domain.vnnlib") in str(caught.value)
    assert line is None or f": line {line}: " in str(caught.value)


def test_an_empty_domain_and_a_wrong_dimension_are_domain_errors(tmp_path: Path) -> None:
    for text, inputs in ((TWO + UNIT_BOX + "(assert (<= X_0 -1))", 2), (TWO + UNIT_BOX, 3)):
        with pytest.raises(DomainError):
            read(tmp_path, text, inputs)


@pytest.mark.parametrize("depth", [30_000])
def test_deep_nesting_neither_crashes_nor_crawls(tmp_path: Path, depth: int) -> None:
    nested = "(+ 0 " * depth + "X_0" + ")" * depth
    found = read(tmp_path, TWO + UNIT_BOX + f"(assert (<= {nested} 0.5))")
    assert found.hi[0] == 0.5
    joined = "(and " * depth + "(<= X_0 0.25)" + ")" * depth
    assert read(tmp_path, TWO + UNIT_BOX + f"(assert {joined})").hi[0] == 0.25
    with pytest.raises(InputError, match="never closed"):
        read(tmp_path, TWO + UNIT_BOX + "(" * depth)


def test_long_sums_written_as_nested_pairs(tmp_path: Path) -> None:
    n = 3000
    declared = "".join(f"(declare-const X_{i} Real)(assert (<= 0 X_{i} 1))\n" for i in range(n))
    nested = "".join(f"(+ X_{i} " for i in range(n)) + "0" + ")" * n
    found = read(tmp_path, declared + f"(assert (<= 15 {nested} 320))", n)
    assert (found.matrix == 1).all()
    assert (found.lower.tolist(), found.upper.tolist()) == ([15], [320])


PUBLIC = {
    "acasxu/prop_1.vnnlib": (5, 1),
    "acasxu/prop_4.vnnlib": (5, 4),
    "cersyve/prop_cart_pole.vnnlib": (4, 2),
    "cersyve/prop_pendulum.vnnlib": (2, 2),
    "collins_rul/if_then_7levels_w20.vnnlib": (400, 1),
    "linearizenn/prop_10_10.vnnlib": (4, 1),
    "malbeware/malbeware_family-Adialer.C_label-0_eps-1_idx-0.vnnlib": (4096, 1),
    "nn4sys/lindex_1.vnnlib": (1, 1),
    "safenlp/hyperrectangle_0.vnnlib": (30, 1),
    "tllverify/property_N16_0.vnnlib": (2, 1),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_benchmarks(shared: Path, name: str) -> None:
    inputs, ignored = PUBLIC[name]
    path = shared / "networks" / "public" / name
    found = read_vnnlib(path, inputs)
    assert found.ignored_output_assertions == ignored
    assert found.matrix.shape == (0, inputs)
    # These files hold nothing but plain bounds, so a regular expression reads them as well.
    for sign, ends in ((">=", found.lo), ("<=", found.hi)):
        spelled = dict(re.findall(rf"\({sign} (X_\d+) ([^)]+)\)", path.read_text()))
        exact = [Fraction(spelled[f"X_{i}"]) for i in range(inputs)]
        assert np.array_equal(ends, [float(v) for v in exact]) or np.allclose(
            ends, [float(v) for v in exact], rtol=3e-16, atol=0
        )
        outward = [
            (Fraction(end) - value) * (-1 if sign == ">=" else 1) >= 0
            for end, value in zip(ends.tolist(), exact, strict=True)
        ]
        assert all(outward)


def test_every_public_benchmark_is_covered(shared: Path) -> None:
    public = shared / "networks" / "public"
    assert {str(p.relative_to(public)) for p in public.glob("*/*.vnnlib*")} == set(PUBLIC)


# Random statements, spelled at random, must come back as what they mean.

decimals = st.builds(
    lambda digits, exponent: Fraction(digits) * Fraction(10) ** exponent,
    st.integers(-(10**18), 10**18) | st.integers(-20, 20),
    st.integers(-25, 3),
)


def spell_number(value: Fraction, style: int) -> str:
    """A finite decimal in one of its spellings."""
    with localcontext() as context:
        context.prec = 100
        plain = Decimal(value.numerator) / Decimal(value.denominator)
    text = [f"{plain:f}", f"{plain:e}", f"{plain:E}"][style % 3]
    if style % 2 and text.startswith("-"):
        return f"(- {text[1:]})"
    return f"(/ {value.numerator} {value.denominator})" if style % 5 == 4 and value > 0 else text


@st.composite
def spelled_constraints(draw: st.DrawFn, coefficients: list[Fraction], bound: Fraction) -> str:
    """``sum_i coefficients_i X_i <= bound``, with terms moved, scaled, nested and flipped."""
    style = st.integers(0, 29)
    left, right = [], []
    for i, value in enumerate(coefficients):
        if value == 0 and draw(st.booleans()):
            continue
        to_right = draw(st.booleans())
        there = -value if to_right else value
        number = spell_number(there, draw(style))
        product = f"(* {number} X_{i})" if draw(st.booleans()) else f"(* X_{i} {number})"
        (right if to_right else left).append(f"X_{i}" if there == 1 else product)
    (right if draw(st.booleans()) else left).append(None)
    sides = []
    for side, sign in ((left, -1), (right, 1)):
        terms = [spell_number(sign * bound, draw(style)) if term is None else term for term in side]
        if not terms:
            text = "0"
        elif len(terms) == 1:
            text = terms[0]
        elif draw(st.booleans()):
            text = f"(+ {' '.join(terms)})"
        else:
            text = terms[0]
            for term in terms[1:]:
                text = f"(+ {term} {text})"
        sides.append(text)
    return f"(<= {sides[0]} {sides[1]})" if draw(st.booleans()) else f"(>= {sides[1]} {sides[0]})"


@st.composite
def files(
    draw: st.DrawFn,
) -> tuple[str, list[Fraction], list[Fraction], list[tuple[list[Fraction], Fraction]]]:
    n = draw(st.integers(1, 4))
    centre = [draw(decimals) for _ in range(n)]
    lows = [c - abs(draw(decimals)) for c in centre]
    highs = [c + abs(draw(decimals)) for c in centre]
    units = [[Fraction(int(i == k)) for i in range(n)] for k in range(n)]
    wanted = [([-u for u in unit], -low) for unit, low in zip(units, lows, strict=True)]
    wanted += list(zip(units, highs, strict=True))
    rows = []
    for _ in range(draw(st.integers(0, 3)) if n > 1 else 0):
        coefficients = [draw(decimals | st.just(Fraction(0))) for _ in range(n)]
        if sum(c != 0 for c in coefficients) > 1:
            # Through the centre or beyond it, so that the domain is not empty.
            slack = abs(draw(decimals))
            rows.append((coefficients, sum(c * x for c, x in zip(coefficients, centre, strict=True)) + slack))
    texts = [draw(spelled_constraints(c, b)) for c, b in wanted + rows]
    texts = draw(st.permutations(texts))
    cut = draw(st.integers(0, len(texts)))
    body = [f"(assert {text})" for text in texts[:cut]]
    if texts[cut:]:
        body.append(f"(assert (and {' '.join(texts[cut:])}))")
    declared = [f"(declare-const X_{i} Real)" for i in range(n)]
    return "\n".join(declared + body), lows, highs, rows


@given(files(), st.data())
def test_what_was_written_is_what_is_read(tmp_path_factory, file, data) -> None:
    text, lows, highs, rows = file
    n = len(lows)
    path = tmp_path_factory.getbasetemp() / "random.vnnlib"
    path.write_text(text)
    found = read_vnnlib(path, n)

    for end, exact in zip(found.lo.tolist(), lows, strict=True):
        assert Fraction(end) <= exact < Fraction(math.nextafter(end, math.inf))
    for end, exact in zip(found.hi.tolist(), highs, strict=True):
        assert Fraction(math.nextafter(end, -math.inf)) < exact <= Fraction(end)

    stored = [
        ([Fraction(g) for g in row], lower, upper)
        for row, lower, upper in zip(
            found.matrix.tolist(), found.lower.tolist(), found.upper.tolist(), strict=True
        )
    ]
    for _ in range(5):
        mix = [Fraction(data.draw(st.integers(0, 8)), 8) for _ in range(n)]
        x = [low + t * (high - low) for low, high, t in zip(lows, highs, mix, strict=True)]
        values = [sum(g * v for g, v in zip(row, x, strict=True)) for row, _, _ in stored]
        ends = [(lower, upper) for _, lower, upper in stored]
        inside = all(
            (low == -math.inf or v >= low) and (up == math.inf or v <= up)
            for v, (low, up) in zip(values, ends, strict=True)
        )
        slack = [b - sum(c * v for c, v in zip(row, x, strict=True)) for row, b in rows]
        if all(s >= 0 for s in slack):
            assert inside, "a point of the file's domain is missing"
        size = [
            abs(b) + sum(abs(c) * max(abs(lo), abs(hi)) for c, lo, hi in zip(row, lows, highs, strict=True))
            for row, b in rows
        ]
        if any(s < -z / 10**12 for s, z in zip(slack, size, strict=True)):
            assert not inside, "a point far outside of the file's domain is in"
