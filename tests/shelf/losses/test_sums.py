"""Losses and weights by component, against plain loops."""

import pytest
import torch

from packhorse.client import PackLayout
from packhorse.losses import build_loss_weights, per_component_metrics

NAMES = ("web", "code", "chat")


@pytest.fixture
def batch():
    """Two rows of 8: web and chat, then code with padding; a room of chat is larger than the sequence."""
    generator = torch.Generator().manual_seed(5)
    layout = PackLayout.of_rows(rooms=[3, 5, 4], row_ends=[2, 3], row_tokens=8, lengths=[3, 4, 4])
    labels = torch.randint(0, 9, (2, 8), generator=generator)
    labels[0, 0] = labels[0, 3] = labels[0, 7] = labels[1, 0] = -100
    labels[1, 4:] = -100
    return {
        "labels": labels,
        "layout": layout,
        "component_ids": torch.tensor([0, 2, 1], dtype=torch.int32),
        "component_names": NAMES,
    }


OF_TOKENS = torch.tensor([[0, 0, 0, 2, 2, 2, 2, 2], [1] * 8])


def test_losses_are_summed_where_labels_are(batch):
    losses = torch.rand((2, 8), generator=torch.Generator().manual_seed(6))
    losses[batch["labels"] == -100] = float("nan")  # what stands there does not count
    metrics = per_component_metrics(losses.requires_grad_(), batch)
    assert metrics.names == NAMES
    assert not metrics.loss_sums.requires_grad
    for number in range(3):
        own = (number == OF_TOKENS) & (batch["labels"] != -100)
        assert metrics.num_targets[number] == own.sum()
        torch.testing.assert_close(metrics.loss_sums[number], losses[own].sum().detach())
    twice = sum([metrics, metrics])
    assert twice.num_targets.tolist() == [2 * int(num) for num in metrics.num_targets]
    torch.testing.assert_close(twice.mean_losses, metrics.mean_losses)
    assert metrics.all_reduce() is metrics


def test_metrics_cost_no_wait_for_a_device(batch):
    labels = batch["labels"].to("meta")
    metrics = per_component_metrics(torch.empty((2, 8), device="meta"), {**batch, "labels": labels})
    assert (metrics.loss_sums.device.type, metrics.num_targets.shape) == ("meta", (3,))


def test_metrics_before_and_behind_a_new_component_add_up(batch):
    early = {**batch, "component_names": NAMES[:2], "component_ids": torch.tensor([0, 1, 1], dtype=torch.int32)}
    ones = torch.ones((2, 8))
    total = per_component_metrics(ones, early) + per_component_metrics(ones, batch)
    assert total.names == NAMES
    assert total.num_targets.tolist() == total.loss_sums.tolist() == [2 + 2, 6 + 3, 3]
    with pytest.raises(ValueError, match="metrics of web, code, chat and of code do not add up"):
        per_component_metrics(ones, batch) + per_component_metrics(
            ones, {**batch, "component_names": ("code",), "component_ids": torch.zeros(3, dtype=torch.int32)}
        )


def test_weights_of_the_objective_count_by_component(batch):
    plain = build_loss_weights(batch)
    weighed = build_loss_weights(batch, component_weights={"code": 3, "chat": 0.5})
    factors = torch.tensor([1.0, 3.0, 0.5])[OF_TOKENS]
    torch.testing.assert_close(weighed, plain * factors)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"cod": 1}, "component_weights names 'cod'; the batch's components are web, code, chat"),
        ({"code": -1}, r"component_weights\['code'\] must be at least 0, got -1"),
        ({"code": float("nan")}, r"component_weights\['code'\] must be at least 0, got nan"),
    ],
)
def test_wrong_weights_are_refused(batch, weights, message):
    with pytest.raises(ValueError, match=message):
        build_loss_weights(batch, component_weights=weights)


def test_a_batch_of_no_mixture_is_refused(batch):
    del batch["component_ids"]
    with pytest.raises(ValueError, match="this batch carries no component_ids: it is of no mixture"):
        per_component_metrics(torch.ones((2, 8)), batch)
    with pytest.raises(ValueError, match="this batch carries no component_ids"):
        build_loss_weights(batch, component_weights={"web": 1})
    with pytest.raises(ValueError, match=r"losses have shape \[2, 7\], and the batch.s layout has 2 rows of 8 tokens"):
        per_component_metrics(torch.ones((2, 7)), {**batch, "component_ids": torch.zeros(3, dtype=torch.int32)})
