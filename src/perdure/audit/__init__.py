"""Examination of compiled graphs for faults that LangGraph accepts and threads suffer from later.

>>> from perdure.audit import audit
>>> print(audit(graph))
"""

from perdure.audit.checks import CHECKS, AuditCheck
from perdure.audit.examine import audit
from perdure.audit.findings import AuditFinding, AuditReport, Ignore

__all__ = ["CHECKS", "AuditCheck", "AuditFinding", "AuditReport", "Ignore", "audit"]
