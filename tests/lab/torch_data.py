"""Real data for torch_lab.py, each from the folder of its name in GRADWIRE_DATA/data."""

import gzip
import os
import re
from collections import Counter
from pathlib import Path

import torch
from torch_models import GPT_TOKENS, GPT_WORDS, LSTM_TOKENS, LSTM_WORDS
from torch_plan import MODELS

# Words of the validation part, of 73,760: all ranks wait for it.
LSTM_EVALUATED = 20_000
# Pieces of text, each with the white space before it.
PIECE = re.compile(r"\s*\w+|\s*[^\w\s]|\s")
MEANS = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATIONS = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


def folder(name):
    return Path(os.environ["GRADWIRE_DATA"]) / "data" / name


def load(model):
    """Of a kind that has `batch(step, rank, ranks)` and `evaluate(model)`."""
    return {"lstm": PennTreebank, "gpt": Shakespeare, "resnet": Cifar}[model]()


class PennTreebank:
    """Each lane reads a part of the text of its own, from its beginning to its end and again."""

    def __init__(self):
        train = gzip.decompress((folder("ptb") / "ptb.train.txt.gz").read_bytes()).decode()
        numbers = {word: number for number, word in enumerate(sorted({"<eos>", *train.split()}))}
        assert len(numbers) == LSTM_WORDS
        self.train = _numbered(train, numbers)
        self.valid = _numbered((folder("ptb") / "ptb.valid.txt").read_text(), numbers)[:LSTM_EVALUATED]

    def batch(self, step, rank, ranks):
        lanes = MODELS["lstm"].batch * ranks
        rows = self.train[: len(self.train) // lanes * lanes].view(lanes, -1)
        own = rows[rank * MODELS["lstm"].batch : (rank + 1) * MODELS["lstm"].batch]
        start = step * LSTM_TOKENS % (own.shape[1] - LSTM_TOKENS)
        window = own[:, start : start + LSTM_TOKENS + 1].t()
        return window[:-1], window[1:]

    def evaluate(self, model):
        kept, model.state = model.state, None
        rows = self.valid[: len(self.valid) // 20 * 20].view(20, -1).t()
        losses = [(model(rows[at : at + 35], rows[at + 1 : at + 36]).item(), 1) for at in range(0, len(rows) - 36, 35)]
        model.state = kept
        return _mean(losses)


class Shakespeare:
    """Numbers of characters, and of the pieces that come most often; other pieces are spelled."""

    def __init__(self):
        text = (folder("tiny-shakespeare") / "input.txt").read_text()
        pieces = PIECE.findall(text)
        characters = sorted(set(text))
        often = [piece for piece, _ in Counter(pieces).most_common() if len(piece) > 1]
        numbers = {piece: number for number, piece in enumerate([*characters, *often][:GPT_WORDS])}
        spelled = [[numbers[piece]] if piece in numbers else [numbers[one] for one in piece] for piece in pieces]
        tokens = torch.tensor([number for piece in spelled for number in piece])
        cut = len(tokens) * 9 // 10
        self.train, self.valid = tokens[:cut], tokens[cut:]

    def batch(self, step, rank, ranks):
        random = torch.Generator().manual_seed(step * ranks + rank)
        starts = torch.randint(len(self.train) - GPT_TOKENS, (MODELS["gpt"].batch, 1), generator=random)
        window = self.train[starts + torch.arange(GPT_TOKENS + 1)]
        return window[:, :-1], window[:, 1:]

    def evaluate(self, model):
        rows = self.valid[: (len(self.valid) - 1) // GPT_TOKENS * GPT_TOKENS].view(-1, GPT_TOKENS)
        following = self.valid[1 : rows.numel() + 1].view(-1, GPT_TOKENS)
        return _mean([(model(*pair).item(), len(pair[0])) for pair in zip(rows.split(32), following.split(32))])


class Cifar:
    """Images are mirrored and moved by up to four pixels by chance."""

    def __init__(self):
        self.train = _images("data_batch_1.bin.gz")
        self.test = _images("test_batch.bin.gz")

    def batch(self, step, rank, ranks):
        images, labels = self.train
        size = MODELS["resnet"].batch
        epoch, at = divmod((step * ranks + rank) * size, len(labels) // (size * ranks) * size * ranks)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))[at : at + size]
        random = torch.Generator().manual_seed(step * ranks + rank)
        padded = torch.nn.functional.pad(images[order], (4, 4, 4, 4))
        moved = []
        for image in padded:
            down, right = torch.randint(9, (2,), generator=random).tolist()
            image = image[:, down : down + 32, right : right + 32]
            moved.append(image.flip(2) if torch.randint(2, (), generator=random) else image)
        return torch.stack(moved), labels[order]

    def evaluate(self, model):
        model.eval()
        parts = zip(self.test[0].split(200), self.test[1].split(200))
        share = _mean([((model.scores(x).argmax(1) == y).float().mean().item(), len(y)) for x, y in parts])
        model.train()
        return share


def _numbered(text, numbers):
    return torch.tensor([numbers[word] for line in text.splitlines() for word in [*line.split(), "<eos>"]])


def _images(name):
    records = torch.frombuffer(
        bytearray(gzip.decompress((folder("cifar-10") / "cifar-10-batches-bin" / name).read_bytes())), dtype=torch.uint8
    ).view(-1, 3073)
    images = records[:, 1:].view(-1, 3, 32, 32).float() / 255
    return (images - MEANS) / DEVIATIONS, records[:, 0].long()


def _mean(parts):
    """Of pairs of a value and its weight."""
    return sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts)
