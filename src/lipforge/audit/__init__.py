"""Is the gain real? Adaptive attacks on both sides, a checklist against masked gradients, and one verdict."""

from lipforge.audit.plan import Plan, audit_plan
from lipforge.audit.report import AuditReport, AuditRow, Check, Effort
from lipforge.audit.run import audit
from lipforge.audit.subjects import borrow
from lipforge.audit.verdict import Decision, Verdict, decide

__all__ = [
    "AuditReport",
    "AuditRow",
    "Check",
    "Decision",
    "Effort",
    "Plan",
    "Verdict",
    "audit",
    "audit_plan",
    "borrow",
    "decide",
]
