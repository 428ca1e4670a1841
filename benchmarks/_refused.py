"""What is known not to hold of a compiled program, each with its reason: patterns of `fnmatch` over `title(job)`.

`what_compiles.py` fails where something is refused, grows or differs that no pattern names, and where a pattern names
programs of a run and holds of none of them.
"""

REFUSED: dict[str, str] = {}
"""Programs that the compiler refuses."""

NOT_LINEAR: dict[str, str] = {}
"""Programs whose temporaries are not linear in T."""

GROWS: dict[str, str] = {
    "gather, *": "every device collects all keys and values: its memory is that of the whole sequence, as `plan` says",
    "all_to_all, *, gradient, 512 × TPU v5p": "one head, and on 64 devices eight an eighth as long: of arrays as large "
    "the compiler holds 1.25 times as much",
}
"""Programs of many devices whose temporaries grow with their number."""

DIFFERS: dict[str, str] = {
    "gather, *, gradient, 64 × TPU v5e": "the compiler makes an all-reduce of the reduce-scatter, of twice the bytes",
    "gather, *, gradient, 64 × TPU v6e": "the compiler makes an all-reduce of the reduce-scatter, of twice the bytes",
    "gather, * × TPU v5p": "the compiler makes all-reduces of the all-gather and of the reduce-scatter",
}
"""Programs that send other bytes than `plan` says."""
