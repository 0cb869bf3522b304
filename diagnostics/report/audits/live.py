"""The words of what is asked of a server: templates by name."""

from __future__ import annotations

# A fault, by its family.
FAULTS: dict[str, str] = {
    "settings/logprobs_mode": "the server reports {mode}: log-probs from before the temperature and what cuts"
    " the distribution, at temperature {temperature:.4g}",
    "settings/length": "the server takes {engine} tokens at most, the trainer needs {trainer}",
    "settings/defaults": "the server's own defaults change what is sampled where a request leaves them out: {told}",
    "ids/special": "the server's tokenizer puts {count} token{s} before a text that the trainer's does not: {ids}",
    "ids/template": "the server's chat template gives other ids than the checkpoint's, from place {place} on",
    "ids/vocabulary": "the engine samples ids that the tokenizer does not have: {share:.0%} of {count}",
    "weights/version": "the engine holds the weights of {name}, not those of the checkpoint",
    "weights/partial": "tensors of the checkpoint did not arrive: {tensors} are still those of {name}",
    "weights/between": "the engine holds weights {slope:.2f} of the way from {name} to the checkpoint",
    "weights/beyond": "the engine holds weights {slope:.2f} times as far from {name} as the checkpoint does",
    "weights/unknown": "the engine computes with other weights than the checkpoint's, and with none of those compared",
    "weights/position": "the engine computes as the checkpoint says up to token {place}, and otherwise behind it",
    "cache/stale": "keys of older weights are served from the prefix cache: what is cached differs, the same"
    " prompt uncached does not",
    "cache/partial": "keys of other weights are served from the prefix cache, and the weights are wrong, too",
    "sampling/temperature": "the engine samples at temperature {value:.3f}; the trainer computes with {expected:.3g}",
    "sampling/top_p": "the engine samples within top_p {value:.4g}; the trainer computes with {expected:.4g}",
    "sampling/top_k": "the engine samples from the {value} most likely tokens (top_k); the trainer computes with"
    " {expected}",
    "sampling/min_p": "the engine leaves out tokens below min_p {value:.4g}; the trainer computes with {expected:.4g}",
    "sampling/repetition_penalty": "the engine applies a repetition penalty of {value:.3f}; the trainer computes with"
    " {expected:.3g}",
    "sampling/presence_penalty": "the engine applies a presence penalty of {value:.3f}; the trainer computes with"
    " {expected:.3g}",
    "sampling/frequency_penalty": "the engine applies a frequency penalty of {value:.3f}; the trainer computes with"
    " {expected:.3g}",
    "sampling/bias": "the engine adds {value:+.2f} to the logit of token {id}",
    "sampling/greedy": "the engine takes the most likely token every time: samples of a prompt are all the same",
    "sampling/seed": "the engine gives the same sample again and again: one seed for all",
    "sampling/law": "the engine's log-probs fit no law that was tried",
    "logprobs/raw": "the reported log-probs are those of temperature 1, the samples those of {value:.2f}",
    "logprobs/shift": "the reported log-probs are those of the token {shift:+d} places away",
    "logprobs/token": "a log-prob stands beside another token than the sampled one",
    "replicas/weights": "replicas answer differently: {other} is {residual:.3g} off where the first is {first:.3g}",
}
# A class of faults, as it is called where nothing is wrong with it or nothing was asked: the family, or its head.
CLASSES: dict[str, str] = {
    "settings": "what the server says of itself",
    "ids": "ids and template",
    "weights": "weights and positions",
    "cache": "keys in the prefix cache",
    "sampling": "the law that is sampled from",
    "sampling/defaults": "the law that is sampled from where a request says nothing",
    "logprobs": "which log-probs are reported",
    "replicas": "replicas",
}
# What was seen, and what would decide it, by the name of the fact.
FACTS: dict[str, str] = {}
