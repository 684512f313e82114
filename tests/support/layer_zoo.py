"""One small model for every layer that winsor claims to serve, with inputs for it."""

from __future__ import annotations

from collections.abc import Callable

import engine_zoo as zoo
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def reals(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def tokens(size: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, size, shape)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def frozen_weight() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Conv1d(1, 2, 2))
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    return nn.Sequential(model[0], model[1], model[2])


def batch_norm_in_eval() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
    model[1].running_mean.uniform_(-1, 1)
    return model.eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(5, 3), reals(6, 5)),
    "linear, wide": (lambda: nn.Linear(3, 7, bias=False), reals(6, 3)),
    "linear at places": (lambda: nn.Linear(5, 3), reals(6, 2, 4, 5)),
    "linear, ghost": (lambda: nn.Linear(40, 30), reals(4, 3, 40)),
    "MLP": (
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        reals(6, 5),
    ),
    "Conv1D": (
        lambda: nn.Sequential(zoo.Conv1D(6, 5), nn.Tanh(), zoo.Conv1D(4, 6)),
        reals(4, 3, 5),
    ),
    "conv1d, same": (
        lambda: nn.Conv1d(3, 4, 4, padding="same", dilation=2),
        reals(5, 3, 11),
    ),
    "conv2d, groups": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        reals(5, 4, 9, 8),
    ),
    "conv2d, ghost": (lambda: nn.Conv2d(20, 24, 3), reals(3, 20, 4, 4)),
    "conv3d, circular": (
        lambda: nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular"),
        reals(3, 2, 4, 3, 4),
    ),
    "conv2d, depthwise, valid": (
        lambda: nn.Conv2d(4, 4, 3, groups=4, padding="valid"),
        reals(3, 4, 6, 6),
    ),
    "transposed conv1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        reals(4, 4, 5),
    ),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(3, 4, (2, 3), dilation=2), reals(3, 3, 4, 5)),
    "transposed conv3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), reals(3, 2, 2, 3, 2)),
    "conv twice": (zoo.ConvTwice, reals(4, 3, 5, 5)),
    "embedding": (lambda: nn.Embedding(9, 4, padding_idx=2), tokens(9, 6, 5)),
    "embedding, long": (lambda: nn.Embedding(300, 4), tokens(300, 5, 3, 2)),
    "bag, mean": (lambda: nn.EmbeddingBag(9, 4, padding_idx=1), tokens(9, 6, 5)),
    "bag, sum": (lambda: nn.EmbeddingBag(9, 4, mode="sum"), tokens(9, 6, 5)),
    "bag, max": (lambda: nn.EmbeddingBag(9, 4, mode="max"), tokens(9, 6, 5)),
    "layer norm": (lambda: nn.LayerNorm((3, 4)), reals(5, 2, 3, 4)),
    "layer norm, rows": (lambda: nn.LayerNorm(4, bias=False), reals(5, 4)),
    "RMS norm": (lambda: nn.RMSNorm(4), reals(5, 3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 6), reals(5, 6, 3, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), reals(5, 3, 4, 4)),
    "batch norm in eval": (batch_norm_in_eval, reals(5, 2, 5, 5)),
    "RNN": (
        lambda: zoo.Recurrent(nn.RNN, num_layers=2, nonlinearity="relu", batch_first=True),
        reals(4, 5, 4),
    ),
    "LSTM": (
        lambda: zoo.Recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True),
        reals(4, 5, 4),
    ),
    "LSTM, projected": (lambda: zoo.Recurrent(nn.LSTM, proj_size=3, bias=False), reals(4, 5, 4)),
    "GRU": (lambda: zoo.Recurrent(nn.GRU, num_layers=2, bidirectional=True), reals(4, 6, 4)),
    "cells": (zoo.Cells, reals(4, 3, 4)),
    "attention": (lambda: zoo.Attention(batch_first=True), reals(4, 6, 8)),
    "attention, time first": (lambda: zoo.Attention(), reals(4, 6, 8)),
    "cross attention": (lambda: zoo.Attention(cross=True, batch_first=True), reals(4, 6, 8)),
    "cross attention, own sizes": (
        lambda: zoo.Attention(cross=True, batch_first=True, kdim=8, vdim=8),
        reals(4, 6, 8),
    ),
    "transformer": (encoder, reals(4, 5, 8)),
    "ResNet": (zoo.Residual, reals(4, 3, 8, 8)),
    "bare parameters": (zoo.Bare, reals(6, 4)),
    "class token": (zoo.ClassToken, reals(5, 3, 6)),
    "twice": (zoo.Twice, reals(6, 4)),
    "tied": (zoo.TiedLanguageModel, tokens(11, 6, 4)),
    "tied, shared positions": (lambda: zoo.TiedLanguageModel(expanded=True), tokens(11, 6, 4)),
    "LoRA": (zoo.LoRA, reals(5, 3, 6)),
    "frozen weights": (frozen_weight, reals(6, 4)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), reals(6, 4)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), reals(6, 4)),
}
