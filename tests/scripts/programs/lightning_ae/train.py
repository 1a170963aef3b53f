import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from datamodule import MNISTDataModule


class Encoder(nn.Module):
    def __init__(self, latent_dim):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU(),
                                 nn.Linear(64, latent_dim))

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self, latent_dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(latent_dim, 64), nn.GELU(), nn.Linear(64, 256), nn.GELU(),
                                 nn.Linear(256, 28 * 28))

    def forward(self, z):
        return self.net(z).view(-1, 1, 28, 28)


class LitAutoEncoder(L.LightningModule):
    def __init__(self, latent_dim: int = 16, lr: float = 1e-3, weight_decay: float = 1e-2, max_epochs: int = 20):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = Encoder(latent_dim)
        self.decoder = Decoder(latent_dim)
        self.example_input_array = torch.zeros(2, 1, 28, 28)

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def _shared_step(self, batch):
        x, _ = batch
        x_hat = self(x)
        return F.mse_loss(x_hat, x)

    def training_step(self, batch, batch_idx):
        return self._shared_step(batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        # self.log() inside a compiled training_step makes dynamo unhappy
        self.log("train/loss", outputs["loss"], prog_bar=True)

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self._shared_step(batch), prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self._shared_step(batch))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=self.hparams.max_epochs)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "epoch"}}


def main():
    L.seed_everything(7, workers=True)
    torch.set_float32_matmul_precision("high")

    dm = MNISTDataModule()
    model = LitAutoEncoder()
    model = torch.compile(model)

    trainer = L.Trainer(
        max_epochs=20,
        accelerator="auto",
        devices="auto",
        gradient_clip_val=1.0,
        logger=CSVLogger("logs", name="ae"),
        callbacks=[ModelCheckpoint(monitor="val/loss", mode="min", filename="ae-{epoch:02d}"),
                   LearningRateMonitor("epoch")],
        log_every_n_steps=25,
    )
    trainer.fit(model, datamodule=dm)
    trainer.test(datamodule=dm, ckpt_path="best")


if __name__ == "__main__":
    main()
