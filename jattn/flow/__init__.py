"""Gradient flow: how attention learns, measured against theory.

attention_steps, cross_entropy, squared_error    attention with exact tails, and losses on its steps
softmax_jacobian, jacobian_spectrum     dp/ds in closed form
pulls, projection_pulls                 what each key contributes to −dL/dq, −dL/dk, −dL/dv, −dL/dW
entropy, saturation, max_logit, rollout what weights and logits are like
balance, max_margin                     what a flow conserves, and where it tends
run, run_in_parts, integrate            the path of an optimiser, a long one, and the continuous flow
Recorder, measure_row                   what any other training loop passes through, in a file that survives a kill
watch, check                            diagnostics along a path, and the identities it must obey

Parameters, data and states are arguments of one traced program and nothing is closed over: map a run with
jax.vmap over starts, data, learning rates and hyper-parameters, or place those on a mesh before the call.
"""

from jattn.flow._closed import (
    Objective,
    attention_steps,
    cross_entropy,
    jacobian_spectrum,
    softmax_jacobian,
    squared_error,
)
from jattn.flow._continuous import integrate
from jattn.flow._diagnosis import Check, Diagnostics, Read, Report, check, loss_of, watch
from jattn.flow._long import run_in_parts
from jattn.flow._looks import log_steps
from jattn.flow._margins import Margin, max_margin
from jattn.flow._measures import balance, entropy, max_logit, rollout, saturation
from jattn.flow._paths import Loss, Now, Observe, Track, Trajectory, run
from jattn.flow._pulls import ProjectionPulls, Pulls, projection_pulls, pulls
from jattn.flow._recorder import Recorder
from jattn.flow._rows import MeasuredRow, MeasuredRowOptions, measure_row

__all__ = [
    "Check",
    "Diagnostics",
    "Loss",
    "Margin",
    "MeasuredRow",
    "MeasuredRowOptions",
    "Now",
    "Objective",
    "Observe",
    "ProjectionPulls",
    "Pulls",
    "Read",
    "Recorder",
    "Report",
    "Track",
    "Trajectory",
    "attention_steps",
    "balance",
    "check",
    "cross_entropy",
    "entropy",
    "integrate",
    "jacobian_spectrum",
    "log_steps",
    "loss_of",
    "max_logit",
    "max_margin",
    "measure_row",
    "projection_pulls",
    "pulls",
    "rollout",
    "run",
    "run_in_parts",
    "saturation",
    "softmax_jacobian",
    "squared_error",
    "watch",
]
