"""Attention products without the n × n matrix.

A layer's attention is held as its factors, the queries and keys it was computed from, and every
product that a method needs is formed block by block from them, exactly:

* target rows downwards, `r ← r P`: what some targets draw on every source;
* spans upwards, `C ← P C`: what every target draws on a few groups of sources;
* gradient-weighted rows downwards, `r ← r relu(P ⊙ dP)`.

P is the weighted mean of the heads' attention. Attention itself and its way back, for the gradients
of long texts, are formed so too. Each exists twice: as blocks of torch on any device, and as a
Triton kernel on CUDA. `dispatch` chooses, and results say which one it was.
"""

from __future__ import annotations
