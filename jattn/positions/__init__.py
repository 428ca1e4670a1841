"""Positions: *where* a token stands, applied to q and k before their product.

`rotary` turns pairs of columns of q and of k by an angle that grows with the position, so that ⟨q_t, k_s⟩ depends on
t − s alone. How fast each pair turns is a value, `Frequencies`; a scaling, which stretches a model beyond the length
that it was trained on, is a function from frequencies to frequencies. Scalings compose as functions do, and your own
is one line: `lambda f: f._replace(inv=f.inv / 2)`.

Angles are exact to the last digits of float32 at every whole position below 2³¹, whatever the dtype of x.
"""

from jattn.positions._frequencies import Frequencies, Scaling, frequencies
from jattn.positions._rotary import rotary, sections, sinusoidal
from jattn.positions._scalings import compose, dynamic_ntk, linear, llama3, longrope, ntk, yarn

__all__ = [
    "Frequencies",
    "Scaling",
    "compose",
    "dynamic_ntk",
    "frequencies",
    "linear",
    "llama3",
    "longrope",
    "ntk",
    "rotary",
    "sections",
    "sinusoidal",
    "yarn",
]
