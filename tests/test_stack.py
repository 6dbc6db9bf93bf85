"""The multipliers of nodes that wait: the last first, no more than is allowed, else the root's."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from relutrim.prove.hull.dual import Multipliers
from relutrim.prove.hull.stack import Stack, Waiting


def waiting(*numbers: float) -> Waiting:
    """Nodes that are known by a number."""
    row = torch.tensor(numbers)
    own = Multipliers(row[None], row.expand(4, 1, -1), row[None], row[None, None])
    return Waiting([own, own], row)


@given(
    st.lists(
        st.one_of(st.integers(1, 5).map(lambda n: ("put", n)), st.integers(1, 8).map(lambda n: ("take", n)))
    ),
    st.integers(1, 9),
)
def test_a_stack_gives_what_was_put_last_and_the_root_for_what_it_let_go(moves, most):
    stack, model, number = Stack(waiting(-1.0), most), [], 0
    for kind, count in moves:
        if kind == "put":
            new = [float(number + i) for i in range(count)]
            number += count
            stack.put(waiting(*new))
            model = [*model, *new][-most:]
        else:
            expected = [-1.0] * max(0, count - len(model)) + model[-count:]
            before, found = stack.copy(), stack.take(count)
            assert found.paces.tolist() == expected
            assert [part.flatten().tolist()[-count:] for part in found.batch[1].parts] == [expected] * 4
            assert before.count == len(model)
            model = model[:-count]
        assert stack.count == len(model)


def test_a_stack_keeps_no_more_in_memory_than_it_says():
    stack = Stack(waiting(-1.0), 3)
    stack.put(waiting(*map(float, range(1000))))
    stack.put(waiting(1000.0))
    stack.take(2)
    (left,) = stack._blocks
    assert left.count == stack.count == 1
    assert all(part.untyped_storage().nbytes() <= 64 for own in left.batch for part in own.parts)
