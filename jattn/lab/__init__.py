"""Published results, reproduced: each a function of a seed that measures, beside an oracle that is not this library.

Import it by name, `from jattn import lab`. Two of the oracles, scikit-learn and SciPy, come with the extra `lab`; they
are imported when they are asked, never with the module.
"""

from jattn.lab import collapse, dot_products, entropies, induction, regression, selection, sphere
from jattn.lab.collapse import rank_collapse
from jattn.lab.dot_products import variance_of_dot_products
from jattn.lab.entropies import entropy_bound
from jattn.lab.induction import induction_heads
from jattn.lab.regression import one_step_of_descent
from jattn.lab.result import Result
from jattn.lab.selection import attention_as_nuclear_svm, attention_as_svm
from jattn.lab.sphere import clustering

RESULTS = (
    attention_as_svm,
    attention_as_nuclear_svm,
    one_step_of_descent,
    rank_collapse,
    clustering,
    entropy_bound,
    induction_heads,
    variance_of_dot_products,
)
"""Every result, in the order in which the demo shows them."""

__all__ = [
    "RESULTS",
    "Result",
    "attention_as_nuclear_svm",
    "attention_as_svm",
    "clustering",
    "collapse",
    "dot_products",
    "entropies",
    "entropy_bound",
    "induction",
    "induction_heads",
    "one_step_of_descent",
    "rank_collapse",
    "regression",
    "selection",
    "sphere",
    "variance_of_dot_products",
]
