"""What is known not to hold of a compiled program, each with its reason: patterns of `fnmatch` over `title(job)`.

`what_compiles.py` fails where something is refused, grows or differs that no pattern names, and where a pattern names
programs of a run and holds of none of them.
"""

REFUSED: dict[str, str] = {}
"""Programs that the compiler refuses."""

_VECTOR_MEMORY = (
    "short sequences lie in the vector memory of the chip, which is not counted; from T to 4 T it is a step"
)
NOT_LINEAR: dict[str, str] = {
    "one head: causal(), jvp, *, TPU v5e": _VECTOR_MEMORY,
    "one head: causal(), gradient of gradient, *, TPU v5e": _VECTOR_MEMORY,
}
"""Programs whose fitted exponent of T is more than 1.1 (1.16 and 1.14)."""

GROWS: dict[str, str] = {
    "gather, *": "every device collects all keys and values: its memory is that of the whole sequence, as `plan` says",
}
"""Programs of many devices whose temporaries grow with their number."""

DIFFERS: dict[str, str] = {
    "gather, *, gradient, 64 × TPU v5e": "the compiler makes an all-reduce of the reduce-scatter, of twice the bytes",
    "gather, * × TPU v5p": "the compiler makes all-reduces of the all-gather and of the reduce-scatter",
}
"""Programs that send other bytes than `plan` says."""
