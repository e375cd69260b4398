"""`paceline.jax.fit`: functions of JAX."""

from typing import Any

import paceline
import pytest
from paceline import demo

pytest.importorskip("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402
from paceline.jax import _filled, fit  # noqa: E402

pytestmark = pytest.mark.jax


def network(seed: int = 0) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(seed), 2)
    sizes = ((64, 32), (32, 10))
    return {
        f"layer{at}": {"weight": jax.random.normal(key, size) / size[0] ** 0.5, "bias": jnp.zeros(size[1])}
        for at, (key, size) in enumerate(zip(keys, sizes, strict=True))
    }


def logits(params: Any, pixels: Any) -> Any:
    first, second = params["layer0"], params["layer1"]
    return jax.nn.relu(pixels @ first["weight"] + first["bias"]) @ second["weight"] + second["bias"]


def losses(params: Any, batch: Any) -> Any:
    pixels, labels = batch
    return -jax.nn.log_softmax(logits(params, pixels))[jnp.arange(len(labels)), labels]


def correct(params: Any, batch: Any) -> Any:
    return logits(params, batch[0]).argmax(1) == batch[1]


@pytest.mark.parametrize(("strategy", "on"), [("ssgd", "simulate"), ("lb-bsp", "simulate"), ("abs", "simulate"), ("gossip-push", "threads")])
def test_a_tree_of_arrays_learns_digits(strategy: str, on: str) -> None:
    train, test = demo.digits()
    optimizer = paceline.SGD(0.1, momentum=0.5)
    params, outcome = fit(losses, network(), train, correct=correct, test=test, strategy=strategy, on=on, epochs=6, optimizer=optimizer)
    assert outcome.result["ledger"]["lost"] == outcome.result["ledger"]["repeated"] == 0
    right = float(numpy.asarray(correct(params, test)).mean())
    assert right > 0.88, f"accuracy {right}"
    assert jax.tree.structure(params) == jax.tree.structure(network())


def test_what_fills_a_batch_up_counts_nothing() -> None:
    train = tuple(part[:37] for part in demo.digits()[0])
    params = network()
    mean = jax.grad(lambda tree: losses(tree, train).mean())(params)
    stepped, _ = fit(losses, params, train, workers=1, batch=37, epochs=1, optimizer=paceline.SGD(1.0))
    for before, after, slope in zip(*(jax.tree.leaves(tree) for tree in (params, stepped, mean)), strict=True):
        assert numpy.allclose(after, before - slope, atol=1e-5)
    filled, weights = _filled(train)
    assert len(filled[0]) == 64 and weights.sum() == 37


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"losses": lambda params, batch: losses(params, batch).mean()}, "the loss of each sample"),
        ({"params": {"a": jnp.arange(3)}}, "a tree of float32 arrays"),
        ({"params": {}}, "a tree of float32 arrays"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(change: dict[str, Any], told: str) -> None:
    plan = {"losses": losses, "params": network()} | change
    with pytest.raises(paceline.Refused, match=told) as refused:
        fit(plan["losses"], plan["params"], demo.digits()[0])
    assert "\n" not in str(refused.value)
