"""`triage` explains missing names in wrapped and pasted tracebacks, and requirements that pip or uv reports."""

import pytest

from diagnostics.fixes import fix_text
from diagnostics.triage.report import report


def findings(triage_lines, code, *lines):
    """Return the findings with a code in the report on these lines."""
    return [finding for finding in report(triage_lines(*lines), ["a.log"]).findings if finding.code == code]


PEFT = "/opt/env/lib/python3.12/site-packages/peft/peft_model.py"


@pytest.mark.parametrize(
    "lines",
    [
        [
            "Traceback (most recent call last):",
            f'  File "{PEFT}", line 37, in <module>',
            "    from transformers import HybridCache",
            "ImportError: cannot import name 'HybridCache' from",
            "'transformers' (/opt/env/lib/python3.12/site-packages/transformers/__init__.py)",
        ],
        [
            "Traceback (most recent call last):",
            f'  File "{PEFT}", line 37, in <module>',
            "    from transformers import HybridCache",
            "ImportError: cannot import name 'Hybrid",
            "Cache' from 'transformers'",
        ],
        [
            f'File "{PEFT}", line 37, in <module>'.replace("/", "\\"),
            "    from transformers import HybridCache",
            "",
            "ImportError: cannot import name 'HybridCache' from 'transformers'",
        ],
        [
            "ImportError                               Traceback (most recent call last)",
            f"[{PEFT}](https://localhost:8080/#) in <module>",
            "---> 37 from transformers import HybridCache",
            "",
            "ImportError: cannot import name 'HybridCache' from 'transformers'",
        ],
    ],
    ids=["broken between words", "broken inside a name", "Windows, without indentation", "Colab"],
)
def test_caller_and_name_are_read_from_pasted_tracebacks(triage_lines, lines):
    """The name, the calling package and both possible changes are found however the traceback was pasted."""
    (finding,) = findings(triage_lines, "CMP906", *lines)
    assert "transformers.HybridCache from 4.46.1 to 4.57.6" in finding.title
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
def test_argument_that_vllm_passes_on_is_not_its_own(triage_lines, source, is_defect):
    """A last frame in the called package is the caller only if its source line has the argument."""
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'model_hf_config'"
    (finding,) = findings(triage_lines, "CMP906", *LLM_FRAMES, source, "                  ^^^^^^^^^^^", error)
    assert ("The call is in vllm itself" in finding.title) is is_defect


def test_message_after_its_wrapper_is_explained(triage_lines):
    """transformers prints the original message in the line after its own, without a traceback."""
    (finding,) = findings(
        triage_lines,
        "CMP906",
        "RuntimeError: Failed to import transformers.trainer because of the following error (look up):",
        "cannot import name 'EncoderDecoderCache' from 'transformers' (/opt/transformers/__init__.py)",
    )
    assert "transformers>=4.46.1" in fix_text(finding.remedy)


@pytest.mark.parametrize(
    ("line", "package", "version"),
    [
        ("- **vLLM version:** 0.13.0", "vllm", "0.13.0"),
        ("- PyTorch version: 2.5.1+cu121 (GPU)", "torch", "2.5.1+cu121"),
        ("transformers: 5.12.1", "transformers", "5.12.1"),
        ("I am using trl version 0.11.3 by pip installation.", "trl", "0.11.3"),
        ("UserWarning: TRL currently only supports vLLM version `0.10.2`. You have version 0.12.0 installed.",
         "vllm", "0.12.0"),
        ("vllm 0.6.3 requires torch==2.4.0, but you have torch 2.2.0 which is incompatible.", "torch", None),
        ("We recommend vLLM version: 0.10.2", "vllm", None),
    ],
)  # fmt: skip
def test_releases_are_read_from_reports_of_users(triage_lines, line, package, version):
    """Releases that a report names as installed are read, and required ones are not."""
    assert (
        triage_lines("Traceback (most recent call last):", line).versions.get(package, (None,))[0] == version
    )


CONFLICT = "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed."


def test_unmet_requirements_of_pip_are_one_command(triage_lines):
    """Requirements of the training stack that an installation breaks are joined into one command."""
    (finding,) = findings(
        triage_lines,
        "CMP904",
        CONFLICT,
        "tensordict 0.5.0 requires torch>=2.4.0, but you have torch 2.2.0 which is incompatible.",
        "vllm 0.6.3 requires torch==2.4.0, but you have torch 2.2.0 which is incompatible.",
        "vllm 0.6.3 requires transformers>=4.45.0, but you have transformers 4.40.1 which is incompatible.",
        "vllm 0.6.3 requires xformers, which is not installed.",
    )
    assert finding.title == "vllm 0.6.3 requires torch==2.4.0, found 2.2.0; and 2 more."
    assert "torch==2.4.0 transformers>=4.45.0 xformers" in fix_text(finding.remedy)


def test_pin_of_the_user_is_replaced_if_it_excludes_the_others(triage_lines):
    """If pip finds no solution with a requested release, the newest one that the other packages accept is named."""
    (finding,) = findings(
        triage_lines,
        "CMP904",
        "ERROR: Cannot install unsloth and trl==0.15.0 because these package versions have conflicting dependencies.",
        "The conflict is caused by:",
        "    The user requested trl==0.15.0",
        "    unsloth 2025.4.1 depends on trl!=0.15.0, !=0.9.0, <=0.15.2 and >=0.7.9",
    )
    assert "trl==0.15.2" in fix_text(finding.remedy)


def test_requirements_of_uv_are_compared(triage_lines):
    """Of uv's explanation the two requirements on one package are named, and the range that satisfies both."""
    (finding,) = findings(
        triage_lines,
        "CMP904",
        "  x No solution found when resolving dependencies:",
        "  ╰─▶ Because only trl==0.27.0.dev0 is available and trl==0.27.0.dev0 depends on transformers>=4.56.1, we can",
        "      and vllm==0.11.2 depends on transformers>=4.56.0,<5, we can conclude that both are incompatible.",
    )
    assert "vllm 0.11.2 requires transformers<5,>=4.56.0" in finding.title
    assert "transformers<5,>=4.56.0,>=4.56.1" in fix_text(finding.remedy)


def test_requirements_that_exclude_each_other_are_named(triage_lines):
    """If no release satisfies two packages, the fix says so and proposes no command."""
    (finding,) = findings(
        triage_lines,
        "CMP904",
        "    vllm 0.6.3 depends on torch==2.4.0",
        "    vllm-flash-attn 2.6.0 depends on torch==2.5.1",
    )
    assert fix_text(finding.remedy).startswith("No release satisfies all: vllm 0.6.3 requires torch==2.4.0")


def test_single_requirement_is_no_conflict(triage_lines):
    """A line that only states a requirement is not reported."""
    assert not findings(triage_lines, "CMP904", "    vllm 0.6.3 depends on torch==2.4.0", "step 1")


def test_what_the_log_proves_comes_before_a_generic_entry(triage_lines):
    """A skew that the index and the release in the log prove comes first."""
    banner = "INFO Initializing a V1 LLM engine (v0.10.0) with config"
    frame = '  File "/opt/env/lib/python3.12/site-packages/vllm/entrypoints/llm.py", line 200, in __init__'
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'device'"
    verdict = triage_lines(banner, "Traceback (most recent call last):", frame, error)
    assert [finding.code for finding in report(verdict, ["a.log"]).findings] == ["CMP906", "CMP022"]
