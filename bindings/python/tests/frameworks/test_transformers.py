"""The callback of the Trainer of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launched import CODEC, Batches, Judged, as_torchrun, kill, killed_and_resumed, misfits
from ranks import Raised, parameters, results, run

transformers = pytest.importorskip("transformers", reason="Transformers is not installed: pip install transformers accelerate")
from gradwire.integrations.transformers import Compress  # noqa: E402


class Kill(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 6:
            kill()


def trainer_of(rank: int, world: int, model: Judged, folder: str, **options: Any) -> Any:
    as_torchrun(rank, world)
    arguments = transformers.TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=8,
        save_steps=4,
        per_device_train_batch_size=8,
        learning_rate=0.1,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        **{"optim": "sgd", **options},
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=Batches(64))


def train(rank: int, world: int, folder: str, kills: bool, resumes: bool) -> dict[str, Any]:
    model = Judged()
    trainer = trainer_of(rank, world, model, folder)
    compress = Compress(trainer, CODEC, check_every=1)
    trainer.add_callback(compress)
    if kills:
        trainer.add_callback(Kill())
    trainer.train(resume_from_checkpoint=resumes)
    assert compress.hook is not None
    return {"parameters": parameters(model), "steps": compress.hook.stats().steps, "step": compress.hook.step}


def compiled(rank: int, world: int, folder: str, is_compiled: bool) -> bytes:
    model = Judged()
    trainer = trainer_of(
        rank, world, model, folder, torch_compile=is_compiled, torch_compile_backend="eager" if is_compiled else None
    )
    compress = Compress(trainer, CODEC, check_every=1)
    trainer.add_callback(compress)
    trainer.train()
    assert hasattr(trainer.model_wrapped, "_orig_mod") == is_compiled
    assert compress.hook is not None
    assert compress.hook.stats().steps == 8
    return parameters(model)


def test_a_compiled_model_is_exchanged_like_any_other(tmp_path: Path) -> None:
    assert results(2, compiled, str(tmp_path), True) == results(2, compiled, str(tmp_path), False)


def with_adamw(rank: int, world: int, folder: str, codec: str) -> list[str]:
    # The optimizer that the Trainer has by default.
    trainer = trainer_of(rank, world, Judged(), folder, optim="adamw_torch")
    trainer.add_callback(Compress(trainer, codec))
    return misfits(trainer.train)


@pytest.mark.parametrize(("codec", "first"), [(CODEC, ["AdamW"]), ("qsgd:bits=4", [])])
def test_one_line_says_that_the_codec_does_not_go_with_the_optimizer(tmp_path: Path, codec: str, first: list[str]) -> None:
    assert results(2, with_adamw, str(tmp_path), codec) == [first, []]


def unwrapped(rank: int, world: int, folder: str) -> None:
    trainer = trainer_of(rank, world, Judged(), folder)
    Compress(trainer, CODEC).on_train_begin(trainer.args, trainer.state, trainer.control)


def test_a_training_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    resumed, whole = killed_and_resumed(train, str(tmp_path))
    assert [one["parameters"] for one in resumed] == [one["parameters"] for one in whole]
    assert [(one["steps"], one["step"]) for one in resumed] == [(4, 8)] * 2
    assert [(one["steps"], one["step"]) for one in whole] == [(8, 8)] * 2


def test_a_trainer_without_ddp_is_refused(tmp_path: Path) -> None:
    (raised,) = run(1, unwrapped, str(tmp_path))
    assert isinstance(raised, Raised), raised
    assert raised.name == "TypeError"
    assert "the trainer wraps the model as Judged, expected DistributedDataParallel" in raised.text
