"""The smallest models of `transformers` with trainers for them, and rows for both."""

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainingArguments,
)

from winsor.integrations.privacy import Privacy
from winsor.integrations.transformers import PrivateTrainer
from winsor.rules.flat import Flat

WORDS, ROWS = 40, 60


def gpt(seed=0, dropout=0.0, layers=1):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=layers, n_head=2, bos_token_id=0,
            eos_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        )
    )  # fmt: skip


def bert(labels=3, seed=0, **config):
    torch.manual_seed(seed)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, num_labels=labels, max_position_embeddings=16,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **config,
        )
    )  # fmt: skip


class Sentences(torch.utils.data.Dataset):
    """Rows of several lengths. `text` is a column that no model takes."""

    def __init__(self, n=ROWS, first=0, labels=None):
        self.n, self.first, self.labels = n, first, labels

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        coins = torch.Generator().manual_seed(self.first + i)
        length = int(torch.randint(3, 9, (1,), generator=coins))
        ids = torch.randint(WORDS, (length,), generator=coins).tolist()
        row = {"input_ids": ids, "text": str(i)}
        return row if self.labels is None else {**row, "labels": i % self.labels}


def padded(rows):
    """A collator: labels of -100 where there is no word, or the class of the row."""
    longest = max(len(row["input_ids"]) for row in rows)

    def filled(value):
        return torch.tensor(
            [r["input_ids"] + [value] * (longest - len(r["input_ids"])) for r in rows]
        )

    mask = torch.tensor([[int(j < len(r["input_ids"])) for j in range(longest)] for r in rows])
    classes = "labels" in rows[0]
    labels = torch.tensor([r["labels"] for r in rows]) if classes else filled(-100)
    return {"input_ids": filled(0), "attention_mask": mask, "labels": labels}


def arguments(folder=None, **named):
    given = {
        "output_dir": folder or tempfile.mkdtemp(), "use_cpu": True, "report_to": [],
        "disable_tqdm": True, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3,
        "max_steps": 4, "learning_rate": 0.01, "save_strategy": "no", "logging_steps": 2,
    }  # fmt: skip
    return TrainingArguments(**given | named)


def privacy(**named):
    return Privacy(**{"noise_multiplier": 1.0, "delta": 1e-3, "rule": Flat(1.0)} | named)


def trainer(model=None, args=None, kind=PrivateTrainer, **named):
    """A trainer of ``model`` on sentences, private unless ``kind`` says otherwise."""
    given = {"train_dataset": Sentences(), "data_collator": padded}
    if issubclass(kind, PrivateTrainer):
        given["privacy"] = privacy()
    return kind(model or gpt(), args or arguments(), **given | named)
