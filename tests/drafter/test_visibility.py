import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.drafter.visibility import CLEAN, PADDING, Rows, block_rows, clean_rows, visible_mask


def drawn(mask: torch.Tensor) -> list[str]:
    return ["".join("x" if sees else "." for sees in row) for row in mask.tolist()]


def toy_rows() -> Rows:
    """Four clean rows, then blocks of size 3 that start at positions 1 and 2."""
    return Rows.concatenate([clean_rows(0, 4), block_rows(torch.tensor([1, 2]), 3)])


def test_drawn_matrix_of_two_bidirectional_blocks():
    assert drawn(visible_mask(toy_rows(), toy_rows(), causal_blocks=False)) == [
        "x... ... ...".replace(" ", ""),
        "xx.. ... ...".replace(" ", ""),
        "xxx. ... ...".replace(" ", ""),
        "xxxx ... ...".replace(" ", ""),
        "x... xxx ...".replace(" ", ""),
        "x... xxx ...".replace(" ", ""),
        "x... xxx ...".replace(" ", ""),
        "xx.. ... xxx".replace(" ", ""),
        "xx.. ... xxx".replace(" ", ""),
        "xx.. ... xxx".replace(" ", ""),
    ]


def test_drawn_matrix_of_two_causal_blocks():
    assert drawn(visible_mask(toy_rows(), toy_rows(), causal_blocks=True))[4:] == [
        "x... x.. ...".replace(" ", ""),
        "x... xx. ...".replace(" ", ""),
        "x... xxx ...".replace(" ", ""),
        "xx.. ... x..".replace(" ", ""),
        "xx.. ... xx.".replace(" ", ""),
        "xx.. ... xxx".replace(" ", ""),
    ]


def test_absent_blocks_see_and_are_seen_by_nobody_but_themselves():
    rows = Rows.concatenate([clean_rows(0, 3), block_rows(torch.tensor([-1, 1, -1]), 2)])
    assert drawn(visible_mask(rows, rows, causal_blocks=False)) == [
        "x........",
        "xx.......",
        "xxx......",
        "...x.....",
        "....x....",
        "x....xx..",
        "x....xx..",
        ".......x.",
        "........x",
    ]
    assert (rows.block[3:5] == PADDING).all()
    assert (rows.block[:3] == CLEAN).all()


@given(
    num_clean=st.integers(1, 20),
    starts=st.lists(st.integers(0, 19), min_size=1, max_size=5),
    block_size=st.integers(2, 6),
    causal=st.booleans(),
)
def test_who_sees_whom_by_absolute_position(num_clean: int, starts: list[int], block_size: int, causal: bool):
    rows = Rows.concatenate([clean_rows(0, num_clean), block_rows(torch.tensor(starts), block_size)])
    mask = visible_mask(rows, rows, causal)
    for query in range(len(rows.position)):
        for key in range(len(rows.position)):
            sees = bool(mask[query, key])
            query_is_clean, key_is_clean = query < num_clean, key < num_clean
            if query_is_clean:
                assert sees == (key_is_clean and key <= query)
                continue
            block, slot = divmod(query - num_clean, block_size)
            if key_is_clean:
                assert sees == (key < starts[block])
            else:
                other_block, other_slot = divmod(key - num_clean, block_size)
                assert sees == (block == other_block and (not causal or other_slot <= slot))
