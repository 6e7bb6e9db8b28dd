"""
Hugging Face Trainer: orthogonal attention
==========================================

A small BERT whose query, key and value projections are orthogonal learns to classify sequences by the token they repeat
most. ``OptimizerFactory`` builds the optimizer when the trainer asks for it; ``DriftCallback`` adds the distance to the
logs. The run is stopped half way and resumed from the trainer's checkpoint.
"""

import argparse
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import orthoptim as oo
from orthoptim.integrations.transformers import DriftCallback, OptimizerFactory

ORTHOGONAL = {"*.attention.self.*.weight": "matrix"}


class Tokens(torch.utils.data.Dataset):
    """Sequences of 16 tokens; the label is the token that is written into half of the places."""

    def __init__(self, size: int = 512) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(4, (size,), generator=generator)
        self.tokens = torch.randint(4, 32, (size, 16), generator=generator)
        places = torch.rand(size, 16, generator=generator) < 0.5
        self.tokens = torch.where(places, self.labels[:, None], self.tokens)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def build() -> BertForSequenceClassification:
    """A small model with orthogonal projections."""
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=4,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return oo.orthogonalize_(BertForSequenceClassification(config), ORTHOGONAL)


def main() -> None:
    """Train, stop, resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    folder = tempfile.mkdtemp()

    def train(until: int, resume: bool) -> Trainer:
        set_seed(0)
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=32, logging_steps=10, save_steps=steps // 2,
            use_cpu=True, report_to="none", disable_tqdm=True, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = Trainer(
            build(),
            arguments,
            train_dataset=Tokens(),
            optimizer_cls_and_kwargs=(
                OptimizerFactory,
                {"patterns": ORTHOGONAL, "lr": 0.1, "rest": {"lr": 3e-3, "weight_decay": 0.01}},
            ),
        )
        DriftCallback(limit=1e-3, action="stop").attach(trainer)
        arguments.max_steps = until
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    half = train(steps // 2, resume=False)
    trainer = train(steps, resume=True)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    first, last = half.state.log_history[0]["loss"], logs[-1]["loss"]
    distance = max(value for key, value in logs[-1].items() if key.endswith("max_distance"))
    print(f"loss {float(first):.3f} -> {float(last):.3f}, largest distance {distance:.1e}")
    assert trainer.state.global_step == steps
    assert float(last) < float(first)
    assert distance <= 1e-5


if __name__ == "__main__":
    main()
