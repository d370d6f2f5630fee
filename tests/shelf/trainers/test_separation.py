"""A model is asked whether its packed sequences see each other, and trainers refuse one where they do."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    TrainingArguments,
)

from packhorse.trainers import PackedData, check_takes_trees, sees_other_sequences
from packhorse.trainers.transformers import PackedTrainer

HEADS = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = HEADS | {"intermediate_size": 48, "num_key_value_heads": 1}
CONFIGS = {
    "llama": LlamaConfig(**LLAMA),
    "mistral": MistralConfig(**LLAMA, sliding_window=4),
    "gpt-oss": GptOssConfig(**LLAMA, head_dim=16, sliding_window=4, num_local_experts=2, num_experts_per_tok=1),
    "opt": OPTConfig(**HEADS, ffn_dim=48, word_embed_proj_dim=32),
    "falcon": FalconConfig(**HEADS),
    "mamba": MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1),
}
SEES = {"gpt-oss", "opt", "falcon", "mamba"}


def make_model(name):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager")


@pytest.mark.parametrize("preset", ["rows", "padding-free"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_answer_is_what_other_tokens_do_to_the_logits(name, preset):
    model = make_model(name).eval()
    positions = torch.arange(8).repeat(2)[None]

    def logits_of_second(first):
        tokens = torch.cat([torch.full((8,), first), torch.arange(10, 18)])[None]
        with torch.no_grad():
            return model(input_ids=tokens, position_ids=positions, use_cache=False).logits[0, 8:]

    changes = not torch.allclose(logits_of_second(3), logits_of_second(40), atol=1e-6)
    assert changes == (name in SEES)
    assert sees_other_sequences(model, preset) == changes


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_given_trees_only_if_its_branches_are_separate(name, attention):
    """The truth: whether a branch's logits are those of its sequence alone, whatever the other branch holds."""
    torch.manual_seed(3)
    try:
        model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention).eval()
    except ValueError:
        pytest.skip(f"{name} has no {attention}")
    prefix, own = torch.arange(10, 18), torch.arange(20, 28)
    at = torch.arange(24)
    sees = (at[None] <= at[:, None]) & ~((at[:, None] >= 16) & (at[None] >= 8) & (at[None] < 16))
    positions = torch.cat([at[:16], at[8:16]])[None]
    near = positions.T - positions < 4  # a mask takes the place of a model's own sliding window

    def added(seen):
        return torch.zeros(24, 24).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]

    mask = added(sees & near) if name == "mistral" else added(sees)
    if name == "gpt-oss":
        mask = {"full_attention": mask, "sliding_attention": added(sees & near)}

    def logits_of_branch(other):
        tokens = torch.cat([prefix, torch.full((8,), other), own])[None]
        with torch.no_grad():
            options = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
            return model(input_ids=tokens, **options).logits[0, 16:]

    try:
        changes = not torch.allclose(logits_of_branch(3), logits_of_branch(40), atol=1e-6)
    except (RuntimeError, ValueError):
        changes = True  # it takes no such mask
    else:
        with torch.no_grad():
            alone = model(input_ids=torch.cat([prefix, own])[None], use_cache=False).logits[0, 8:]
        changes |= not torch.allclose(logits_of_branch(3), alone, atol=1e-5)
    if changes:
        with pytest.raises(ValueError, match="Pack with prefixes='repeated'"):
            check_takes_trees(model)
    else:
        assert not sees_other_sequences(model, "tree")
        check_takes_trees(model)
    assert changes == (name == "mamba")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_asking_leaves_the_model_as_it_was(dtype):
    model = make_model("llama").to(dtype).train()
    model.model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not sees_other_sequences(model)
    assert model.training
    assert not model.model.norm.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.get_input_embeddings()._forward_hooks


def test_a_model_that_cannot_be_asked_says_why():
    with pytest.raises(ValueError, match="Linear has no get_input_embeddings"):
        sees_other_sequences(torch.nn.Linear(2, 2))


@pytest.fixture
def trainer_of(small_corpus, tmp_path):
    """Function: a trainer of one of CONFIGS that trains and evaluates on the small corpus."""
    target, tokens, _ = small_corpus

    def make(name, trainer_class=PackedTrainer):
        arguments = TrainingArguments(
            tmp_path, per_device_train_batch_size=2, max_steps=1, save_strategy="no", use_cpu=True, report_to=[]
        )
        return trainer_class(
            make_model(name),
            arguments,
            train_dataset=PackedData(target, "small", tokens, num_workers=0),
            eval_dataset=PackedData(target, "held-out", tokens, num_workers=0),
        )

    return make


@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_a_trainer_refuses_a_model_whose_sequences_see_each_other(method, trainer_of):
    with pytest.raises(ValueError, match=r"see each other in GptOssForCausalLM .*'eager'.* preset 'rows'"):
        getattr(trainer_of("gpt-oss"), method)()


def test_a_trainer_takes_such_a_model_where_its_class_says_so(trainer_of):
    class Lenient(PackedTrainer):
        may_see_other_sequences = True

    assert trainer_of("opt", Lenient).train().global_step == 1


def test_a_model_that_gives_no_answer_is_trained_and_logged(trainer_of, caplog, monkeypatch):
    trainer = trainer_of("llama")
    monkeypatch.setattr(trainer.model, "get_input_embeddings", lambda: torch.nn.Linear(1, 1))
    with caplog.at_level("WARNING", "packhorse"):
        assert trainer.train().global_step == 1
    assert "LlamaForCausalLM could not be asked whether packed sequences see each other" in caplog.text
