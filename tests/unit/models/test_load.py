from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification

from isostep.config import Config
from isostep.data.labels import Labels
from isostep.errors import ConfigError
from isostep.models.load import freeze_unused, load_model, load_trained, set_dropout
from isostep.models.tokenizer import load_tokenizer
from isostep.tasks import Classification

FAMILIES = ["bert", "roberta", "distilbert", "llama"]


def load(config: Config, labels: Labels, seed: int = 0) -> Any:
    tokenizer = load_tokenizer(config, lambda: iter(["a man is here", "a man was there"] * 3), Path("unused"))
    torch.manual_seed(seed)
    return load_model(config, classification(labels), tokenizer)


def classification(labels: Labels) -> Classification:
    task = Classification()
    task.labels = labels
    return task


def head(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value for key, value in model.state_dict().items() if key.startswith(("classifier", "score"))}


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_the_checkpoints_and_the_labels_the_datas(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels, family: str
) -> None:
    folder = saved(family)
    model = load(made(folder), two)
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in stored.items())  # the head as well
    assert model.config.id2label == {0: "0", 1: "1"} and model.config.label2id == {"0": 0, "1": 1}
    assert model.config.label_values == [0, 1] and model.training
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 1, 1]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
    assert model(**batch).logits.shape == (2, 2)  # a decoder refuses this without a padding token


def test_decoder_without_pad_token_gives_a_row_the_same_logits_alone_and_padded(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels
) -> None:
    config = made(saved("llama"))
    tokenizer = load_tokenizer(config, lambda: iter(()), Path("unused"))
    model = load(config, two).eval()
    rows = ["a man is here", "now", "the film was not very good"]
    together = model(**tokenizer(rows, padding=True, return_tensors="pt")).logits
    alone = torch.cat([model(**tokenizer([row], return_tensors="pt")).logits for row in rows])
    assert model.config.pad_token_id == tokenizer.pad_token_id == 1
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_another_number_of_labels_gets_a_new_head_from_the_seed(
    saved: Callable[..., Path], made: Callable[..., Config], three: Labels, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved("bert", num_labels=2)
    with caplog.at_level(logging.INFO, "isostep"):
        one, same, other = (load(made(folder), three, seed) for seed in (5, 5, 6))
    assert "newly initialised: classifier.bias, classifier.weight" in caplog.text
    assert one.config.num_labels == 3 and head(one)["classifier.weight"].shape == (3, 32)
    assert torch.equal(head(one)["classifier.weight"], head(same)["classifier.weight"])
    assert not torch.equal(head(one)["classifier.weight"], head(other)["classifier.weight"])
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(one.state_dict()[key], value) for key, value in stored.items() if key.startswith("bert."))


def test_bfloat16_checkpoint_is_loaded_as_float32(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels
) -> None:
    folder = saved("bert", dtype=torch.bfloat16)
    stored = load_file(folder / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    model = load(made(folder), two)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert all(torch.equal(model.state_dict()[key], value.float()) for key, value in stored.items())


@pytest.mark.parametrize("family", [*FAMILIES, "deberta"])
def test_dropout_override(saved: Callable[..., Path], made: Callable[..., Config], two: Labels, family: str) -> None:
    folder = saved(family)
    model = load(made(folder, dropout=0.0), two)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout) and module.p] == []
    batch = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    assert torch.equal(model(**batch).logits, model(**batch).logits)
    more = load(made(folder, dropout=0.25), two)
    assert {module.p for module in more.modules() if isinstance(module, nn.Dropout)} <= {0.25}
    assert not torch.equal(more(**batch).logits, more(**batch).logits)


def test_dropout_of_every_name_but_not_of_whole_layers() -> None:
    from transformers import BartConfig, GPT2Config

    bart = BartConfig(encoder_layerdrop=0.1, classifier_dropout=0.3)
    set_dropout(bart, 0.2)
    assert (bart.dropout, bart.attention_dropout, bart.activation_dropout, bart.classifier_dropout) == (0.2,) * 4
    assert bart.encoder_layerdrop == 0.1
    set_dropout(bart, 0)
    assert bart.dropout == bart.encoder_layerdrop == 0
    gpt = GPT2Config()
    set_dropout(gpt, 0.0)
    assert (gpt.attn_pdrop, gpt.embd_pdrop, gpt.resid_pdrop, gpt.summary_first_dropout) == (0,) * 4


def test_dropout_that_stays_on_is_an_error(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isostep.models.load.set_dropout", lambda shape, probability: None)
    with pytest.raises(ConfigError, match=r"^model.dropout: .*dropout"):
        load(made(saved("bert"), dropout=0.0), two)


def test_attention_implementation(saved: Callable[..., Path], made: Callable[..., Config], two: Labels) -> None:
    folder = saved("bert")
    kinds = {kind: load(made(folder, attention=kind), two) for kind in ("auto", "sdpa", "eager")}
    got = {kind: model.config._attn_implementation for kind, model in kinds.items()}
    assert got == {"auto": "sdpa", "sdpa": "sdpa", "eager": "eager"}
    with pytest.raises(ConfigError, match=r"^model.attention: ") as caught:
        load(made(saved("deberta"), attention="sdpa"), two)
    assert "\n" not in str(caught.value)


def test_activation_checkpointing_leaves_the_gradients(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels
) -> None:
    folder = saved("llama")
    batch = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    gradients = []
    for on in (False, True):
        model = load(made(folder, activation_checkpointing=on), two)
        assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules()) == on
        model(**batch).logits.sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    assert not model.config.use_cache
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_pickled_weights_are_never_read(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("bert")
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("a pickle is read"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    load(made(folder), two)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"^model.path: .* only pytorch_model.bin, which is pickle"):
        load(made(folder), two)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ConfigError, match=r"^model.path: .* no weights"):
        load(made(folder), two)


def test_unusable_checkpoints_are_one_line(
    saved: Callable[..., Path], made: Callable[..., Config], two: Labels
) -> None:
    def refused(folder: Path, pattern: str) -> None:
        with pytest.raises(ConfigError, match=pattern) as caught:
            load(made(folder), two)
        assert str(folder) in str(caught.value) and "\n" not in str(caught.value)

    def edit(folder: Path, **changes: Any) -> Path:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        return folder

    refused(edit(saved("bert"), num_hidden_layers=3), r"^model.path: .* lacks 16 weights")
    refused(edit(saved("bert"), intermediate_size=64), r"^model.path: .* another size")
    refused(edit(saved("bert"), output_router_logits=True), r"^model.path: .* router loss")
    refused(edit(saved("bert"), quantization_config={"quant_method": "fp8"}), r"^model.path: .* quantized")
    refused(edit(saved("bert"), model_type="vit"), r"^model.path: .* can't be loaded")
    cut = saved("bert")
    data = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(data[: len(data) // 2])
    refused(cut, r"^model.path: .* can't be loaded")
    refused(saved("bert", vocab_size=10), r"^model.path: .* 24 tokens and its model only 10")


def test_loading_prints_nothing(
    saved: Callable[..., Path], made: Callable[..., Config], three: Labels, capfd: pytest.CaptureFixture[str]
) -> None:
    load(made(saved("roberta")), three)
    capfd.readouterr()
    load(made(saved("roberta", num_labels=2)), three)
    captured = capfd.readouterr()
    assert "LOAD REPORT" not in captured.err and "Loading weights" not in captured.err and not captured.out


def test_classifier_is_never_made_up(saved: Callable[..., Path], made: Callable[..., Config]) -> None:
    folder = saved("bert", num_labels=3)
    assert not load_trained(made(folder), Classification.auto_class).training
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.bert.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"no trained model of this task: it lacks classifier.bias"):
        load_trained(made(folder), Classification.auto_class)


def test_tiny_is_the_same_for_the_same_seed(made: Callable[..., Config], three: Labels, tmp_path: Path) -> None:
    config = made("builtin:tiny", dropout=0.0)
    tokenizer = load_tokenizer(config, lambda: iter(["a man is here", "a man was there"]), tmp_path)
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(load_model(config, classification(three), tokenizer).state_dict())
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert not torch.equal(models[0]["classifier.weight"], models[2]["classifier.weight"])


def test_freeze_unused_freezes_what_no_gradient_reaches_and_only_that() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

    model = Odd()
    unused = freeze_unused(model, lambda: (model.used(torch.ones(1, 2)).sum() * 0).backward())
    assert unused == ["idle.weight", "idle.bias"]
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["used.weight", "used.bias"]
    assert all(weight.grad is None for weight in model.parameters())


def test_minilm(minilm: Path, made: Callable[..., Config], two: Labels) -> None:
    model = load(made(minilm, dropout=0.0), two)
    stored = load_file(minilm / "model.safetensors")
    weights = {f"bert.{key}": value for key, value in stored.items() if not key.endswith("position_ids")}
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights.items())
    assert set(model.state_dict()) - set(weights) == {"classifier.weight", "classifier.bias"}
