"""The models that torch_lab.py trains. Each takes a batch and its targets, and returns the loss."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch_plan import MODELS

LSTM_WORDS, LSTM_WIDTH, LSTM_TOKENS = 10_000, 200, 2
GPT_WORDS, GPT_WIDTH, GPT_LAYERS, GPT_HEADS, GPT_TOKENS = 2048, 192, 6, 6, 64


class Lstm(nn.Module):
    """Two layers, not tied. The state of a batch goes on in the next, without its gradient."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LSTM_WORDS, LSTM_WIDTH)
        self.lstm = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH, num_layers=2)
        self.head = nn.Linear(LSTM_WIDTH, LSTM_WORDS)
        self.state = None
        for weights in self.parameters():
            nn.init.uniform_(weights, -0.1, 0.1)

    def forward(self, words, following):
        """Tokens first, lanes second."""
        hidden, state = self.lstm(self.embed(words), self.state)
        self.state = tuple(part.detach() for part in state)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), following.flatten())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(GPT_WIDTH), nn.LayerNorm(GPT_WIDTH)
        self.queries_keys_values = nn.Linear(GPT_WIDTH, 3 * GPT_WIDTH)
        self.out = nn.Linear(GPT_WIDTH, GPT_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(GPT_WIDTH, 4 * GPT_WIDTH), nn.GELU(), nn.Linear(4 * GPT_WIDTH, GPT_WIDTH))

    def forward(self, x):
        batch, tokens, width = x.shape
        heads = self.queries_keys_values(self.before_attention(x)).view(batch, tokens, 3, GPT_HEADS, width // GPT_HEADS)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """The embedding is the head, too."""

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(GPT_WORDS, GPT_WIDTH), nn.Embedding(GPT_TOKENS, GPT_WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(GPT_LAYERS)))
        self.last = nn.LayerNorm(GPT_WIDTH)
        for name, weights in self.named_parameters():
            if weights.dim() == 2:
                ends_a_branch = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(weights, std=0.02 / (math.sqrt(2 * GPT_LAYERS) if ends_a_branch else 1))

    def forward(self, words, following):
        """Lanes first, tokens second."""
        x = self.blocks(self.embed(words) + self.places.weight)
        scores = functional.linear(self.last(x), self.embed.weight)
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


class Residual(nn.Module):
    """Two convolutions beside a shortcut without parameters: every second pixel, and zeros for new channels."""

    def __init__(self, channels_in, channels):
        super().__init__()
        self.stride = channels // channels_in
        self.first = nn.Conv2d(channels_in, channels, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.second_norm(self.second(functional.relu(self.first_norm(self.first(x)))))
        new = y.shape[1] - x.shape[1]
        short = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, new // 2, new // 2))
        return functional.relu(y + short)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [16] * 4 + [32] * 3 + [64] * 3
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*(Residual(*pair) for pair in zip(widths, widths[1:])))
        self.head = nn.Linear(64, 10)
        for weights in self.parameters():
            if weights.dim() == 4:
                nn.init.kaiming_normal_(weights)

    def scores(self, images):
        x = self.blocks(functional.relu(self.norm(self.first(images))))
        return self.head(x.mean(dim=(2, 3)))

    def forward(self, images, labels):
        return functional.cross_entropy(self.scores(images), labels)


def make(name, seed=1):
    """The model, of equal parameters at all ranks."""
    torch.manual_seed(seed)
    model = {"lstm": Lstm, "gpt": Gpt, "resnet": ResNet20}[name]()
    params = sum(weights.numel() for weights in model.parameters())
    assert params == MODELS[name].params, f"{name} has {params} parameters, expected {MODELS[name].params}"
    return model


def random_batch(name, random):
    """In the shapes of the model's data; what it holds does not matter for time."""
    batch = MODELS[name].batch
    if name == "resnet":
        return torch.randn(batch, 3, 32, 32, generator=random), torch.randint(10, (batch,), generator=random)
    shape, words = ((LSTM_TOKENS, batch), LSTM_WORDS) if name == "lstm" else ((batch, GPT_TOKENS), GPT_WORDS)
    return tuple(torch.randint(words, shape, generator=random) for _ in range(2))
