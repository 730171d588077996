"""The callback of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launched import CODEC, Batches, Judged, as_torchrun, kill, killed_and_resumed, misfits
from ranks import Raised, parameters, results, run
from torch.utils.data import DataLoader

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install lightning")
from gradwire.integrations.lightning import Compress  # noqa: E402


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.judged = Judged()

    def training_step(self, batch: dict[str, torch.Tensor], at: int) -> torch.Tensor:
        return self.judged(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)

    def train_dataloader(self) -> Any:
        return DataLoader(Batches(32), batch_size=8)


class WithAdamW(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class Kill(pl.Callback):
    """In the middle of the third epoch of two steps each."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            kill()


def fit(rank: int, world: int, folder: str, kills: bool, resumes: bool, strategy: str = "ddp") -> dict[str, Any]:
    as_torchrun(rank, world)
    compress, model = Compress(CODEC, check_every=1), Module()
    saves = pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=strategy,
        max_epochs=4,
        callbacks=[compress, saves, *([Kill()] if kills else [])],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, ckpt_path=f"{folder}/epoch=1.ckpt" if resumes else None)
    assert compress.hook is not None
    return {"parameters": parameters(model), "steps": compress.hook.stats().steps, "step": compress.hook.step}


def test_a_fit_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    resumed, whole = killed_and_resumed(fit, str(tmp_path))
    assert [one["parameters"] for one in resumed] == [one["parameters"] for one in whole]
    assert [(one["steps"], one["step"]) for one in resumed] == [(4, 8)] * 2
    assert [(one["steps"], one["step"]) for one in whole] == [(8, 8)] * 2


def with_adamw(rank: int, world: int, codec: str) -> list[str]:
    as_torchrun(rank, world)
    shows = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", devices=world, strategy="ddp", max_epochs=1, callbacks=[Compress(codec)], **shows)
    return misfits(lambda: trainer.fit(WithAdamW()))


@pytest.mark.parametrize(("codec", "first"), [(CODEC, ["AdamW"]), ("qsgd:bits=4", [])])
def test_one_line_says_that_the_codec_does_not_go_with_the_optimizer(codec: str, first: list[str]) -> None:
    assert results(2, with_adamw, codec) == [first, []]


def test_a_strategy_without_ddp_is_refused(tmp_path: Path) -> None:
    (raised,) = run(1, fit, str(tmp_path), False, False, "auto")
    assert isinstance(raised, Raised), raised
    assert raised.name == "TypeError"
    assert "expected DistributedDataParallel: use Trainer(strategy=" in raised.text
