"""`cost_linear_of`: what a token costs a model without attention, in units of what attention costs for a pair."""

from typing import Any

NO_QUADRATIC_PART = 1 << 31
"""`cost_linear` of a model without layers of full attention: so large that L² is negligible next to cost_linear · L."""


def cost_linear_of(model_or_config: Any) -> int:
    """Returns `cost_linear` of a transformers model or its config.

    A sequence of L tokens costs cost_linear · L + L². The unit is one attended pair: a query and a key, in the layers
    with full attention. So cost_linear is the FLOPs that a token takes without attention, divided by those of a pair:

        2 · P + 4 · S · w · H · d          P: weights that a token is multiplied with, in all layers and the output
        -------------------------          H, d: attention heads and their size; F: layers with full attention
              4 · F · H · d                S, w: layers with a sliding window, and its tokens

    A linear layer takes 2 FLOPs for each weight and token; a pair takes 2·d for its score and 2·d for its value, in
    every head (Kaplan et al. 2020, arXiv 2001.08361, table 1; Narayanan et al. 2021, arXiv 2104.04473, appendix). A
    sliding-window layer has L · min(L, w) pairs, linear in L for sequences longer than w. All L² pairs count, although
    a causal kernel leaves half of them out: if that matters, measure your own bins. For a plain transformer the result
    is about 6 · hidden_size, e.g. 24,576 for a hidden size of 4,096.

    Example:
        >>> from types import SimpleNamespace
        >>> config = SimpleNamespace(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
        >>> cost_linear_of(config)
        384

    Args:
        model_or_config: a transformers PreTrainedModel or config, or anything with these fields. Of a multimodal model
            the text part counts; of a mixture of experts, the experts that a token visits.

    Raises:
        ValueError: a field that the formula needs is missing.
    """
    config = getattr(model_or_config, "config", model_or_config)
    config = getattr(config, "text_config", None) or config
    hidden = _field(config, "hidden_size", "n_embd", "d_model")
    layers = _field(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _field(config, "num_attention_heads", "n_head", "num_heads")
    kv_heads = _optional(config, "num_key_value_heads") or heads
    head_size = _optional(config, "head_dim") or hidden // heads
    pair_flops = 2 * heads * (_query_size(config, head_size) + _value_size(config, head_size))  # in one layer
    num_weights = layers * _attention_weights(config, hidden, heads, kv_heads, head_size)
    num_weights += _feed_forward_weights(config, hidden, layers)
    num_weights += hidden * (_optional(config, "vocab_size") or 0)  # the output; looking up an embedding costs nothing
    num_sliding, window_tokens = _sliding_layers(config, layers)
    num_full = layers - num_sliding
    if num_full == 0:
        return NO_QUADRATIC_PART
    return round((2 * num_weights + num_sliding * window_tokens * pair_flops) / (num_full * pair_flops))


def _attention_weights(config: Any, hidden: int, heads: int, kv_heads: int, head_size: int) -> int:
    """Returns the number of weights in one layer's attention: queries, keys, values and output.

    If the config has `kv_lora_rank`, the projections are of low rank (multi-head latent attention).
    """
    query_rank, kv_rank = _optional(config, "q_lora_rank"), _optional(config, "kv_lora_rank")
    if kv_rank is None:
        return hidden * head_size * (2 * heads + 2 * kv_heads)
    query, value = _query_size(config, head_size), _value_size(config, head_size)
    rotary, unrotated = _field(config, "qk_rope_head_dim"), _field(config, "qk_nope_head_dim")
    of_query = hidden * heads * query if query_rank is None else query_rank * (hidden + heads * query)
    return of_query + hidden * (kv_rank + rotary) + kv_rank * heads * (unrotated + value) + heads * value * hidden


def _feed_forward_weights(config: Any, hidden: int, layers: int) -> int:
    """Returns the number of feed-forward weights in all layers; of a mixture of experts, those that a token visits."""
    dense_size = _optional(config, "intermediate_size", "n_inner", "ffn_dim", "d_ff") or 4 * hidden
    dense = hidden * dense_size * _num_matrices(config)
    experts = _optional(config, "num_local_experts", "num_experts", "n_routed_experts")
    visited = _optional(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
    if not experts or not visited:
        return layers * dense
    expert_size = _optional(config, "moe_intermediate_size") or _field(config, "intermediate_size")
    num_shared = _optional(config, "n_shared_experts") or 0
    shared_size = _optional(config, "shared_expert_intermediate_size") or num_shared * expert_size
    router = hidden * experts
    sparse = hidden * (visited * expert_size + shared_size) * _num_matrices(config) + router
    num_dense = min(_optional(config, "first_k_dense_replace") or 0, layers)  # the first layers, which have no experts
    return num_dense * dense + (layers - num_dense) * sparse


def _num_matrices(config: Any) -> int:
    """Returns the number of weight matrices in a feed-forward part: three if it is gated, two if it is plain."""
    name = str(_optional(config, "hidden_act", "activation_function", "hidden_activation") or "")
    gated = name in ("silu", "swish", "swiglu", "geglu") or "gated" in name
    return 3 if gated or _optional(config, "hidden_activation") else 2  # Gemma's field, and Gemma is gated


def _query_size(config: Any, head_size: int) -> int:
    """Returns the size of a head's queries and keys, which multi-head latent attention composes of two parts."""
    unrotated = _optional(config, "qk_nope_head_dim")
    return head_size if unrotated is None else unrotated + _field(config, "qk_rope_head_dim")


def _value_size(config: Any, head_size: int) -> int:
    """Returns the size of a head's values."""
    return _optional(config, "v_head_dim") or head_size


def _sliding_layers(config: Any, layers: int) -> tuple[int, int]:
    """Returns (number of layers with a sliding window, tokens in the window)."""
    window = _optional(config, "sliding_window")
    if not window or getattr(config, "use_sliding_window", True) is False:  # Qwen2 gives a window that it does not use
        return 0, 0
    kinds = getattr(config, "layer_types", None)
    num_sliding = layers if kinds is None else sum(kind == "sliding_attention" for kind in kinds)
    return num_sliding, int(window)


def _optional(config: Any, *names: str) -> Any:
    """Returns the first of these fields that the config has; None if it has none of them."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _field(config: Any, *names: str) -> int:
    """Returns the first of these fields that the config has; a ValueError if it has none of them."""
    value = _optional(config, *names)
    if value is None:
        raise ValueError(
            f"{type(config).__name__} has no {' or '.join(names)}; work cost_linear out by hand, see cost_linear_of"
        )
    return int(value)
