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
    "ids/text": "the server's tokenizer gives other ids than the checkpoint's, from place {place} on",
    "ids/vocabulary": "the engine samples ids that the tokenizer does not have: {share:.0%} of {count}",
    "weights/version": "the engine holds the weights of {name}, not those of the checkpoint",
    "weights/partial": "tensors of the checkpoint did not arrive: {tensors} are still those of {name}",
    "weights/between": "the engine holds weights {slope:.2f} of the way from {name} to the checkpoint",
    "weights/beyond": "the engine holds weights {slope:.2f} times as far from {name} as the checkpoint does",
    "weights/past": "the engine holds weights beyond {name}, {slope:.2f} times as far from the checkpoint",
    "weights/older": "the engine holds weights from before {name}, the oldest that was compared: {slope:.2f} times as"
    " far back from the checkpoint",
    "weights/newer": "the engine holds weights newer than every checkpoint known: beyond {name}, {slope:.2f} of the way"
    " that leads there from {before}",
    "weights/adapter": "the engine adds the adapter to its base {times:.2f} times",
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
    "logprobs/raw": "the reported log-probs are those of temperature {reported:.2f}, the samples those of {value:.2f}",
    "logprobs/shift": "the reported log-probs are those of the token {shift:+d} places away",
    "logprobs/token": "a log-prob stands beside another token than the sampled one",
    "pairing": "samples stand beside prompts that are not theirs: {moved} of {count} fit another prompt better",
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
    "pairing": "prompts and their samples",
}
# What was seen, and what would decide it, by the name of the fact.
FACTS: dict[str, str] = {
    "tokenizer_unread": "{told}",
    "endpoint_lacks": "it takes {lacks}",
    "no_template": "a chat template in the checkpoint's folder",
    "template_differs": "the checkpoint's: {ours!r}; the server's: {theirs!r}",
    "type": "the engine computes in {dtype}; the checkpoint is kept in {kept}",
    "does_not_fit": "{name} has other tensors, and was left out",
    "more_tokens": "--tokens {tokens}",
    "too_near": "{name} can't be told from it by so few tokens (log-probs {apart:.2g} apart)",
    "slope": "towards {name}: {slope:+.3f} of the way, deviation {error:.3f} (1 would be it; {apart:.2g} apart)",
    "stale_allowed": "the engine holds {name}, which the trainer's own staleness allows",
    "go_back": "{name} is the oldest that was compared, and the nearest to it: ask again with what is older, as"
    " --against DIR: a checkpoint before {name}, or the base",
    "not_compared": "{name} was not computed: {nearer}, from between it and the checkpoint, is not what the engine"
    " holds; --against {name} alone does",
    "away": "{name} was computed for {count} ids alone: {apart:.2g} away, {times:.0f} times what arithmetic makes",
    "went_on": "no fault where the trainer went on since; ask with the checkpoint of what it synced last",
    "group": "{name}: {share:+.2f} of the other, with a deviation of {error:.2f} (0: it arrived)",
    "off": "scored ids are off by {off:.2g}, {times:.1f} times what arithmetic makes ({floor:.2g})",
    "beside": "{wrong} of {count} log-probs stand beside another id than the one that was sampled",
    "all_first": "all {count} samples are the likeliest token; by chance {chance:.1g}",
    "repeated": "{same} of {count} samples are the one before them over again",
    "surprise": "the sampled ids are {z:+.1f} deviations from what temperature {temperature:.3g} makes"
    " (logprobs_mode: {mode})",
    "raw_unsure": "or the engine samples at temperature {temperature:.3g}: by the sampled ids 1 to {odds:.2g}",
    "law_unsure": "or raw log-probs of temperature {temperature:.3g}: by the sampled ids 1 to {odds:.2g}",
    "twins": "{prompts} prompts, plain and with a fresh salt: what comes next differs by {worst:.2g} at most",
    "nothing_cached": "prompts of the run (`prompts` in --trainer-config), or the same audit after the next weights:"
    " nothing of these was in the cache",
    "calls": "{count} calls with the same ids: off by {least:.2g} to {most:.2g}",
    "behind": "of {count} calls of one address {sets} agree with each other, and not with the rest",
    "setting": "{name}: {value}",
    "defaults": "a server that takes its defaults from here samples with {told}, where a request leaves that out",
    "server_info": "/server_info, which VLLM_SERVER_DEV_MODE=1 opens",
    "server_info_text": "the logprobs_mode that it was started with: the /server_info of this release is a text"
    " without it",
    "by_samples": "weights are judged by the log-probs of samples alone, together with the law",
}
