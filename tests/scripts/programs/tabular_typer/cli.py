from enum import Enum
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset, random_split

from engine import Engine
from tabular import FTTransformer, Schema

app = typer.Typer(add_completion=False, help="Small tabular models.")
console = Console()
HERE = Path(__file__).resolve().parent


class Device(str, Enum):
    cuda = "cuda"
    cpu = "cpu"
    mps = "mps"


def make_model(schema: Schema):
    return FTTransformer(len(schema.numeric), list(schema.categorical.values()))


@app.command()
def train(
    data: Path = typer.Option(Path("data/adult_train.csv"), help="training csv"),
    schema: Path = typer.Option(HERE / "schema.yaml"),
    epochs: int = 40,
    batch_size: int = 256,
    lr: float = 1e-3,
    device: Device = Device.cuda,
    compile: bool = True,
    patience: int = 6,
    out: Path = Path("model.pt"),
):
    torch.manual_seed(0)
    sch = Schema(schema)
    ds = TensorDataset(*sch.read(data))
    n_val = len(ds) // 10
    tr, va = random_split(ds, [len(ds) - n_val, n_val], generator=torch.Generator().manual_seed(1))
    model = make_model(sch)
    model.fit_scaler(ds.tensors[0][tr.indices])
    eng = Engine(model, device.value, lr=lr, compile=compile)
    trl, val = DataLoader(tr, batch_size, shuffle=True, drop_last=True), DataLoader(va, batch_size)

    bad = 0
    for epoch in range(epochs):
        loss = eng.fit_epoch(trl)
        vloss, acc = eng.evaluate(val)
        console.print(f"[bold]{epoch:3d}[/] train {loss:.4f} val {vloss:.4f} acc {acc:.3f}")
        bad = 0 if vloss < eng.best else bad + 1
        eng.save(out, vloss)
        if bad > patience:
            console.print("early stop")
            raise typer.Exit()


@app.command()
def predict(
    data: Path = Path("data/adult_test.csv"),
    schema: Path = typer.Option(HERE / "schema.yaml"),
    ckpt: Path = Path("model.pt"),
    device: Device = Device.cuda,
    show: int = 10,
):
    sch = Schema(schema)
    num, cat, y = sch.read(data)
    model = make_model(sch).to(device.value)
    model.load_state_dict(torch.load(ckpt, map_location=device.value)["model"])
    model.eval()
    with torch.inference_mode():
        p = model(num.to(device.value), cat.to(device.value)).sigmoid().cpu()
    table = Table("row", "p", "label")
    for i in range(min(show, len(p))):
        table.add_row(str(i), f"{p[i]:.3f}", str(int(y[i])))
    console.print(table)
    console.print("accuracy", float(((p > 0.5) == (y > 0.5)).float().mean()))


if __name__ == "__main__":
    app()
