"""`triage` explains version skew in logs: missing names and refused arguments (CMP906), unmet requirements (CMP904).

Names and arguments are looked up in the API index. The tests check the caller and the releases that are read from the
log, the proposed releases, and that a skew comes before a generic catalog entry. Two tests limit the time.
"""

import time

import pytest

from diagnostics.fixes import commands_of, fix_text
from diagnostics.triage.command import exit_code
from diagnostics.triage.report import report
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "pasted_logs.yaml")


def findings(triage_lines, code, *lines):
    """Return the findings with a code in the report on these lines."""
    return [finding for finding in report(triage_lines(*lines), ["a.log"]).findings if finding.code == code]


@each_case(CASES["tracebacks"])
def test_caller_and_name_are_read_from_pasted_tracebacks(triage_lines, lines):
    """The title has the name and its caller, and the fix a newer caller, in each form of a pasted traceback."""
    (finding,) = findings(triage_lines, "CMP906", *lines)
    assert "transformers.HybridCache from 4.44.0 to 4.57.6" in finding.title
    assert "peft uses it from 0.16.0 to 0.17.1." in finding.title
    assert "peft>=0.18.0" in fix_text(finding.remedy)


LLM_FRAMES = [
    "Traceback (most recent call last):",
    '  File "/opt/env/lib/python3.12/site-packages/trl/scripts/vllm_serve.py", line 238, in main',
    "    llm = LLM(",
    '  File "/opt/env/lib/python3.12/site-packages/vllm/entrypoints/llm.py", line 212, in __init__',
]


@pytest.mark.parametrize(
    ("source", "is_defect"),
    [("    engine_args = EngineArgs(", False), ("    arguments = EngineArgs(model_hf_config=config)", True)],
)
def test_last_frame_is_the_caller_only_if_its_line_has_the_argument(triage_lines, source, is_defect):
    """If the last line lacks the argument, vLLM passes on an argument of its own caller, and is not at fault."""
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'model_hf_config'"
    (finding,) = findings(triage_lines, "CMP906", *LLM_FRAMES, source, "                  ^^^^^^^^^^^", error)
    assert ("The call is in vllm itself" in finding.title) is is_defect


@pytest.mark.parametrize(
    ("method", "problem", "fitting"),
    [
        (
            "_get_train_sampler",
            "takes 1 positional argument but 2 were given",
            "transformers>=4.30.0,<=4.51.3",
        ),
        (
            "compute_loss",
            "got an unexpected keyword argument 'num_items_in_batch'",
            "transformers>=4.30.0,<=4.45.2",
        ),
    ],
)
def test_override_that_does_not_take_what_its_base_class_passes(triage_lines, method, problem, fitting):
    """If a subclass refuses transformers' call, the fix has the releases that call it with its signature."""
    (finding,) = findings(
        triage_lines,
        "CMP906",
        "Traceback (most recent call last):",
        '  File "/opt/env/lib/python3.12/site-packages/transformers/trainer.py", line 2375, in _inner_training_loop',
        "    train_dataloader = self.get_train_dataloader()",
        f"TypeError: MyTrainer.{method}() {problem}",
    )
    assert f"MyTrainer.{method} overrides transformers.trainer.Trainer.{method}" in finding.title
    assert "is too new: pip show transformers" in finding.title
    assert f"{fitting}; or let MyTrainer." in fix_text(finding.remedy)


def test_message_after_its_wrapper_is_explained(triage_lines):
    """transformers prints the original message in the line after its own, without a traceback."""
    (finding,) = findings(
        triage_lines,
        "CMP906",
        "RuntimeError: Failed to import transformers.trainer because of the following error (look up):",
        "cannot import name 'EncoderDecoderCache' from 'transformers' (/site-packages/transformers/__init__.py)",
    )
    assert "transformers>=4.43.0" in fix_text(finding.remedy)


@each_case(CASES["releases"])
def test_releases_are_read_from_reports_of_users(triage_lines, line, package, version):
    """Releases that a report names as installed are read, and required ones are not."""
    verdict = triage_lines("Traceback (most recent call last):", line)
    assert verdict.versions.get(package, (None,))[0] == version


@each_case(CASES["resolvers"])
def test_requirements_of_a_resolver_are_joined(triage_lines, lines, title, fix):
    """The title has the requirements that conflict, and the fix the releases that satisfy all, if there are any."""
    (finding,) = findings(triage_lines, "CMP904", *lines)
    assert title in finding.title
    assert fix in fix_text(finding.remedy)


@pytest.mark.parametrize("lines", CASES["no_conflicts"])
def test_requirement_that_is_met_is_no_conflict(triage_lines, lines):
    """A line that only states a requirement, and releases that satisfy it, are not reported."""
    assert not findings(triage_lines, "CMP904", *lines)


def test_proven_skew_comes_before_a_generic_entry(triage_lines):
    """A skew that the index and the release in the log prove comes first."""
    banner = "INFO Initializing a V1 LLM engine (v0.10.0) with config"
    frame = '  File "/opt/env/lib/python3.12/site-packages/vllm/entrypoints/llm.py", line 200, in __init__'
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'device'"
    verdict = triage_lines(banner, "Traceback (most recent call last):", frame, error)
    assert [finding.code for finding in report(verdict, ["a.log"]).findings] == ["CMP906", "CMP022"]


SCRIPT = '  File "/home/me/train.py", line 3, in <module>'
HEADER = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    "line",
    [
        "cannot import name 'HybridCache' from 'transformers'",
        "No module named 'vllm.lora.models'",
        "module 'transformers' has no attribute 'HybridCache'",
        "EngineArgs.__init__() got an unexpected keyword argument 'device'",
    ],
)
def test_explanation_by_the_index_is_the_verdict(triage_lines, line):
    """A message without its exception's name is explained by the first finding; nothing is unresolved or unchecked."""
    verdict = triage_lines("loading", line)
    assert (verdict.state, exit_code(verdict)) == ("known", 1)
    result = report(verdict, ["a.log"])
    assert result.findings[0].code == "CMP906"
    assert not result.unresolved
    assert not any(check.not_judged for check in result.checks)


def test_conflict_before_another_failure_is_not_the_verdict(triage_lines):
    """A conflict that pip reports is a known issue; a failure of another kind after it stays unknown."""
    conflict = (
        "vllm 0.17.1 requires transformers<5,>=4.56.0, but you have transformers 5.3.0 which is incompatible."
    )
    assert triage_lines(conflict).state == "known"
    assert triage_lines(conflict, HEADER, SCRIPT, "    step()", "ValueError: no rows left").state == "unknown"


def test_message_below_a_traceback_needs_no_exception_name(triage_lines):
    """A known issue and the frames are found although the line that ends the traceback has no exception's name."""
    lines = [HEADER, SCRIPT, "    llm = LLM()", "Qwen2Tokenizer has no attribute all_special_tokens_extended"]
    verdict = triage_lines(*lines)
    assert [candidate.issue.code for candidate in verdict.candidates] == ["CMP017"]
    assert verdict.logs[0].failures[0].type == "AttributeError"


@each_case(CASES["calling_lines"])
def test_class_is_read_from_the_calling_line(triage_lines, source, message, found):
    """A constructor's message without the class is explained if the line above calls exactly one class."""
    frames = [HEADER, SCRIPT, source, f"TypeError: {message}"]
    assert bool(findings(triage_lines, "CMP906", *frames)) is found
    assert bool(findings(triage_lines, "CMP906", *frames[2:])) is found


@each_case(CASES["conflicts"])
def test_other_wordings_of_a_conflict_are_read(triage_lines, line, title, command):
    """Conflicts are read in pip's second wording, in that of transformers' `require_version`, and in xformers'."""
    (finding,) = findings(triage_lines, "CMP904", line)
    assert finding.title == title
    assert command in fix_text(finding.remedy)


def test_generic_entry_after_the_index_has_no_fix(triage_lines):
    """The entry for removed names, which advises an older release, has no fix if only newer releases have the name."""
    error = "ImportError: cannot import name 'PreTrainedConfig' from 'transformers.configuration_utils'"
    first, second = report(triage_lines("transformers==4.50.0", error), ["a.log"]).findings
    assert (first.code, second.code, second.remedy) == ("CMP906", "CMP023", None)
    assert "transformers>=5.0.0" in fix_text(first.remedy)


def test_exception_that_cannot_be_imported_was_not_raised(triage_lines):
    """An import error that contains an exception's name does not match the known issue with that exception."""
    raised = "LocalEntryNotFoundError: Cannot find the requested files in the disk cache"
    assert [it.issue.code for it in triage_lines(raised).candidates] == ["ENV004"]
    missing = (
        "ImportError: cannot import name 'LocalEntryNotFoundError' from 'huggingface_hub.errors' (errors.py)"
    )
    assert not triage_lines(missing).candidates


@pytest.mark.parametrize(
    ("lines", "module"),
    [
        (["cannot import name 'PILImageResampling' from 'transformers.image_utils'"], "PIL"),
        (
            ["transformers==5.0.0", "cannot import name 'GenerationMixin' from 'transformers'"],
            "generation.utils",
        ),
    ],
    ids=["optional package", "lazy module"],
)
def test_name_that_every_release_has_hides_another_failure(triage_lines, lines, module):
    """If every release has the name, the fix is a command that shows the failed import, not another release."""
    (finding,) = findings(triage_lines, "CMP906", *lines)
    assert "an import inside it failed, an optional package is missing" in finding.title
    (command,) = commands_of(finding.remedy.actions)
    assert command.startswith("python -c")
    assert f"{module}'" in command


def test_failed_import_is_explained_by_its_cause_alone(triage_lines):
    """Of two names that cannot be imported, the one that all releases have is not reported."""
    effect = "ImportError: cannot import name 'PILImageResampling' from 'transformers.image_utils'"
    cause = "cannot import name 'HybridCache' from 'transformers'"
    (finding,) = findings(triage_lines, "CMP906", effect, cause)
    assert "HybridCache" in finding.title


def test_requirements_with_thousands_of_ranges_take_less_than_5_s(triage_lines):
    """200 lines of 40 ranges take less than 5 s of CPU time; the fix says that no release was searched for."""
    ranges = [",".join(f"!={line}.{part}" for part in range(40)) for line in range(200)]
    lines = [
        f"vllm 0.9.0 requires foo{text}, but you have foo {line}.1 which is incompatible."
        for line, text in enumerate(ranges)
    ]
    start = time.process_time()
    (finding,) = findings(triage_lines, "CMP904", *lines)
    assert time.process_time() - start < 5
    assert "Not searched for a release, because of too many requirements: foo." in fix_text(finding.remedy)


def test_ranges_before_unexpected_words_take_less_than_5_s(triage_lines):
    """400 lines with a range of 40 parts, followed by words that no pattern has, take less than 5 s of CPU time."""
    text = "vllm 0.9.0 requires foo" + ",".join(["!=1.2"] * 40)
    start = time.process_time()
    report(triage_lines(*[f"{text} and 9999 {number}" for number in range(400)]), ["a.log"])
    assert time.process_time() - start < 5


@pytest.mark.parametrize("case", CASES["stated_requirements"], ids=lambda case: case["title"])
def test_requirement_that_a_message_states_is_read(triage_lines, case):
    """The messages are of exceptions, of pip without a fitting file, and of uv in several lines."""
    (finding,) = findings(triage_lines, "CMP904", *case["lines"])
    assert (finding.title, fix_text(finding.remedy)) == (case["title"], case["fix"])


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: vLLM 0.31.0 is ready",
        "ValueError: temperature must be at least 0.1",
        "Requires transformers>=4.58.0",
        "ImportError: transformers>=4.50 is required, found 4.51.0",
    ],
)
def test_line_without_an_unmet_requirement_is_not_read(triage_lines, line):
    assert findings(triage_lines, "CMP904", line) == []


@pytest.mark.parametrize(("transformers", "titles"), [("4.48.0", 1), ("4.57.1", 0)])
def test_only_an_unmet_requirement_of_a_listed_package_is_a_finding(triage_lines, transformers, titles):
    """TRL's unmet requirement is reported although the failure stays unknown; a met one is not reported."""
    lines = ("trl==0.24.0", f"transformers=={transformers}", "RuntimeError: 78 main specs are required")
    found = findings(triage_lines, "CMP904", *lines)
    assert [finding.title for finding in found] == [
        "trl 0.24.0 requires transformers>=4.56.1, found 4.48.0."
    ] * titles
    assert triage_lines(*lines).state == "unknown"


SITE = '  File "/opt/env/lib/python3.12/site-packages/'


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (  # a deprecation wrapper is no caller
            [
                HEADER,
                f'{SITE}transformers/utils/deprecation.py", line 165, in wrapped_func',
                "    return func(*args, **kwargs)",
                "TypeError: DPOTrainer.__init__() got an unexpected keyword argument 'max_prompt_length'",
            ],
            "1.16.0 has trl.trainer.dpo_trainer.DPOTrainer(max_prompt_length=). Pass it in DPOConfig",
        ),
        (  # a lazy import hides the importing frame
            [
                HEADER,
                f'{SITE}trl/import_utils.py", line 163, in __getattr__',
                "    value = getattr(module, name)",
                "ImportError: cannot import name 'EncoderDecoderCache' from 'transformers'",
            ],
            "Of the indexed packages, peft 0.14.0 to",
        ),
        (  # the package below the user's import line imports the name
            [
                HEADER,
                SCRIPT,
                "    from peft import LoraConfig",
                "ImportError: cannot import name 'EncoderDecoderCache' from 'transformers'",
            ],
            "peft uses it from 0.14.0 on.",
        ),
        (  # the log lists a release that uses the name
            ["verl 0.7.0", "transformers 5.0.0", "cannot import name 'AutoModelForVision2Seq' from 'transformers'"],
            "verl uses it",
        ),
        (  # the provider's own frames are below the caller's
            [*LLM_FRAMES, "    engine_args = EngineArgs(", "TypeError: EngineArgs.__init__() got an unexpected keyword"
             " argument 'worker_extension_cls'"],
            "trl uses it.",
        ),
        (  # packages are installed in the folder
            [
                HEADER,
                '  File "/home/work/.local/swift/trainers/rlhf_arguments.py", line 6, in <module>',
                "    from trl import GRPOConfig as HfGRPOConfig",
                "ImportError: cannot import name 'GRPOConfig' from 'trl' (/home/work/.local/trl/__init__.py)",
            ],
            "ms-swift uses it",
        ),
        (
            ["trl 0.16.0.dev0", "AttributeError: 'GRPOTrainer' object has no attribute 'temperature'"],
            "The log does not show which side is at fault.",
        ),
        (
            ["ValueError: remaining_argv: ['--disable_custom_all_reduce', 'true']"],
            "The log does not show which side is at fault.",
        ),
        (
            [
                HEADER,
                '  File "/run/fork/verl/trainer/main_ppo.py", line 76, in <module>',
                '    "math": qwen_math.compute_score_r1,',
                "AttributeError: module 'verl.utils.reward_score.qwen_math' has no attribute 'compute_score_r1'",
            ],
            "The call is in verl itself",
        ),
    ],
)  # fmt: skip
def test_side_is_named_only_if_the_log_shows_it(triage_lines, lines, text):
    """The title names the caller, or the class that takes the argument; without a side the fix says what decides."""
    (finding,) = findings(triage_lines, "CMP906", *lines)
    assert text in finding.title
    is_lead = "which side" in text
    assert finding.certainty == "hypothesis" or not is_lead
    assert ("Decides: " in fix_text(finding.remedy)) is is_lead


def test_argument_of_an_older_signature_needs_an_older_release(triage_lines):
    """A release that accepts the argument, and requires another one that the call may lack, is not recommended."""
    error = "TypeError: resolve_chat_template_content_format() got an unexpected keyword argument 'trust_remote_code'"
    (finding,) = findings(triage_lines, "CMP906", "vllm 0.12.0", error)
    assert "vllm<=0.8.5.post1" in fix_text(finding.remedy)


def test_class_of_one_word_is_not_taken_for_an_indexed_one(triage_lines):
    error = "TypeError: Config.__init__() got an unexpected keyword argument 'enable_ssl_refresh'"
    assert findings(triage_lines, "CMP906", "    config = uvicorn.Config(app, **uvicorn_kwargs)", error) == []


SITE = "/opt/env/lib/python3.11/site-packages"
NO_NAME = "ImportError: cannot import name 'logprobs_from_logits' from 'trl.core'"


def test_frames_that_a_terminal_wrapped_show_the_caller(triage_lines):
    """The path of the last frame is on two lines; the first frame, which is on one, is not the caller."""
    (finding,) = findings(
        triage_lines,
        "CMP906",
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "    from llamafactory.train.tuner import run_exp",
        f'  File "{SITE}/llamafactory/',
        'train/ppo/trainer.py", line 36, in <module>',
        "    from trl.core import PPODecorators, logprobs_from_logits",
        NO_NAME,
    )
    assert "llamafactory uses it." in finding.title


def test_script_is_the_caller_though_an_installed_package_uses_the_name(triage_lines):
    """If the last frame is the user's, no package of the environment is called the caller."""
    (finding,) = findings(
        triage_lines,
        "CMP906",
        "ms-swift==3.1.1",
        "transformers==4.47.1",
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "    from transformers import Qwen2_5_VLForConditionalGeneration",
        "ImportError: cannot import name 'Qwen2_5_VLForConditionalGeneration' from 'transformers'",
    )
    assert finding.title.endswith("The installed transformers 4.47.1 is too old. The call is in train.py.")


@pytest.mark.parametrize(
    ("lines", "fix"),
    [
        # TRL 0.15.2 does not work with transformers 5.
        (["trl==0.15.2"], "transformers>=4.50.0,<=4.57.6;"),
        (["RuntimeError: please upgrade to transformers<=4.52.4"], "transformers>=4.50.0,<=4.52.4;"),
        # ms-swift 3.1.1 requires transformers<4.50.
        (["ms-swift==3.1.1", "transformers==4.48.3"], "transformers>=4.50.0 with a ms-swift that fits it"),
    ],
)
def test_proposed_release_fits_what_the_log_states(triage_lines, lines, fix):
    """A range ends at the last release that fits the log's packages and requirements; if none fits, the fix says so."""
    message = "ImportError: cannot import name 'Gemma3Config' from 'transformers'"
    (finding,) = findings(triage_lines, "CMP906", *lines, message)
    assert fix in fix_text(finding.remedy)


def test_package_that_calls_a_check_of_transformers_states_the_requirement(triage_lines):
    """The package that calls transformers' check of versions requires the release, not transformers."""
    (finding,) = findings(
        triage_lines,
        "CMP904",
        "Traceback (most recent call last):",
        f'  File "{SITE}/llamafactory/extras/misc.py", line 82, in check_dependencies',
        '    require_version("transformers>=4.41.2,<=4.45.0")',
        f'  File "{SITE}/transformers/utils/versions.py", line 44, in _compare_versions',
        "    raise ImportError(",
        "ImportError: transformers>=4.41.2,<=4.45.0 is required for a normal functioning of this module, but found"
        " transformers==4.55.4.",
    )
    assert finding.title == "llamafactory requires transformers<=4.45.0,>=4.41.2, found 4.55.4."


def test_range_of_supported_releases_is_read_after_the_refused_one(triage_lines):
    """Of verl's supported releases, 0.6.3 and 0.7.0+, the range is the requirement."""
    message = (
        "ValueError: vllm version 0.6.6 not supported. Currently supported versions are 0.6.3 and 0.7.0+"
    )
    (finding,) = findings(triage_lines, "CMP904", message)
    assert finding.title == "the program requires vllm>=0.7.0, found 0.6.6."


def test_inherited_attribute_is_looked_up_in_the_base_class(triage_lines):
    """An attribute that TRL's class lacks is found in its base class, which is of transformers."""
    message = "AttributeError: type object '_BaseConfig' has no attribute '_VALID_DICT_FIELDS'"
    (finding,) = findings(triage_lines, "CMP906", message)
    assert finding.title.startswith(
        "transformers has transformers.training_args.TrainingArguments._VALID_DICT"
    )


def test_entry_that_only_may_fit_does_not_stand_before_the_index(triage_lines):
    """CMP002 is about TRL; the index decides that a script imports a name of a later vLLM."""
    message = "ImportError: cannot import name 'StructuredOutputsParams' from 'vllm.sampling_params'"
    assert [item.code for item in report(triage_lines(message), ["a.log"]).findings][:2] == [
        "CMP906",
        "CMP002",
    ]


def test_decorator_of_another_package_is_not_the_caller(triage_lines):
    """huggingface_hub's decorator passes the script's call on, and is not in the title."""
    (finding,) = findings(
        triage_lines,
        "CMP906",
        "Traceback (most recent call last):",
        '  File "train.py", line 13, in <module>',
        "    DPOTrainer(model, None, args=args, processing_class=tokenizer)",
        f'  File "{SITE}/huggingface_hub/utils/_deprecation.py", line 101, in inner_f',
        "    return f(*args, **kwargs)",
        "TypeError: DPOTrainer.__init__() got an unexpected keyword argument 'processing_class'",
    )
    assert "huggingface-hub" not in finding.title


def test_module_name_on_two_lines_is_joined(triage_lines):
    """A module's name that is broken into two lines is looked up as one name."""
    lines = [
        "ImportError: cannot import name 'FPQuantConfig' from 'transformers.utils.quantiz",
        "ation_config' (/x)",
    ]
    (finding,) = findings(triage_lines, "CMP906", *lines)
    assert finding.title.startswith(
        "transformers has transformers.utils.quantization_config.FPQuantConfig from"
    )


@pytest.mark.parametrize(
    ("code", "lines", "text"),
    [
        (  # a development build between two releases; unsloth's class stands in for vLLM's
            "CMP906",
            [
                "    vllm 0.22.1.dev3  (main)",
                "AttributeError: 'LRUCacheWorkerLoRAManager' object has no attribute 'get_dummy_lora_warmup_rank'",
            ],
            "vllm 0.22.1.dev3 has it, so unsloth-zoo's class of that name was called",
        ),
        (  # a lower bound in prose decides the side
            "CMP906",
            [
                "It broke when I moved to vllm >= 0.18.0",
                "ImportError: cannot import name 'Fp8LinearOp' from"
                " 'vllm.model_executor.layers.quantization.utils.w8a8_utils'",
            ],
            "So the one in use is too new",
        ),
        (
            "CMP906",
            [
                "vllm\uff1a0.8.4",
                "ModuleNotFoundError: No module named 'vllm.model_executor.model_loader.bitsandbytes_loader'",
            ],
            "The installed vllm 0.8.4 is too old.",
        ),
        (  # both sides are open: each with its condition and its change
            "CMP906",
            ["ModuleNotFoundError: No module named 'vllm.lora.models'"],
            "If the one in use is from 0.13.0 on, take vllm<=0.12.0.",
        ),
        (  # a release must have each attribute that the log shows missing
            "CMP906",
            [
                "AttributeError: 'ToolGRPOTrainer' object has no attribute 'llm'",
                "AttributeError: 'ToolGRPOTrainer' object has no attribute 'sampling_params'",
            ],
            "from 0.14.0 to 0.15.2. So the one in use is too new",
        ),
        (  # IPython's form of a decorator's frame
            "CMP906",
            [
                "File ~/env/lib/python3.11/site-packages/transformers/utils/deprecation.py:165, in"
                " deprecate_kwarg.<locals>.wrapper.<locals>.wrapped_func(*args, **kwargs)",
                "--> 165 return func(*args, **kwargs)",
                "TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'dataset_text_field'",
            ],
            "SFTTrainer(dataset_text_field=). Pass it in SFTConfig",
        ),
        (  # `apply` of an autograd function takes no keyword
            "CMP906",
            ["TypeError: liger_fused_linear_cross_entropy() got an unexpected keyword argument 'use_cache'"],
            "No liger-kernel from",
        ),
        (  # the closing quote is missing, and other text follows
            "CMP906",
            [
                "ImportError: cannot import name 'flash_attn_supports_top_left_mask' from"
                " 'transformers.modeling_flash_attention_utils",
                "",
                "dpo training fails",
            ],
            "from 4.51.0 on. The one in use is older.",
        ),
        (
            "CMP906",
            ["Exception: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'"],
            "from 2.1.0 to 2.3.1",
        ),
        (
            "CMP906",
            ["\u62a5\u9519cannot import name 'EncoderDecoderCache' from 'transformers'", "--beta 0.5"],
            "from 4.43.0 on",
        ),
        (
            "CMP904",
            [
                "ValueError: vllm version 0.10.0 not supported. Currently supported versions are 0.5.4 and 0.6.3."
            ],
            "requires vllm==0.6.3, found 0.10.0",
        ),
        (
            "CMP904",
            [
                "ImportError: flash_attn package version must be greater or equal than 2.2.0. Detected version 2.0.1."
            ],
            "requires flash-attn>=2.2.0, found 2.0.1",
        ),
        (
            "CMP904",
            ["gradio==5.1.0 (needs starlette<1.0) and instrumentator==8.0 (needs starlette>=1.0)"],
            "gradio 5.1.0 requires starlette<1.0; instrumentator 8.0 requires starlette>=1.0.",
        ),
    ],
)
def test_release_or_requirement_in_words_of_people_is_read(triage_lines, code, lines, text):
    (finding,) = findings(triage_lines, code, *lines)
    assert text in finding.title


def test_change_that_the_log_shows_as_refused_is_not_proposed(triage_lines):
    """The model type needs a release that another line of the log refuses: neither release is installed again."""
    lines = (
        "ValueError: The checkpoint has model type `qwen2_5_vl` but Transformers does not recognize this architecture.",
        "ImportError: transformers>=4.41.2,<=4.48.1 ,!=4.48.0 is required for a normal functioning of this module, but"
        " found transformers==4.49.0.",
    )
    (missing,) = findings(triage_lines, "CMP906", *lines)
    (refusal,) = findings(triage_lines, "CMP904", *lines)
    assert "requires transformers<=4.48.1" in fix_text(missing.remedy)
    assert not commands_of(missing.remedy.actions)
    assert refusal.remedy is None
