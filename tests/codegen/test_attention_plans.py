"""Plans of attention: sizes and masks of a program, and what of the graph is computed when, chosen before any text."""

from __future__ import annotations

import dataclasses

import sympy

from fuselens.codegen.triton.choices.attention_blocks import AttentionBlocks
from fuselens.codegen.triton.choices.attention_plan import AttentionPlan, default_blocks
from fuselens.ir.text import parse

TEXT = """graph g
  input q: f16[2, 8, {rows}, 40] strides [{over}, {head}, 40, 1] on cuda
  input k: f16[2, 2, 96, 40] strides [7680, 3840, 40, 1] on cuda
  input bias: f32[8] strides [1] on cuda
  buffer buf0: f16[2, 8, {rows}, 40] strides [{over}, {head}, 40, 1] on cuda
  attention attention0 [buf0] [i0 < 2, i1 < 8, i2 < {rows}, i3 < 96] = q, k, k
    a = load bias[i1] : f32
    b = exp a : f32
    c = mul score, b : f32
    softmax c
  return buf0
"""


def plan(rows: int, keys: int = 32) -> AttentionPlan:
    graph = parse(TEXT.format(rows=rows, over=rows * 320, head=rows * 40))
    (node,) = graph.attentions()
    return AttentionPlan.of(graph, node, AttentionBlocks(16, keys, 4, 2))


def test_rows_of_heads_that_share_keys_are_of_one_matrix() -> None:
    found = plan(12)
    assert (found.group, found.groups, found.rows, found.bands) == (4, 2, 48, 3)
    assert found.launch.grid == 2 * 2 * 3
    assert found.launch.constants == {"ROWS": 16, "KEYS": 32, "DEPTH": 64, "WIDTH": 64}
    assert (found.launch.warps, found.launch.stages) == (4, 2)


def test_what_is_beyond_rows_keys_and_elements_has_a_mask() -> None:
    assert (plan(12).row_mask, plan(11).row_mask) == ("", "rows")
    assert (plan(12).key_mask, plan(12, 64).key_mask) == ("", "seen")
    assert (plan(12).depth_mask, plan(12).width_mask) == ("d < 40", "e < 40")


def test_what_does_not_depend_on_scores_is_computed_before_them() -> None:
    body = plan(12).body
    assert [[o.name for o in part] for part in (body.beside, body.early, body.late)] == [[], ["a", "b"], ["c"]]


def test_a_program_has_no_more_rows_than_a_group_has() -> None:
    graph = parse(TEXT.format(rows=12, over=12 * 320, head=12 * 40))
    (node,) = graph.attentions()
    assert default_blocks(graph, node).rows == 64
    few = graph.replace(buffers={**graph.buffers, "q": dataclasses.replace(
        graph.buffers["q"], sizes=(*graph.buffers["q"].sizes[:2], sympy.Integer(3), sympy.Integer(40)))})  # fmt: skip
    assert default_blocks(few, node).rows == 16
