"""Trains a function of JAX: `paceline.fit` for parameters that are a tree of arrays.

`import paceline.jax` imports JAX; `import paceline` does not.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax.flatten_util import ravel_pytree

from .errors import Refused
from .fit import fit as _fit
from .outcome import Outcome

__all__ = ["fit"]


def fit(
    losses: Callable[[Any, Any], Any],
    params: Any,
    dataset: Any,
    *,
    correct: Callable[[Any, Any], Any] | None = None,
    test: Any = None,
    **options: Any,
) -> tuple[Any, Outcome]:
    """Trains `params`, a tree of float arrays; returns the tree that was learned, and what the run ended with.

    `losses(params, batch)` returns the loss of **each** sample of a batch, as an array: the sum, the gradient and its compilation are
    done here. Shares change from round to round, and each size of a batch would be compiled anew; so batches are filled up to the next power of two
    with their last sample, whose loss then counts nothing.

    `dataset` is an array, or a tuple of arrays of the same length; a batch is then a tuple. `correct(params, batch)` says for each sample of
    `test` whether it is right, for an accuracy at the end of every epoch. All other options are those of `paceline.fit`.
    """
    flat, tree = ravel_pytree(params)
    if flat.size == 0 or flat.dtype != jnp.float32:
        raise Refused(f"params are {flat.size} numbers of type {flat.dtype}: give a tree of float32 arrays")

    def total(vector: Any, batch: Any, weights: Any) -> Any:
        each = losses(tree(vector), batch)
        if each.shape != weights.shape:
            raise Refused(
                f"losses() returned the shape {each.shape} for a batch of {weights.shape[0]}: return the loss of each sample, without its mean"
            )
        # A loss that counts nothing must not make the sum invalid either.
        return jnp.where(weights > 0, each, 0.0).sum()

    gradient_of = jax.jit(jax.value_and_grad(total))

    def gradient(vector: Any, batch: Any) -> tuple[Any, float]:
        filled, weights = _filled(batch)
        loss, slope = gradient_of(jnp.asarray(vector), filled, weights)
        return numpy.asarray(slope), float(loss)

    if correct is not None:
        right = correct
        count = jax.jit(lambda vector, batch, weights: (total(vector, batch, weights), (right(tree(vector), batch) * weights).sum()))

        def evaluate(vector: Any, batch: Any) -> tuple[float, int]:
            loss, found = count(jnp.asarray(vector), *_filled(batch))
            return float(loss), int(found)

        options["evaluate"] = evaluate
    outcome = _fit(gradient, numpy.asarray(flat), dataset, test=test, **options)
    learned = numpy.frombuffer(outcome.params, dtype=numpy.float32)
    return tree(jnp.asarray(learned)), outcome


def _filled(batch: Any) -> tuple[Any, Any]:
    """The batch, filled up to the next power of two, and what each of its samples counts."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    count = len(parts[0])
    more = (1 << (count - 1).bit_length()) - count
    weights = numpy.concatenate([numpy.ones(count, numpy.float32), numpy.zeros(more, numpy.float32)])
    filled = tuple(numpy.concatenate([part, numpy.repeat(part[-1:], more, axis=0)]) if more else part for part in map(numpy.asarray, parts))
    return (filled if isinstance(batch, tuple) else filled[0]), weights
