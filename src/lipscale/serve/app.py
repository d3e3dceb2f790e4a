"""The app: a page of our own and REST over one run. Nothing of a request names a file: pages are in memory."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from lipscale.errors import UserError
from lipscale.runs import Run
from lipscale.serve import attack, predict, schemas
from lipscale.serve.about import describe, some_samples
from lipscale.serve.limits import Guard, Limits
from lipscale.serve.served import Served

ATTACK_COST = 3.0  # requests that an attack counts for
ROW_BODY = 1 << 20  # bytes; no row is larger
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
REFUSALS: Any = {
    status: {"model": schemas.Refusal, "description": about}
    for status, about in {
        400: "No JSON.",
        403: "Another site, or another name of this machine.",
        413: "Too large.",
        422: "Nothing that the run can answer for.",
        429: "Too many requests.",
        503: "Busy.",
    }.items()
}


def create_app(
    run: Run,
    *,
    local: bool = True,
    limits: Limits | None = None,
    data_dir: Path | None = None,
    samples: bool = True,
) -> Guard:
    """The ASGI app that serves a run, its certificate made once, here.

    Args:
        run: A finished run.
        local: Whether it is served to this machine only: then requests for other host names are refused.
        limits: What one client may ask.
        data_dir: Where the data sets lie now, if not where they were.
        samples: Whether to offer test samples, where the run's data are at hand.

    Returns:
        The app, behind its limits.
    """
    served = Served.of(run)
    limits = limits or (Limits(body=ROW_BODY) if served.is_table else Limits())
    about = describe(served, largest_body=limits.body)
    app = FastAPI(
        title=f"lipscale serve: {about.name}",
        description="Classes with probabilities, certified radii, and attacks that try to break them.",
        version=about.version,
        docs_url=None,  # they come from other servers
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    _add_page(app)
    _add_facts(app, about, some_samples(run, data_dir) if samples else [])
    _add_questions(app, served)
    _add_refusals(app)
    return Guard(app, limits, local, {"/api/attack": ATTACK_COST})


def _add_page(app: FastAPI) -> None:
    look = (files("lipscale.report") / "page.css").read_text(encoding="utf-8")
    for kind, path in {"html": "/", "css": "/page.css", "js": "/page.js"}.items():
        text = (files("lipscale.serve") / f"page.{kind}").read_text(encoding="utf-8")
        page = Response(look + text if kind == "css" else text, media_type=TYPES[kind])
        app.get(path, include_in_schema=False)(lambda page=page: page)


def _add_facts(app: FastAPI, about: schemas.About, samples: list[schemas.Sample]) -> None:
    @app.get("/api/about", responses={429: REFUSALS[429]})
    def tell_about() -> schemas.About:
        """What is served: classes, unit, columns, and what the run is worth."""
        return about

    @app.get("/api/samples", responses={429: REFUSALS[429]})
    def tell_samples() -> list[schemas.Sample]:
        """Test samples to try; none where the run's data are not at hand."""
        return samples


def _add_questions(app: FastAPI, served: Served) -> None:
    def answer(question: Any) -> schemas.Answer:
        """Class, probabilities, certified radius, and the ranges in which probabilities stay for larger changes."""
        with served.alone:
            return predict.predict(served, question)

    def attacked(question: Any) -> schemas.Attacked:
        """Try to change the class with a change of at most epsilon, by PGD."""
        with served.alone:
            return attack.attack(served, question)

    paths = {"/api/predict": answer, "/api/attack": attacked}
    for (path, work), model in zip(paths.items(), schemas.question_models(served.run.preprocessing), strict=True):
        work.__annotations__["question"] = model  # what may be asked depends on the run
        app.post(path, responses=REFUSALS)(work)


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    def _unusable(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])[:200]
        said = first["msg"].removeprefix("Input ").removeprefix("Value error, ")[:400]
        if first["type"] == "json_invalid" or not isinstance(error.body, dict):
            said, place = "expected a JSON object (Content-Type: application/json)", ""
        return JSONResponse({"detail": f"{place}: {said}" if place else said}, 422)
