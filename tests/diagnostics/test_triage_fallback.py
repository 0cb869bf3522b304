"""A log without a root cause is clean if it shows the end of the run and no error line; an excerpt needs no end.

Waits and metrics may give hypotheses. Other logs without a failure are not judged; the reason names a stall or the step
that the run reached. A log in UTF-16 is read.
"""

import pytest

from diagnostics.logs.metrics import parse_metrics
from diagnostics.triage.command import exit_code, triage
from diagnostics.triage.report import report
from diagnostics.triage.sources import LogSource
from tests.case_files import each_case, read_cases

CASES, REPEATED = (read_cases(__file__, name) for name in ("run_ends.yaml", "repeated_lines.yaml"))

STEPS = [f"step {number}: reward 0.{number}" for number in range(30)]
LAUNCHED = "INFO starting the run"


def leads(verdict):
    """Return the codes of a verdict's hypotheses."""
    return [lead.issue.code for lead in verdict.leads]


def candidate_codes(verdict):
    """Return the codes of a verdict's candidates."""
    return [candidate.issue.code for candidate in verdict.candidates]


@pytest.mark.parametrize("last", CASES["last_lines"])
def test_log_with_the_end_of_the_run_is_clean(triage_lines, last):
    """The same log without its last line is not judged."""
    verdict = triage_lines(LAUNCHED, *STEPS, last)
    assert (verdict.state, exit_code(verdict)) == ("clean", 0)
    silent = triage_lines(LAUNCHED, *STEPS)
    assert (silent.state, exit_code(silent)) == ("not_judged", 3)


@each_case(CASES["parts"])
def test_end_of_a_part_differs_from_the_end_of_the_run(triage_lines, lines, state):
    """The end of a part, a stop by hand and a summary with impossibly fast steps are not the end of the run.

    Its full bar and an ordinary summary are, whatever words the lines before them contain.
    """
    assert triage_lines(LAUNCHED, *STEPS, *lines).state == state


def test_full_bar_of_many_steps_is_the_end_of_the_run(triage_lines):
    bars = [f"{step // 5}%|#| {step}/500 [00:07<00:00]" for step in (*range(400), 500)]
    assert triage_lines(LAUNCHED, *STEPS, "\r".join(bars)).state == "clean"


def test_report_names_the_step_of_a_run_that_did_not_end(triage_lines):
    """The report names the step of the run, although the last line is the full bar of one step's samples."""
    step = "Train:  2%|2         | 56/2290 [1:07:00<44:00:00, 70.00s/it]"
    verdict = triage_lines(LAUNCHED, step, "100%|##########| 32/32 [00:07<00:00,  4.00it/s]")
    (missing,) = report(verdict, ["run.log"]).checks[0].not_judged
    assert "the run is at 56 of 2290" in missing.why
    server = triage_lines("Decode batch. #running-req: 0, token usage: 0.00, #queue-req: 0")
    (missing,) = report(server, [""]).checks[0].not_judged
    assert "counters at 0: #running-req, #queue-req: this side is idle" in missing.why


def test_repeated_monitor_lines_without_change_are_a_stall(triage_lines):
    """Monitor lines that repeat without change are a stall, with their counters at 0; changing values are progress.

    Equal lines of several ranks are no repetition.
    """
    waits = [
        "10:00:%02d (Trainer pid=1) waiting for samples: buffer_size=0",
        "10:00:%02d active_tasks: 0, queued: 7",
    ]
    stalled = triage_lines(*STEPS, *(line % second for second in range(4) for line in waits))
    (missing,) = report(stalled, ["run.log"]).checks[0].not_judged
    assert "the last 8 lines repeat 2 messages without a change" in missing.why
    assert missing.why.endswith("counters at 0: buffer_size, active_tasks")
    changing = (f"{line % number}, step {number}" for number in range(4) for line in waits)
    assert triage_lines(*STEPS, *changing).fallback.stall is None
    of_eight_ranks = (f"[rank{rank}]: waiting" for rank in range(8))
    assert triage_lines(*STEPS, *of_eight_ranks).fallback.stall is None


@pytest.mark.parametrize("line", REPEATED["no stall"])
def test_idle_server_heartbeat_and_metrics_are_no_stall(triage_lines, line):
    assert triage_lines(*STEPS, *[line] * 30).fallback.stall is None


def test_note_quotes_lines_that_the_run_survived(triage_lines):
    (note,) = report(triage_lines("reward error: 7", *STEPS, "Training completed."), ["a.log"]).remarks
    assert note.endswith("it went on after these lines: reward error: 7 [log:1]")


ERROR_LINE = "ERROR:trainer:no checkpoint was written"


def test_excerpt_needs_no_end(triage_lines):
    excerpt = triage_lines(LAUNCHED, *STEPS, excerpt=True)
    assert excerpt.state == "clean"
    assert report(excerpt, ["a.log"]).remarks == ("no known failure and no traceback in this excerpt",)
    assert triage_lines(LAUNCHED, *STEPS, ERROR_LINE, excerpt=True).state == "not_judged"


def test_unknown_error_line_is_not_judged(triage_lines):
    """An unknown error line leaves the log not judged, even if the run reports its end."""
    verdict = triage_lines(LAUNCHED, ERROR_LINE, *STEPS, "Training completed.")
    assert (verdict.state, exit_code(verdict)) == ("not_judged", 3)
    result = report(verdict, ["a.log"])
    (missing,) = result.checks[0].not_judged
    (anchor,) = result.subject["anchors"]
    assert missing.place == anchor["place"] == "log:2"
    assert "no checkpoint was written" in anchor["text"]


@pytest.mark.parametrize(("wait", "code"), REPEATED["waits"])
def test_repeated_wait_is_a_hypothesis(triage_lines, wait, code):
    """A repeated wait at the end of the log is a hypothesis; if another line follows, it is none."""
    waits = [wait.format(number) for number in range(4)]
    verdict = triage_lines(*STEPS, *waits)
    assert (verdict.state, leads(verdict)[:1], exit_code(verdict)) == ("hypothesis", [code], 3)
    assert triage_lines(*STEPS, *waits, "Server is up!").state == "not_judged"


METRICS = [
    ("{'loss': 0.0, 'reward_std': 0.5, 'completions/clipped_ratio': 1.0}", "capped", 1.0),
    ("step:4 - actor/entropy:0.25 - actor/pg_clipfrac:0.0 - actor/grad_norm:0.5", "grad_norm", 0.5),
    ("step:4 - training/rollout_probs_diff_mean:0.2 - critic/score/mean:0.1", "probs_diff", 0.2),
    ("  • Token Mult Prob Error: 464.0 token_mult_prob_error: 464.0", "mult_error", 464.0),
    ("Step 12 | Time: 13.20s | Loss: 0.0001 | Entropy: 0.3000 | Mismatch KL: 0.0100", "mismatch_kl", 0.01),
    ("{'sampling/importance_sampling_ratio/mean': 0.02}", "ratio", 0.02),
    ("wandb:      train/grad_norm 0.25", "grad_norm", 0.25),
    ("Train:   7%|7   | 7/100 [00:07<01:33, loss=0.125]", "loss", 0.125),
]


def test_metrics_of_several_frameworks_are_parsed():
    """Metrics are parsed from lines of TRL, verl, NeMo-RL, prime-rl, W&B and a progress bar."""
    assert [row for row in METRICS if parse_metrics(row[0]).get(row[1], ("", None))[1] != row[2]] == []


SYMPTOMS = [
    ("{'grad_norm': 0.1, 'reward_std': nan, 'reward': 0.25}", "CFG110"),
    ("{'reward': 0.0, 'reward_std': 0.0, 'completions/clipped_ratio': 1.0}", "CFG127"),
    ("{'reward': 0.0, 'reward_std': 0.0}", "REW004"),
    ("{'reward': 3.0, 'reward_std': 0.0, 'frac_reward_zero_std': 1.0}", "REW004"),
    (
        "step:4 - actor/grad_norm:0.02 - critic/score/mean:0.0 - critic/score/max:0.0 - critic/score/min:0.0",
        "REW004",
    ),
    ("{'grad_norm': 0.0, 'reward_std': 0.5}", "CFG117"),
    ("{'sampling/importance_sampling_ratio/mean': 0.02}", "SYN003"),
    ("step:4 - training/rollout_probs_diff_mean:0.2", "SYN003"),
    ("train/token_mult_prob_error: 464.0", "SYN003"),
    ("step:4 - actor/entropy:0.00001", "CFG115"),
]


def test_symptoms_in_metrics_give_hypotheses(triage_lines):
    """Symptoms give hypotheses, the most likely cause first, each with a test that decides."""
    for line, first in SYMPTOMS:
        verdict = triage_lines(line)
        assert (line, verdict.state, leads(verdict)[0]) == (line, "hypothesis", first)
        assert all(lead.settles for lead in verdict.leads)


def test_truncated_completions_are_no_crash(triage_lines):
    """A run that prints metrics did not end with a crash such as TOK013."""
    verdict = triage_lines("{'reward': 0.2, 'reward_std': 0.05, 'completions/clipped_ratio': 1.0}")
    assert (verdict.state, leads(verdict), len(verdict.fallback.symptoms)) == ("hypothesis", ["CFG127"], 1)


def test_ordinary_metrics_are_no_symptom(triage_lines):
    """Some steps without reward spread, small differences and ratios near 1 are no symptom."""
    lines = [
        f"{{'loss': 0.01, 'grad_norm': 0.3, 'reward_std': {number % 3 / 10}, 'completions/clipped_ratio': 0.1,"
        " 'sampling/importance_sampling_ratio/mean': 1.02, 'sampling/sampling_logp_difference/mean': 0.004}"
        for number in range(30)
    ]
    verdict = triage_lines(*lines, "{'train_runtime': 7.0}")
    assert (verdict.state, verdict.fallback.symptoms) == ("clean", ())


def test_nan_counts_only_at_the_end(triage_lines):
    """NaN counts at the end of a run, and not in the first steps, where a loss scaler causes it."""
    rows = [f"epoch {number} loss: 0.{number}5, grad_norm: 1.{number}" for number in range(1, 30)]
    end = "{'train_runtime': 7.0}"
    assert triage_lines("epoch 0 loss: 0.5, grad_norm: nan", *rows, end).state == "clean"
    assert candidate_codes(triage_lines(*rows, "epoch 30 loss: 0.5, grad_norm: nan", end)) == ["NUM027"]
    many = triage_lines(*[f"step: {number} loss: 0.5" for number in range(6000)], "reward: nan", end)
    assert [symptom.rule.find for symptom in many.fallback.symptoms] == ["not_finite"]


def test_utf16_log_is_read(tmp_path, rules):
    """A log in UTF-16, as PowerShell writes it, is read."""
    (tmp_path / "a.log").write_bytes("a run\nRuntimeError: can't start new thread\n".encode("utf-16"))
    assert candidate_codes(triage([LogSource("a.log", tmp_path / "a.log")], rules)) == ["ENV024"]
