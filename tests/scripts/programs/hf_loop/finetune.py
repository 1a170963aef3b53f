import argparse
import os
import subprocess
import random

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, get_scheduler
from transformers import logging as hf_logging

hf_logging.set_verbosity_error()
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def git_hash():
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], stderr=subprocess.DEVNULL).decode().strip()
    except Exception:
        return "unknown"


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune a (tiny) BERT on sentence classification")
    parser.add_argument("--model_name_or_path", default=None, help="e.g. prajjwal1/bert-tiny; trains from scratch if omitted")
    parser.add_argument("--train_file", type=str, default="data/train.tsv")
    parser.add_argument("--max_length", type=int, default=96)
    parser.add_argument("--per_device_train_batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--lr_scheduler_type", default="linear")
    parser.add_argument("--num_warmup_steps", type=int, default=20)
    parser.add_argument("--output_dir", type=str, default="./outputs")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false", default=True)
    return parser.parse_args()


def load_data(args, tokenizer, vocab_size):
    texts, labels = [], []
    if not os.path.exists(args.train_file):
        print(f"{args.train_file} not found, using synthetic data")
        n = 512
        ids = torch.randint(5, vocab_size, (n, args.max_length))
        return TensorDataset(ids, torch.ones_like(ids), torch.randint(0, 2, (n,)))
    for line in open(args.train_file, encoding="utf-8"):
        text, label = line.rstrip("\n").split("\t")
        texts.append(text)
        labels.append(int(label))
    if tokenizer is not None:
        enc = tokenizer(texts, padding="max_length", truncation=True, max_length=args.max_length, return_tensors="pt")
        ids, mask = enc["input_ids"], enc["attention_mask"]
    else:  # hashing "tokenizer"
        ids = torch.zeros(len(texts), args.max_length, dtype=torch.long)
        for i, t in enumerate(texts):
            toks = [5 + sum(w.encode()) * 31 % (vocab_size - 5) for w in t.split()][: args.max_length]
            ids[i, : len(toks)] = torch.tensor(toks)
        mask = (ids != 0).long()
    return TensorDataset(ids, mask, torch.tensor(labels))


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    print("commit:", git_hash())
    device = torch.device("cuda" if torch.cuda.is_available() and not args.no_cuda else "cpu")

    tokenizer = None
    if args.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        model = BertForSequenceClassification.from_pretrained(args.model_name_or_path, num_labels=2)
    else:
        config = BertConfig(vocab_size=30522, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
                            intermediate_size=512, max_position_embeddings=512, num_labels=2)
        model = BertForSequenceClassification(config)
    model.to(device)

    dataset = load_data(args, tokenizer, model.config.vocab_size)
    n_eval = max(1, len(dataset) // 10)
    train_ds, eval_ds = torch.utils.data.random_split(dataset, [len(dataset) - n_eval, n_eval])
    train_dl = DataLoader(train_ds, shuffle=True, batch_size=args.per_device_train_batch_size)
    eval_dl = DataLoader(eval_ds, batch_size=args.per_device_train_batch_size)

    optimizer = AdamW(model.parameters(), lr=args.learning_rate)
    max_train_steps = args.num_train_epochs * len(train_dl)
    lr_scheduler = get_scheduler(args.lr_scheduler_type, optimizer=optimizer,
                                 num_warmup_steps=args.num_warmup_steps, num_training_steps=max_train_steps)
    compiled = torch.compile(model) if args.compile else model

    progress_bar = tqdm(range(max_train_steps))
    for epoch in range(args.num_train_epochs):
        model.train()
        for input_ids, attention_mask, labels in train_dl:
            outputs = compiled(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device),
                               labels=labels.to(device))
            outputs.loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            progress_bar.update(1)
            progress_bar.set_description(f"loss {outputs.loss.item():.4f}")

        model.eval()
        correct = seen = 0
        for input_ids, attention_mask, labels in eval_dl:
            with torch.no_grad():
                logits = compiled(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device)).logits
            correct += (logits.argmax(-1).cpu() == labels).sum().item()
            seen += len(labels)
        print(f"epoch {epoch}: accuracy {correct / seen:.4f}")
        model.save_pretrained(os.path.join(args.output_dir, f"epoch_{epoch}"))


if __name__ == "__main__":
    main()
