"""A small BERT that classifies generated sentences, with Hugging Face's Trainer under torchrun.

    nodesweep run examples/hf_trainer/nodesweep.yaml           # 1 and 2 nodes
    torchrun --nproc-per-node 2 train.py --num_train_epochs 1  # by hand, with nodesweep_clock.py

Lines added for nodesweep: the callback `ClockCallback` in `Trainer(callbacks=…)`. TrainingArguments
are read from the command line as usual, so the config's hyperparameters are named after them.
`use_cpu` matters on nodes without a GPU: without it, the Trainer ignores the other nodes, and each
node trains alone. Omit the stopwatch (the Trainer's train_runtime), which is only there to check T.
"""

import os
import sys

import torch
from nodesweep_clock import clock
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class ClockCallback(TrainerCallback):
    """Measures T like the Trainer's train_runtime: first to last step, including evaluations."""

    def on_train_begin(self, args, state, control, **more):
        clock().__enter__()

    def on_step_end(self, args, state, control, **more):
        clock.step(args.per_device_train_batch_size * args.gradient_accumulation_steps)

    def on_evaluate(self, args, state, control, metrics=None, **more):
        clock.metric("accuracy", metrics["eval_accuracy"], goal="maximize")

    def on_train_end(self, args, state, control, **more):
        clock.__exit__(None, None, None)


class MadeUpSentences(torch.utils.data.Dataset):
    """Random words; a sentence has class 1 if its first word is in the vocabulary's upper half."""

    def __init__(self, rows, seed, words=128, length=31):
        self.sentences = torch.randint(
            words, (rows, length), generator=torch.Generator().manual_seed(seed)
        )
        self.labels = (self.sentences[:, 0] >= words // 2).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"input_ids": self.sentences[row], "labels": self.labels[row]}


def accuracy(predictions):
    return {
        "accuracy": (predictions.predictions.argmax(axis=1) == predictions.label_ids).mean().item()
    }


def main():
    defaults = {
        "output_dir": os.environ.get("SM_MODEL_DIR", "output"), "save_strategy": "no",
        "eval_strategy": "epoch", "report_to": "none", "disable_tqdm": True, "learning_rate": 1e-3,
        "use_cpu": not torch.cuda.is_available(),
    }  # fmt: skip
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(**defaults)
    (args,) = parser.parse_args_into_dataclasses(sys.argv[1:])
    set_seed(args.seed)
    size = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    trainer = Trainer(
        model=BertForSequenceClassification(
            BertConfig(vocab_size=128, max_position_embeddings=32, **size)
        ),
        args=args,
        train_dataset=MadeUpSentences(1024, seed=1),
        eval_dataset=MadeUpSentences(256, seed=2),
        compute_metrics=accuracy,
        callbacks=[ClockCallback()],
    )
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"stopwatch: {result.metrics['train_runtime']:.4f} s", flush=True)


if __name__ == "__main__":
    main()
