"""Draw the next tokens with random numbers that depend only on the request's seed, the position and the token.

This needs no generator with a state to hand over, and a repeated draw gives the same token.
"""

import torch
from asked import MOST_CANDIDATES
from torch import Tensor

_SPREAD, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685  # of splitmix64, as signed


def draw(logits: Tensor, positions: Tensor, seeds: Tensor, top_k: Tensor, temperatures: Tensor) -> Tensor:
    """Return a token for each row of logits [rows, vocab].  positions: of the new tokens.  top_k: 1 to MOST_CANDIDATES.

    Of the top_k most likely tokens take the one with the highest sum of logit / temperature and a random number of the Gumbel
    distribution: that is a draw from the softmax.  Temperature 0: the highest logit.  Of equal ones, the lowest token number.
    """
    most = min(MOST_CANDIDATES, logits.shape[1])
    values, tokens = logits.float().topk(most, dim=1)
    is_greedy = temperatures[:, None] == 0
    noise = -torch.log(-torch.log(uniform(seeds[:, None], positions[:, None], tokens)))
    scores = torch.where(is_greedy, values, values / temperatures[:, None] + noise)
    last = values.gather(1, top_k.clamp(1, most)[:, None] - 1)  # tokens as likely as the last candidate count too
    scores = scores.masked_fill(values < last, float("-inf"))
    is_best = scores == scores.amax(1, keepdim=True)
    return tokens.masked_fill(~is_best, logits.shape[1]).amin(1)


def uniform(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return random numbers between 0 and 1, both excluded."""
    word = _mixed(_mixed(seeds + positions * _SPREAD) + tokens * _SPREAD)
    return ((word >> 41).bitwise_and_((1 << 23) - 1).float() + 0.5) / (1 << 23)


def _mixed(word: Tensor) -> Tensor:
    """Mix bits with the last steps of splitmix64.  Products wrap; the masks after the shifts remove the copied sign bits."""
    word = word + _SPREAD
    word = (word ^ (word >> 30 & (1 << 34) - 1)) * _FIRST
    word = (word ^ (word >> 27 & (1 << 37) - 1)) * _SECOND
    return word ^ (word >> 31 & (1 << 33) - 1)
