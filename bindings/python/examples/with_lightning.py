"""Trains a small text model with Lightning and compressed gradients, and resumes where it was stopped.

torchrun --nproc-per-node=2 examples/with_lightning.py --epochs 4
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from gradwire.integrations.lightning import Compress

parser = argparse.ArgumentParser()
parser.add_argument("--codec", default="topk:density=0.01")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--folder", type=Path, default=Path("run-lightning"))
args = parser.parse_args()


class NextByte(LightningModule):
    """Tells the next byte of a text from those before it."""

    def __init__(self):
        """An LSTM of one layer."""
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(256, 64), nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 256)

    def training_step(self, window, _):
        """The loss of a batch."""
        hidden, _ = self.lstm(self.embed(window[:, :-1]))
        loss = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), window[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        """Plain SGD, which goes with top-k."""
        return torch.optim.SGD(self.parameters(), lr=1.0)


torch.set_num_threads(1)
seed_everything(0, verbose=False)
# The text is a file of Python's own, so there is nothing to download. Lightning gives each rank its share of the windows.
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
batches = DataLoader(text[: len(text) // 64 * 64].view(-1, 64), batch_size=16, shuffle=True)

compress = Compress(args.codec)
saves = ModelCheckpoint(args.folder, save_last=True)
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=args.epochs,
    callbacks=[compress, saves],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = args.folder / "last.ckpt"
trainer.fit(NextByte(), batches, ckpt_path=last if last.exists() else None)
if trainer.is_global_zero:
    print(f"loss {trainer.callback_metrics['loss']:.3f} after {trainer.global_step} steps; {compress.hook.stats()}")
