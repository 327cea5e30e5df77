"""Which token comes next: drawn with random numbers that depend on nothing but the request's seed, the position and the token.

So there is no generator whose state would have to be carried on, and who draws again, draws the same.
"""

import torch
from asked import MOST_CANDIDATES
from torch import Tensor

_SPREAD, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685  # of splitmix64, as signed


def draw(logits: Tensor, positions: Tensor, seeds: Tensor, top_k: Tensor, temperatures: Tensor) -> Tensor:
    """A token for each row of logits [rows, vocab].  positions: where it will stand.  top_k: 1 to MOST_CANDIDATES.

    Of the most likely tokens the one whose logit / temperature plus a random number of Gumbel's distribution is highest: that
    is a draw from the softmax.  Temperature 0: the highest logit.  Of equal ones the token with the lowest number.
    """
    most = min(MOST_CANDIDATES, logits.shape[1])
    values, tokens = logits.float().topk(most, dim=1)
    is_greedy = temperatures[:, None] == 0
    noise = -torch.log(-torch.log(uniform(seeds[:, None], positions[:, None], tokens)))
    scores = torch.where(is_greedy, values, values / temperatures[:, None] + noise)
    last = values.gather(1, top_k.clamp(1, most)[:, None] - 1)  # a candidate is whoever is as likely as the last of them
    scores = scores.masked_fill(values < last, float("-inf"))
    is_best = scores == scores.amax(1, keepdim=True)
    return tokens.masked_fill(~is_best, logits.shape[1]).amin(1)


def uniform(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Numbers between 0 and 1, neither included."""
    word = _mixed(_mixed(seeds + positions * _SPREAD) + tokens * _SPREAD)
    return ((word >> 41).bitwise_and_((1 << 23) - 1).float() + 0.5) / (1 << 23)


def _mixed(word: Tensor) -> Tensor:
    """splitmix64's last steps; products wrap, and a shift fills with zeros once the sign is masked off."""
    word = word + _SPREAD
    word = (word ^ (word >> 30 & (1 << 34) - 1)) * _FIRST
    word = (word ^ (word >> 27 & (1 << 37) - 1)) * _SECOND
    return word ^ (word >> 31 & (1 << 33) - 1)
