"""One report that several files look at."""

import pytest

from lipforge.auditing import audit
from tests.auditing.quick import PLAN, THREAT, small


@pytest.fixture(scope="session")
def report():
    model, data = small()
    return audit(model, data, THREAT, plan=PLAN)
