"""What is said over REST: questions, answers and refusals, checked on the way in, and in the OpenAPI schema."""

from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, Strict, create_model, model_validator

from lipscale.data import Column, Preprocessing

MOST_EPSILONS = 101
LONGEST_TEXT = 1000
Number = Annotated[float, AllowInfNan(False), Strict()]
Size = Annotated[Number, Field(ge=0, le=1e9)]
Png = Annotated[str, Field(description="A PNG, base64.", json_schema_extra={"contentEncoding": "base64"})]


class Asked(BaseModel):
    """A question; the first thing in it that it does not know of is refused (pydantic would list a million of them)."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        unknown = (name for name in given if name not in cls.model_fields) if isinstance(given, dict) else iter(())
        if (first := next(unknown, None)) is not None:
            raise ValueError(f"expected {', '.join(cls.model_fields)}, got {first[:40]!r}")
        return given


class Refusal(BaseModel):
    """Why there is no answer, in one sentence."""

    detail: str


class Chance(BaseModel):
    """A class, its probability, and the range in which that stays for changes up to each epsilon, where it is told."""

    label: str
    probability: float
    lowest: list[float] = []
    highest: list[float] = []


class Change(BaseModel):
    """A picture that was changed, what was done to it (magnified, grey is no change), and by how much in l2 norm."""

    picture: Png
    difference: Png
    magnified: float = Field(description="How many times the difference is magnified.")
    size: float


class Room(BaseModel):
    """A number of a row: its value, and how far it may move by itself, in its own units, until the class could change.

    null stands for a missing number, and for one that may move as it likes.
    """

    name: str
    value: float | None
    radius: float | None


class Move(BaseModel):
    """Where an attack moved a number of a row."""

    name: str
    before: float
    after: float


class Answer(BaseModel):
    """What a run says of an input, and what is proven about it."""

    label: str
    probability: float
    radius: float | None = Field(description="No smaller change, in l2 norm, changes the class; null: none whatever.")
    unit: str
    epsilons: list[float] = Field(description="The sizes of changes for which ranges of probabilities are told.")
    classes: list[Chance] = Field(description="All classes, the most probable first; ranges of the first ten.")
    seen: Png | None = Field(None, description="The picture as the network sees it.")
    random: Change | None = Field(None, description="A random change of exactly the radius.")
    steepest: Change | None = Field(None, description="A change of exactly the radius towards the next class.")
    columns: list[Room] = Field([], description="Of a row: how far each number may move.")
    outside: list[str] = Field([], description="Columns far outside of what training saw: the answer means little.")


class Attacked(BaseModel):
    """What an attack did: PGD, within epsilon of the input."""

    changed: bool = Field(description="Whether it found another class.")
    certified: bool = Field(description="Whether epsilon is below the certified radius: then it cannot.")
    label: str = Field(description="The class at the point that it found.")
    distance: float = Field(description="The l2 distance of that point from the input.")
    probability: float = Field(description="What is left there of the probability of the class at the input.")
    classes: list[Chance]
    change: Change | None = None
    columns: list[Move] = []


class Shown(BaseModel):
    """A number with its name, and what to hold it against."""

    name: str
    value: str
    note: str


class FormField(BaseModel):
    """A column of a table, for forms."""

    name: str
    kind: Literal["number", "date", "category"]
    categories: list[str] = []
    typical: float | str | None = None
    least: float | None = None
    largest: float | None = None


class About(BaseModel):
    """What is served."""

    name: str
    verdict: str
    tone: Literal["good", "bad", "open"]
    numbers: list[Shown]
    classes: list[str]
    unit: str
    certified: bool
    bound: float | None = Field(description="The proven Lipschitz constant.")
    input: Literal["picture", "row"]
    shape: list[int]
    columns: list[FormField] = Field([], description="Of a table.")
    epsilons: list[float] = Field(description="The sizes of changes that the run was made for.")
    largest_body: int = Field(description="Bytes of a request, at most.")
    version: str


class Sample(BaseModel):
    """A test sample to try, and its true class."""

    truth: str
    picture: Png | None = None
    row: dict[str, float | str | None] | list[float] | None = None


def question_models(done: Preprocessing) -> tuple[type[Asked], type[Asked]]:
    """What may be asked of a run: to predict and to attack, each with one input of its kind."""
    what = _row_field(done) if len(done.input_shape) == 1 else _picture_field()
    epsilons = Annotated[list[Size], Len(1, MOST_EPSILONS)] | None
    about = "Sizes of changes for which to tell ranges of probabilities; left out, some up to beyond the radius."
    predict: Any = create_model("Question", __base__=Asked, **what, epsilons=(epsilons, Field(None, description=about)))
    size = Annotated[Size, Field(gt=0, description="How large a change the attack may make, in l2 norm.")]
    attack: Any = create_model("Attack", __base__=Asked, **what, epsilon=(size, ...))
    return predict, attack


def _picture_field() -> dict[str, Any]:
    about = "A picture file (PNG, JPEG, WEBP, BMP, GIF, TIFF, PPM), base64."
    kind = Field(description=about, min_length=1, json_schema_extra={"contentEncoding": "base64"})
    return {"picture": (Annotated[str, Strict(), kind], ...)}


def _row_field(done: Preprocessing) -> dict[str, Any]:
    """A row by the names of its columns, or, where the run was trained on arrays, a list of numbers."""
    count = len(done.column_mean)
    if not done.columns:
        return {"row": (Annotated[list[Number], Len(count, count)], Field(description="Raw numbers, in their order."))}
    fields: Any = {f"column_{i}": _cell(column) for i, column in enumerate(done.columns)}
    row = create_model("Row", __config__=ConfigDict(extra="ignore"), **fields)
    return {"row": (row, Field(description="Raw values as they stand in files; null where one is missing."))}


def _cell(column: Column) -> tuple[Any, Any]:
    kind: Any = Number
    about = "A number."
    if column.dates:
        form = "" if column.dates == "iso" else f", or as {column.dates}"
        kind, about = Annotated[str, Field(max_length=LONGEST_TEXT)], f"A date, such as 2024-01-31{form}."
    elif column.categories and not column.other:
        kind, about = Literal[column.categories], "A category."
    elif column.categories:
        kind, about = Annotated[str, Field(max_length=LONGEST_TEXT)], "A category; others than the known ones are one."
    return kind | None, Field(alias=column.name, description=about)
