"""The words of what is asked of a run's records: templates by name."""

from __future__ import annotations

# A fault, by its family.
FAULTS: dict[str, str] = {
    "data/repeated": "steps {from} to {to} were trained on again from step {at} on ({count} of them),"
    " before all prompts"
    " had been seen: a resume went back",
    "pairing/echo": "completions begin with their own prompt ({own:.0%} of {count}): it is trained on"
    " as if sampled",
    "pairing/other": "completions hold another sample's prompt ({other:.0%}): prompts and completions"
    " are paired wrongly",
    "pairing/shifted": "completions speak of the prompt {shift} further on ({most:.0%} of {count}), not"
    " of their own:"
    " they are paired wrongly",
    "advantages/zero": "all advantages are 0 where rewards differ within groups: nothing is learnt",
    "advantages/sign": "the advantages have the wrong sign: what was worse is made likelier ({way})",
    "advantages/grouping": "the advantages are of other groups than the prompts': samples were grouped"
    " {told} ({way})",
    "advantages/shifted": "the advantages stand {told} rows beside their samples ({way})",
    "advantages/scaled": "the advantages are {told} times what rewards and groups make ({way})",
    "samples/identical": "the samples of a group are all the same ({share:.0%} of pairs in {groups}"
    " groups), though the"
    " policy is not that sure: no chance in the sampling, or one seed for all",
    "samples/repeated": "samples of a group are the same {share:.1%} of the time, where their own log-probs allow"
    " {expected:.2%}: one seed for several",
    "ends/all_cut": "all {count} completions end at the length limit: nothing is ever finished",
    "ends/dropped": "completions that stopped end on {ids} different ids: the end token is not in them",
    "rewards/no_number": "{share:.0%} of {count} rewards are missing or no number",
    "rewards/constant": "all rewards of all {groups} groups are {lowest:g}: nothing is learnt",
    "rewards/no_spread": "no group has rewards that differ: {hard} of {groups} all wrong, {easy} all right",
    "masks/prompt": "tokens of prompts are in the loss: {prompted} of {prompts}",
    "masks/unsampled": "tokens that the engine did not sample are in the loss: {unsampled} of"
    " {trained}, as tools' answers",
    "masks/nothing": "no token of {count} samples is in the loss",
    "masks/most_filtered": "only {rows} of {count} samples have a token in the loss",
    "streams/shifted": "the engine's log-probs stand {shift:+d} places beside the trainer's"
    " (correlation {found:.3f} there)",
    "streams/temperature": "the trainer's log-probs are about {slope:.2f} times the engine's: one of them leaves the"
    " temperature out",
    "streams/nucleus": "the engine's log-probs are above the trainer's ({above:.0%} of tokens, none"
    " below): it samples"
    " within a cut distribution (top-p, top-k or min-p)",
    "streams/repetition": "tokens that stood before have a lower log-prob than the trainer's"
    " ({again:+.3f}), new ones a"
    " higher one ({new:+.3f}): a penalty on repetition",
    "streams/stale": "the engine agrees in the first step ({first:.2g}) and drifts off from there ({last:.2g} after"
    " {steps} steps): it keeps older weights",
    "streams/position": "engine and trainer agree up to some place of each completion, and differ behind it",
    "streams/some": "engine and trainer agree on most tokens ({middle:.2g}) and are far apart on {share:.1%}",
    "streams/unlike": "engine and trainer compute different log-probs: {size:.2g} on average over {count} tokens",
    "rewards_again/raises": "the reward function raises: {error}",
    "rewards_again/thread": "in a worker's thread the reward function gives other rewards than in the main thread:"
    " {apart} of {count} ({error} raised)",
    "rewards_again/chance": "the reward function gives other rewards for the same texts: {apart} of {count}",
    "rewards_again/swallowed": "all recorded rewards are 0, and the function gives others: {apart} of"
    " {count}; an error is"
    " swallowed on the way",
    "rewards_again/unlike": "the recorded rewards are not those of the function: {apart} of {count}",
    "text/temperature": "the texts were sampled at temperature {value:.3f}; the trainer computes with {expected:g}",
    "text/top_p": "the texts were sampled within top-p {value:.4f}; the trainer computes with {expected:g}",
    "text/top_k": "the texts were sampled from the {value:.0f} most likely tokens (top-k); the trainer"
    " computes with"
    " {expected:g}",
    "moved/rate_zero": "no weight moved from checkpoint {before} to {after}: the learning rate is 0",
    "moved/nothing": "no weight moved from checkpoint {before} to {after}",
    "moved/part": "tensors never move while those of other layers do: {names}",
    "moved/nan": "weights of checkpoint {after} are no numbers: {names}",
    "moved/lost": "updates are lost in bfloat16 weights: {share:.1%} of elements moved from checkpoint"
    " {before} to {after},"
    " and none above {edge:.2g}",
    "metrics/nan": "a metric of the update is no number, and stays so",
    "metrics/reference": "the KL to the reference is {kl:.3g} before the first update: the reference is"
    " another model, or"
    " computed otherwise",
    "metrics/all_cut": "every completion of every step ends at the length limit",
    "metrics/no_spread": "no group of any step has rewards that differ: nothing is learnt",
    "metrics/no_gradient": "rewards differ (their spread is {reward_std:.3g}), and the gradient is 0 in every step",
    "metrics/rate_zero": "the learning rate is 0 in every step",
}
# A class of faults, as it is called where nothing is wrong with it or nothing was asked: the family, or its head.
CLASSES: dict[str, str] = {
    "data": "prompts over the steps",
    "pairing": "completions and their prompts",
    "advantages": "advantages, computed again",
    "samples": "samples beyond chance",
    "ends": "how completions end",
    "rewards": "rewards within groups",
    "masks": "tokens in the loss",
    "streams": "the engine's log-probs and the trainer's",
    "rewards_again": "rewards, called again",
    "text": "the law that the texts were sampled by",
    "text/support": "what cuts the distribution that the texts were sampled from",
    "moved": "weights between checkpoints",
    "metrics": "metrics that contradict each other",
    "metrics/unlike": "trainer and engine, by the metrics",
    "metrics/drifting": "trainer and engine drift apart, by the metrics",
    "curves": "curves (symptoms)",
    "files": "files that could not be read",
}
# What was seen, and what would decide it, by the name of the fact.
FACTS: dict[str, str] = {
    "steps_repeated": "step {at} has the prompts of step {from}",
    "leaks": "completions that begin with their own prompt: {own:.1%}; that hold another's:"
    " {other:.1%}; of {count}",
    "advantages_fit": "made by {ways}; reward: {reward}",
    "advantages_unlike": "the nearest right way ({best}) is off by {residual:.2g}",
    "identical": "the same within a group: {share:.2%} of pairs in {groups} groups; by chance {expected:.2%}",
    "flat_groups": "{share:.0%} of {groups} groups without a spread: {hard} all at {lowest:g}, {easy}"
    " all at {highest:g}",
    "masked": "in the loss: {trained} tokens behind prompts, {prompted} of {prompts} of prompts, in"
    " {rows} of {count} samples",
    "streams": "engine less trainer: {size:.2g} on average, {median:.2g} in the middle, over {count} tokens",
    "one_law": "one law is told of two streams; another beside it would not show: --checkpoint DIR of"
    " these samples tells both, or ask again when this one is mended",
    "raised": "{error}",
    "reward_unlike": "now {now}, recorded {then}",
    "text_read": "{count} tokens of {rows} texts; {left_out} texts did not come back the same from their ids",
    "text_fit": "chance of a fit no better than this, were the law right: {chance:.2g}; tokens taken"
    " for noise: {outliers}",
    "moved": "{share:.1%} of elements moved from checkpoint {before} to {after}; {still} of {tensors}"
    " tensors stood still",
    "metric_line": "{told}",
    "curve": "{what} went from {first:.3g} to {last:.3g}",
    "stands_since": "since step {since}",
    "stood_until": "from step {since} to {until}, {times} times; gone since",
    "excluded": "ruled out as its cause by what was asked: {excluded}",
    "unread": "{why}",
    "unread_more": "and {count} more",
    "want_whole_files": "{first} as a whole: {why} ({count} in all; a parquet takes pyarrow:"
    " pip install 'grpo-doctor[audit]')",
    "want_advantages": "advantages in the dump: log_completions=True (TRL, swift), token exports, or"
    " our output.record_every=1",
    "want_spread": "steps with a group whose rewards differ; there are {count} samples of such",
    "want_weights": "how the reward is weighed out of the functions' scores, and the advantage scaled",
    "want_completions": "dumped completions: log_completions=True, or trainer.rollout_data_dir=DIR",
    "want_groups": "at least four groups of two and more; there are {count}",
    "want_entropy": "the policy's entropy in the metrics, or the engine's log-probs: is it sure, or not"
    " asked to draw?",
    "want_finish_reasons": "how each completion ended: a token export, or our output.record_every=1",
    "want_rewards": "eight groups with rewards",
    "want_reward_function": "--reward module:function: what it says of the recorded completions",
    "want_tokens": "a dump with ids and masks: enable_token_export=true, train_data_step*.jsonl, or our"
    " output.record_every=1",
    "want_both_streams": "a dump with the log-probs of both, engine and trainer: enable_token_export=true,"
    " train_data_step*.jsonl, actor_rollout_ref.rollout.calculate_log_probs=True",
    "want_dtype": "more tokens, or the engine's type: arithmetic alone makes {floor:g} in bfloat16, a"
    " fault {alarm:g}",
    "want_steps": "the prompts of at least four steps, none left out; there are {count}",
    "want_prompts": "at least three prompts a step; there are {count}",
    "want_texts": "texts of prompts and completions",
    "want_words": "completions that speak of what was asked; {count} do",
    "want_checkpoint": "--checkpoint DIR: the weights that sampled the texts",
    "want_checkpoint_of_step": "--checkpoint DIR of the very step that sampled these texts: no law"
    " makes them of this one",
    "want_torch": "torch and transformers where this runs (pip install 'grpo-doctor[train]')",
    "want_tokens_of_text": "{enough} tokens of text; there are {count}",
    "want_checkpoints": "two checkpoints as safetensors in folders with their step; there are {count}",
    "want_apart": "checkpoints that are further apart: hardly an element moved",
    "want_metrics": "metrics: trainer_state.json, an event file, a log",
    "want_server": "audit --server URL --checkpoint DIR, while the engine runs",
}
