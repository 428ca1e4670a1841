# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Eight devices on a laptop
#
# XLA splits one CPU into as many devices as it is told, before JAX starts. What runs on eight of them runs on eight
# real ones, and can be checked here: the values, the gradients, and what is sent.

# %% tags=["install"]
# %pip install -q jattn

# %%
import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"  # eight simulated devices, where there is an accelerator too

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jattn
from jattn import masks, sharding

assert len(jax.devices()) == 8, "restart the kernel: JAX had started before its flag was set"
jax.devices()

# %% [markdown]
# ## One long sequence in eight pieces
#
# 1,024 tokens, 128 on each device. Keys and values go around a ring; each device adds a partial attention (out,
# lse) for its queries, and partials *merge* exactly. `sharding.attention` writes the `shard_map` around it.

# %%
mesh = jax.make_mesh((8,), ("seq",), axis_types=(AxisType.Auto,))
spec = P(None, "seq")
T, H, D = 1024, 2, 16
q, k, v = jax.random.normal(jax.random.key(0), (3, 1, T, H, D))
x = jax.device_put((q, k, v), jax.NamedSharding(mesh, spec))
jax.debug.visualize_array_sharding(x[0][0, :, 0])

# %% [markdown]
# ## The same as on one device
#
# The value and the gradients of all three inputs:

# %%
ring = functools.partial(sharding.attention, mesh=mesh, spec=spec, mask=masks.causal())
alone = functools.partial(jattn.dot_product_attention, is_causal=True)


def derivatives(attend):
    def loss(x):
        out = attend(*x)
        return jnp.sin(out).mean(), out

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


many = derivatives(ring).lower(x).compile()
pairs = zip(jax.tree.leaves(many(x)), jax.tree.leaves(derivatives(alone)((q, k, v))), strict=True)
for name, (a, b) in zip(["loss", "out", "dq", "dk", "dv"], pairs, strict=True):
    off = float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())
    print(f"{name:>4}: relative difference {off:.0e}")
    assert off < 1e-5

# %% [markdown]
# ## What is sent
#
# The compiled program says what it sends. Each `collective-permute` moves one piece to the neighbour; nothing
# gathers the sequence, and the one `all-reduce` is the mean of the loss. `sharding.plan` says by formula what each
# scheme would send and hold on one device, and which to take.

# %%
text = many.as_text()
held = {op: text.count(f" {op}(") for op in ("collective-permute", "all-gather", "all-reduce", "all-to-all")}
print(held)
assert held["collective-permute"] > 0
assert held["all-gather"] == held["all-to-all"] == 0, "no device ever holds the whole sequence"
print(sharding.plan(
    T, T, heads=H, kv_heads=H, head_dim=D, dtype=jnp.float32, devices=8,
    flops_per_second=1e11, bandwidth=1e9, mask=masks.causal(),
))  # fmt: skip

# %% [markdown]
# ## Balance
#
# Under a causal mask the last device has the most work. In zig-zag order each device gets an early and a late
# piece: the rows are reordered once by `sharding.zigzag`, and their positions, `q_positions=` and `k_positions=`,
# say where they stand.

# %%
allowed = np.asarray(masks.to_dense(masks.causal(), T, T)).sum(1)
for name, rows in {"in order": np.arange(T), "zig-zag": sharding.zigzag(np.arange(T), 8)}.items():
    share = allowed[rows].reshape(8, -1).sum(1) / allowed.sum()
    print(f"{name:>8}: pairs of each device", *(f"{s:.1%}" for s in share))
assert np.ptp(share) < 1e-9

# %% [markdown]
# Processes, other schemes, and what the compilers of TPU and GPU make of 512 devices: [Many devices](../devices.md).
