"""Is the gain real? Adaptive attacks on both sides, a checklist against masked gradients, and one verdict."""

from lipforge.auditing.pairs import borrow, classes_of
from lipforge.auditing.plan import Plan, audit_plan
from lipforge.auditing.run import audit
from lipforge.auditing.verdict import Decision, decide, prospects
