"""Lossless decoding: autoregressive, synchronous and asynchronous, over one loop."""

from workbench.decode.decoder import Decoder, DecodeStatistics, Generation, Round, build_decoder

__all__ = ["DecodeStatistics", "Decoder", "Generation", "Round", "build_decoder"]
