"""Whatever the OpenAPI schema allows, and much that it does not, is asked: nothing may break the server."""

from __future__ import annotations

import contextlib
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from tests.serving.conftest import Live

QUICK = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_no_request_breaks_the_server(live: Live) -> None:
    """Its plugin for pytest is left aside: it knows pytest 9 by the inside only."""
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    asked = []
    found: Any
    for found in schema.get_all_operations():
        operation = found.ok()
        asked.append(operation.label)
        for mode in GenerationMode:

            @QUICK
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                case.call_and_validate(checks=[not_a_server_error])

            with contextlib.suppress(Unsatisfiable):  # of a path without parameters nothing can be wrong
                ask()
    assert {"POST /answer", "POST /embed", "POST /v1/embeddings", "POST /v2/models/{name}/infer"} <= set(asked)
