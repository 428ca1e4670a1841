"""Hosts: jattn's attention in the libraries that people already use, one import and one argument each.

    jattn.hosts.flax           attention_fn for flax.nnx.MultiHeadAttention and flax.linen's
    jattn.hosts.equinox        MultiheadAttention, in place of equinox.nn's
    jattn.hosts.haiku          MultiHeadAttention, in place of haiku's
    jattn.hosts.transformers   attention_interface, the signature of transformers, for JAX arrays

Importing one imports its host, and importing `jattn` none. `jattn.dot_product_attention` itself stands in for jax.nn's.
Everywhere a query that may attend no key gives zeros, where the hosts give the mean of all values.
"""
