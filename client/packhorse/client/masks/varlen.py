"""Attention over sequences laid end to end: calls PyTorch's and FlashAttention's variable-length kernels.

Owns which kernel is called and how. Leaves the offsets to `offsets`, taking padding out to `unpadding`, and xformers to
`block_diagonal`.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, Literal

import torch

from packhorse.client.batches.layout import LayoutLike
from packhorse.client.masks._band import Band
from packhorse.client.masks.offsets import VarlenOffsets, build_varlen_offsets

Kernel = Literal["auto", "torch", "flash"]
"""The kernel that a user asks for; "auto" is flash-attn's if it is installed, else PyTorch's."""


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    where: VarlenOffsets | LayoutLike,
    *,
    causal: bool,
    window: int | None = None,
    scale: float | None = None,
    kernel: Kernel = "auto",
) -> torch.Tensor:
    """Computes attention within each sequence of a packed batch.

    Example:
        >>> offsets = build_varlen_offsets(torch.tensor([0, 2, 3]), "cuda")  # doctest: +SKIP
        >>> query = key = value = torch.randn(3, 8, 64, device="cuda", dtype=torch.bfloat16)  # doctest: +SKIP
        >>> varlen_attention(query, key, value, offsets, causal=True).shape  # doctest: +SKIP
        torch.Size([3, 8, 64])

    Args:
        query: [tokens, heads, head size], of all sequences end to end without padding (see `Unpadding`); float16 or
            bfloat16 on a GPU.
        key: [tokens, KV heads, head size]; heads are a multiple of KV heads.
        value: as `key`.
        where: offsets on the device, which you build once for all layers of a batch; or a batch, its layout, or host
            `cu_seqlens`.
        causal: whether a token sees only itself and earlier tokens.
        window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.
        scale: factor for scores; None for 1/√(head size).
        kernel: "flash" is `flash_attn_varlen_func` of flash-attn, "torch" is `torch.nn.attention.varlen.varlen_attn`;
            "auto" takes the first if it is installed.

    Returns:
        [tokens, heads, head size].

    Raises:
        ImportError: the kernel is not installed, or torch is older than 2.11.
        ValueError: tensors have other shapes or are on a device without kernels, the window is below 1, or there is no
            layout in `where`.
    """
    if kernel not in ("auto", *_KERNELS):
        raise ValueError(f"kernel must be auto, {' or '.join(_KERNELS)}; got {kernel!r}")
    if not query.dim() == key.dim() == value.dim() == 3:
        raise ValueError(
            "query, key and value must be [tokens, heads, head size], without padding; take it out with "
            f"build_unpadding(batch, device).unpad(...). Got {list(query.shape)}, {list(key.shape)} and "
            f"{list(value.shape)}"
        )
    band = Band.of(causal=causal, window=window)
    _refuse_devices_without_kernels(query.device)
    if kernel == "auto":
        kernel = "flash" if find_spec("flash_attn") else "torch"
    offsets = where if isinstance(where, VarlenOffsets) else build_varlen_offsets(where, query.device)
    return _KERNELS[kernel](query, key, value, offsets, band, scale)


def _refuse_devices_without_kernels(device: torch.device) -> None:
    """Raises a ValueError for the CPU, and names what computes attention there."""
    if device.type == "cpu":
        raise ValueError(
            "variable-length attention kernels run on GPUs only; on the CPU use scaled_dot_product_attention with "
            "build_packing_attention_bias or build_boolean_mask, or flex_attention with build_block_mask"
        )


def _by_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: VarlenOffsets,
    band: Band,
    scale: float | None,
) -> torch.Tensor:
    """Calls `torch.nn.attention.varlen.varlen_attn`, whose options depend on torch's version."""
    try:
        varlen = import_module("torch.nn.attention.varlen")
    except ModuleNotFoundError:
        raise ImportError(
            f"torch {torch.__version__} has no torch.nn.attention.varlen; install a newer one, or flash-attn"
        ) from None
    parameters = signature(varlen.varlen_attn).parameters
    if "window_size" not in parameters:
        raise ImportError(
            f"varlen_attn of torch {torch.__version__} takes no window_size; install torch 2.11 or newer, or flash-attn"
        )
    options: dict[str, Any] = {"scale": scale, "window_size": _reach(band)}
    heads_per_kv_head = query.shape[1] // key.shape[1]
    if heads_per_kv_head > 1 and "enable_gqa" in parameters:
        options["enable_gqa"] = True
    elif heads_per_kv_head > 1:  # torch 2.11 needs as many heads of keys as of queries
        key, value = (states.repeat_interleave(heads_per_kv_head, 1) for states in (key, value))
    return varlen.varlen_attn(
        query,
        key,
        value,
        offsets.cu_seqlens,  # of queries, then of keys; so are the longest lengths
        offsets.cu_seqlens,
        offsets.max_seqlen,
        offsets.max_seqlen,
        **options,
    )


def _by_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: VarlenOffsets,
    band: Band,
    scale: float | None,
) -> torch.Tensor:
    """Calls `flash_attn.flash_attn_varlen_func`."""
    try:
        flash_attn = import_module("flash_attn")
    except ModuleNotFoundError:
        raise ImportError('flash_attn is not installed: install flash-attn, or choose kernel="torch"') from None
    return flash_attn.flash_attn_varlen_func(
        query,
        key,
        value,
        offsets.cu_seqlens,  # of queries, then of keys; so are the longest lengths
        offsets.cu_seqlens,
        offsets.max_seqlen,
        offsets.max_seqlen,
        softmax_scale=scale,
        causal=band.least == 0,
        window_size=_reach(band),
    )


def _reach(band: Band) -> tuple[int, int]:
    """Returns both kernels' `window_size`: how many tokens a token sees before and after itself, −1 for no limit."""
    before = -1 if band.most is None else band.most
    after = -1 if band.least is None else -band.least
    return before, after


_KERNELS: dict[str, Callable[..., torch.Tensor]] = {"flash": _by_flash, "torch": _by_torch}
"""The value of `kernel` → the function that calls it."""
