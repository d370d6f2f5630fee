"""What is refused of rollouts, by which words."""

import math

import pytest

from packhorse.rollouts import Rollouts, pack_rollouts


def pack(queries=((1, 2), (1,)), responses=((3, 4), (5,)), **options):
    of_rollouts = {name: options.pop(name) for name in [*options] if name in Rollouts.__dataclass_fields__}
    rollouts = Rollouts(queries=queries, responses=responses, **of_rollouts)
    return pack_rollouts(rollouts, **({"max_seq_len": 4, "pad_token_id": 0} | options))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"queries": [], "responses": []}, r"queries is empty"),
        ({"responses": [[3]]}, r"responses has 1 entries for 2 queries"),
        ({"responses": [[3], []]}, r"rollout 1 has 1 tokens \(query 1, response 0\): an empty response"),
        ({"queries": [[], [1]]}, r"rollout 0 has 2 tokens \(query 0, response 2\): an empty query"),
        ({"responses": [[3], [4] * 6]}, r"rollout 1 has 7 tokens \(query 1, response 6\): .* over max_seq_len 4"),
        ({"responses": [[3], [4.5]]}, r"responses\[1\] must be 1-D .* float64"),
        ({"responses": [[3], [[4]]]}, r"responses\[1\] must be 1-D .* \[1, 1\]"),
        ({"queries": [["a"], [1]]}, r"queries\[0\] must be 1-D"),
        ({"tool_masks": [[1, 0]]}, r"tool_masks has 1 entries for 2 queries"),
        ({"tool_masks": [[1, 0], [1, 0]]}, r"tool_masks\[1\] has 2 entries for a response of 1 tokens"),
        ({"tool_masks": [[1, 0], [0.5]]}, r"tool_masks\[1\] must be 1-D .* float64"),
        ({"logprobs": [[-1.0], [-1.0]]}, r"logprobs\[0\] has 1 entries for a response of 2 tokens"),
        ({"logprobs": [[-1, math.nan], [-1]]}, r"logprobs of rollout 0 is nan at response token 1"),
        ({"logprobs": [[-1, -1], [-math.inf]]}, r"logprobs of rollout 1 is -inf at response token 0"),
        ({"reference_logprobs": [[-1.0], [-1.0]]}, r"reference_logprobs\[0\] has 1 entries for a response of 2 tokens"),
        ({"reference_logprobs": [[-1, -1], [math.nan]]}, r"reference_logprobs of rollout 1 is nan at response token 0"),
        ({"policy_versions": [1]}, r"policy_versions has 1 entries for 2 queries"),
        ({"policy_versions": [1, 2.5]}, r"policy_versions must hold one value"),
        ({"policy_versions": [1, -1]}, r"policy_versions\[1\] is -1; a version must be at least 0"),
        ({"advantages": [1.0]}, r"advantages has 1 entries for 2 queries"),
        ({"advantages": [1.0, math.nan]}, r"advantages of rollout 1 is nan at response token 0"),
        ({"advantages": [[1.0, 2.0], [1.0, 2.0]]}, r"advantages\[1\] has 2 entries for a response of 1 tokens"),
        ({"advantages": ["a", "b"]}, r"advantages must hold one value"),
        ({"rewards": [1.0, math.inf]}, r"rewards of rollout 1 is inf at response token 0"),
        ({"dones": [1, 0]}, r"dones must hold one value"),
        ({"group_ids": [0.5, 1]}, r"group_ids must hold one value"),
        ({"world_size": 0}, r"world_size and batch_size must be at least 1"),
        ({"batch_size": 0}, r"world_size and batch_size must be at least 1"),
        ({"max_seq_len": 0}, r"max_seq_len must be at least 1"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ValueError, match=words):
        pack(**arguments)


def test_what_an_engine_says_of_tools_tokens_does_not_matter():
    (batch,) = pack([[1]], [[5, 6]], logprobs=[[-1.0, math.nan]], advantages=[[2.0, math.nan]], tool_masks=[[0, 1]])
    assert batch["logprobs"].tolist() == [[0, -1, 0, 0]]
    assert batch["advantages"].tolist() == [[0, 2, 0, 0]]
