"""Vision-language models of transformers: what each takes of a batch's images."""

from packhorse.vision.models import media_of

__all__ = ["media_of"]
