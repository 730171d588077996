"""Trains a small GPT with the Trainer of Transformers and compressed gradients, and resumes where it was stopped.

torchrun --nproc-per-node=2 examples/with_trainer.py --steps 200
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from gradwire.integrations.transformers import Compress

parser = argparse.ArgumentParser()
parser.add_argument("--codec", default="qsgd:bits=4")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--folder", default="run-trainer")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
# The text is a file of Python's own, so there is nothing to download. The Trainer gives each rank its share of the windows.
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
windows = [{"input_ids": window, "labels": window} for window in text[: len(text) // 64 * 64].view(-1, 64)]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)

arguments = TrainingArguments(
    args.folder,
    use_cpu=True,
    max_steps=args.steps,
    save_steps=50,
    logging_steps=10,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=windows)
compress = Compress(trainer, args.codec)
trainer.add_callback(compress)
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.folder) if Path(args.folder).exists() else None)
if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[-1]:.3f} after {trainer.state.global_step} steps; {compress.hook.stats()}")
