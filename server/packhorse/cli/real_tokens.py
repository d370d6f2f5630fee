"""How much of an efficiency is the sequences' own tokens, in the words of every command that shows one."""

from packhorse.dataset import Manifest


def real_tokens(manifest: Manifest) -> str:
    """Returns what a plan's efficiency is without the tokens that rooms add; empty where they add none."""
    if manifest.own_tokens == manifest.total_tokens:
        return ""
    return (
        f"{manifest.own_tokens / manifest.total_capacity:.2%} of capacity; the efficiency above also counts "
        f"{manifest.total_tokens - manifest.own_tokens:,} tokens of --extra-tokens and --align"
    )
