"""Vision-language models of transformers: the description of images, `Media`, that each needs."""

from packhorse.vision.models import media_of

__all__ = ["media_of"]
