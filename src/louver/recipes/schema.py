"""What a recipe says: typed, closed, printed back resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from louver.compression import DistillOptions, QuantizeOptions
from louver.encoders.extend import DEFAULT_PATTERN
from louver.errors import RecipeError, unknown
from louver.training import TrainingOptions


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSpec(_Closed):
    """Labelled rows and how they are split."""

    path: str
    text: str = "text"
    label: str = "label"
    split: str = ""
    """Column that names train, validation and test."""
    by: Literal["random", "group", "date"] = "random"
    """How missing parts are cut from training."""
    group: str = ""
    date: str = ""
    labels: Literal["auto", "names", "numbers"] = "auto"
    shares: tuple[float, float] = (0.15, 0.15)
    """Validation and test, as shares."""
    drop: list[str] = []
    """Faults to drop instead of refusing: duplicates, empty, rare, unseen."""
    limits: dict[Literal["train", "validation", "test"], PositiveInt] = {}
    """Use the first so many shuffled rows of a part."""

    @model_validator(mode="after")
    def _column_fits_split(self) -> DataSpec:
        wanted = "group" if self.group else "date" if self.date else "random"
        if self.group and self.date:
            raise ValueError("give group or date, not both")
        if min(self.shares) <= 0 or sum(self.shares) >= 1:
            raise ValueError(f"shares must be positive and leave training some, got {self.shares}")
        if self.by != wanted:
            raise ValueError(f"by must be {wanted!r} for the columns given, got {self.by!r}")
        return self


class ExtendOptions(_Closed):
    """Settings of `louver.extend`."""

    max_length: int = Field(4096, ge=8)
    pattern: str = DEFAULT_PATTERN
    short: Literal["unchanged", "same"] = "unchanged"
    pooling: Literal["cls", "mean"] | None = None
    prompt: str = ""
    cleaning: Literal["none", "light"] = "none"
    positions: Literal["auto", "tile", "interpolate", "sinusoidal", "ntk", "yarn"] = "auto"
    override: bool = False


class ExportOptions(_Closed):
    """Settings of `louver.export`; there are none yet."""


class Step(_Closed):
    """One step: exactly one of the verbs."""

    extend: ExtendOptions | None = None
    finetune: TrainingOptions | None = None
    distill: DistillOptions | None = None
    export: ExportOptions | None = None
    quantize: QuantizeOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_means_defaults(cls, value: Any) -> Any:
        if isinstance(value, str):  # "- export" and "- export: {}" say the same
            return {value: {}}
        return {k: {} if v is None else v for k, v in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> Step:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"a step has exactly one verb, got {sorted(self.model_fields_set) or 'none'}")
        return self

    @property
    def verb(self) -> str:
        """The step's verb."""
        return next(iter(self.model_fields_set))

    @property
    def options(self) -> BaseModel:
        """The verb's settings."""
        found: BaseModel = getattr(self, self.verb)
        return found


class BaselineSpec(_Closed):
    """One baseline on transformers with SDPA."""

    kind: Literal["truncated", "windows", "dense"]
    train: bool = False
    """Of ``dense``: train dense weights of its own (hours on a CPU) instead of running the long bundle's densely."""
    batch_size: int = Field(8, ge=1)


class MeasureSpec(_Closed):
    """What the report times."""

    documents: int = Field(8, ge=1)
    """Test texts given at once, for documents/s."""
    rounds: int = Field(3, ge=1)
    """Turns of every contender."""


class Recipe(_Closed):
    """The whole way from a checkpoint to a report."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    model: str
    """A transformers directory or a hub name."""
    data: DataSpec
    metric: str | None = None
    seed: int = 0
    max_drop: float = Field(0.02, ge=0, lt=1)
    """Largest relative drop on validation from the fine-tuned bundle, for every later step."""
    steps: list[Step] = Field(min_length=1)
    baselines: list[BaselineSpec] = []
    measure: MeasureSpec = MeasureSpec()

    @model_validator(mode="after")
    def _steps_fit_together(self) -> Recipe:
        verbs = [step.verb for step in self.steps]
        if verbs[0] != "extend" or verbs.count("extend") > 1:
            raise ValueError("steps begin with the one extend; write '- extend: {}' first, and only there")
        if "finetune" not in verbs:
            raise ValueError("steps need a finetune to have something to score; add '- finetune: {}'")
        for number, verb in enumerate(verbs):
            before = verbs[:number]
            if verb == "distill" and "finetune" not in before:
                raise ValueError("distill needs a teacher; put finetune before it")
            if verb in ("finetune", "distill") and "export" in before:
                raise ValueError(f"{verb} cannot train exported graphs; put it before export")
            if verb == "quantize" and "export" not in before:
                raise ValueError("quantize works on exported graphs; put export before it")
            if verb in ("export", "quantize") and verb in before:
                raise ValueError(f"{verb} twice would change nothing; leave one out")
        return self

    def to_yaml(self) -> str:
        """Return the recipe with every default written out."""
        raw = self.model_dump(mode="json", exclude={"steps"})
        raw["steps"] = [{step.verb: step.options.model_dump(mode="json")} for step in self.steps]
        return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from YAML.

    Raises:
        RecipeError: with the path of the first thing that is wrong.
    """
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"{file} is not a file; give a recipe in YAML, such as recipes/demo.yaml")
    try:
        raw = yaml.safe_load(file.read_text("utf8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = _path(first["loc"])
        if first["type"] == "extra_forbidden":
            *home, key = first["loc"]
            at = f", {_path(tuple(home))}" if home else ""
            raise RecipeError(f"{file}{at}: {unknown('key', key, _keys_at(tuple(home)))}") from error
        raise RecipeError(f"{file}: {where or 'the recipe'}: {first['msg']}, got {first['input']!r:.80}") from error


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the model at a location knows."""
    homes: dict[str, type[BaseModel]] = {
        "data": DataSpec,
        "measure": MeasureSpec,
        "baselines": BaselineSpec,
        "steps": Step,
        "extend": ExtendOptions,
        "finetune": TrainingOptions,
        "distill": DistillOptions,
        "export": ExportOptions,
        "quantize": QuantizeOptions,
    }
    names = [part for part in location if isinstance(part, str)]
    return list(homes.get(names[-1], Recipe).model_fields) if names else list(Recipe.model_fields)
