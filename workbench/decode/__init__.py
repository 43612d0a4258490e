"""Lossless decoding: autoregressive, synchronous and asynchronous, over one loop."""

from workbench.decode.assembly import build_decoder
from workbench.decode.decoder import Decoder, DecodeStatistics, Generation, Round

__all__ = ["DecodeStatistics", "Decoder", "Generation", "Round", "build_decoder"]
