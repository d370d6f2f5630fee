"""Every mask builder has the caller say whether attention is causal."""

import inspect

import pytest

from packhorse.client import masks

BUILDERS = [name for name in masks.__all__ if "causal" in inspect.signature(getattr(masks, name)).parameters]


def test_all_builders_are_known():
    assert BUILDERS == [
        "AttentionBiasBuffer",
        "build_block_diagonal_mask",
        "build_block_mask",
        "build_boolean_mask",
        "build_packing_attention_bias",
        "varlen_attention",
    ]


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "build_packing_attention_bias"])
def test_causal_is_a_required_keyword(name):
    """The bias alone has a default, for labels; `test_dense` holds what it means."""
    causal = inspect.signature(getattr(masks, name)).parameters["causal"]
    assert causal.kind is inspect.Parameter.KEYWORD_ONLY
    assert causal.default is inspect.Parameter.empty
