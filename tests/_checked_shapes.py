"""The checker of annotations that `make test` has jaxtyping use on the package: every shape that is said is checked."""

import beartype

checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
"""As type checkers read annotations: an int is a float."""
